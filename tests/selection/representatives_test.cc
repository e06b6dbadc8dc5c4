// Selection of representative tokens, against its definitions token by token.
#include "selection/representatives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "kernels/gram.h"
#include "kernels/on_targets.h"
#include "selection/activations.h"

namespace narrows {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::ThrowsMessage;
using Tokens = std::vector<TokenRow>;

constexpr float kTaus[] = {0.1f, 0.3f, 0.5f, 0.7f, 0.9f};

float cosine(const UnitRows& x, TokenRow s, TokenRow t) {
  float out[kGramColumns];
  gram_block(x.data(), x.stride(), {&s, 1}, {&t, 1}, out);
  return out[0];
}

bool below_all(const UnitRows& x, float threshold, TokenRow t, const Tokens& others) {
  return std::all_of(others.begin(), others.end(),
                     [&](TokenRow s) { return s >= t || cosine(x, s, t) < threshold; });
}

Tokens count_up(std::int64_t n) {
  Tokens all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Tokens slow_independent(const UnitRows& x, float threshold) {
  Tokens chosen;
  const Tokens all = count_up(x.tokens());
  for (const TokenRow t : all)
    if (below_all(x, threshold, t, all)) chosen.push_back(t);
  return chosen;
}

Tokens slow_cover(const UnitRows& x, float threshold) {
  Tokens chosen;
  for (const TokenRow t : count_up(x.tokens()))
    if (below_all(x, threshold, t, chosen)) chosen.push_back(t);
  return chosen;
}

// The two steps as they are defined, dropped tokens tested again.
Selection slow_cascade(const UnitRows& x, float threshold, const Tokens& inherited) {
  Selection s;
  for (const TokenRow t : inherited)
    if (below_all(x, threshold, t, s.representatives)) s.representatives.push_back(t);
  s.removed = std::ssize(inherited) - std::ssize(s.representatives);
  for (const TokenRow t : count_up(x.tokens())) {
    const auto place = std::lower_bound(s.representatives.begin(), s.representatives.end(), t);
    if (place != s.representatives.end() && *place == t) continue;
    if (!below_all(x, threshold, t, s.representatives)) continue;
    s.representatives.insert(place, t);
    ++s.added;
  }
  return s;
}

class Representatives : public OnTargets {};
NARROWS_ON_TARGETS(Representatives);

TEST_P(Representatives, FollowTheirDefinitions) {
  ThreadPool pool(2);
  for (const std::int64_t tokens : {1, 2, 7, 130, 221})
    for (const std::int64_t d : {5, 40}) {
      DriftingTokens made(tokens, d, 1 + tokens / 4, static_cast<std::uint32_t>(tokens + d));
      UnitRows x = made.rows(pool);
      for (const float tau : kTaus) {
        const float threshold = selection_threshold(tau);
        Tokens inherited = select_independently(x, threshold, pool).representatives;
        EXPECT_EQ(inherited, slow_independent(x, threshold));
        EXPECT_EQ(select_by_cover(x, threshold, pool).representatives, slow_cover(x, threshold));
      }
      Tokens inherited = select_independently(x, selection_threshold(0.5f), pool).representatives;
      for (int layer = 0; layer < 4; ++layer) {
        made.drift(0.2f);
        x = made.rows(pool);
        const Selection found = select_by_cascade(x, selection_threshold(0.5f), inherited, pool);
        const Selection expected = slow_cascade(x, selection_threshold(0.5f), inherited);
        EXPECT_EQ(found.representatives, expected.representatives);
        EXPECT_EQ(found.removed, expected.removed);
        EXPECT_EQ(found.added, expected.added);
        inherited = found.representatives;
      }
    }
}

// Proposition 4.
TEST_P(Representatives, CascadeHoldsTheIndependentSet) {
  ThreadPool pool(2);
  for (const float tau : kTaus) {
    const float threshold = selection_threshold(tau);
    DriftingTokens made(400, 48, 60, 11);
    Tokens inherited = select_independently(made.rows(pool), threshold, pool).representatives;
    std::int64_t removed = 0, added = 0;
    for (int layer = 0; layer < 6; ++layer) {
      made.drift(0.15f);
      const UnitRows x = made.rows(pool);
      const Selection cascade = select_by_cascade(x, threshold, inherited, pool);
      const Tokens independent = select_independently(x, threshold, pool).representatives;
      EXPECT_TRUE(std::includes(cascade.representatives.begin(), cascade.representatives.end(),
                                independent.begin(), independent.end()))
          << "tau " << tau << ", layer " << layer;
      EXPECT_EQ(std::ssize(cascade.representatives), std::ssize(inherited) - cascade.removed + cascade.added);
      // Whoever is none has one that precedes.
      const Tokens nearest = nearest_representatives(x, cascade.representatives, pool);
      for (TokenRow t = 0; t < 400; ++t)
        if (const TokenRow r = nearest[static_cast<std::size_t>(t)]; r != t) {
          EXPECT_GE(cosine(x, r, t), threshold);
        }
      inherited = cascade.representatives;
      removed += cascade.removed;
      added += cascade.added;
    }
    if (tau > 0.25f && tau < 0.8f) {
      EXPECT_GT(removed + added, 0) << tau;
    }
  }
}

// From any set, whatever it held: the empty one and everything included.
TEST_P(Representatives, CascadeFromAnySet) {
  ThreadPool pool(1);
  const UnitRows x = DriftingTokens(200, 32, 30, 5).rows(pool);
  const float threshold = selection_threshold(0.5f);
  const Tokens independent = select_independently(x, threshold, pool).representatives;
  std::mt19937 random(9);
  for (int trial = 0; trial < 20; ++trial) {
    Tokens inherited;
    for (TokenRow t = 0; t < 200; ++t)
      if (static_cast<int>(random() % 19) < trial) inherited.push_back(t);
    const Selection found = select_by_cascade(x, threshold, inherited, pool);
    EXPECT_EQ(found.representatives, slow_cascade(x, threshold, inherited).representatives);
    EXPECT_THAT(found.representatives, IsSupersetOf(independent));
  }
  EXPECT_EQ(select_by_cascade(x, threshold, count_up(200), pool).representatives,
            select_by_cover(x, threshold, pool).representatives);
  EXPECT_EQ(select_by_cascade(x, threshold, {}, pool).representatives,
            select_by_cover(x, threshold, pool).representatives);
}

TEST_P(Representatives, DoNotDependOnThreads) {
  ThreadPool one(1);
  DriftingTokens made(500, 33, 80, 6);
  const UnitRows x = made.rows(one);
  made.drift(0.2f);
  const UnitRows next = made.rows(one);
  const float threshold = selection_threshold(0.4f);
  const PrecedingMaxima maxima = preceding_maxima(x, one);
  const Selection first = maxima.below(threshold);
  const Selection cascade = select_by_cascade(next, threshold, first.representatives, one);
  const Selection cover = select_by_cover(next, threshold, one);
  const Tokens nearest = nearest_representatives(next, cascade.representatives, one);
  for (const int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    const UnitRows again = made.rows(pool);
    EXPECT_EQ(std::vector(again.data(), again.data() + 500 * again.stride()),
              std::vector(next.data(), next.data() + 500 * next.stride()));
    const PrecedingMaxima m = preceding_maxima(x, pool);
    EXPECT_TRUE(same_bits(m.cosine, maxima.cosine));
    EXPECT_EQ(m.cosines, maxima.cosines);
    const Selection s = select_by_cascade(next, threshold, first.representatives, pool);
    EXPECT_EQ(s.representatives, cascade.representatives);
    EXPECT_EQ(s.cosines, cascade.cosines);
    const Selection c = select_by_cover(next, threshold, pool);
    EXPECT_EQ(c.representatives, cover.representatives);
    EXPECT_EQ(c.cosines, cover.cosines);
    EXPECT_EQ(nearest_representatives(next, cascade.representatives, pool), nearest);
  }
}

TEST_P(Representatives, NearestOnes) {
  ThreadPool pool(2);
  const UnitRows x = DriftingTokens(150, 24, 20, 8).rows(pool);
  const Tokens chosen = select_independently(x, selection_threshold(0.6f), pool).representatives;
  const Tokens nearest = nearest_representatives(x, chosen, pool);
  for (TokenRow t = 0; t < 150; ++t) {
    const TokenRow r = nearest[static_cast<std::size_t>(t)];
    ASSERT_TRUE(std::binary_search(chosen.begin(), chosen.end(), r));
    ASSERT_LE(r, t);
    if (std::binary_search(chosen.begin(), chosen.end(), t)) {
      EXPECT_EQ(r, t);
      continue;
    }
    for (const TokenRow s : chosen)
      if (s < t) {
        EXPECT_TRUE(cosine(x, s, t) < cosine(x, r, t) || (cosine(x, s, t) == cosine(x, r, t) && r <= s));
      }
  }
  EXPECT_THAT(
      [&] {
        nearest_representatives(x, Tokens{1, 2}, pool);
      },
      ThrowsMessage<Error>(HasSubstr("expected token 0")));
}

// Rows of six, each with the columns of the last: 6·5 + 6·11 + … + the rest's.
TEST_P(Representatives, CosinesAreCounted) {
  ThreadPool pool(2);
  const auto triangle = [](std::int64_t n) {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < n; i += kGramRows) {
      const std::int64_t rows = std::min(kGramRows, n - i);
      sum += rows * (i + rows - 1);
    }
    return sum;
  };
  for (const std::int64_t tokens : {1, 2, 6, 7, 95, 192, 300}) {
    // No two alike: the whole triangle, each way.
    const std::vector<float> unlike = gaussian(static_cast<std::size_t>(tokens * 512), 4);
    UnitRows x;
    x.assign(unlike.data(), tokens, 512, pool, "unlike");
    const float threshold = selection_threshold(0.1f);
    const Selection all = select_independently(x, threshold, pool);
    EXPECT_EQ(std::ssize(all.representatives), tokens);
    EXPECT_EQ(all.cosines, triangle(tokens));
    EXPECT_GE(all.cosines, tokens * (tokens - 1) / 2);
    EXPECT_LE(all.cosines, tokens * (tokens - 1) / 2 + 5 * tokens / 2);
    const Selection cascade = select_by_cascade(x, threshold, all.representatives, pool);  // r = T
    EXPECT_EQ(cascade.representatives, all.representatives);
    EXPECT_EQ(cascade.cosines, triangle(tokens));
    // All alike, r = 1: one cosine a token.
    UnitRows same;
    const std::vector<float> ones(static_cast<std::size_t>(tokens * 20), 1.5f);
    same.assign(ones.data(), tokens, 20, pool, "ones");
    const Selection one = select_by_cascade(same, threshold, Tokens{0}, pool);
    EXPECT_THAT(one.representatives, ElementsAre(0));
    EXPECT_EQ(one.cosines, tokens - 1);
    EXPECT_EQ(one.removed + one.added, 0);
    EXPECT_THAT(select_independently(same, threshold, pool).representatives, ElementsAre(0));
    EXPECT_THAT(select_by_cover(same, threshold, pool).representatives, ElementsAre(0));
    EXPECT_EQ(select_by_cascade(same, threshold, count_up(tokens), pool).removed, tokens - 1);
  }
}

TEST_P(Representatives, DuplicatesHaveOne) {
  ThreadPool pool(1);
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const std::int64_t d = 576;
    std::vector<float> x = gaussian(static_cast<std::size_t>(40 * d), seed, seed % 2 ? 1e-22f : 1e18f);
    for (std::int64_t t = 20; t < 40; ++t)
      for (std::int64_t i = 0; i < d; ++i)
        x[static_cast<std::size_t>(t * d + i)] =
            x[static_cast<std::size_t>((t - 20) * d + i)] * (t % 2 ? 3.0f : 1.0f);
    UnitRows rows;
    rows.assign(x.data(), 40, d, pool, "x");
    EXPECT_EQ(select_independently(rows, selection_threshold(0.001f), pool).representatives, count_up(20));
    EXPECT_EQ(select_by_cascade(rows, selection_threshold(0.001f), count_up(40), pool).representatives,
              count_up(20));
  }
}

TEST_P(Representatives, ZeroVectorsStandForThemselves) {
  ThreadPool pool(1);
  DriftingTokens made(30, 20, 1, 3);
  for (const std::int64_t t : {0, 7, 8, 29})
    for (std::int64_t i = 0; i < 20; ++i) made.at(t, i) = 0;
  const UnitRows x = made.rows(pool);
  const float threshold = selection_threshold(0.95f);
  EXPECT_THAT(select_independently(x, threshold, pool).representatives, ElementsAre(0, 1, 7, 8, 29));
  EXPECT_THAT(select_by_cover(x, threshold, pool).representatives, ElementsAre(0, 1, 7, 8, 29));
  EXPECT_THAT(select_by_cascade(x, threshold, Tokens{2, 9}, pool).representatives,
              IsSupersetOf({0, 1, 7, 8, 29}));
  EXPECT_EQ(nearest_representatives(x, Tokens{0, 1, 7, 8, 29}, pool)[9], 1);
}

TEST(RepresentativesErrors, AreClear) {
  ThreadPool pool(2);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    DriftingTokens made(30, 20, 3, 3);
    made.at(17, 4) = bad;
    EXPECT_THAT([&] { made.rows(pool); }, ThrowsMessage<Error>(HasSubstr("test: token 17: expected finite")));
  }
  EXPECT_THAT([] { selection_threshold(0); }, ThrowsMessage<Error>(HasSubstr("nothing is selected")));
  for (const float tau : {-0.1f, 1.0f, 1e-4f, 2.0f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_THAT([&] { selection_threshold(tau); }, ThrowsMessage<Error>(HasSubstr("less than 1, found")));
  EXPECT_EQ(selection_threshold(0.5f), 0.75f);
  const UnitRows x = DriftingTokens(10, 20, 3, 3).rows(pool);
  for (const Tokens& wrong : {Tokens{1, 1}, Tokens{3, 2}, Tokens{-1}, Tokens{10}})
    EXPECT_THAT([&] { select_by_cascade(x, 0.9f, wrong, pool); },
                ThrowsMessage<Error>(HasSubstr("ascending tokens")));
}

}  // namespace
}  // namespace narrows
