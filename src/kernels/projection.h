// Projection of activations onto the rows of a basis, and what the projection leaves.
//
// For each basis vector v, in ascending order within its group: g = v·x, then span += g · v. A row is read from memory
// once: the second use finds it in the cache. Each token's order of additions depends on the basis's shape alone.
#pragma once
#include <cstdint>

#include "base/threads.h"
#include "kernels/matmul.h"

namespace narrows {

// Basis vectors that share a partial sum of the span. A constant, so that threads change no bit.
inline constexpr std::int64_t kProjectionGroup = 64;
inline std::int64_t projection_groups(std::int64_t k) { return (k + kProjectionGroup - 1) / kProjectionGroup; }

// Rows of F32, F16, BF16 or Q8_0 as stored (w.data).
bool can_project(DType dtype);

// For groups [groups.begin, groups.end) and tokens [tokens.begin, tokens.end):
//   g[t · k + j]                   = basis row j · x[t · x_stride …]
//   span[(group · rows + t) · d …] = Σ over the group's rows of g · row,   d = basis.cols, `rows` tokens in all;
//                                    left out if span is nullptr
void project(const WeightMatrix& basis, Range groups, const float* x, std::int64_t x_stride, Range tokens,
             std::int64_t rows, float* g, float* span);

// The same for all groups of x [rows][d], shared among threads.
void project(const WeightMatrix& basis, ThreadPool& pool, const float* x, std::int64_t rows, float* g, float* span);

// ‖r‖² and ‖x‖² of one token, r = x - Σ groups span. Sixteen partial sums, as everywhere.
struct ResidualNorms {
  float residual, whole;  // squared
};
ResidualNorms residual_norms(const float* x, const float* span, std::int64_t group_stride, std::int64_t groups,
                             std::int64_t d);

}  // namespace narrows
