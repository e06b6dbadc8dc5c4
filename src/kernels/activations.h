// Activations in 8 bits, for integer dot products with quantized weights.
#pragma once
#include <cstdint>

#include "base/aligned.h"
#include "base/threads.h"

namespace narrows {

// Rows of k elements in blocks of 32 (the last padded with zeros): x ≈ scale · q, q in [-127, 127], one scale a block.
// The sums are those of q over 16 or 32 elements: they multiply what weights subtract from their codes.
struct QuantizedRows {
  std::int64_t rows = 0, k = 0, blocks = 0;
  std::int64_t stride = 0;               // bytes between rows of q; not a power of two, which would crowd cache sets
  AlignedVector<std::int8_t> q;          // [rows][stride]
  AlignedVector<float> scale;            // [rows][blocks]
  AlignedVector<std::int32_t> sum32;     // [rows][blocks]
  AlignedVector<float> scaled_sum32;     // [rows][blocks]      scale · sum
  AlignedVector<std::int32_t> sum16;     // [rows][2 · blocks]
  AlignedVector<float> scaled_sum16;     // [rows][2 · blocks]

  void resize(std::int64_t rows, std::int64_t k);
};

// Quantizes rows [range.begin, range.end) of x (row t at x + t·stride), rounding to nearest.
void quantize_rows(const float* x, std::int64_t stride, Range range, QuantizedRows& out);

}  // namespace narrows
