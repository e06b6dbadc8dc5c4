#include "model/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace narrows {
namespace {

TEST(Rotary, PlainFrequencies) {
  const Rotary rotary = make_rotary(RotaryLayout::Half, 8, 10000, {}, {});
  EXPECT_EQ(rotary.layout, RotaryLayout::Half);
  EXPECT_EQ(rotary.pairs, 4);
  EXPECT_EQ(rotary.magnitude, 1);
  ASSERT_EQ(rotary.frequencies.size(), 4u);
  EXPECT_FLOAT_EQ(rotary.frequencies[0], 1);
  EXPECT_FLOAT_EQ(rotary.frequencies[1], 0.1f);
  EXPECT_FLOAT_EQ(rotary.frequencies[2], 0.01f);
  EXPECT_FLOAT_EQ(rotary.frequencies[3], 0.001f);
}

TEST(Rotary, LinearScalingDividesFrequencies) {
  RotaryScaling scaling;
  scaling.type = "linear";
  scaling.factor = 8;
  const Rotary plain = make_rotary(RotaryLayout::Adjacent, 64, 1e6, {}, {});
  const Rotary scaled = make_rotary(RotaryLayout::Adjacent, 64, 1e6, scaling, {});
  for (std::size_t i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(scaled.frequencies[i], plain.frequencies[i] / 8);
  EXPECT_EQ(scaled.magnitude, 1);
}

TEST(Rotary, Divisors) {
  const std::vector<float> divisors{1, 2, 4, 8};
  const Rotary plain = make_rotary(RotaryLayout::Adjacent, 8, 5e5, {}, {});
  const Rotary divided = make_rotary(RotaryLayout::Adjacent, 8, 5e5, {}, divisors);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_FLOAT_EQ(divided.frequencies[i], plain.frequencies[i] / divisors[i]);
}

// Section 3.2 and 3.4 of arXiv 2309.00071: pairs that turn more than beta_fast times within the original
// context keep their frequency, those below beta_slow turns are interpolated, and attention is sharpened.
TEST(Rotary, Yarn) {
  RotaryScaling scaling;
  scaling.type = "yarn";
  scaling.factor = 4;
  scaling.original_context = 32768;
  const int dims = 128;
  const double base = 1e6;
  const Rotary plain = make_rotary(RotaryLayout::Half, dims, base, {}, {});
  const Rotary yarn = make_rotary(RotaryLayout::Half, dims, base, scaling, {});
  EXPECT_FLOAT_EQ(yarn.magnitude, static_cast<float>(0.1 * std::log(4.0) + 1));
  const auto pair_of = [&](double turns) {
    return dims * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  const double low = std::floor(pair_of(32)), high = std::ceil(pair_of(1));
  ASSERT_LT(0, low);
  ASSERT_LT(high, 64);
  for (int i = 0; i < 64; ++i) {
    const std::size_t p = static_cast<std::size_t>(i);
    const double turns = scaling.original_context * plain.frequencies[p] / (2 * std::numbers::pi);
    if (i <= low) {
      EXPECT_GT(turns, 31);
      EXPECT_FLOAT_EQ(yarn.frequencies[p], plain.frequencies[p]);
    } else if (i >= high) {
      EXPECT_LT(turns, 1.01);
      EXPECT_FLOAT_EQ(yarn.frequencies[p], plain.frequencies[p] / 4);
    } else {
      const double interpolated = (i - low) / (high - low);
      EXPECT_NEAR(yarn.frequencies[p], plain.frequencies[p] * ((1 - interpolated) + interpolated / 4),
                  1e-6 * plain.frequencies[p]);
    }
  }
}

TEST(Rotary, YarnAttentionFactorMultiplies) {
  RotaryScaling scaling;
  scaling.type = "yarn";
  scaling.factor = 16;
  scaling.original_context = 4096;
  scaling.attention_factor = 0.5;
  EXPECT_FLOAT_EQ(make_rotary(RotaryLayout::Half, 64, 10000, scaling, {}).magnitude,
                  static_cast<float>(0.5 * (1 + 0.1 * std::log(16.0))));
}

}  // namespace
}  // namespace narrows
