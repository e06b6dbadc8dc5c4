#include "lowrank/ov_alternation.h"

#include <algorithm>
#include <cmath>

#include "lowrank/covariance.h"
#include "lowrank/ridge.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

// Aᵀ B [m][n], A [k][m], B [k][n].
std::vector<double> transposed_product(const std::vector<double>& a, std::int64_t k, std::int64_t m,
                                       const std::vector<double>& b, std::int64_t n) {
  std::vector<double> result(m * n);
  gemm(Transpose::Yes, Transpose::No, m, n, k, 1.0, a.data(), m, b.data(), n, 0.0, result.data(), n);
  return result;
}

}  // namespace

OvAlternation::OvAlternation(const std::vector<std::vector<double>>& g,
                             const std::vector<std::vector<double>>& c, std::int64_t d, std::int64_t rank)
    : u(d * rank), g_(g), c_(c), d_(d), r_(rank) {
  for (std::int64_t i = 0; i < rank; ++i) u[i * rank + i] = 1;
  t.assign(g.size(), u);
}

void OvAlternation::fit_outputs() {
  for (std::size_t h = 0; h < g_.size(); ++h) {
    const std::vector<double> cu = product(c_[h].data(), d_, d_, u.data(), r_);
    const std::vector<double> gram = transposed_product(u, d_, r_, cu, r_);
    // A ridge towards the old t: what is singular stays as it was, and the loss cannot rise.
    std::vector<double> change = product(t[h].data(), d_, r_, gram.data(), r_);
    for (std::size_t i = 0; i < change.size(); ++i) change[i] = cu[i] - change[i];
    ridge_solve(gram, r_, kLeastRidge, change.data(), d_);
    for (std::size_t i = 0; i < change.size(); ++i) t[h][i] += change[i];
  }
}

// Σ C_i u (t_iᵀ G_i t_i) = Σ C_i G_i t_i by conjugate gradients from the present u: each step lowers the
// loss.
void OvAlternation::fit_values() {
  constexpr int kSteps = 12;
  std::vector<std::vector<double>> h(g_.size());
  std::vector<double> residual(d_ * r_), sum(r_ * r_);
  for (std::size_t i = 0; i < g_.size(); ++i) {
    const std::vector<double> gt = product(g_[i].data(), d_, d_, t[i].data(), r_);
    h[i] = transposed_product(t[i], d_, r_, gt, r_);
    for (std::int64_t j = 0; j < r_ * r_; ++j) sum[j] += h[i][j];
    gemm(Transpose::No, Transpose::No, d_, r_, d_, 1.0, c_[i].data(), d_, gt.data(), r_, 1.0, residual.data(),
         r_);
  }
  const auto apply = [&](const std::vector<double>& x) {
    std::vector<double> y(d_ * r_);
    for (std::size_t i = 0; i < g_.size(); ++i) {
      const std::vector<double> cx = product(c_[i].data(), d_, d_, x.data(), r_);
      gemm(Transpose::No, Transpose::No, d_, r_, r_, 1.0, cx.data(), r_, h[i].data(), r_, 1.0, y.data(), r_);
    }
    return y;
  };
  const std::vector<double> applied = apply(u);
  for (std::size_t i = 0; i < residual.size(); ++i) residual[i] -= applied[i];

  const double enough = 1e-24 * dot(applied, applied);
  std::vector<double> direction;
  double before = 0;
  for (int step = 0; step < kSteps && dot(residual, residual) > enough; ++step) {
    std::vector<double> z = residual;  // the heads' mean problem has Σ C_i = I: it is solved at once
    ridge_solve(sum, r_, kLeastRidge, z.data(), d_);
    const double now = dot(residual, z);
    if (step == 0)
      direction = z;
    else
      for (std::size_t i = 0; i < z.size(); ++i) direction[i] = z[i] + now / before * direction[i];
    before = now;
    const std::vector<double> curved = apply(direction);
    const double curvature = dot(direction, curved);
    if (!(curvature > 0 && now > 0)) break;
    for (std::size_t i = 0; i < z.size(); ++i) {
      u[i] += now / curvature * direction[i];
      residual[i] -= now / curvature * curved[i];
    }
  }
}

double OvAlternation::loss() const {
  double sum = 0;
  for (std::size_t h = 0; h < g_.size(); ++h) {
    std::vector<double> error(d_ * d_);
    for (std::int64_t i = 0; i < d_; ++i) error[i * d_ + i] = 1;
    gemm(Transpose::No, Transpose::Yes, d_, d_, r_, -1.0, t[h].data(), r_, u.data(), r_, 1.0, error.data(),
         d_);
    sum +=
        dot(product(g_[h].data(), d_, d_, error.data(), d_), product(error.data(), d_, d_, c_[h].data(), d_));
  }
  return std::max(sum, 0.0);
}

}  // namespace narrows
