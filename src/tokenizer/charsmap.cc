#include "tokenizer/charsmap.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

std::uint32_t read_u32(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(bytes[i])}; };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

// The fields of a unit of the double array.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7FFFFFFF; }
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000FF; }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  if (bytes.size() < 4) fail("{}: expected a size of 4 bytes, found {} bytes", where, bytes.size());
  const std::size_t size = read_u32(bytes);
  bytes.remove_prefix(4);
  if (size > bytes.size() || size % 4 != 0 || size == 0) {
    fail("{}: expected a trie of at most {} bytes in units of 4, found one of {}", where, bytes.size(), size);
  }
  for (std::size_t i = 0; i < size; i += 4) units_.push_back(read_u32(bytes.substr(i)));
  replacements_ = bytes.substr(size);
  if (!is_valid_utf8(replacements_)) fail("{}: expected replacements in UTF-8", where);
}

std::optional<std::string_view> Charsmap::find(std::string_view chunk) const {
  std::size_t node = offset(units_[0]);
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) break;
    const bool leaf = has_leaf(units_[node]);
    node ^= offset(units_[node]);
    if (!leaf) continue;
    if (node >= units_.size() || value(units_[node]) > replacements_.size()) break;
    const std::string_view rest = std::string_view(replacements_).substr(value(units_[node]));
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

std::string Charsmap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view grapheme = text.substr(0, grapheme_length(text));
    text.remove_prefix(grapheme.size());
    constexpr std::size_t kShort = 6;
    if (grapheme.size() < kShort) {
      if (const auto found = find(grapheme)) {
        out += *found;
        continue;
      }
    }
    for (std::size_t i = 0; i < grapheme.size();) {
      const std::string_view character = grapheme.substr(i, utf8_sequence(grapheme.substr(i)));
      out += find(character).value_or(character);
      i += character.size();
    }
  }
  // An offset into the middle of a character is possible in a broken map.
  if (is_valid_utf8(out)) return out;
  std::string valid;
  append_valid_utf8(out, valid);
  return valid;
}

std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return count == 6 ? std::nullopt : std::optional(out);
}

std::string encode_base64(std::string_view bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (k < group.size() ? static_cast<unsigned char>(group[k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += k <= group.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace narrows
