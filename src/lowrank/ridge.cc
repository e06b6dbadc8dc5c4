#include "lowrank/ridge.h"

#include <algorithm>

#include "subspace/linear_algebra.h"

namespace narrows {

double ridge_solve(const std::vector<double>& a, std::int64_t n, double ridge, double* b, std::int64_t rows) {
  double trace = 0;
  for (std::int64_t i = 0; i < n; ++i) trace += a[i * n + i];
  if (!(trace > 0)) {
    std::fill_n(b, rows * n, 0.0);
    return 0;
  }
  for (double rho = ridge * trace;; rho = std::max(10 * rho, kLeastRidge * trace)) {
    std::vector<double> factor = a;
    for (std::int64_t i = 0; i < n; ++i) factor[i * n + i] += rho;
    if (!cholesky(factor.data(), n)) continue;
    solve_rows(factor.data(), n, b, rows);
    return rho;
  }
}

}  // namespace narrows
