// What a row of a block quantized matrix holds for 32 columns: unsigned codes, and what scales them.
#pragma once
#include <cstdint>
#include <cstring>

#include "formats/dtype.h"

namespace narrows {

using Byte = std::uint8_t;

inline std::uint16_t u16_at(const Byte* p) {
  std::uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

struct Block {
  Byte codes[32];
  Byte scales[2] = {0, 0};  // of 32 or two times 16 columns; signed where weights have no minimum
  Byte minima[2] = {0, 0};
  std::uint16_t d = 0, dmin = 0;  // f16, of the whole block
};

inline void nibbles(const Byte* packed, Byte* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = packed[i] & 15;
    codes[i + 16] = packed[i] >> 4;
  }
}

inline void fifth_bits(const Byte* bits, Byte* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<Byte>((bits[i / 8] >> (i % 8) & 1) << 4);
}

// The 6-bit scale and minimum of sub-block j (0…7) from the 12 bytes of Q4_K and Q5_K.
inline void scale_min_k4(const Byte* p, int j, Byte& scale, Byte& minimum) {
  if (j < 4) {
    scale = p[j] & 63;
    minimum = p[j + 4] & 63;
  } else {
    scale = static_cast<Byte>((p[j + 4] & 15) | (p[j - 4] >> 6 << 4));
    minimum = static_cast<Byte>((p[j + 4] >> 4) | (p[j] >> 6 << 4));
  }
}

// The 6-bit scale of sub-block j (0…15) of Q3_K, less 32.
inline Byte scale_k3(const Byte* p, int j) {
  const int low = j < 8 ? p[j] & 15 : p[j - 8] >> 4;
  const int high = p[8 + j % 4] >> (2 * (j / 4)) & 3;
  return static_cast<Byte>(low | high << 4) - 32;
}

// Reads 32 columns: part `part` of the block at p. Inlined where the type is a constant: the switch vanishes.
[[gnu::always_inline]] inline Block read_block(DType dtype, const Byte* p, int part) {
  Block out;
  switch (dtype) {
    case DType::Q4_0:
    case DType::IQ4_NL:
      out.d = u16_at(p);
      nibbles(p + 2, out.codes);
      break;
    case DType::Q4_1:
      out.d = u16_at(p);
      out.dmin = u16_at(p + 2);
      nibbles(p + 4, out.codes);
      break;
    case DType::Q5_0:
      out.d = u16_at(p);
      nibbles(p + 6, out.codes);
      fifth_bits(p + 2, out.codes);
      break;
    case DType::Q5_1:
      out.d = u16_at(p);
      out.dmin = u16_at(p + 2);
      nibbles(p + 8, out.codes);
      fifth_bits(p + 4, out.codes);
      break;
    case DType::Q8_0:
      out.d = u16_at(p);
      for (int i = 0; i < 32; ++i) out.codes[i] = p[2 + i] ^ 0x80;  // signed to unsigned: + 128
      break;
    case DType::Q2_K:
      out.d = u16_at(p + 80);
      out.dmin = u16_at(p + 82);
      for (int i = 0; i < 32; ++i) out.codes[i] = p[16 + part / 4 * 32 + i] >> (2 * (part % 4)) & 3;
      for (int s = 0; s < 2; ++s) {
        out.scales[s] = p[2 * part + s] & 15;
        out.minima[s] = p[2 * part + s] >> 4;
      }
      break;
    case DType::Q3_K:
      out.d = u16_at(p + 108);
      for (int i = 0; i < 32; ++i)
        out.codes[i] =
            static_cast<Byte>((p[32 + part / 4 * 32 + i] >> (2 * (part % 4)) & 3) | (p[i] >> part & 1) << 2);
      for (int s = 0; s < 2; ++s) out.scales[s] = scale_k3(p + 96, 2 * part + s);
      break;
    case DType::Q4_K:
    case DType::Q5_K: {
      out.d = u16_at(p);
      out.dmin = u16_at(p + 2);
      scale_min_k4(p + 4, part, out.scales[0], out.minima[0]);
      const Byte* low = p + (dtype == DType::Q4_K ? 16 : 48) + part / 2 * 32;
      for (int i = 0; i < 32; ++i) out.codes[i] = low[i] >> (4 * (part % 2)) & 15;
      if (dtype == DType::Q5_K)
        for (int i = 0; i < 32; ++i) out.codes[i] |= static_cast<Byte>((p[16 + i] >> part & 1) << 4);
      break;
    }
    case DType::Q6_K: {
      out.d = u16_at(p + 208);
      const int half = part / 4, quarter = part % 4;
      const Byte* low = p + half * 64 + quarter % 2 * 32;
      const Byte* high = p + 128 + half * 32;
      for (int i = 0; i < 32; ++i)
        out.codes[i] =
            static_cast<Byte>((low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (2 * quarter) & 3) << 4);
      for (int s = 0; s < 2; ++s) out.scales[s] = p[192 + 2 * part + s];
      break;
    }
    case DType::IQ4_XS: {
      out.d = u16_at(p);
      const int low = p[4 + part / 2] >> (4 * (part % 2)) & 15, high = u16_at(p + 2) >> (2 * part) & 3;
      out.scales[0] = static_cast<Byte>(low | high << 4) - 32;
      nibbles(p + 8 + part * 16, out.codes);
      break;
    }
    default:
      break;
  }
  return out;
}

}  // namespace narrows
