// Leading eigenpairs by block subspace iteration: each sweep applies a Chebyshev polynomial of A that is
// small on the unwanted end [0, cut] of the spectrum and grows steeply above it (Zhou and Saad 2007), then
// takes Ritz pairs of the block; converged pairs are locked and deflated.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

class Iteration {
 public:
  Iteration(const double* a, std::int64_t n, std::int64_t k, double tolerance)
      : a_(a),
        n_(n),
        k_(k),
        block_(
            std::min(n, k + std::max<std::int64_t>(16, k / 4))),  // a wider block converges in fewer sweeps
        tolerance_(tolerance),
        x_(block_ * n),
        y_(block_ * n),
        z_(block_ * n),
        small_(block_ * block_),
        values_(block_) {
    std::mt19937 random(1);
    for (double& v : x_) v = random() / 4294967296.0 - 0.5;
  }

  // Gives up after `most` products of a row with A.
  Spectrum run(std::int64_t most) {
    while (products_ < most) {
      orthonormalize();
      rayleigh_ritz();
      lock();
      if (locked_ >= k_) return result();
      filter();
    }
    return {};
  }

 private:
  std::int64_t active() const { return block_ - locked_; }
  double* active_x() { return &x_[locked_ * n_]; }

  // v -= (v L ᵀ) diag(weights) L over the active rows v, L the locked vectors; weights nullptr means ones.
  void deflate(double* v, const double* of, bool weighted) {
    if (!locked_) return;
    gemm(Transpose::No, Transpose::Yes, active(), locked_, n_, 1.0, of, n_, x_.data(), n_, 0.0, small_.data(),
         locked_);
    if (weighted)
      for (std::int64_t i = 0; i < active(); ++i)
        for (std::int64_t j = 0; j < locked_; ++j) small_[i * locked_ + j] *= values_[j];
    gemm(Transpose::No, Transpose::No, active(), n_, locked_, -1.0, small_.data(), locked_, x_.data(), n_,
         1.0, v, n_);
  }

  void orthonormalize() {
    for (int pass = 0; pass < (locked_ ? 2 : 1); ++pass) {
      deflate(active_x(), active_x(), false);
      orthonormalize_rows(active_x(), active(), n_);
    }
  }

  // Rotates the active block to Ritz vectors; y becomes x A.
  void rayleigh_ritz() {
    const std::int64_t b = active();
    double* x = active_x();
    rows_times_symmetric(x, b, a_, n_, y_.data());
    products_ += b;
    gemm(Transpose::No, Transpose::Yes, b, b, n_, 1.0, x, n_, y_.data(), n_, 0.0, small_.data(), b);
    const Spectrum ritz = symmetric_eigen(small_.data(), b);
    std::copy(ritz.values.begin(), ritz.values.end(), values_.begin() + locked_);
    gemm(Transpose::No, Transpose::No, b, n_, b, 1.0, ritz.vectors.data(), b, x, n_, 0.0, z_.data(), n_);
    std::copy_n(z_.begin(), b * n_, x);
    gemm(Transpose::No, Transpose::No, b, n_, b, 1.0, ritz.vectors.data(), b, y_.data(), n_, 0.0, z_.data(),
         n_);
    std::swap(y_, z_);
  }

  // Residuals are measured outside of what is locked: its own errors would show in them. All pairs must reach
  // the accuracy of the last; the leading ones do so soon.
  void lock() {
    largest_ = std::max(largest_, values_[locked_]);
    const double limit = tolerance_ * std::max(values_[k_ - 1], 0.0) + 1e-15 * std::sqrt(n_) * largest_;
    const std::int64_t b = active();
    double* x = active_x();
    for (std::int64_t i = 0; i < b; ++i)
      for (std::int64_t j = 0; j < n_; ++j) y_[i * n_ + j] -= values_[locked_ + i] * x[i * n_ + j];
    deflate(y_.data(), y_.data(), false);
    for (std::int64_t i = 0; i < b && locked_ < k_; ++i, ++locked_) {
      const double* y = &y_[i * n_];
      if (!(std::sqrt(std::inner_product(y, y + n_, y, 0.0)) <= limit)) break;
    }
  }

  // x = T_degree((A - c) / e) x, scaled to 1 at the largest active eigenvalue; the interval is [c - e, c +
  // e].
  void filter() {
    const double last = values_[block_ - 1];
    // Below the smallest Ritz value, so that a cluster of equal eigenvalues at the end of the block still
    // rises.
    const double cut = std::max(0.9 * last, 1e-13 * largest_), c = cut / 2, e = cut / 2;
    const double top = std::max(values_[locked_], 2 * cut);
    // The spread of growth within the block costs digits of its least vectors: no more than 8 of 16.
    const double rise = std::acosh(top / e - 1), least = std::acosh(std::max(values_[k_ - 1] / e - 1, 1.0));
    const int degree = std::clamp(static_cast<int>(18.0 / std::max(rise - least, 1e-3)), 1, 12);

    const std::int64_t size = active() * n_;
    double* x = active_x();
    const double first = e / (top - c);
    double sigma = first;
    apply(x, y_.data());
    for (std::int64_t i = 0; i < size; ++i) y_[i] = (y_[i] - c * x[i]) * (sigma / e);
    for (int step = 2; step <= degree; ++step) {
      const double next = 1 / (2 / first - sigma);
      apply(y_.data(), z_.data());
      for (std::int64_t i = 0; i < size; ++i) {
        const double v = 2 * next / e * (z_[i] - c * y_[i]) - sigma * next * x[i];
        x[i] = y_[i];
        y_[i] = v;
      }
      sigma = next;
    }
    std::copy_n(y_.begin(), size, x);
  }

  // out = in (A - Σ λ v vᵀ over the locked pairs)
  void apply(const double* in, double* out) {
    rows_times_symmetric(in, active(), a_, n_, out);
    products_ += active();
    deflate(out, in, true);
  }

  Spectrum result() const {
    std::vector<std::int64_t> order(k_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t i, std::int64_t j) { return values_[i] > values_[j]; });
    Spectrum s;
    for (const std::int64_t i : order) {
      s.values.push_back(values_[i]);
      s.vectors.insert(s.vectors.end(), &x_[i * n_], &x_[i * n_] + n_);
    }
    return s;
  }

  const double* a_;
  const std::int64_t n_, k_, block_;
  const double tolerance_;
  std::int64_t products_ = 0;
  std::int64_t locked_ = 0;  // rows of x that are done, the first ones
  double largest_ = 0;
  std::vector<double> x_, y_, z_;  // [block][n]
  std::vector<double> small_;      // [block][block]
  std::vector<double> values_;     // [block]
};

}  // namespace

Spectrum subspace_iteration(const double* a, std::int64_t n, std::int64_t k, double tolerance, std::int64_t most_products) {
  if (k < 1 || k > n / 2) fail("leading eigenvectors: expected 1 to {} of them, found {}", n / 2, k);
  return Iteration(a, n, k, tolerance).run(most_products);
}

Spectrum leading_eigen(const double* a, std::int64_t n, std::int64_t k, double tolerance) {
  if (k < 1 || k > n) fail("leading eigenvectors: expected 1 to {} of them, found {}", n, k);
  if (n >= 512 && k <= n / 10)
    if (Spectrum s = subspace_iteration(a, n, k, tolerance, kIterationProducts * n); !s.values.empty()) return s;
  Spectrum s = symmetric_eigen(a, n);
  s.values.resize(k);
  s.vectors.resize(k * n);
  s.vectors.shrink_to_fit();
  return s;
}

}  // namespace narrows
