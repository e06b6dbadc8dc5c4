// Blocks of a Gram matrix: the bits of float products, whichever way round and however cut.
#include "kernels/gram.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/matmul.h"
#include "kernels/on_targets.h"

namespace narrows {
namespace {

constexpr std::int64_t kTokens = 70;
constexpr std::int64_t kWidths[] = {16, 48, 64, 576};

std::vector<std::int32_t> shuffled(std::uint32_t seed) {
  std::vector<std::int32_t> order(kTokens);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

// Entry (s, t) from products of the whole matrix with itself.
std::vector<float> expected_gram(const std::vector<float>& x, std::int64_t d) {
  const WeightMatrix w{DType::F32, kTokens, d, reinterpret_cast<const std::byte*>(x.data()), nullptr};
  std::vector<float> gram(kTokens * kTokens);
  matmul_float(w, {0, kTokens}, x.data(), d, {0, kTokens}, nullptr, gram.data(), kTokens);
  return gram;
}

class Gram : public OnTargets {};
NARROWS_ON_TARGETS(Gram);

TEST_P(Gram, HasTheBitsOfFloatProductsInEveryBlock) {
  for (const std::int64_t d : kWidths) {
    const std::vector<float> x = gaussian(static_cast<std::size_t>(kTokens * d), 1);
    const std::vector<float> expected = expected_gram(x, d);
    const auto rows = shuffled(2), columns = shuffled(3);
    for (std::size_t m : {0, 1, 2, 3, 4, 5, 6, 7, 11, 13, 24})
      for (std::size_t n : {0, 1, 2, 3, 4, 5, 7, 17, 63, 64}) {
        std::vector<float> out(24 * kGramColumns + 8, 7.0f);
        gram_block(x.data(), d, std::span(rows).first(m), std::span(columns).first(n), out.data());
        for (std::size_t i = 0; i * kGramColumns < out.size(); ++i)
          for (std::size_t j = 0; j < kGramColumns && i * kGramColumns + j < out.size(); ++j) {
            const float found = out[i * kGramColumns + j];
            if (i >= m || j >= n) {
              ASSERT_EQ(found, 7.0f) << i << ", " << j;
              continue;
            }
            const auto s = static_cast<std::size_t>(rows[i]), t = static_cast<std::size_t>(columns[j]);
            ASSERT_EQ(found, expected[s * kTokens + t]) << m << " × " << n << ", width " << d;
            ASSERT_EQ(found, expected[t * kTokens + s]);
          }
      }
  }
}

TEST_P(Gram, LargestOfValues) {
  const std::vector<float> x = gaussian(80, 4);
  for (std::size_t n = 0; n <= 80; ++n)
    for (const float least : {-9.0f, 0.5f, 9.0f}) {
      float expected = least;
      for (std::size_t i = 0; i < n; ++i) expected = std::max(expected, x[i]);
      EXPECT_EQ(largest(x.data(), static_cast<std::int64_t>(n), least), expected);
    }
}

TEST(GramTargets, AgreeToTheBit) {
  if (fma_targets().size() < 2) GTEST_SKIP() << "one instruction set with fused multiply-add";
  const std::vector<float> x = gaussian(kTokens * 576, 5);
  const auto rows = shuffled(6), columns = shuffled(7);
  std::vector<float> expected;
  for (const std::string& name : fma_targets()) {
    const WithTarget target(name);
    std::vector<float> out(24 * kGramColumns);
    gram_block(x.data(), 576, std::span(rows).first(23), std::span(columns).first(64), out.data());
    if (expected.empty()) expected = out;
    EXPECT_TRUE(same_bits(out, expected)) << name;
  }
}

}  // namespace
}  // namespace narrows
