#include "generate/log_softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "narrows/error.h"

namespace narrows {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_row(std::size_t n, unsigned seed, float spread) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(n);
  for (float& x : row) x = normal(rng);
  return row;
}

double slow_log_sum_exp(const std::vector<float>& row) {
  double max = -kInf, sum = 0;
  for (float x : row) max = std::max<double>(max, x);
  for (float x : row) sum += std::exp(x - max);
  return max + std::log(sum);
}

double slow_kl(const std::vector<float>& p, const std::vector<float>& q) {
  const double lp = slow_log_sum_exp(p), lq = slow_log_sum_exp(q);
  double kl = 0;
  for (std::size_t i = 0; i < p.size(); ++i)
    kl += std::exp(p[i] - lp) * ((static_cast<double>(p[i]) - lp) - (static_cast<double>(q[i]) - lq));
  return kl;
}

double log_sum_exp(const std::vector<float>& row) { return LogSoftmax(row).log_sum_exp(); }
double kl(const std::vector<float>& p, const std::vector<float>& q) {
  return kl_divergence(LogSoftmax(p), LogSoftmax(q));
}

TEST(LogSoftmax, MatchesDoublePrecision) {
  for (std::size_t n : {1u, 2u, 15u, 16u, 17u, 511u, 512u, 513u, 49152u, 262144u}) {
    for (float spread : {0.01f, 3.0f, 60.0f}) {
      const auto row = random_row(n, static_cast<unsigned>(n), spread);
      const double expected = slow_log_sum_exp(row);
      EXPECT_NEAR(log_sum_exp(row), expected, 2e-6 + 1e-7 * std::abs(expected)) << n << " " << spread;
    }
  }
}

TEST(LogSoftmax, ExtremeLogits) {
  EXPECT_NEAR(log_sum_exp(std::vector<float>{1e30f, -1e30f}), 1e30f, 1e23);
  EXPECT_NEAR(log_sum_exp(std::vector<float>{-kInf, 2}), 2, 1e-6);
  EXPECT_NEAR(log_sum_exp(std::vector<float>(1000, -1e4f)), -1e4 + std::log(1000), 1e-6);
  EXPECT_THROW(log_sum_exp(std::vector<float>{-kInf, -kInf}), Error);
  EXPECT_THROW(log_sum_exp(std::vector<float>{1, kInf}), Error);
  EXPECT_THROW(log_sum_exp(std::vector<float>{1, std::nanf("")}), Error);
  EXPECT_THROW(log_sum_exp(std::vector<float>{}), Error);
}

TEST(LogSoftmax, KullbackLeibler) {
  for (std::size_t n : {2u, 100u, 49152u}) {
    const auto p = random_row(n, 1, 4);
    auto q = random_row(n, 2, 0.3f);
    for (std::size_t i = 0; i < n; ++i) q[i] += p[i];
    const double expected = slow_kl(p, q);
    EXPECT_NEAR(kl(p, q), expected, 2e-6 + 1e-5 * expected) << n;
    EXPECT_EQ(kl(p, p), 0);
    // A constant added to every logit changes nothing.
    auto shifted = p;
    for (float& x : shifted) x += 2;
    EXPECT_NEAR(kl(p, shifted), 0, 2e-6);
  }
  EXPECT_THROW(kl(std::vector<float>{1, 2}, std::vector<float>{1}), Error);
  EXPECT_THROW(kl(std::vector<float>{1, 2}, std::vector<float>{1, -kInf}), Error);
}

TEST(LogSoftmax, Top1TakesTheSmallestIndex) {
  EXPECT_EQ(top1(std::vector<float>{1, 5, 5, 2}), 1u);
  auto row = random_row(1000, 3, 1);
  row[777] = 10;
  EXPECT_EQ(top1(row), 777u);
}

}  // namespace
}  // namespace narrows
