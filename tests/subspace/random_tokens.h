// Random matrices and activations with a known spectrum.
#pragma once
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "subspace/linear_algebra.h"

namespace narrows {

inline std::vector<double> random_matrix(std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> a(rows * columns);
  for (double& v : a) v = normal(random);
  return a;
}

inline std::vector<double> random_rotation(std::int64_t n, unsigned seed) {
  std::vector<double> q = random_matrix(n, n, seed);
  orthonormalize_rows(q.data(), n, n);
  return q;
}

// Qᵀ diag(values) Q, symmetric to the last bit.
inline std::vector<double> with_spectrum(const std::vector<double>& values, const std::vector<double>& q) {
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<double> scaled = q, a(n * n);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) scaled[i * n + j] *= values[i];
  gemm(Transpose::Yes, Transpose::No, n, n, n, 1.0, q.data(), n, scaled.data(), n, 0.0, a.data(), n);
  mirror_upper(a.data(), n);
  return a;
}

// tokens [t][d]: normal coordinates times scales [k] along the first k rows of a rotation [d][d].
inline std::vector<float> random_tokens(std::int64_t t, std::int64_t d, const std::vector<double>& scales,
                                        const std::vector<double>& rotation, unsigned seed) {
  const auto k = static_cast<std::int64_t>(scales.size());
  std::vector<double> g = random_matrix(t, k, seed), x(t * d);
  for (std::int64_t i = 0; i < t * k; ++i) g[i] *= scales[i % k];
  gemm(Transpose::No, Transpose::No, t, d, k, 1.0, g.data(), k, rotation.data(), d, 0.0, x.data(), d);
  return {x.begin(), x.end()};
}

inline std::vector<double> power_law(std::int64_t n, double exponent) {
  std::vector<double> values(n);
  for (std::int64_t i = 0; i < n; ++i) values[i] = std::pow(static_cast<double>(i + 1), exponent);
  return values;
}

}  // namespace narrows
