#include "subspace/cascade.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "narrows/error.h"
#include "subspace/random_tokens.h"

namespace narrows {
namespace {

// ‖x - Vᵀ V x‖ / ‖x‖ of each token, in double.
std::vector<double> residuals(const Basis& b, const std::vector<float>& x) {
  std::vector<double> all;
  for (std::size_t t = 0; t < x.size(); t += b.d) {
    std::vector<double> r(x.begin() + t, x.begin() + t + b.d);
    const double norm = std::sqrt(std::inner_product(r.begin(), r.end(), r.begin(), 0.0));
    for (std::int64_t i = 0; i < b.k; ++i) {
      const float* v = &b.vectors[i * b.d];
      const double g = std::inner_product(v, v + b.d, &x[t], 0.0);
      for (std::int64_t j = 0; j < b.d; ++j) r[j] -= g * v[j];
    }
    all.push_back(std::sqrt(std::inner_product(r.begin(), r.end(), r.begin(), 0.0)) / norm);
  }
  return all;
}

double largest(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }
double mean(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}

Basis svd_of(const std::vector<float>& x, std::int64_t d, std::int64_t k) {
  SecondMoment m(d);
  m.add(x.data(), static_cast<std::int64_t>(x.size()) / d, d);
  return svd_basis(m, k);
}

TEST(Cascade, SpansTheTokensSubspace) {
  const std::int64_t d = 65, k0 = 9, tokens = 333;
  const std::vector<float> x = random_tokens(tokens, d, power_law(k0, -0.5), random_rotation(d, 1), 2);
  CascadeBasis cascade(d, 20, 1e-3);
  cascade.add(x.data(), tokens, d);
  const Basis b = cascade.finish();
  EXPECT_EQ(b.k, k0);
  EXPECT_EQ(b.tokens, tokens);
  EXPECT_EQ(cascade.appended(), k0);
  EXPECT_EQ(cascade.dropped(), 0);
  EXPECT_LT(orthogonality_loss(b), 1e-5);
  EXPECT_LE(largest(residuals(b, x)), 1e-3);
  EXPECT_NEAR(subspace_similarity(b, svd_of(x, d, k0)), 1, 1e-5);
  EXPECT_TRUE(std::is_sorted(b.energies.rbegin(), b.energies.rend()));
  EXPECT_NEAR(b.total_energy, svd_of(x, d, k0).total_energy, 1e-5 * b.total_energy);
  EXPECT_GT(cascade.flops(), static_cast<double>(tokens * d));
}

TEST(Cascade, ChunksChangeNoBit) {
  const std::int64_t d = 48, tokens = 400, stride = 50;
  const std::vector<float> x =
      random_tokens(tokens, stride, power_law(stride, -0.8), random_rotation(stride, 3), 4);
  const auto run = [&](std::int64_t chunk) {
    CascadeBasis cascade(d, 12, 0.1);
    for (std::int64_t t = 0; t < tokens; t += chunk)
      cascade.add(&x[t * stride], std::min(chunk, tokens - t), stride);
    return cascade.finish();
  };
  const Basis once = run(tokens);
  for (const std::int64_t chunk : {1, 5, 63, 64, 129}) {
    const Basis b = run(chunk);
    ASSERT_EQ(b.k, once.k);
    EXPECT_EQ(std::memcmp(b.vectors.data(), once.vectors.data(), b.vectors.size() * sizeof(float)), 0)
        << chunk;
    EXPECT_EQ(b.energies, once.energies) << chunk;
  }
}

// One token at a time in double, without blocks or shortcuts.
TEST(Cascade, AgreesWithTheDefinition) {
  const std::int64_t d = 32, k = 8, tokens = 200;
  const double tolerance = 0.3;
  const std::vector<float> x = random_tokens(tokens, d, power_law(d, -1.2), random_rotation(d, 5), 6);
  std::vector<std::vector<double>> v;
  std::vector<double> scores;
  std::int64_t appended = 0, dropped = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::vector<double> token(&x[t * d], &x[t * d] + d);
    const double norm = std::inner_product(token.begin(), token.end(), token.begin(), 0.0);
    std::vector<double> r = token;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double g = std::inner_product(v[i].begin(), v[i].end(), token.begin(), 0.0);
      scores[i] = scores[i] * CascadeBasis::kDecay + g * g / norm;
      for (std::int64_t j = 0; j < d; ++j) r[j] -= g * v[i][j];
    }
    const double share = std::inner_product(r.begin(), r.end(), r.begin(), 0.0) / norm;
    if (share <= tolerance * tolerance) continue;
    for (double& e : r) e /= std::sqrt(share * norm);
    ++appended;
    v.push_back(r);
    scores.push_back(share);
    if (static_cast<std::int64_t>(v.size()) > k) {
      const auto least = std::min_element(scores.begin(), scores.end()) - scores.begin();
      v.erase(v.begin() + least);
      scores.erase(scores.begin() + least);
      ++dropped;
    }
  }
  CascadeBasis cascade(d, k, tolerance);
  cascade.add(x.data(), tokens, d);
  const Basis b = cascade.finish();
  EXPECT_EQ(cascade.appended(), appended);
  EXPECT_EQ(cascade.dropped(), dropped);
  Basis expected;
  expected.d = d;
  expected.k = static_cast<std::int64_t>(v.size());
  for (const auto& row : v) expected.vectors.insert(expected.vectors.end(), row.begin(), row.end());
  ASSERT_EQ(b.k, expected.k);
  EXPECT_NEAR(subspace_similarity(b, expected), 1, 1e-5);
}

TEST(Cascade, InheritanceNeedsFewerAppends) {
  const std::int64_t d = 64, tokens = 300;
  const std::vector<double> q = random_rotation(d, 7);
  const std::vector<float> first = random_tokens(tokens, d, power_law(10, -0.5), q, 8);
  // The next layer adds two directions to the same ten.
  const std::vector<float> second = random_tokens(tokens, d, power_law(12, -0.5), q, 9);
  const Basis before = svd_of(first, d, 10);
  CascadeBasis empty(d, 16, 1e-2), heir(d, 16, 1e-2, &before);
  EXPECT_FALSE(empty.inherited());
  EXPECT_TRUE(heir.inherited());
  empty.add(second.data(), tokens, d);
  heir.add(second.data(), tokens, d);
  EXPECT_EQ(empty.appended(), 12);
  EXPECT_EQ(heir.appended(), 2);
  EXPECT_NEAR(subspace_similarity(empty.finish(), heir.finish()), 1, 1e-5);

  CascadeBasis same(d, 10, 1e-2, &before);
  same.add(first.data(), tokens, d);
  EXPECT_EQ(same.appended(), 0);
  const Basis after = same.finish();
  EXPECT_NEAR(subspace_similarity(after, before), 1, 1e-5);
  for (std::int64_t i = 0; i < 10; ++i)  // all tokens were seen by all directions
    EXPECT_NEAR(after.energies[i], before.energies[i], 1e-4 * before.energies[0]);

  EXPECT_FALSE(CascadeBasis(d - 1, 10, 1e-2, &before).inherited());  // another width
  CascadeBasis fewer(d, 4, 1e-2, &before);
  fewer.add(first.data(), 1, d);
  EXPECT_LE(fewer.finish().k, 4);
}

TEST(Cascade, DroppingKeepsTheSizeAndWhatCarriesEnergy) {
  const std::int64_t d = 96, k = 24, tokens = 1500;
  const std::vector<float> x = random_tokens(tokens, d, power_law(d, -1), random_rotation(d, 10), 11);
  CascadeBasis cascade(d, k, 0.1);
  cascade.add(x.data(), tokens, d);
  const Basis b = cascade.finish(), best = svd_of(x, d, k);
  EXPECT_EQ(b.k, k);
  EXPECT_GT(cascade.dropped(), 0);
  EXPECT_EQ(cascade.appended() - cascade.dropped(), k);
  EXPECT_LT(orthogonality_loss(b), 1e-5);
  const double mean_rho = mean(residuals(b, x)), mean_best = mean(residuals(best, x));
  EXPECT_LT(mean_rho, 2 * mean_best);
}

TEST(Cascade, FollowsWhatChanges) {
  const std::int64_t d = 64, k = 8;
  const std::vector<double> q = random_rotation(d, 12), late(q.begin() + 20 * d, q.end());
  const std::vector<float> old = random_tokens(200, d, std::vector<double>(8, 1.0), q, 13);
  const std::vector<float> now = random_tokens(6000, d, std::vector<double>(8, 1.0), late, 14);
  CascadeBasis cascade(d, k, 0.1);
  cascade.add(old.data(), 200, d);
  cascade.add(now.data(), 6000, d);
  const Basis b = cascade.finish();
  EXPECT_LT(largest(residuals(b, now)), 1e-2);
  EXPECT_LT(orthogonality_loss(b), 1e-5);
}

TEST(Cascade, CostsLessThanAnSvdWhereTheSubspaceIsInherited) {
  const std::int64_t d = 256, k = 32, tokens = 512;
  const std::vector<float> x = random_tokens(tokens, d, power_law(k, -0.5), random_rotation(d, 15), 16);
  const Basis before = svd_of(x, d, k);
  CascadeBasis cascade(d, k, 1e-2, &before);
  cascade.add(x.data(), tokens, d);
  cascade.finish();
  EXPECT_EQ(cascade.appended(), 0);
  EXPECT_LT(cascade.flops(), 0.06 * full_svd_flops(tokens, d));
  EXPECT_LT(cascade.flops(), 0.1 * second_moment_flops(tokens, d));
}

TEST(Cascade, ZeroTokensAndErrors) {
  EXPECT_THROW(CascadeBasis(0, 1, 0.1), Error);
  EXPECT_THROW(CascadeBasis(8, 0, 0.1), Error);
  EXPECT_THROW(CascadeBasis(8, 9, 0.1), Error);
  EXPECT_THROW(CascadeBasis(8, 4, 0), Error);
  EXPECT_THROW(CascadeBasis(8, 4, 1.5), Error);
  EXPECT_THROW(CascadeBasis(8, 4, NAN), Error);

  CascadeBasis cascade(2, 2, 0.1);
  EXPECT_THROW(cascade.finish(), Error);
  const float zeros[4] = {};
  cascade.add(zeros, 2, 2);
  EXPECT_THROW(cascade.finish(), Error);
  const float bad[4] = {1, 2, 3, NAN}, infinite[2] = {-INFINITY, 0};
  try {
    cascade.add(bad, 2, 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "activation 1 of token 3 is not finite");
  }
  EXPECT_THROW(cascade.add(infinite, 1, 2), Error);
  const float token[2] = {3, 4};
  cascade.add(token, 1, 2);
  const Basis b = cascade.finish();
  EXPECT_EQ(b.k, 1);
  EXPECT_EQ(b.tokens, 3);
  EXPECT_NEAR(b.vectors[0], 0.6, 1e-6);
  EXPECT_NEAR(b.energies[0], 25, 1e-5);
}

}  // namespace
}  // namespace narrows
