#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "tokenizer/onig_regex.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

}  // namespace

void append_utf8(char32_t code, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  if (c < 0x80) return false;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_ME;
}

bool is_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  // utf8proc does not tell what is Alphabetic.
  static const OnigRegex word("[\\w]", "[\\w]");  // in brackets: outside \w has more
  std::string text;
  append_utf8(c, text);
  bool found = false;
  word.matches(text, [&](std::size_t, std::size_t) { found = true; });
  return found;
}

void append_lower(char32_t c, std::string& out) {
  if (c == 0x130) {  // İ, the one character whose lower case is two
    out += "i\xCC\x87";
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

std::string normalize(std::string_view text, bool compose, bool compatibility) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  const int options = UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_sequence(text.substr(i));
    const auto code = static_cast<utf8proc_int32_t>(decode_utf8(text.substr(i), length));
    i += length;
    constexpr std::size_t kLongest = 32;  // no character decomposes into more than 18
    utf8proc_int32_t parts[kLongest];
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(code, parts, kLongest, static_cast<utf8proc_option_t>(options), &boundary);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(kLongest)) {
      codes.push_back(code);
    } else {
      codes.insert(codes.end(), parts, parts + count);
    }
  }
  // Canonical order. utf8proc's own sorting takes quadratic time on long runs of marks.
  for (std::size_t begin = 0; begin < codes.size();) {
    const auto class_of = [](utf8proc_int32_t c) { return combining_class(static_cast<char32_t>(c)); };
    if (class_of(codes[begin]) == 0) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < codes.size() && class_of(codes[end]) != 0) ++end;
    std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(begin),
                     codes.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](auto a, auto b) { return class_of(a) < class_of(b); });
    begin = end;
  }
  auto count = static_cast<utf8proc_ssize_t>(codes.size());
  if (compose) {
    count = utf8proc_normalize_utf32(codes.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    if (count < 0)
      fail("text of {} bytes: utf8proc cannot normalize it: {}", text.size(), utf8proc_errmsg(count));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(static_cast<char32_t>(codes[static_cast<std::size_t>(i)]), out);
  return out;
}

std::size_t grapheme_length(std::string_view text) {
  std::size_t length = utf8_sequence(text);
  auto previous = static_cast<utf8proc_int32_t>(decode_utf8(text, length));
  utf8proc_int32_t state = 0;
  while (length < text.size()) {
    const std::string_view rest = text.substr(length);
    const std::size_t next = utf8_sequence(rest);
    const auto code = static_cast<utf8proc_int32_t>(decode_utf8(rest, next));
    if (utf8proc_grapheme_break_stateful(previous, code, &state)) break;
    length += next;
    previous = code;
  }
  return length;
}

}  // namespace narrows
