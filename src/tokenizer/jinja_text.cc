#include "tokenizer/jinja_text.h"

#include <utf8proc.h>

#include <vector>

namespace narrows::jinja {
namespace {

bool is_continuation(std::string_view text, std::size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

utf8proc_category_t category(std::uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_alpha(std::uint32_t code) {
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_cased(std::uint32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

bool is_stray(std::uint32_t code) { return code >= 0xDC00 && code <= 0xDCFF; }

void append_upper(std::string& out, std::string_view character) {
  const std::uint32_t code = code_point(character);
  if (code == 0xDF) {
    out += "SS";
  } else if (is_stray(code)) {
    out += character;
  } else {
    append_code_point(out, static_cast<std::uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_lower(std::string& out, std::string_view character) {
  const std::uint32_t code = code_point(character);
  if (is_stray(code)) {
    out += character;
  } else {
    append_code_point(out, static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

}  // namespace

std::size_t char_bytes(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0xC2 || lead > 0xF4) return 1;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text, at + i)) return 1;
  }
  const auto second = static_cast<unsigned char>(text[at + 1]);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool outside = (lead == 0xED && second > 0x9F) || (lead == 0xF4 && second > 0x8F);
  return overlong || outside ? 1 : length;
}

std::uint32_t code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(character[i]));
  };
  switch (character.size()) {
    case 1:
      return byte(0) < 0x80 ? byte(0) : 0xDC00 + byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

void append_code_point(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::size_t count_chars(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += char_bytes(text, at)) ++count;
  return count;
}

std::size_t byte_offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += char_bytes(text, at);
  return at;
}

bool is_space(std::uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from) {
  constexpr std::size_t kShort = 32;  // up to here the library's quadratic search costs no more
  if (needle.size() <= kShort) return text.find(needle, from);
  // Knuth, Morris and Pratt: border[i] is the longest proper border of the first i + 1 bytes.
  std::vector<std::size_t> border(needle.size(), 0);
  for (std::size_t i = 1, k = 0; i < needle.size(); ++i) {
    while (k > 0 && needle[i] != needle[k]) k = border[k - 1];
    if (needle[i] == needle[k]) ++k;
    border[i] = k;
  }
  for (std::size_t i = from, k = 0; i < text.size(); ++i) {
    while (k > 0 && text[i] != needle[k]) k = border[k - 1];
    if (text[i] == needle[k]) ++k;
    if (k == needle.size()) return i + 1 - k;
  }
  return std::string_view::npos;
}

std::string_view strip(std::string_view text, const std::string_view* chars, bool left, bool right) {
  const auto stripped = [&](std::string_view c) {
    return chars ? chars->find(c) != std::string_view::npos : is_space(code_point(c));
  };
  while (left && !text.empty()) {
    const std::size_t length = char_bytes(text, 0);
    if (!stripped(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && text.size() - at < 4 && is_continuation(text, at)) --at;
    if (at + char_bytes(text, at) != text.size()) at = text.size() - 1;
    if (!stripped(text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::string to_upper(std::string_view text) {
  std::string out;
  each_char(text, [&](std::string_view c) { append_upper(out, c); });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  each_char(text, [&](std::string_view c) { append_lower(out, c); });
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t first = char_bytes(text, 0);
  std::string out;
  if (code_point(text.substr(0, first)) == 0xDF) {
    out = "Ss";
  } else {
    append_upper(out, text.substr(0, first));
  }
  return out + to_lower(text.substr(first));
}

std::string title_case(std::string_view text) {
  std::string out;
  bool inside = false;
  each_char(text, [&](std::string_view c) {
    if (inside) {
      append_lower(out, c);
    } else {
      append_upper(out, c);
    }
    inside = is_cased(code_point(c));
  });
  return out;
}

bool all_of_class(std::string_view text, CharClass which) {
  bool all = !text.empty(), any_cased = false;
  each_char(text, [&](std::string_view c) {
    const std::uint32_t code = code_point(c);
    const auto kind = category(code);
    any_cased = any_cased || is_cased(code);
    switch (which) {
      case CharClass::Alpha:
        all = all && is_alpha(code);
        break;
      case CharClass::Alnum:
        all = all && (is_alpha(code) || (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO));
        break;
      case CharClass::Digit:
        all = all && kind == UTF8PROC_CATEGORY_ND;
        break;
      case CharClass::Space:
        all = all && is_space(code);
        break;
      case CharClass::Upper:
        all = all && (!is_cased(code) || kind == UTF8PROC_CATEGORY_LU);
        break;
      case CharClass::Lower:
        all = all && (!is_cased(code) || kind == UTF8PROC_CATEGORY_LL);
        break;
    }
  });
  return all && (any_cased || (which != CharClass::Upper && which != CharClass::Lower));
}

}  // namespace narrows::jinja
