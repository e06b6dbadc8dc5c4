// Decoding of block types. The order of the floating-point operations is gguf's (quants.py), so that results
// agree to the bit; signs of zero too.
#include "base/error.h"
#include "formats/dtype.h"
#include "formats/k_scales.h"
#include "formats/load.h"

namespace narrows {
namespace {

using Byte = std::uint8_t;

// IQ4's sixteen levels: finer near zero, where weights are dense.
constexpr std::int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

float load_f16(const Byte* p) { return f16_to_f32(load<std::uint16_t>(p)); }

// d:f16, 16 bytes of nibbles: the low ones are elements 0..15, the high ones 16..31.
void q4_0(const Byte* b, float* y) {
  const float d = load_f16(b);
  const Byte* q = b + 2;
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((q[i] & 15) - 8);
    y[16 + i] = d * static_cast<float>((q[i] >> 4) - 8);
  }
}

// d:f16, m:f16, nibbles.
void q4_1(const Byte* b, float* y) {
  const float d = load_f16(b), m = load_f16(b + 2);
  const Byte* q = b + 4;
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(q[i] & 15) + m;
    y[16 + i] = d * static_cast<float>(q[i] >> 4) + m;
  }
}

// d:f16, 32 fifth bits, nibbles.
void q5_0(const Byte* b, float* y) {
  const float d = load_f16(b);
  const auto high = load<std::uint32_t>(b + 2);
  const Byte* q = b + 6;
  for (int i = 0; i < 16; ++i) {
    const int low = (q[i] & 15) | static_cast<int>(high >> i & 1) << 4;
    const int up = q[i] >> 4 | static_cast<int>(high >> (16 + i) & 1) << 4;
    y[i] = d * static_cast<float>(low - 16);
    y[16 + i] = d * static_cast<float>(up - 16);
  }
}

// d:f16, m:f16, 32 fifth bits, nibbles.
void q5_1(const Byte* b, float* y) {
  const float d = load_f16(b), m = load_f16(b + 2);
  const auto high = load<std::uint32_t>(b + 4);
  const Byte* q = b + 8;
  for (int i = 0; i < 16; ++i) {
    const int low = (q[i] & 15) | static_cast<int>(high >> i & 1) << 4;
    const int up = q[i] >> 4 | static_cast<int>(high >> (16 + i) & 1) << 4;
    y[i] = d * static_cast<float>(low) + m;
    y[16 + i] = d * static_cast<float>(up) + m;
  }
}

// d:f16, 32 signed bytes.
void q8_0(const Byte* b, float* y) {
  const float d = load_f16(b);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(static_cast<std::int8_t>(b[2 + i]));
}

// 16 bytes of (scale, min) nibbles, one per 16 elements; 64 bytes of 2-bit codes; d:f16; dmin:f16.
void q2_k(const Byte* b, float* y) {
  const Byte *scales = b, *q = b + 16;
  const float d = load_f16(b + 80), dmin = load_f16(b + 82);
  for (int e = 0; e < 256; e += 16) {
    const float scale = d * static_cast<float>(scales[e / 16] & 15);
    const float min = dmin * static_cast<float>(scales[e / 16] >> 4);
    const Byte* codes = q + e / 128 * 32 + e % 32;
    const int shift = e % 128 / 32 * 2;
    for (int i = 0; i < 16; ++i) y[e + i] = scale * static_cast<float>(codes[i] >> shift & 3) - min;
  }
}

// 32 bytes of third bits (clear: subtract 4), 64 bytes of 2-bit codes, 12 bytes of 6-bit scales, d:f16.
void q3_k(const Byte* b, float* y) {
  const Byte *high = b, *q = b + 32, *packed = b + 96;
  const float d = load_f16(b + 108);
  for (int e = 0; e < 256; e += 16) {
    const int s = e / 16;
    const int low4 = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4, top2 = packed[8 + s % 4] >> (s / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low4 | top2 << 4) - 32);
    const Byte *codes = q + e / 128 * 32 + e % 32, *bits = high + e % 32;
    const int shift = e % 128 / 32 * 2, bit = e / 32;
    for (int i = 0; i < 16; ++i) {
      const int code = (codes[i] >> shift & 3) - ((bits[i] >> bit & 1) ? 0 : 4);
      y[e + i] = scale * static_cast<float>(code);
    }
  }
}

// d:f16, dmin:f16, 12 bytes of scales and minima (one pair per 32 elements), 128 bytes of nibbles: each 32
// bytes hold 32 elements in their low nibbles and the next 32 in the high ones.
void q4_k(const Byte* b, float* y) {
  const float d = load_f16(b), dmin = load_f16(b + 2);
  const KScales s = unpack_k_scales(b + 4);
  for (int g = 0; g < 8; ++g) {
    const float scale = d * static_cast<float>(s.scale[g]), min = dmin * static_cast<float>(s.min[g]);
    const Byte* codes = b + 16 + g / 2 * 32;
    const int shift = g % 2 * 4;
    for (int i = 0; i < 32; ++i) y[g * 32 + i] = scale * static_cast<float>(codes[i] >> shift & 15) - min;
  }
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte i belongs to element 32 g + i.
void q5_k(const Byte* b, float* y) {
  const float d = load_f16(b), dmin = load_f16(b + 2);
  const KScales s = unpack_k_scales(b + 4);
  const Byte* high = b + 16;
  for (int g = 0; g < 8; ++g) {
    const float scale = d * static_cast<float>(s.scale[g]), min = dmin * static_cast<float>(s.min[g]);
    const Byte* codes = b + 48 + g / 2 * 32;
    const int shift = g % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int code = (codes[i] >> shift & 15) | (high[i] >> g & 1) << 4;
      y[g * 32 + i] = scale * static_cast<float>(code) - min;
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of top bit pairs, 16 signed scales (one per 16 elements), d:f16.
void q6_k(const Byte* b, float* y) {
  const Byte *low = b, *high = b + 128, *scales = b + 192;
  const float d = load_f16(b + 208);
  for (int e = 0; e < 256; e += 16) {
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[e / 16]));
    const int half = e / 128, quarter = e % 128 / 32;
    const Byte *nibbles = low + half * 64 + quarter % 2 * 32 + e % 32, *pairs = high + half * 32 + e % 32;
    const int low_shift = quarter / 2 * 4, high_shift = quarter * 2;
    for (int i = 0; i < 16; ++i) {
      const int code = (nibbles[i] >> low_shift & 15) | (pairs[i] >> high_shift & 3) << 4;
      y[e + i] = scale * static_cast<float>(code - 32);
    }
  }
}

// d:f16, nibbles that index the levels.
void iq4_nl(const Byte* b, float* y) {
  const float d = load_f16(b);
  const Byte* q = b + 2;
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(kIq4Levels[q[i] & 15]);
    y[16 + i] = d * static_cast<float>(kIq4Levels[q[i] >> 4]);
  }
}

// d:f16, 16 bits: top two bits of eight 6-bit scales, 4 bytes: their low nibbles, 128 bytes of nibbles as
// IQ4_NL's.
void iq4_xs(const Byte* b, float* y) {
  const float d = load_f16(b);
  const int top = load<std::uint16_t>(b + 2);
  for (int g = 0; g < 8; ++g) {
    const int code = (b[4 + g / 2] >> (g % 2 * 4) & 15) | (top >> (2 * g) & 3) << 4;
    const float scale = d * static_cast<float>(code - 32);
    const Byte* q = b + 8 + g * 16;
    for (int i = 0; i < 16; ++i) {
      y[g * 32 + i] = scale * static_cast<float>(kIq4Levels[q[i] & 15]);
      y[g * 32 + 16 + i] = scale * static_cast<float>(kIq4Levels[q[i] >> 4]);
    }
  }
}

void f16(const Byte* b, float* y) { *y = load_f16(b); }
void bf16(const Byte* b, float* y) { *y = bf16_to_f32(load<std::uint16_t>(b)); }

template <void (*Block)(const Byte*, float*), int kSize, int kBytes>
void decode(const Byte* src, float* dst, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kSize, src += kBytes, dst += kSize) Block(src, dst);
}

}  // namespace

void dequantize(DType dtype, const std::byte* source, float* dst, std::int64_t n) {
  const std::size_t bytes = row_bytes(dtype, n);
  const Byte* src = reinterpret_cast<const Byte*>(source);
  switch (dtype) {
    case DType::F32:
      if (n > 0) std::memcpy(dst, src, bytes);
      return;
    case DType::F16:
      return decode<f16, 1, 2>(src, dst, n);
    case DType::BF16:
      return decode<bf16, 1, 2>(src, dst, n);
    case DType::Q4_0:
      return decode<q4_0, 32, 18>(src, dst, n);
    case DType::Q4_1:
      return decode<q4_1, 32, 20>(src, dst, n);
    case DType::Q5_0:
      return decode<q5_0, 32, 22>(src, dst, n);
    case DType::Q5_1:
      return decode<q5_1, 32, 24>(src, dst, n);
    case DType::Q8_0:
      return decode<q8_0, 32, 34>(src, dst, n);
    case DType::Q2_K:
      return decode<q2_k, 256, 84>(src, dst, n);
    case DType::Q3_K:
      return decode<q3_k, 256, 110>(src, dst, n);
    case DType::Q4_K:
      return decode<q4_k, 256, 144>(src, dst, n);
    case DType::Q5_K:
      return decode<q5_k, 256, 176>(src, dst, n);
    case DType::Q6_K:
      return decode<q6_k, 256, 210>(src, dst, n);
    case DType::IQ4_NL:
      return decode<iq4_nl, 32, 18>(src, dst, n);
    case DType::IQ4_XS:
      return decode<iq4_xs, 256, 136>(src, dst, n);
    default:
      fail("tensor type {}: expected a type of real numbers", dtype_info(dtype).name);
  }
}

}  // namespace narrows
