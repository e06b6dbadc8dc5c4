#include "subspace/cascade.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

constexpr std::int64_t kBlock = 64;
// ‖x‖² - ‖g‖² errs by about 1e-6 ‖x‖² in single precision: nearer to the tolerance than this the residual is
// computed.
constexpr double kMargin = 1e-5;

double sum_of_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += static_cast<double>(x[i + l]) * x[i + l];
  for (; i < n; ++i) lanes[i % kLanes] += static_cast<double>(x[i]) * x[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

CascadeBasis::CascadeBasis(std::int64_t d, std::int64_t k, double tolerance, const Basis* previous)
    : d_(d), k_(k), tolerance_(tolerance) {
  if (d < 1) fail("cascade: expected activations of at least 1 element, found {}", d);
  if (k < 1 || k > d) fail("subspace dimension {}: expected 1 to {}", k, d);
  if (!(tolerance >= 1e-5 && tolerance <= 1)) fail("tolerance {}: expected 1e-5 to 1", tolerance);
  v_.resize(k * d);
  scores_.resize(k);
  gram_.resize(k * k);
  x_.resize(kBlock * d);
  g_.resize(kBlock * k);
  wide_.resize(kBlock * k);
  norms_.resize(kBlock);
  r_.resize(d);
  h_.resize(k);
  if (!previous || previous->d != d || previous->k < 1) return;
  inherited_ = true;
  count_ = std::min(k, previous->k);
  std::copy_n(previous->vectors.begin(), count_ * d, v_.begin());
  if (previous->total_energy > 0)
    for (std::int64_t i = 0; i < count_; ++i)
      scores_[i] = previous->energies[i] / previous->total_energy * kInheritedTokens;
}

void CascadeBasis::add(const float* x, std::int64_t rows, std::int64_t stride) {
  check_activations(x, rows, d_, stride, tokens_);
  for (std::int64_t t = 0; t < rows; ++t, x += stride) {
    std::copy_n(x, d_, &x_[rows_ * d_]);
    ++tokens_;
    if (++rows_ == kBlock) work();
  }
}

// The coordinates of the block's tokens in V as it stands.
void CascadeBasis::project() {
  for (std::int64_t t = 0; t < rows_; ++t) norms_[t] = sum_of_squares(&x_[t * d_], d_);
  std::fill(g_.begin(), g_.end(), 0.0f);
  if (count_)
    gemm(Transpose::No, Transpose::Yes, rows_, count_, d_, 1.0f, x_.data(), d_, v_.data(), d_, 0.0f,
         g_.data(), k_);
  flops_ += static_cast<double>(rows_) * static_cast<double>(d_ * (count_ + 1));
}

// Leaves the residual of token t in r_, orthogonalised twice, and returns ‖r‖².
double CascadeBasis::residual(std::int64_t t) {
  std::copy_n(&x_[t * d_], d_, r_.begin());
  if (count_) {
    gemv(Transpose::Yes, count_, d_, -1.0f, v_.data(), d_, &g_[t * k_], 1.0f, r_.data());
    gemv(Transpose::No, count_, d_, 1.0f, v_.data(), d_, r_.data(), 0.0f, h_.data());
    gemv(Transpose::Yes, count_, d_, -1.0f, v_.data(), d_, h_.data(), 1.0f, r_.data());
  }
  flops_ += static_cast<double>(d_) * static_cast<double>(3 * count_ + 1);
  return sum_of_squares(r_.data(), d_);
}

// Puts the direction of r_ in place, brought by token t with this share of ‖x‖² in it.
void CascadeBasis::append(std::int64_t t, double share) {
  ++appended_;
  std::int64_t at = count_;
  if (count_ < k_) {
    ++count_;
  } else {
    at = std::min_element(scores_.begin(), scores_.end()) - scores_.begin();
    ++dropped_;
    if (scores_[at] >= share) return;
    // r is orthogonal to every direction, the dropped one included: V stays orthonormal.
    for (std::int64_t i = 0; i < k_; ++i) gram_[i * k_ + at] = gram_[at * k_ + i] = 0;
    for (std::int64_t s = 0; s < t; ++s) g_[s * k_ + at] = 0;
  }
  const double norm = std::sqrt(sum_of_squares(r_.data(), d_));
  float* v = &v_[at * d_];
  for (std::int64_t i = 0; i < d_; ++i) v[i] = static_cast<float>(r_[i] / norm);
  scores_[at] = share;
  float coordinates[kBlock];
  gemv(Transpose::No, rows_ - t, d_, 1.0f, &x_[t * d_], d_, v, 0.0f, coordinates);
  for (std::int64_t s = t; s < rows_; ++s) g_[s * k_ + at] = coordinates[s - t];
  flops_ += static_cast<double>(d_) * static_cast<double>(rows_ - t + 1);
}

void CascadeBasis::work() {
  if (!rows_) return;
  project();
  const double limit = tolerance_ * tolerance_;
  for (std::int64_t t = 0; t < rows_; ++t) {
    const double norm = norms_[t];
    if (!(norm > 0)) continue;
    total_energy_ += norm;
    const float* g = &g_[t * k_];
    for (std::int64_t i = 0; i < count_; ++i)
      scores_[i] = scores_[i] * kDecay + static_cast<double>(g[i]) * g[i] / norm;
    flops_ += 2.0 * static_cast<double>(count_);
    if (1 - sum_of_squares(g, count_) / norm < limit - kMargin) continue;
    const double share = residual(t) / norm;
    if (share > limit) append(t, share);
  }
  for (std::int64_t t = 0; t < rows_; ++t)
    for (std::int64_t i = 0; i < count_; ++i) wide_[t * k_ + i] = g_[t * k_ + i];
  if (count_) symmetric_rank_k(Transpose::Yes, count_, rows_, 1.0, wide_.data(), k_, 1.0, gram_.data(), k_);
  flops_ += static_cast<double>(rows_) * static_cast<double>(count_ * count_) / 2;
  rows_ = 0;
}

Basis CascadeBasis::finish() {
  work();
  if (!count_) fail("cascade: expected an activation other than zero among {} tokens", tokens_);
  std::vector<double> v(v_.begin(), v_.begin() + count_ * d_), gram(count_ * count_), rotated(count_ * d_);
  orthonormalize_rows(v.data(), count_, d_);  // V to double: changes it by rounding only
  for (std::int64_t i = 0; i < count_; ++i) std::copy_n(&gram_[i * k_], count_, &gram[i * count_]);
  const Spectrum s = symmetric_eigen(gram.data(), count_);
  gemm(Transpose::No, Transpose::No, count_, d_, count_, 1.0, s.vectors.data(), count_, v.data(), d_, 0.0,
       rotated.data(), d_);
  fix_signs(rotated.data(), count_, d_);
  const double k = static_cast<double>(count_), d = static_cast<double>(d_);
  flops_ += 2 * k * k * d + 4.5 * k * k * k + k * k * d;  // QR, eigenvectors, rotation
  Basis basis;
  basis.d = d_;
  basis.k = count_;
  basis.vectors.assign(rotated.begin(), rotated.end());
  basis.energies = s.values;
  for (double& e : basis.energies) e = std::max(e, 0.0);
  basis.total_energy = total_energy_;
  basis.tokens = tokens_;
  return basis;
}

double full_svd_flops(std::int64_t tokens, std::int64_t d) {
  const double t = static_cast<double>(std::max(tokens, d)), n = static_cast<double>(std::min(tokens, d));
  return (2 * t * n * n + 11 * n * n * n) / 2;
}

double second_moment_flops(std::int64_t tokens, std::int64_t d) {
  const double t = static_cast<double>(tokens), n = static_cast<double>(d);
  return t * n * n / 2 + 4.5 * n * n * n;
}

}  // namespace narrows
