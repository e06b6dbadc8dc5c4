// Python's view of text over UTF-8 bytes: code points, whitespace, case.
//
// Any bytes are accepted: a byte that is not part of a valid UTF-8 sequence counts as one character and is
// kept.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace narrows::jinja {

// Bytes of the character at text[at], at least 1; `at` < text.size().
std::size_t char_bytes(std::string_view text, std::size_t at);

// The code point of one character; a stray byte b gives 0xDC00 + b, a surrogate that no valid text holds.
std::uint32_t code_point(std::string_view character);

void append_code_point(std::string& out, std::uint32_t code);  // code ≤ 0x10FFFF

std::size_t count_chars(std::string_view text);

template <typename Visit>
void each_char(std::string_view text, Visit visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = char_bytes(text, at);
    visit(text.substr(at, length));
    at += length;
  }
}

// The byte offset of character `index`; text.size() if there are no more than `index` characters.
std::size_t byte_offset(std::string_view text, std::size_t index);

bool is_space(std::uint32_t code);  // str.isspace of one character

// Offset of `needle` in `text` at or after `from`, in time linear in both sizes; npos if absent.
std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from = 0);

// Strips whitespace, or the characters of *chars, from the chosen ends.
std::string_view strip(std::string_view text, const std::string_view* chars, bool left, bool right);

// One-to-one case mappings, and ß to SS.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_case(std::string_view text);  // str.title: words are runs of letters

enum class CharClass { Alpha, Alnum, Digit, Space, Upper, Lower };
bool all_of_class(std::string_view text, CharClass which);  // str.isalpha and its kin; false for ""

}  // namespace narrows::jinja
