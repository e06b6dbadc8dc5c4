// What reader and writer of GGUF share.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "formats/gguf.h"

namespace narrows::gguf {

inline constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
inline constexpr std::uint32_t kMagicSwapped =
    0x47475546;  // the same, written by a big-endian machine as a number
inline constexpr std::uint32_t kDefaultAlignment = 32, kLeastAlignment = 8;
inline constexpr std::size_t kLongestKey = 65535;  // the specification's limits, in bytes
inline constexpr std::size_t kLongestTensorName = 64;

// The next multiple of `alignment`, a power of two.
inline std::uint64_t align(std::uint64_t offset, std::uint64_t alignment) {
  return (offset + alignment - 1) & ~(alignment - 1);
}

// Checks the shape for the type and fills in `bytes`. Errors begin with `where`.
void set_bytes(GgufTensor& tensor, const std::string& where);

// "u32", "string", …, for messages.
std::string_view type_name(GgufType type);

// A name from a file, fit for a one-line message: control characters escaped, cut after some 100 bytes.
std::string printable(std::string_view name);

}  // namespace narrows::gguf
