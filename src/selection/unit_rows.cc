#include "selection/unit_rows.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace narrows {
namespace {

constexpr std::int64_t kSums = 16, kGrain = 16;

// In double: neither large nor tiny floats leave its range.
double norm(const float* x, std::int64_t d) {
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= d; i += kSums)
    for (std::int64_t j = 0; j < kSums; ++j) sums[j] += static_cast<double>(x[i + j]) * x[i + j];
  for (; i < d; ++i) sums[i % kSums] += static_cast<double>(x[i]) * x[i];
  double sum = 0;
  for (const double s : sums) sum += s;
  return std::sqrt(sum);
}

}  // namespace

void UnitRows::assign(const float* x, std::int64_t tokens, std::int64_t d, ThreadPool& pool,
                      const std::string& what) {
  tokens_ = tokens;
  d_ = d;
  stride_ = (d + 15) / 16 * 16;
  values_.resize(static_cast<std::size_t>(tokens * stride_));
  std::vector<double> norms(static_cast<std::size_t>(tokens));
  pool.share(tokens, kGrain, [&](int, Range range) {
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      const double length = norms[static_cast<std::size_t>(t)] = norm(x + t * d, d);
      const double factor = length > 0 ? 1 / length : 0;
      float* to = values_.data() + t * stride_;
      for (std::int64_t i = 0; i < d; ++i) to[i] = static_cast<float>(x[t * d + i] * factor);
      std::fill(to + d, to + stride_, 0.0f);
    }
  });
  for (std::int64_t t = 0; t < tokens; ++t)
    if (!std::isfinite(norms[static_cast<std::size_t>(t)]))
      fail("{}: token {}: expected finite activations, found an infinity or NaN", what, t);
}

}  // namespace narrows
