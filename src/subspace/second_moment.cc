#include "subspace/second_moment.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

constexpr std::int64_t kChunk = 256, kTile = 512;
constexpr float kLargest = 1e18f;

}  // namespace

void check_activations(const float* x, std::int64_t rows, std::int64_t d, std::int64_t stride,
                       std::int64_t token) {
  for (std::int64_t t = 0; t < rows; ++t, x += stride) {
    bool good = true;
    for (std::int64_t i = 0; i < d; ++i) good &= std::abs(x[i]) <= kLargest;  // false for NaN
    if (good) continue;
    const std::int64_t i = std::find_if(x, x + d, [](float v) { return !(std::abs(v) <= kLargest); }) - x;
    if (std::isfinite(x[i]))
      fail("activation {} of token {} is {}: expected at most 1e18", i, token + t, x[i]);
    fail("activation {} of token {} is not finite", i, token + t);
  }
}

SecondMoment::SecondMoment(std::int64_t d) : d_(d) {
  if (d < 1) fail("second moment: expected activations of at least 1 element, found {}", d);
  pending_.resize(kChunk * d);
  sum_.resize(d * d);
}

void SecondMoment::add(const float* x, std::int64_t rows, std::int64_t stride) {
  check_activations(x, rows, d_, stride, tokens_);
  for (std::int64_t t = 0; t < rows; ++t, x += stride) {
    std::copy_n(x, d_, &pending_[pending_rows_ * d_]);
    ++tokens_;
    if (++pending_rows_ == kChunk) flush();
  }
}

void SecondMoment::flush() const {
  if (!pending_rows_) return;
  std::vector<float> tile(kTile * kTile);
  for (std::int64_t i0 = 0; i0 < d_; i0 += kTile) {
    const std::int64_t m = std::min(kTile, d_ - i0);
    for (std::int64_t j0 = i0; j0 < d_; j0 += kTile) {
      const std::int64_t n = std::min(kTile, d_ - j0);
      if (i0 == j0)
        symmetric_rank_k(Transpose::Yes, n, pending_rows_, 1.0f, &pending_[i0], d_, 0.0f, tile.data(), kTile);
      else
        gemm(Transpose::Yes, Transpose::No, m, n, pending_rows_, 1.0f, &pending_[i0], d_, &pending_[j0], d_,
             0.0f, tile.data(), kTile);
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = i0 == j0 ? i : 0; j < n; ++j)
          sum_[(i0 + i) * d_ + j0 + j] += static_cast<double>(tile[i * kTile + j]);
    }
  }
  pending_rows_ = 0;
  mirrored_ = false;
}

double SecondMoment::trace() const {
  flush();
  double sum = 0;
  for (std::int64_t i = 0; i < d_; ++i) sum += sum_[i * d_ + i];
  return sum;
}

std::vector<double> SecondMoment::mean() const {
  std::vector<double> r(matrix(), matrix() + d_ * d_);
  for (double& v : r) v /= static_cast<double>(std::max<std::int64_t>(tokens_, 1));
  return r;
}

const double* SecondMoment::matrix() const {
  flush();
  if (!mirrored_) mirror_upper(sum_.data(), d_);
  mirrored_ = true;
  return sum_.data();
}

}  // namespace narrows
