// Activations and their exact autocorrelations, for tests that compute losses from the tokens themselves.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "subspace/linear_algebra.h"
#include "subspace/random_tokens.h"

namespace narrows {

// tokens [t][d] with unequal, correlated elements.
inline std::vector<double> correlated_tokens(std::int64_t t, std::int64_t d, unsigned seed) {
  const std::vector<float> x = random_tokens(t, d, power_law(d, -0.7), random_rotation(d, seed), seed + 1);
  return {x.begin(), x.end()};
}

// (1 / t) Σ x xᵀ; with `one`, of the tokens with a constant 1 after them.
inline std::vector<double> autocorrelation(const std::vector<double>& x, std::int64_t t, bool one = false) {
  const std::int64_t d = static_cast<std::int64_t>(x.size()) / t, n = d + one;
  std::vector<double> extended(t * n, 1.0), r(n * n);
  for (std::int64_t i = 0; i < t; ++i) std::copy_n(&x[i * d], d, &extended[i * n]);
  symmetric_rank_k(Transpose::Yes, n, t, 1.0 / static_cast<double>(t), extended.data(), n, 0.0, r.data(), n);
  mirror_upper(r.data(), n);
  return r;
}

// As if products had been summed in single precision: symmetric errors of 1e-7 · √(R_ii R_jj), which leave a
// rank-deficient R indefinite.
inline std::vector<double> rounded(std::vector<double> r, std::int64_t n, unsigned seed) {
  const std::vector<double> noise = random_matrix(n, n, seed);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = i; j < n; ++j)
      r[i * n + j] += (i != j) * 1e-7 * noise[i * n + j] * std::sqrt(r[i * n + i] * r[j * n + j]);
  mirror_upper(r.data(), n);
  return r;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// A [m][k] · B [k][n].
inline std::vector<double> times(const std::vector<double>& a, std::int64_t k, const std::vector<double>& b) {
  const std::int64_t m = static_cast<std::int64_t>(a.size()) / k, n = static_cast<std::int64_t>(b.size()) / k;
  std::vector<double> c(m * n);
  gemm(Transpose::No, Transpose::No, m, n, k, 1.0, a.data(), k, b.data(), n, 0.0, c.data(), n);
  return c;
}

inline std::vector<double> transposed(const std::vector<double>& a, std::int64_t columns) {
  const std::int64_t rows = static_cast<std::int64_t>(a.size()) / columns;
  std::vector<double> t(a.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
  return t;
}

}  // namespace narrows
