// The 6-bit scales and minima of Q4_K and Q5_K: eight pairs in twelve bytes.
//
//   bytes 0..3   low six bits: scales 0..3;  top two: bits 4..5 of scales 4..7
//   bytes 4..7   low six bits: minima 0..3;  top two: bits 4..5 of minima 4..7
//   bytes 8..11  low nibble: scales 4..7;    high nibble: minima 4..7
#pragma once
#include <cstdint>

namespace narrows {

struct KScales {
  std::uint8_t scale[8], min[8];
};

inline KScales unpack_k_scales(const std::uint8_t* packed) {
  KScales s{};
  for (int i = 0; i < 4; ++i) {
    const int a = packed[i], b = packed[4 + i], c = packed[8 + i];
    s.scale[i] = static_cast<std::uint8_t>(a & 63);
    s.min[i] = static_cast<std::uint8_t>(b & 63);
    s.scale[4 + i] = static_cast<std::uint8_t>((c & 15) | (a >> 6) << 4);
    s.min[4 + i] = static_cast<std::uint8_t>(c >> 4 | (b >> 6) << 4);
  }
  return s;
}

inline void pack_k_scales(const KScales& s, std::uint8_t* packed) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<std::uint8_t>(s.scale[i] | (s.scale[4 + i] >> 4) << 6);
    packed[4 + i] = static_cast<std::uint8_t>(s.min[i] | (s.min[4 + i] >> 4) << 6);
    packed[8 + i] = static_cast<std::uint8_t>((s.scale[4 + i] & 15) | (s.min[4 + i] & 15) << 4);
  }
}

}  // namespace narrows
