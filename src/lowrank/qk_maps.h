// What QkReduction and qk_loss share: checked maps, biases as columns, norms as constants.
#pragma once
#include <utility>

#include "lowrank/qk.h"

namespace narrows {

// Throws Error if a size does not match or the rotation is not of whole pairs within the dimensions.
void check_qk(const QkMaps& maps, QkRotary rotary);

inline bool has_bias(const QkMaps& maps) { return !maps.q_bias.empty() || !maps.k_bias.empty(); }

// The two dimensions of a rotated pair.
inline std::pair<std::int64_t, std::int64_t> dimensions_of(std::int64_t pair, QkRotary rotary) {
  if (rotary.layout == RotaryLayout::Adjacent) return {2 * pair, 2 * pair + 1};
  return {pair, pair + rotary.dims / 2};
}

// Biases as columns.
struct ExtendedQk {
  // `extend`: activations have a constant 1 as their last element. Throws Error if r_q or r_kv is not [n][n].
  ExtendedQk(const QkMaps& maps, bool extend, std::span<const double> r_q, std::span<const double> r_kv);

  const double* q_rows(std::int64_t head) const { return &q[head * d_qk * n]; }

  std::int64_t d_qk, n;      // n: d_in, or d_in + 1
  std::vector<double> q, k;  // [group][d_qk][n], [d_qk][n]
};

// What an RMS norm with these weights [d] multiplies each of d dimensions by, as a constant: weight / √(mean
// energy). Zeros where there is no energy.
std::vector<double> norm_factors(const double* energies, const double* weights, std::int64_t d);

}  // namespace narrows
