// Activations like a model's: tokens near a few directions, drifting from layer to layer.
#pragma once
#include <random>
#include <vector>

#include "selection/representatives.h"

namespace narrows {

class DriftingTokens {
 public:
  DriftingTokens(std::int64_t tokens, std::int64_t d, std::int64_t clusters, std::uint32_t seed)
      : tokens_(tokens), d_(d), random_(seed) {
    const std::vector<float> centres = normal(clusters * d, 1);
    x_ = normal(tokens * d, 0.25f);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t c = random_() % clusters;
      for (std::int64_t i = 0; i < d; ++i) at(t, i) += centres[static_cast<std::size_t>(c * d + i)];
    }
  }
  // Into the next layer.
  void drift(float by) {
    const std::vector<float> change = normal(tokens_ * d_, by);
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] += change[i];
  }
  float& at(std::int64_t t, std::int64_t i) { return x_[static_cast<std::size_t>(t * d_ + i)]; }
  const std::vector<float>& x() const { return x_; }
  UnitRows rows(ThreadPool& pool) const {
    UnitRows rows;
    rows.assign(x_.data(), tokens_, d_, pool, "test");
    return rows;
  }

 private:
  std::vector<float> normal(std::int64_t n, float scale) {
    std::normal_distribution<float> distribution(0, scale);
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& v : values) v = distribution(random_);
    return values;
  }
  std::int64_t tokens_, d_;
  std::mt19937 random_;
  std::vector<float> x_;
};

}  // namespace narrows
