// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace narrows {

// Length of the valid sequence that `text` (not empty) starts with; 0 if it starts with none.
inline std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
  const bool too_high = lead == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || too_high ? 0 : length;
}

// Appends `text`, each byte that is not part of a valid sequence replaced by U+FFFD, to `out`.
inline void append_valid_utf8(std::string_view text, std::string& out) {
  while (!text.empty()) {
    std::size_t valid = 0;
    while (valid < text.size()) {
      const std::size_t length = utf8_sequence(text.substr(valid));
      if (length == 0) break;
      valid += length;
    }
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (!text.empty()) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
    }
  }
}

inline bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace narrows
