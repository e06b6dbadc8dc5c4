#include "lowrank/covariance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "subspace/linear_algebra.h"

namespace narrows {

std::vector<double> covariance(const double* a, std::int64_t m, const double* r, std::int64_t n,
                               const double* b, std::int64_t k, const char* what) {
  std::vector<double> ar(m * n), result(m * k);
  rows_times_symmetric(a, m, r, n, ar.data());
  gemm(Transpose::No, Transpose::Yes, m, k, n, 1.0, ar.data(), n, b, n, 0.0, result.data(), k);
  for (const double v : result)
    if (!std::isfinite(v))
      fail("covariance of {}: expected finite weights and statistics, found {}", what, v);
  return result;
}

std::vector<double> with_bias(std::span<const double> a, std::int64_t rows, std::int64_t columns,
                              std::span<const double> bias, bool extend) {
  if (!extend) return {a.begin(), a.end()};
  std::vector<double> result(rows * (columns + 1));
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(&a[i * columns], columns, &result[i * (columns + 1)]);
    if (!bias.empty()) result[i * (columns + 1) + columns] = bias[i];
  }
  return result;
}

std::vector<double> product(const double* l, std::int64_t m, std::int64_t k, const double* a,
                            std::int64_t columns) {
  std::vector<double> result(m * columns);
  gemm(Transpose::No, Transpose::No, m, columns, k, 1.0, l, k, a, columns, 0.0, result.data(), columns);
  return result;
}

std::vector<double> take_rows(std::span<const double> a, std::int64_t columns,
                              std::span<const std::int64_t> kept) {
  std::vector<double> result(kept.size() * columns);
  for (std::size_t i = 0; i < kept.size(); ++i)
    std::copy_n(&a[kept[i] * columns], columns, &result[i * columns]);
  return result;
}

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void expect_size(std::span<const double> a, std::int64_t size, const char* what) {
  if (static_cast<std::int64_t>(a.size()) != size)
    fail("{}: expected {} elements, found {}", what, size, a.size());
}

void expect_finite(std::span<const double> a, const char* what) {
  for (const double v : a)
    if (!std::isfinite(v)) fail("{}: expected finite numbers, found {}", what, v);
}

}  // namespace narrows
