#include "kernels/activations.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/on_targets.h"

namespace narrows {
namespace {

QuantizedRows quantized(const std::vector<float>& x, std::int64_t k) {
  QuantizedRows q;
  q.resize(std::ssize(x) / k, k);
  quantize_rows(x.data(), k, {0, q.rows}, q);
  return q;
}

class QuantizeRows : public OnTargets {};
NARROWS_ON_TARGETS(QuantizeRows);

TEST_P(QuantizeRows, RoundsToNearest) {
  for (const std::int64_t k : {1, 31, 32, 33, 48, 576})
    for (const float size : {1e-25f, 1.0f, 1e30f}) {
      const std::vector<float> x = gaussian(static_cast<std::size_t>(3 * k), 1, size);
      const QuantizedRows q = quantized(x, k);
      for (std::int64_t t = 0; t < 3; ++t)
        for (std::int64_t b = 0; b < q.blocks; ++b) {
          float largest = 0;
          for (std::int64_t i = b * 32; i < std::min(k, b * 32 + 32); ++i)
            largest = std::max(largest, std::fabs(x[static_cast<std::size_t>(t * k + i)]));
          const float scale = q.scale[block_at(q, t, b)];
          EXPECT_FLOAT_EQ(scale, largest / 127);
          for (std::int64_t i = b * 32; i < std::min(k, b * 32 + 32); ++i)
            ASSERT_NEAR(static_cast<double>(scale) * q.q[code_at(q, t, i)],
                        x[static_cast<std::size_t>(t * k + i)], 0.5001 * scale)
                << "k " << k << ", token " << t << ", element " << i;
        }
    }
}

// Blocks with outliers keep what is left over, in units of 1/128 of the scale.
TEST_P(QuantizeRows, OutliersAreFine) {
  const std::int64_t k = 320;
  std::vector<float> x = gaussian(static_cast<std::size_t>(2 * k), 7);
  x[5] = 60;       // row 0, block 0
  x[k + 100] = -80;  // row 1, block 3
  const QuantizedRows q = quantized(x, k);
  for (std::int64_t t = 0; t < 2; ++t)
    for (std::int64_t b = 0; b < q.blocks; ++b) {
      const bool fine = q.fine[block_at(q, t, b)] != 0;
      EXPECT_EQ(fine, b == (t == 0 ? 0 : 3)) << "row " << t << ", block " << b;
      const double scale = q.scale[block_at(q, t, b)];
      for (std::int64_t i = b * 32; i < b * 32 + 32; ++i) {
        const std::size_t at = code_at(q, t, i);
        EXPECT_TRUE(fine || q.low[at] == 0);
        EXPECT_NEAR(scale * (q.q[at] + q.low[at] / 128.0), x[static_cast<std::size_t>(t * k + i)],
                    scale * (fine ? 0.6 / 128 : 0.5001));
      }
    }
}

TEST_P(QuantizeRows, PadsWithZerosAndSums) {
  const std::int64_t k = 77;
  const QuantizedRows q = quantized(gaussian(5 * k, 2), k);
  ASSERT_EQ(q.blocks, 3);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t b = 0; b < q.blocks; ++b) {
      const std::size_t at = block_at(q, t, b);
      std::int32_t sums[2] = {0, 0};
      for (std::int64_t i = 0; i < 32; ++i) {
        const std::int8_t code = q.q[code_at(q, t, b * 32 + i)];
        EXPECT_GE(code, -127);
        EXPECT_TRUE(b * 32 + i < k || code == 0);
        sums[i / 16] += code;
      }
      EXPECT_EQ(q.sum32[at], sums[0] + sums[1]);
      EXPECT_EQ(q.scaled_sum32[at], q.scale[at] * static_cast<float>(sums[0] + sums[1]));
      for (std::int64_t s = 0; s < 2; ++s) {
        EXPECT_EQ(q.sum16[half_at(q, t, b, s)], sums[s]);
        EXPECT_EQ(q.scaled_sum16[half_at(q, t, b, s)], q.scale[at] * static_cast<float>(sums[s]));
      }
    }
}

TEST_P(QuantizeRows, TakesTheExtremes) {
  constexpr float kMost = std::numeric_limits<float>::max(),
                  kLeast = std::numeric_limits<float>::denorm_min();
  std::vector<float> x(96);
  x[0] = kMost, x[1] = -kMost, x[2] = 1;
  x[32] = kLeast, x[33] = -1e-38f;  // too small to scale: as good as zero
  const QuantizedRows q = quantized(x, 32);
  EXPECT_EQ(q.q[0], 127);
  EXPECT_EQ(q.q[1], -127);
  EXPECT_EQ(q.q[2], 0);
  for (std::int64_t row = 1; row < 3; ++row) {
    EXPECT_EQ(q.scale[block_at(q, row, 0)], 0.0f);
    EXPECT_EQ(q.scaled_sum32[block_at(q, row, 0)], 0.0f);
    for (std::int64_t i = 0; i < 32; ++i) EXPECT_EQ(q.q[code_at(q, row, i)], 0);
  }
}

// A buffer that served larger rows before gives what a new one gives.
TEST_P(QuantizeRows, ReusesItsMemory) {
  const std::vector<float> x = gaussian(2 * 40, 3);
  QuantizedRows used = quantized(gaussian(8 * 320, 4), 320);
  const QuantizedRows fresh = quantized(x, 40);
  used.resize(2, 40);
  quantize_rows(x.data(), 40, {1, 2}, used);
  quantize_rows(x.data(), 40, {0, 1}, used);
  for (std::int64_t t = 0; t < 2; ++t)
    for (std::int64_t b = 0; b < 2; ++b) {
      EXPECT_EQ(std::memcmp(&used.q[code_at(used, t, b * 32)], &fresh.q[code_at(fresh, t, b * 32)], 32), 0);
      EXPECT_EQ(used.scale[block_at(used, t, b)], fresh.scale[block_at(fresh, t, b)]);
      EXPECT_EQ(used.sum32[block_at(used, t, b)], fresh.sum32[block_at(fresh, t, b)]);
    }
}

TEST(QuantizeRowsTargets, AgreeToTheBit) {
  const std::vector<float> x = gaussian(4 * 100, 5);
  const QuantizedRows expected = quantized(x, 100);
  for (const std::string& name : dispatch_targets()) {
    const WithTarget target(name);
    const QuantizedRows q = quantized(x, 100);
    EXPECT_EQ(q.q, expected.q) << name;
    EXPECT_EQ(q.scale, expected.scale) << name;
    EXPECT_EQ(q.scaled_sum32, expected.scaled_sum32) << name;
    EXPECT_EQ(q.scaled_sum16, expected.scaled_sum16) << name;
  }
}

}  // namespace
}  // namespace narrows
