// Blocks of a Gram matrix: products of rows of one float matrix with rows of the same.
//
// Every product is summed as those of float weights are (kernels/matmul.h): 16 partial sums over k mod 16 in
// ascending order, fused multiply-add, then a fixed tree. Products commute, so entry (s, t) has the bits of
// (t, s), whatever block it is computed in.
#pragma once
#include <cstdint>
#include <span>

namespace narrows {

// Rows that kernels like to be given together, and a bound on the columns of one call: what a caller's buffer
// holds.
inline constexpr std::int64_t kGramRows = 6, kGramColumns = 64;

// out[i · kGramColumns + j] = x[rows[i]] · x[columns[j]], at most kGramColumns columns. x is [..][stride];
// the stride is a multiple of 16 and rows are filled up with zeros.
void gram_block(const float* x, std::int64_t stride, std::span<const std::int32_t> rows,
                std::span<const std::int32_t> columns, float* out);

// The largest of n values, at least `best`. No value may be NaN.
float largest(const float* values, std::int64_t n, float best);

}  // namespace narrows
