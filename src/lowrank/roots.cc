#include "lowrank/roots.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "subspace/linear_algebra.h"

namespace narrows {

Roots symmetric_roots(const double* r, std::int64_t n, double floor) {
  if (!(floor > 0 && floor <= 1))
    fail("roots of an autocorrelation matrix: expected a floor above 0 and at most 1, found {}", floor);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = i; j < n; ++j)
      if (!std::isfinite(r[i * n + j]))
        fail("roots of an autocorrelation matrix: expected finite numbers, found {} at ({}, {})",
             r[i * n + j], i, j);

  const Spectrum spectrum = symmetric_eigen(r, n);
  Roots roots;
  roots.largest = n ? spectrum.values[0] : 0;
  const double least = roots.largest > 0 ? floor * roots.largest : 1;
  // (Λ^{1/4} V)ᵀ (Λ^{1/4} V) is symmetric to the last bit once mirrored.
  const auto of_power = [&](double power) {
    std::vector<double> scaled = spectrum.vectors, product(n * n);
    for (std::int64_t i = 0; i < n; ++i) {
      const double s = std::pow(std::max(spectrum.values[i], least), power / 2);
      for (std::int64_t j = 0; j < n; ++j) scaled[i * n + j] *= s;
    }
    symmetric_rank_k(Transpose::Yes, n, n, 1.0, scaled.data(), n, 0.0, product.data(), n);
    mirror_upper(product.data(), n);
    return product;
  };
  roots.raised = std::count_if(spectrum.values.begin(), spectrum.values.end(),
                               [&](double value) { return value < least; });
  roots.root = of_power(0.5);
  roots.inverse = of_power(-0.5);
  return roots;
}

}  // namespace narrows
