// Small operations, against double.
#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "base/error.h"
#include "kernels/on_targets.h"

namespace narrows {
namespace {

constexpr std::int64_t kLengths[] = {1, 3, 4, 8, 15, 16, 17, 64, 100, 576};

class Ops : public OnTargets {};
NARROWS_ON_TARGETS(Ops);

TEST_P(Ops, RmsNorm) {
  for (const std::int64_t n : kLengths)
    for (const float size : {1e-3f, 1.0f, 1e3f}) {
      const std::vector<float> x = gaussian(static_cast<std::size_t>(n), 1, size);
      const std::vector<float> weight = gaussian(static_cast<std::size_t>(n), 2);
      double squares = 0;
      for (const float v : x) squares += static_cast<double>(v) * v;
      const double rms = std::sqrt(squares / static_cast<double>(n) + 1e-5f);
      std::vector<float> y(x.size()), plain(x.size()), in_place = x;
      rms_norm(x.data(), weight.data(), 1e-5f, y.data(), n);
      rms_norm(x.data(), nullptr, 1e-5f, plain.data(), n);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = x[i] / rms;
        EXPECT_NEAR(plain[i], expected, 1e-6 * std::fabs(expected));
        EXPECT_NEAR(y[i], expected * weight[i], 1e-6 * std::fabs(expected * weight[i]));
      }
      rms_norm(in_place.data(), weight.data(), 1e-5f, in_place.data(), n);
      EXPECT_TRUE(same_bits(in_place, y));
    }
}

TEST_P(Ops, LayerNorm) {
  for (const std::int64_t n : kLengths)
    for (const float mean : {0.0f, 30.0f}) {
      std::vector<float> x = gaussian(static_cast<std::size_t>(n), 3);
      for (float& v : x) v += mean;
      const std::vector<float> weight = gaussian(x.size(), 4), bias = gaussian(x.size(), 5);
      double sum = 0, squares = 0;
      for (const float v : x) sum += v;
      const double middle = sum / static_cast<double>(n);
      for (const float v : x) squares += (v - middle) * (v - middle);
      const double deviation = std::sqrt(squares / static_cast<double>(n) + 1e-5f);
      std::vector<float> y(x.size()), plain(x.size()), in_place = x;
      layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, y.data(), n);
      layer_norm(x.data(), nullptr, nullptr, 1e-5f, plain.data(), n);
      // The mean's own rounding is relative to the values.
      const double slack = 1e-6 + 4e-7 * mean / deviation;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = (x[i] - middle) / deviation;
        EXPECT_NEAR(plain[i], expected, 1e-6 * std::fabs(expected) + slack) << n;
        EXPECT_NEAR(y[i], expected * weight[i] + bias[i],
                    (2e-6 * std::fabs(expected) + slack) * (1 + std::fabs(weight[i])))
            << n;
      }
      layer_norm(in_place.data(), weight.data(), bias.data(), 1e-5f, in_place.data(), n);
      EXPECT_TRUE(same_bits(in_place, y));
    }
}

TEST_P(Ops, NormsOfZeros) {
  std::vector<float> x(20), y(20, 1.0f);
  rms_norm(x.data(), nullptr, 1e-6f, y.data(), 20);
  EXPECT_TRUE(same_bits(y, x));
  y.assign(20, 1.0f);
  layer_norm(x.data(), nullptr, nullptr, 1e-6f, y.data(), 20);
  EXPECT_TRUE(same_bits(y, x));
}

TEST_P(Ops, Rotates) {
  for (const std::int64_t pairs : {1, 4, 7, 16, 33}) {
    const std::vector<float> x = gaussian(static_cast<std::size_t>(2 * pairs + 3), 6);
    std::vector<float> cosines, sines;
    for (std::int64_t i = 0; i < pairs; ++i) {
      cosines.push_back(static_cast<float>(std::cos(0.7 * static_cast<double>(i + 1))));
      sines.push_back(static_cast<float>(std::sin(0.7 * static_cast<double>(i + 1))));
    }
    std::vector<float> adjacent = x, half = x;
    rotate_adjacent(adjacent.data(), cosines.data(), sines.data(), pairs);
    rotate_half(half.data(), cosines.data(), sines.data(), pairs);
    const auto expect_rotated = [&](const std::vector<float>& y, std::size_t a, std::size_t b,
                                    std::size_t pair) {
      const double c = cosines[pair], s = sines[pair];
      EXPECT_NEAR(y[a], x[a] * c - x[b] * s, 1e-6);
      EXPECT_NEAR(y[b], x[a] * s + x[b] * c, 1e-6);
    };
    const std::size_t n = static_cast<std::size_t>(pairs);
    for (std::size_t i = 0; i < n; ++i) {
      expect_rotated(adjacent, 2 * i, 2 * i + 1, i);
      expect_rotated(half, i, i + n, i);
    }
    for (std::size_t i = 2 * n; i < x.size(); ++i) {  // what is not rotated stays
      EXPECT_EQ(adjacent[i], x[i]);
      EXPECT_EQ(half[i], x[i]);
    }
  }
}

double reference(Activation activation, double v) {
  switch (activation) {
    case Activation::Silu:
      return v / (1 + std::exp(-v));
    case Activation::GeluTanh:  // 0.5 (1 + tanh z) without its cancellation
      return v / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
    case Activation::GeluErf:
      return 0.5 * v * std::erfc(-v / std::numbers::sqrt2);
    case Activation::Relu:
      return std::max(v, 0.0);
  }
  return 0;
}

constexpr Activation kActivations[] = {Activation::Silu, Activation::GeluTanh, Activation::GeluErf,
                                       Activation::Relu};

// Dense over the range that matters, and far out, where exponentials overflow.
std::vector<float> arguments() {
  std::vector<float> x;
  for (float v = -20; v <= 20; v += 0.0137f) x.push_back(v);
  for (const float v : {0.0f, 1e-30f, 1e-8f, 50.0f, 87.0f, 88.5f, 89.0f, 100.0f, 103.5f, 105.0f, 200.0f, 1e4f,
                        1e10f, 1e30f, std::numeric_limits<float>::max()}) {
    x.push_back(v);
    x.push_back(-v);
  }
  return x;
}

TEST_P(Ops, Activates) {
  const std::vector<float> x = arguments();
  for (const Activation activation : kActivations) {
    std::vector<float> y(x.size());
    activate(activation, x.data(), nullptr, y.data(), std::ssize(x));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = reference(activation, x[i]);
      // Rounding of an argument z of exp(z) costs |z| ulps: it matters only where the result is nearly 0.
      const double relative = 1e-6 + 2e-7 * std::fabs(std::log(std::fabs(expected / x[i]) + 1e-300));
      EXPECT_NEAR(y[i], expected, (x[i] == 0 ? 0 : relative * std::fabs(expected)) + 1e-30)
          << "activation " << static_cast<int>(activation) << " of " << x[i];
    }
  }
}

TEST_P(Ops, ActivatesAndMultiplies) {
  for (const Activation activation : kActivations)
    for (const std::int64_t n : kLengths) {
      const std::vector<float> gate = gaussian(static_cast<std::size_t>(n), 7), up = gaussian(gate.size(), 8);
      std::vector<float> y(gate.size()), over_gate = gate, over_up = up, alone(gate.size());
      activate(activation, gate.data(), up.data(), y.data(), n);
      activate(activation, gate.data(), nullptr, alone.data(), n);
      for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], alone[i] * up[i]);
      activate(activation, over_gate.data(), up.data(), over_gate.data(), n);
      activate(activation, gate.data(), over_up.data(), over_up.data(), n);
      EXPECT_TRUE(same_bits(over_gate, y));
      EXPECT_TRUE(same_bits(over_up, y));
    }
}

TEST_P(Ops, AddsScalesAndCaps) {
  for (const std::int64_t n : kLengths) {
    const std::vector<float> x = gaussian(static_cast<std::size_t>(n), 9, 40), z = gaussian(x.size(), 10);
    std::vector<float> sum = z, scaled = x, capped = x;
    add(x.data(), sum.data(), n);
    scale(-0.3f, scaled.data(), n);
    soft_cap(30, capped.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(sum[i], x[i] + z[i]);
      EXPECT_EQ(scaled[i], -0.3f * x[i]);
      const double expected = 30 * std::tanh(static_cast<double>(x[i]) / 30);
      EXPECT_NEAR(capped[i], expected, 1e-6 * std::fabs(expected));
    }
  }
  std::vector<float> far = {1e4f, -1e4f, 1e30f, -1e30f, 0.0f, 1e-20f};
  soft_cap(50, far.data(), std::ssize(far));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(far[i], i % 2 ? -50 : 50, 1e-4);
  EXPECT_EQ(far[4], 0.0f);
  EXPECT_NEAR(far[5], 1e-20, 1e-26);
}

// Every length ends where it should.
TEST_P(Ops, WriteNothingElse) {
  for (const std::int64_t n : {1, 5, 15, 17}) {
    const std::vector<float> x = gaussian(32, 11);
    std::vector<float> y(32, 7.0f);
    const auto expect_rest = [&](const char* what) {
      for (std::size_t i = static_cast<std::size_t>(n); i < y.size(); ++i)
        EXPECT_EQ(y[i], 7.0f) << what << ", " << n;
      std::ranges::fill(y, 7.0f);
    };
    rms_norm(x.data(), x.data(), 1e-5f, y.data(), n);
    expect_rest("rms_norm");
    layer_norm(x.data(), x.data(), x.data(), 1e-5f, y.data(), n);
    expect_rest("layer_norm");
    for (const Activation activation : kActivations) {
      activate(activation, x.data(), x.data(), y.data(), n);
      expect_rest("activate");
    }
    add(x.data(), y.data(), n);
    expect_rest("add");
    scale(2, y.data(), n);
    expect_rest("scale");
    soft_cap(2, y.data(), n);
    expect_rest("soft_cap");
  }
}

TEST(OpsTargets, AgreeToTheBit) {
  const std::vector<float> x = gaussian(333, 12, 3), z = gaussian(333, 13);
  const std::int64_t n = std::ssize(x);
  std::vector<std::vector<float>> expected;
  for (const std::string& name : fma_targets()) {
    const WithTarget target(name);
    std::vector<std::vector<float>> results(8, x);
    rms_norm(x.data(), z.data(), 1e-5f, results[0].data(), n);
    layer_norm(x.data(), z.data(), z.data(), 1e-5f, results[1].data(), n);
    for (std::size_t i = 0; i < 4; ++i)
      activate(kActivations[i], x.data(), z.data(), results[2 + i].data(), n);
    soft_cap(5, results[6].data(), n);
    rotate_half(results[7].data(), z.data(), z.data() + 166, 166);
    if (expected.empty()) expected = results;
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_TRUE(same_bits(results[i], expected[i])) << "operation " << i << " on " << name;
  }
}

TEST(Dispatch, TakesNamesAndRefusesOthers) {
  const std::vector<std::string> all = dispatch_targets();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(dispatch_target(), all.front());
  {
    const WithTarget target(all.back());
    EXPECT_EQ(dispatch_target(), all.back());
    EXPECT_THROW(set_dispatch_target("SSE9"), Error);
  }
  EXPECT_EQ(dispatch_targets(), all);
}

}  // namespace
}  // namespace narrows
