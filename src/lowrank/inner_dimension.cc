#include "lowrank/inner_dimension.h"

#include <algorithm>
#include <cmath>

#include "lowrank/covariance.h"
#include "lowrank/roots.h"
#include "subspace/linear_algebra.h"

namespace narrows {

InnerSpectrum inner_spectrum(const double* x, const double* y, std::int64_t d) {
  InnerSpectrum inner;
  inner.d = d;
  if (d == 0) return inner;
  const Roots roots = symmetric_roots(y, d);
  // With S = Y^{1/2}, the eigenvectors V of S X S are the right singular vectors of X^{1/2} S, and the best P
  // is S V_rᵀ V_r S⁻¹.
  const std::vector<double> weighted =
      covariance(roots.root.data(), d, x, d, roots.root.data(), d, "products");
  const Spectrum spectrum = symmetric_eigen(weighted.data(), d);
  inner.raised = roots.raised;
  inner.energies = spectrum.values;
  for (double& e : inner.energies)
    e = roots.largest > 0 ? std::max(e, 0.0) : 0;  // a map of zeros loses nothing
  inner.left = product(spectrum.vectors.data(), d, d, roots.root.data(), d);
  inner.right = product(spectrum.vectors.data(), d, d, roots.inverse.data(), d);
  return inner;
}

std::vector<double> balance(std::span<const double> x_energies, std::span<const double> y_energies) {
  const std::size_t r = x_energies.size();
  std::vector<double> scales(r, 1.0);
  if (r == 0) return scales;
  // Dimensions with next to no energy keep a bounded scale: there is nothing to balance.
  const double x_least = 1e-12 * *std::max_element(x_energies.begin(), x_energies.end());
  const double y_least = 1e-12 * *std::max_element(y_energies.begin(), y_energies.end());
  if (!(x_least > 0 && y_least > 0)) return scales;
  for (std::size_t i = 0; i < r; ++i)
    scales[i] = std::pow(std::max(x_energies[i], x_least) / std::max(y_energies[i], y_least), 0.25);
  return scales;
}

}  // namespace narrows
