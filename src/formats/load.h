// Unaligned loads and stores of little-endian values.
#pragma once
#include <bit>
#include <cstring>

namespace narrows {

static_assert(std::endian::native == std::endian::little,
              "narrows reads and writes little-endian files in place");

template <typename T>
T load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
void store(void* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

}  // namespace narrows
