// SentencePiece's precompiled_charsmap: what to write for a character or a short sequence of them.
//
// Layout: a 32-bit little-endian size in bytes, a double-array trie of so many bytes in 32-bit units, then
// the replacements, each ended by a zero byte. A leaf of the trie holds the offset of its replacement.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

class Charsmap {
 public:
  // Throws Error, naming `where`, if the trie does not fit in `bytes` or the replacements are not UTF-8.
  Charsmap(std::string_view bytes, const std::string& where);

  // `text` as `tokenizers` normalizes it: grapheme clusters of less than six bytes as a whole where the map
  // has something that they begin with, all else character by character.
  std::string apply(std::string_view text) const;

 private:
  // The replacement of the shortest string in the map that `chunk` begins with.
  std::optional<std::string_view> find(std::string_view chunk) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

// Decodes base64; nullopt if it is not.
std::optional<std::string> decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace narrows
