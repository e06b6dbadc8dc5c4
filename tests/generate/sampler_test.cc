#include "narrows/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace narrows {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(std::size_t n, unsigned seed, float spread = 3) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(n);
  for (float& l : logits) l = normal(rng);
  return logits;
}

SamplerOptions plain() {
  SamplerOptions o;
  o.temperature = 1, o.top_k = 0, o.top_p = 1, o.min_p = 0;
  return o;
}

// The definition, slowly: sort everything, filter one after the other, renormalise. Probabilities by id.
std::map<TokenId, double> reference(const std::vector<float>& logits, const SamplerOptions& o) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i])) ids.push_back(static_cast<TokenId>(i));
  const auto logit = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  if (o.top_k > 0 && ids.size() > static_cast<std::size_t>(o.top_k))
    ids.resize(static_cast<std::size_t>(o.top_k));
  const auto softmax = [&](double temperature) {
    std::vector<double> p;
    for (TokenId id : ids)
      p.push_back(std::exp((static_cast<double>(logit(id)) - logit(ids[0])) / temperature));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  };
  if (o.top_p < 1) {
    const auto p = softmax(1);
    double sum = 0;
    std::size_t keep = 0;
    while (keep < p.size() && (keep == 0 || sum < o.top_p)) sum += p[keep++];
    ids.resize(keep);
  }
  if (o.min_p > 0) {
    const auto p = softmax(1);
    std::size_t keep = 1;
    while (keep < p.size() && p[keep] >= o.min_p * p[0]) ++keep;
    ids.resize(keep);
  }
  const auto p = softmax(o.temperature);
  std::map<TokenId, double> result;
  for (std::size_t i = 0; i < ids.size(); ++i) result[ids[i]] = p[i];
  return result;
}

// Draws often and compares the frequencies with the reference: Pearson's statistic within 5 standard
// deviations.
void expect_distribution(const std::vector<float>& logits, SamplerOptions o, const std::string& what) {
  const auto expected = reference(logits, o);
  o.seed = 17;
  Sampler sampler(o);
  const int draws = 20000;
  std::map<TokenId, int> seen;
  for (int i = 0; i < draws; ++i) ++seen[sampler.sample(logits)];
  for (const auto& [id, count] : seen) ASSERT_TRUE(expected.contains(id)) << what << ": drew id " << id;
  double chi2 = 0, rest_expected = 0, rest_seen = 0;
  int cells = 0;
  for (const auto& [id, p] : expected) {
    const double e = p * draws, s = seen.contains(id) ? seen[id] : 0;
    if (e < 10) {
      rest_expected += e, rest_seen += s;
      continue;
    }
    chi2 += (s - e) * (s - e) / e;
    ++cells;
  }
  if (rest_expected >= 10) {
    chi2 += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }
  const double dof = std::max(cells - 1, 1);
  EXPECT_LT(chi2, dof + 5 * std::sqrt(2 * dof) + 5) << what;
}

TEST(Sampler, MatchesTheReferenceWithEachFilter) {
  const auto logits = random_logits(500, 1);
  auto o = plain();
  expect_distribution(logits, o, "none");
  for (int k : {1, 2, 17, 499, 500, 5000}) {
    o = plain();
    o.top_k = k;
    expect_distribution(logits, o, "top-k " + std::to_string(k));
  }
  for (float p : {0.0f, 0.1f, 0.5f, 0.9f, 0.999f}) {
    o = plain();
    o.top_p = p;
    expect_distribution(logits, o, "top-p " + std::to_string(p));
  }
  for (float p : {0.01f, 0.3f, 1.0f}) {
    o = plain();
    o.min_p = p;
    expect_distribution(logits, o, "min-p " + std::to_string(p));
  }
  for (float t : {0.2f, 0.8f, 2.0f}) {
    o = plain();
    o.temperature = t;
    expect_distribution(logits, o, "temperature " + std::to_string(t));
  }
  expect_distribution(logits, SamplerOptions{}, "defaults");
}

// The set of tokens that can be drawn, found by drawing at a very high temperature.
std::set<TokenId> support(const std::vector<float>& logits, SamplerOptions o) {
  o.temperature = 1e6f;
  Sampler sampler(o);
  std::set<TokenId> ids;
  for (int i = 0; i < 4000; ++i) ids.insert(sampler.sample(logits));
  return ids;
}

TEST(Sampler, FiltersKeepExactlyTheReferenceSet) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    auto logits = random_logits(1000, seed, 2);
    for (float& l : logits) l = std::round(l * 4) / 4;  // many ties
    SamplerOptions o = plain();
    if (seed % 2) o.top_k = 5 + static_cast<int>(seed);
    if (seed % 4 >= 2 || seed % 2 == 0) o.top_p = 0.2f;
    if (seed % 3 == 0) o.min_p = 0.2f;
    std::set<TokenId> expected;
    for (const auto& [id, p] : reference(logits, o)) expected.insert(id);
    EXPECT_EQ(support(logits, o), expected) << "seed " << seed;
  }
}

TEST(Sampler, TiesGoToTheSmallestId) {
  SamplerOptions o;
  o.temperature = 0;
  EXPECT_EQ(Sampler(o).sample(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(support(std::vector<float>(200, 0.5f), {.top_k = 2, .top_p = 1, .min_p = 0}),
            (std::set<TokenId>{0, 1}));
}

TEST(Sampler, IsDeterministic) {
  const auto logits = random_logits(300, 5);
  SamplerOptions o;
  o.top_k = 0, o.min_p = 0, o.top_p = 1;
  Sampler a(o), b(o);
  o.seed = 1;
  Sampler c(o);
  std::vector<TokenId> from_a, from_b, from_c, again;
  for (int i = 0; i < 50; ++i) {
    from_a.push_back(a.sample(logits));
    from_b.push_back(b.sample(logits));
    from_c.push_back(c.sample(logits));
  }
  EXPECT_EQ(from_a, from_b);
  EXPECT_NE(from_a, from_c);
  a.reset();
  for (int i = 0; i < 50; ++i) again.push_back(a.sample(logits));
  EXPECT_EQ(from_a, again);
}

TEST(Sampler, LargeVocabulary) {
  const auto logits = random_logits(262144, 9);
  for (int k : {1, 40, 1000, 0}) {
    SamplerOptions o;
    o.top_k = k;
    const auto allowed = reference(logits, o);
    Sampler sampler(o);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(allowed.contains(sampler.sample(logits))) << k;
  }
}

TEST(Sampler, PenalisesRecentTokensOnce) {
  SamplerOptions o;
  o.temperature = 0, o.repeat_penalty = 2, o.repeat_last_n = 2;
  Sampler sampler(o);
  const std::vector<float> logits{4, 3, -1, 1.5f};
  EXPECT_EQ(sampler.sample(logits), 0);
  sampler.accept(0);
  sampler.accept(0);  // 4 / 2 = 2, not 4 / 4
  EXPECT_EQ(sampler.sample(logits), 1);
  sampler.accept(1);  // 0 and 1 are recent: 2, 1.5, -1, 1.5
  EXPECT_EQ(sampler.sample(logits), 0);
  sampler.accept(1);  // 0 is not recent any more
  EXPECT_EQ(sampler.sample(logits), 0);
  for (int i = 0; i < 5000; ++i) sampler.accept(i % 2);
  EXPECT_EQ(sampler.sample(logits), 0);
  sampler.reset();
  EXPECT_EQ(sampler.sample(logits), 0);

  o.repeat_last_n = -1;
  Sampler all(o);
  all.accept(0);
  for (int i = 0; i < 100; ++i) all.accept(3);
  EXPECT_EQ(all.sample(logits), 1);
  o.repeat_last_n = 0;
  Sampler off(o);
  off.accept(0);
  EXPECT_EQ(off.sample(logits), 0);
  // Negative logits are multiplied: pushed down too.
  Sampler negative(SamplerOptions{.temperature = 0, .repeat_penalty = 2});
  negative.accept(0);
  EXPECT_EQ(negative.sample(std::vector<float>{-1, -1.5f}), 1);
}

TEST(Sampler, SmallAndBrokenLogits) {
  EXPECT_EQ(Sampler().sample(std::vector<float>{-3}), 0);
  SamplerOptions greedy;
  greedy.temperature = 0;
  for (const SamplerOptions& o : {SamplerOptions{}, greedy, plain()}) {
    Sampler sampler(o);
    EXPECT_EQ(sampler.sample(std::vector<float>{kNan, -kInf, -100, kNan}), 2);
    EXPECT_THROW(sampler.sample(std::vector<float>{-kInf, -kInf}), Error);
    EXPECT_THROW(sampler.sample(std::vector<float>{kNan}), Error);
    EXPECT_THROW(sampler.sample({}), Error);
  }
  EXPECT_EQ(Sampler().sample(std::vector<float>{3e38f, -3e38f}), 0);
}

TEST(Sampler, RefusesImpossibleOptions) {
  const auto refused = [](auto change) {
    SamplerOptions o;
    change(o);
    EXPECT_THROW(Sampler{o}, Error);
  };
  refused([](auto& o) { o.temperature = -1; });
  refused([](auto& o) { o.temperature = kNan; });
  refused([](auto& o) { o.top_k = -1; });
  refused([](auto& o) { o.top_p = 2; });
  refused([](auto& o) { o.min_p = -0.1f; });
  refused([](auto& o) { o.repeat_penalty = 0; });
  refused([](auto& o) { o.repeat_last_n = -2; });
}

}  // namespace
}  // namespace narrows
