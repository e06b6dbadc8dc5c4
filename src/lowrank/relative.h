// Activations relative to the residual stream that they come to: norms divide by it, and a few tokens with
// huge streams would outweigh all others.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned.h"

namespace narrows {

// 1 / ‖row‖ of a stream [rows][d]; 0 for rows of zeros.
inline std::vector<float> inverse_norms(const float* stream, std::int64_t rows, std::int64_t d) {
  std::vector<float> scales;
  for (std::int64_t t = 0; t < rows; ++t) {
    double energy = 0;
    for (std::int64_t i = 0; i < d; ++i) energy += double{stream[t * d + i]} * stream[t * d + i];
    scales.push_back(energy > 0 ? static_cast<float>(1 / std::sqrt(energy)) : 0);
  }
  return scales;
}

// Rows of x [rows][width] times their scales.
inline AlignedVector<float> relative(const float* x, std::int64_t rows, std::int64_t width,
                                     std::span<const float> scales) {
  AlignedVector<float> scaled(x, x + rows * width);
  for (std::int64_t i = 0; i < rows * width; ++i)
    scaled[static_cast<std::size_t>(i)] *= scales[static_cast<std::size_t>(i / width)];
  return scaled;
}

}  // namespace narrows
