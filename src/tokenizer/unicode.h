// Properties of characters and the four normalization forms, by utf8proc.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace narrows {

// The code point of the valid sequence that `text` begins with, of which `length` bytes are the sequence.
inline char32_t decode_utf8(std::string_view text, std::size_t length) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (length == 1) return byte(0);
  char32_t code = byte(0) & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3Fu);
  return code;
}

void append_utf8(char32_t code, std::string& out);

bool is_white_space(char32_t c);                  // White_Space
bool is_numeric(char32_t c);                      // Nd, Nl, No
bool is_punctuation(char32_t c);                  // P, and ASCII's symbols
bool is_mark(char32_t c);                         // Mn, Mc, Me
bool is_word(char32_t c);                         // Alphabetic, M, Nd, Pc, Join_Control
void append_lower(char32_t c, std::string& out);  // its lower case, which may be two characters

// Normalizes `text`, which must be valid UTF-8. Linear but for the order of long runs of marks, n log n.
std::string normalize(std::string_view text, bool compose, bool compatibility);

// Length in bytes of the extended grapheme cluster that `text` (valid, not empty) begins with.
std::size_t grapheme_length(std::string_view text);

}  // namespace narrows
