// Activations in 8 bits, for integer dot products with quantized weights.
#pragma once
#include <cstdint>

#include "base/aligned.h"
#include "base/threads.h"

namespace narrows {

// Rows of k elements in blocks of 32 (the last padded with zeros): x ≈ scale · q, q in [-127, 127], one scale a block.
//
// A block's error grows with its largest element, and a few dimensions of most models are many times larger than the
// rest, so their blocks make most of a product's error. Those blocks (largest element above kFineThreshold times the
// row's root mean square; one in eight or so) are fine: x ≈ scale · (q + low / 128). The kernels spend a second
// integer product on them.
//
// The sums over 16 or 32 elements multiply what weights subtract from their codes.
inline constexpr float kFineThreshold = 4.0f;

struct QuantizedRows {
  std::int64_t rows = 0, k = 0, blocks = 0;
  std::int64_t stride = 0;               // bytes between rows of q; not a power of two, which would crowd cache sets
  AlignedVector<std::int8_t> q;          // [rows][stride]
  AlignedVector<std::int8_t> low;        // [rows][stride]      zeros in blocks that are not fine
  AlignedVector<std::uint8_t> fine;      // [blocks][rows]      1 or 0
  AlignedVector<float> scale;            // [rows][blocks]
  AlignedVector<std::int32_t> sum32;     // [rows][blocks]      of q
  AlignedVector<std::int32_t> low_sum32; // [rows][blocks]      of low
  AlignedVector<float> scaled_sum32;     // [rows][blocks]      scale · (sum + low sum / 128)
  AlignedVector<std::int32_t> sum16;     // [rows][2 · blocks]  the same over 16 elements
  AlignedVector<std::int32_t> low_sum16;
  AlignedVector<float> scaled_sum16;

  void resize(std::int64_t rows, std::int64_t k);
};

// Quantizes rows [range.begin, range.end) of x (row t at x + t·stride), rounding to nearest.
void quantize_rows(const float* x, std::int64_t stride, Range range, QuantizedRows& out);

}  // namespace narrows
