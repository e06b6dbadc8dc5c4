#include "generate/log_softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace narrows {
namespace {

// Rows are summed in single precision over so many lanes and blocks, then in double: lanes keep the compiler
// free to use SIMD without reordering sums on its own.
constexpr std::size_t kLanes = 16, kBlock = 512;

// exp(x) for x <= 0, without branches or calls: 2^n (1 + r + r²/2 + …) with n = round(x / ln 2), |r| <= ln 2
// / 2. The polynomial is exp's Taylor series to degree 7, whose remainder is below 6e-9. Below -87 the result
// is about 1e-38, which no sum here can tell from 0.
inline float exp_nonpositive(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;
  const float shifted =
      bounded * 1.44269504f + 12582912.0f;  // 1.5 · 2^23: rounds to an integer in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t scale = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(scale);
}

float largest(std::span<const float> logits) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] = logits[i + l] > lanes[l] ? logits[i + l] : lanes[l];
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

// Σ exp(x_i - shift) over one block.
double sum_exp(const float* x, std::size_t n, float shift) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += exp_nonpositive(x[i + l] - shift);
  for (; i < n; ++i) lanes[i % kLanes] += exp_nonpositive(x[i] - shift);
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Σ exp(x_i - shift) · (x_i - y_i) over one block.
double sum_exp_difference(const float* x, const float* y, std::size_t n, float shift) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l)
      lanes[l] += exp_nonpositive(x[i + l] - shift) * (x[i + l] - y[i + l]);
  for (; i < n; ++i) lanes[i % kLanes] += exp_nonpositive(x[i] - shift) * (x[i] - y[i]);
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Σ block(begin, size) over blocks of the row.
template <typename Block>
double sum_blocks(std::size_t size, Block&& block) {
  double sum = 0;
  for (std::size_t at = 0; at < size; at += kBlock) sum += block(at, std::min(kBlock, size - at));
  return sum;
}

}  // namespace

LogSoftmax::LogSoftmax(std::span<const float> logits) : logits_(logits), max_(largest(logits)) {
  if (!std::isfinite(max_)) fail("logits: expected finite numbers, the largest is {}", max_);
  sum_ = sum_blocks(size(), [&](std::size_t at, std::size_t n) { return sum_exp(&logits_[at], n, max_); });
  if (!std::isfinite(sum_)) fail("logits: expected finite numbers, found NaN");
  log_sum_exp_ = max_ + std::log(sum_);
}

double kl_divergence(const LogSoftmax& p, const LogSoftmax& q) {
  if (p.size() != q.size())
    fail("logits: expected a vocabulary of {} tokens as in the reference, found {}", p.size(), q.size());
  const double weighted = sum_blocks(p.size(), [&](std::size_t at, std::size_t n) {
    return sum_exp_difference(&p.logits_[at], &q.logits_[at], n, p.max_);
  });
  const double kl = weighted / p.sum_ + (q.log_sum_exp_ - p.log_sum_exp_);
  if (!std::isfinite(kl)) fail("logits: expected finite numbers in both models");
  return std::max(kl, 0.0);  // rounding may leave a negative crumb
}

std::size_t top1(std::span<const float> logits) {
  const float max = largest(logits);
  return static_cast<std::size_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());
}

}  // namespace narrows
