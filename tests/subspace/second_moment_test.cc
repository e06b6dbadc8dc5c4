#include "subspace/second_moment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "narrows/error.h"
#include "subspace/random_tokens.h"

namespace narrows {
namespace {

TEST(SecondMoment, IsTheSumOfOuterProducts) {
  for (const std::int64_t d : {1, 2, 17, 65, 600}) {
    const std::int64_t tokens = 300, stride = d + 3;
    const std::vector<double> x = random_matrix(tokens, stride, 1);
    const std::vector<float> xf(x.begin(), x.end());
    SecondMoment m(d);
    m.add(xf.data(), tokens, stride);
    EXPECT_EQ(m.tokens(), tokens);
    const std::vector<double> rounded(xf.begin(), xf.end());
    std::vector<double> expected(d * d);
    gemm(Transpose::Yes, Transpose::No, d, d, tokens, 1.0, rounded.data(), stride, rounded.data(), stride,
         0.0, expected.data(), d);
    double trace = 0;
    for (std::int64_t i = 0; i < d; ++i) {
      trace += expected[i * d + i];
      for (std::int64_t j = 0; j < d; ++j) {
        ASSERT_NEAR(m.matrix()[i * d + j], expected[i * d + j], 3e-6 * tokens) << d;
        ASSERT_EQ(m.matrix()[i * d + j], m.matrix()[j * d + i]) << d;
      }
    }
    EXPECT_NEAR(m.trace(), trace, 1e-6 * trace);
  }
}

TEST(SecondMoment, ChunksChangeNoBit) {
  const std::int64_t d = 65, tokens = 1000;
  const std::vector<double> x = random_matrix(tokens, d, 2);
  const std::vector<float> xf(x.begin(), x.end());
  SecondMoment once(d);
  once.add(xf.data(), tokens, d);
  for (const std::int64_t chunk : {1, 7, 255, 256, 300}) {
    SecondMoment chunks(d);
    for (std::int64_t t = 0; t < tokens; t += chunk) chunks.add(&xf[t * d], std::min(chunk, tokens - t), d);
    EXPECT_EQ(std::memcmp(once.matrix(), chunks.matrix(), d * d * sizeof(double)), 0) << chunk;
  }
  SecondMoment looked_at(d);
  looked_at.add(xf.data(), 100, d);
  looked_at.matrix();
  looked_at.add(&xf[100 * d], tokens - 100, d);
  for (std::int64_t i = 0; i < d * d; ++i) EXPECT_NEAR(looked_at.matrix()[i], once.matrix()[i], 1e-3);
}

TEST(SecondMoment, ManyTokensLoseNoAccuracy) {
  const std::int64_t d = 3, tokens = 100000;
  std::vector<float> x(tokens * d);
  double expected = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    x[t * d] = 1000.0f;  // a massive activation beside small ones
    x[t * d + 1] = 0.01f * static_cast<float>(1 + t % 7);
    expected += static_cast<double>(x[t * d + 1]) * x[t * d + 1];
  }
  SecondMoment m(d);
  m.add(x.data(), tokens, d);
  EXPECT_NEAR(m.matrix()[0], 1e6 * tokens, 1e-6 * 1e6 * tokens);
  EXPECT_NEAR(m.matrix()[d + 1], expected, 3e-7 * expected);
  EXPECT_EQ(m.matrix()[8], 0);
}

TEST(SecondMoment, RefusesWhatIsNotFinite) {
  const auto message = [](float bad) -> std::string {
    SecondMoment m(3);
    const float good[3] = {1, 2, 3};
    m.add(good, 1, 3);
    const float x[6] = {1, 2, 3, 4, bad, 6};
    try {
      m.add(x, 2, 3);
    } catch (const Error& e) {
      EXPECT_EQ(m.tokens(), 1);
      EXPECT_EQ(m.trace(), 14);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message(NAN), "activation 1 of token 2 is not finite");
  EXPECT_EQ(message(INFINITY), "activation 1 of token 2 is not finite");
  EXPECT_EQ(message(-INFINITY), "activation 1 of token 2 is not finite");
  EXPECT_THAT(message(1e30f), testing::HasSubstr("expected at most 1e18"));
  EXPECT_EQ(message(1e18f), "");
  EXPECT_THROW(SecondMoment(0), Error);
}

}  // namespace
}  // namespace narrows
