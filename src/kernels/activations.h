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

// Blocks of up to 16 rows lie together, so that a kernel with several tokens walks through memory in one direction.
struct QuantizedRows {
  std::int64_t rows = 0, k = 0, blocks = 0;
  std::int64_t together = 1;             // rows of a group: 16; 8 where there are 5 to 8; or all where there are fewer
  AlignedVector<std::int8_t> q;          // [groups][blocks][together][32]
  AlignedVector<std::int8_t> low;        // the same; zeros in blocks that are not fine
  AlignedVector<std::uint8_t> fine;      // [groups][blocks][together]  1 or 0
  AlignedVector<float> scale;            // the same
  AlignedVector<std::int32_t> sum32;     // the same; of q
  AlignedVector<std::int32_t> low_sum32; // the same; of low
  AlignedVector<float> scaled_sum32;     // the same; scale · (sum + low sum / 128)
  AlignedVector<std::int32_t> sum16;     // [groups][2 · blocks][together]  as the last three, over 16 elements
  AlignedVector<std::int32_t> low_sum16;
  AlignedVector<float> scaled_sum16;

  void resize(std::int64_t rows, std::int64_t k);
  // Where the first block of a row is, in units of blocks (per_block 1) or halves (2); the next one is `together` on.
  std::int64_t first_block(std::int64_t row, int per_block = 1) const {
    return row / together * together * blocks * per_block + row % together;
  }
};

// Quantizes rows [range.begin, range.end) of x (row t at x + t·stride), rounding to nearest.
void quantize_rows(const float* x, std::int64_t stride, Range range, QuantizedRows& out);

}  // namespace narrows
