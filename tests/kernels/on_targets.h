// What tests of kernels share: running on each instruction set, random data, comparison of bits.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/activations.h"
#include "kernels/dispatch.h"

namespace narrows {

// Puts the kernels on `target` and lifts the restriction at its end.
class WithTarget {
 public:
  explicit WithTarget(const std::string& target) { set_dispatch_target(target); }
  WithTarget(const WithTarget&) = delete;
  WithTarget& operator=(const WithTarget&) = delete;
  ~WithTarget() { set_dispatch_target(""); }
};

// Those with fused multiply-add, whose results agree to the bit; best first.
inline std::vector<std::string> fma_targets() {
  std::vector<std::string> targets = dispatch_targets();
  std::erase_if(targets, [](const std::string& target) { return target.starts_with("SSE"); });
  return targets;
}

// A test that runs once on each instruction set of the machine.
class OnTargets : public testing::TestWithParam<std::string> {
 private:
  WithTarget target_{GetParam()};
};
#define NARROWS_ON_TARGETS(Suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(Targets, Suite, testing::ValuesIn(dispatch_targets()), \
                           [](const auto& target) { return target.param; })

inline std::vector<float> gaussian(std::size_t n, std::uint32_t seed, float scale = 1) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(bits);
  return x;
}

// Where block b of row t lies in q.scale, q.fine and the sums over 32, its half s in those over 16, and element i in q.q.
inline std::size_t block_at(const QuantizedRows& q, std::int64_t t, std::int64_t b) {
  return static_cast<std::size_t>(q.first_block(t) + b * q.together);
}
inline std::size_t half_at(const QuantizedRows& q, std::int64_t t, std::int64_t b, std::int64_t s) {
  return static_cast<std::size_t>(q.first_block(t, 2) + (2 * b + s) * q.together);
}
inline std::size_t code_at(const QuantizedRows& q, std::int64_t t, std::int64_t i) {
  return block_at(q, t, i / 32) * 32 + static_cast<std::size_t>(i % 32);
}

// Equality of bits: tells -0 from 0, and NaN equals itself.
inline testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " values and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      return testing::AssertionFailure() << "at " << i << ": " << a[i] << " and " << b[i];
  return testing::AssertionSuccess();
}

}  // namespace narrows
