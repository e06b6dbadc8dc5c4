// Encoding of floats and of the 32-element block types. Rounding and the order of operations are those of
// gguf's quants.py, so that files agree to the byte.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "formats/dtype.h"
#include "formats/load.h"
#include "formats/quantize_blocks.h"

namespace narrows {
namespace {

using Byte = std::uint8_t;

// 1 / d, or 0 where there is nothing to encode: d is zero, or so small that its inverse is infinite (the
// scale, an f16, is zero then).
float inverse(float d) {
  const float id = d == 0 ? 0 : 1 / d;
  return std::isfinite(id) ? id : 0;
}

int code(float v, int most) { return std::clamp(static_cast<int>(v), 0, most); }

// The value of largest magnitude, the first of equals.
float extreme(const float* x) {
  float best = x[0];
  for (int i = 1; i < 32; ++i)
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  return best;
}

void pack_nibbles(const int* codes, Byte* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<Byte>((codes[i] & 15) | (codes[16 + i] & 15) << 4);
}

void q4_0(const float* x, Byte* b) {
  const float d = extreme(x) / -8, id = inverse(d);
  int codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = code(x[i] * id + 8.5f, 15);
  store_f16(b, d, "Q4_0");
  pack_nibbles(codes, b + 2);
}

void q4_1(const float* x, Byte* b) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float min = *low, d = (*high - min) / 15, id = inverse(d);
  store_f16(b, d, "Q4_1");
  store_f16(b + 2, min, "Q4_1");
  int codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = code((x[i] - min) * id + 0.5f, 15);
  pack_nibbles(codes, b + 4);
}

void q5_0(const float* x, Byte* b) {
  const float d = extreme(x) / -16, id = inverse(d);
  int codes[32];
  std::uint32_t high = 0;
  for (int i = 0; i < 32; ++i) {
    codes[i] = code(x[i] * id + 16.5f, 31);
    high |= static_cast<std::uint32_t>(codes[i] >> 4) << i;
  }
  store_f16(b, d, "Q5_0");
  store(b + 2, high);
  pack_nibbles(codes, b + 6);
}

void q8_0(const float* x, Byte* b) {
  const float d = std::fabs(extreme(x)) / 127, id = inverse(d);
  store_f16(b, d, "Q8_0");
  for (int i = 0; i < 32; ++i) b[2 + i] = static_cast<Byte>(static_cast<int>(std::round(x[i] * id)));
}

void f16(const float* x, Byte* b) { store_f16(b, *x, "F16"); }

void bf16(const float* x, Byte* b) {
  const std::uint16_t h = f32_to_bf16(*x);
  if ((h & 0x7fff) == 0x7f80) fail("value {}: beyond the range of BF16", *x);
  store(b, h);
}

template <void (*Block)(const float*, Byte*), int kSize, int kBytes>
void encode(const float* src, Byte* dst, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kSize, src += kSize, dst += kBytes) Block(src, dst);
}

}  // namespace

void check_finite(const float* x, std::int64_t n) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i)
    finite &= (std::bit_cast<std::uint32_t>(x[i]) & 0x7f800000u) != 0x7f800000u;
  if (finite) return;
  const auto bad = std::find_if(x, x + n, [](float v) { return !std::isfinite(v); });
  fail("element {}: expected a finite value, found {}", bad - x, *bad);
}

void quantize(DType dtype, const float* src, std::byte* target, std::int64_t n) {
  const std::size_t bytes = row_bytes(dtype, n);
  if (!can_quantize(dtype))
    fail("tensor type {}: expected a type that narrows can encode", dtype_info(dtype).name);
  check_finite(src, n);
  Byte* dst = reinterpret_cast<Byte*>(target);
  switch (dtype) {
    case DType::F16:
      return encode<f16, 1, 2>(src, dst, n);
    case DType::BF16:
      return encode<bf16, 1, 2>(src, dst, n);
    case DType::Q4_0:
      return encode<q4_0, 32, 18>(src, dst, n);
    case DType::Q4_1:
      return encode<q4_1, 32, 20>(src, dst, n);
    case DType::Q5_0:
      return encode<q5_0, 32, 22>(src, dst, n);
    case DType::Q8_0:
      return encode<q8_0, 32, 34>(src, dst, n);
    case DType::Q4_K:
      return encode<quantize_q4_k, 256, 144>(src, dst, n);
    case DType::Q6_K:
      return encode<quantize_q6_k, 256, 210>(src, dst, n);
    default:  // F32
      if (n > 0) std::memcpy(dst, src, bytes);
  }
}

void store_f16(std::uint8_t* p, float value, std::string_view type) {
  const std::uint16_t h = f32_to_f16(value);
  if ((h & 0x7fff) >= 0x7c00) fail("value {}: beyond the range of f16, in which {} keeps it", value, type);
  store(p, h);
}

}  // namespace narrows
