// GPT-2's alphabet, in which byte-level tokenizers write bytes as printable characters.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/utf8.h"

namespace narrows {

// Printable characters of Latin-1 stand for themselves, the other bytes for U+0100 and on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const unsigned code = printable ? byte : next++;
      byte_of_[code] = static_cast<std::int16_t>(byte);
      std::string& character = characters_[byte];
      if (code >= 0x80) character += static_cast<char>(0xC0 | code >> 6);
      character += static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3F));
    }
  }

  const std::string& character(unsigned char byte) const { return characters_[byte]; }

  // The bytes that a token is written for, or the spelling itself if it has a character that stands for no
  // byte.
  std::string decode(std::string_view spelling) const {
    std::string bytes;
    for (std::size_t i = 0; i < spelling.size();) {
      const auto at = [&](std::size_t k) { return static_cast<unsigned char>(spelling[k]); };
      const std::size_t length = utf8_sequence(spelling.substr(i));
      unsigned code = kCodes;
      if (length == 1) code = at(i);
      if (length == 2) code = (at(i) & 0x1Fu) << 6 | (at(i + 1) & 0x3Fu);
      if (code >= kCodes || byte_of_[code] < 0) return std::string(spelling);
      bytes += static_cast<char>(byte_of_[code]);
      i += length;
    }
    return bytes;
  }

 private:
  static constexpr unsigned kCodes = 0x144;  // 256 + the 68 bytes that are not printable
  std::array<std::string, 256> characters_;
  std::array<std::int16_t, kCodes> byte_of_ = [] {
    std::array<std::int16_t, kCodes> none{};
    none.fill(-1);
    return none;
  }();
};

inline const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace narrows
