#include "lowrank/qk.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lowrank/qk_case.h"
#include "lowrank/roots.h"
#include "lowrank/samples.h"
#include "narrows/error.h"

namespace narrows {
namespace {

// W' of the least loss for a given other side, by the normal equations: product [·] is W_qᵀ W_k of one head.
void improve(QkMaps& m, const QkMaps& original, const std::vector<double>& rq,
             const std::vector<double>& rk) {
  const std::int64_t r = m.d_qk, d = original.d_qk, n = m.d_in;
  const auto side = [&](const std::vector<double>& fixed, const std::vector<double>& statistics,
                        const std::vector<double>& same, const std::vector<double>& other) {
    const std::vector<double> fr = times(fixed, n, statistics);
    std::vector<double> gram = times(fr, n, transposed(fixed, n));
    std::vector<double> rows = transposed(times(times(fr, n, transposed(same, n)), d, other), n);  // [n][r]
    EXPECT_TRUE(cholesky(gram.data(), r));
    solve_rows(gram.data(), r, rows.data(), n);
    return transposed(rows, r);
  };
  m.k = side(m.q, rq, original.q, original.k);
  m.q = side(m.k, rk, original.k, original.q);
}

TEST(Qk, ClosedFormIsNotBeatenByAnOptimiser) {
  const QkCase c(random_maps(1, 4, 6, 20), {}, 30, 21);
  const std::vector<double> rootq = symmetric_roots(c.rq.data(), 6).root,
                            rootk = symmetric_roots(c.rk.data(), 6).root;
  const Svd svd =
      thin_svd(times(times(rootq, 6, times(transposed(c.maps.q, 6), 4, c.maps.k)), 6, rootk).data(), 6, 6);
  const QkReduction reduction(c.maps, {}, c.rq, c.rk);
  for (const std::int64_t r : {1, 2, 3}) {
    double optimum = 0;
    for (std::int64_t i = r; i < 4; ++i) optimum += svd.values[i] * svd.values[i];
    const QkReduced reduced = reduction.shrink(r);
    EXPECT_NEAR(reduced.loss, optimum, 1e-12 * reduction.loss_by_dims()[0]);
    double best = INFINITY;
    for (unsigned start = 0; start < 200; ++start) {
      QkMaps m = random_maps(1, r, 6, 1000 + 2 * start);
      for (int step = 0; step < 20; ++step) improve(m, c.maps, c.rq, c.rk);
      best = std::min(best, qk_loss(c.maps, {}, m, {}, c.rq, c.rk));
    }
    EXPECT_GE(best, optimum * (1 - 1e-9));
    EXPECT_LE(best, optimum * 1.01);  // the optimiser is one
  }
}

// The group's stacked heads share their row space: Eckart-Young holds for them together.
TEST(Qk, AGroupReachesTheOptimumOfItsStackedHeads) {
  const std::int64_t group = 3, d = 5, n = 8;
  const QkCase c(random_maps(group, d, n, 30), {}, 40, 31);
  const std::vector<double> rootq = symmetric_roots(c.rq.data(), n).root,
                            rootk = symmetric_roots(c.rk.data(), n).root;
  std::vector<double> stacked;
  for (std::int64_t h = 0; h < group; ++h) {
    const std::vector<double> q(&c.maps.q[h * d * n], &c.maps.q[h * d * n] + d * n);
    const std::vector<double> m = times(times(rootq, n, times(transposed(q, n), d, c.maps.k)), n, rootk);
    stacked.insert(stacked.end(), m.begin(), m.end());
  }
  const Svd svd = thin_svd(stacked.data(), group * n, n);
  const QkReduction reduction(c.maps, {}, c.rq, c.rk);
  double optimum = 0;
  for (std::int64_t r = d; r-- > 0;) {
    optimum += svd.values[r] * svd.values[r];
    EXPECT_NEAR(reduction.loss_by_dims()[r], optimum, 1e-12 * reduction.loss_by_dims()[0]);
  }
  c.expect_exact();
}

TEST(Qk, LossesAreThoseOfTheScores) {
  using enum RotaryLayout;
  for (const bool bias : {false, true}) {
    QkCase(random_maps(1, 3, 5, 40, bias), {}, 9, 41).expect_exact();
    QkCase(random_maps(2, 5, 7, 42, bias), {}, 9, 43).expect_exact();
    for (const RotaryLayout layout : {Adjacent, Half})
      for (const QkImportance importance : {QkImportance::Energy, QkImportance::Paper}) {
        QkCase(random_maps(2, 6, 7, 44, bias), {layout, 6}, 5, 45).expect_exact(importance);
        QkCase(random_maps(2, 7, 5, 46, bias), {layout, 4}, 5, 47).expect_exact(importance);  // partial
      }
  }
  QkCase one_bias(random_maps(2, 5, 4, 48, true), {}, 9, 49);
  one_bias.maps.k_bias.clear();
  one_bias.expect_exact();
  EXPECT_TRUE(QkReduction(one_bias.maps, {}, one_bias.rq, one_bias.rk).shrink(2).maps.k_bias.empty());
}

TEST(Qk, SmallAndRankDeficientCases) {
  QkCase(random_maps(1, 1, 1, 50), {}, 3, 51).expect_exact();
  QkCase(random_maps(1, 2, 1, 52, true), {RotaryLayout::Half, 2}, 3, 53).expect_exact();
  QkCase(random_maps(2, 6, 13, 54), {}, 3, 55).expect_exact();  // fewer tokens than dimensions
  QkCase(random_maps(1, 8, 3, 56), {}, 9, 57).expect_exact();   // more dimensions than inputs
  QkCase(random_maps(2, 7, 13, 58, true), {RotaryLayout::Adjacent, 2}, 4, 59).expect_exact();
  const QkCase few(random_maps(2, 6, 13, 54), {}, 3, 55);
  const QkReduction reduction(few.maps, {}, few.rq, few.rk);
  EXPECT_EQ(reduction.raised(), 3);
  EXPECT_LT(reduction.loss_by_dims()[3], 1e-10 * reduction.loss_by_dims()[0]);
  QkCase dead(random_maps(1, 4, 5, 60), {}, 9, 61);
  std::fill(dead.maps.k.begin(), dead.maps.k.end(), 0.0);
  dead.expect_exact();
}

TEST(Qk, RoundedStatisticsDoLittleHarm) {
  const std::int64_t n = 24, d = 12;
  for (const QkRotary rotary : {QkRotary{}, {RotaryLayout::Half, 12}, {RotaryLayout::Half, 4}}) {
    const QkCase c(random_maps(2, d, n, 64), rotary, 6, 65);
    const QkReduction exact(c.maps, rotary, c.rq, c.rk),
        reduction(c.maps, rotary, rounded(c.rq, n, 66), rounded(c.rk, n, 67), QkImportance::Paper);
    const std::vector<double>& curve = exact.loss_by_dims();
    if (rotary.dims == 0) {
      EXPECT_LT(largest_difference(reduction.loss_by_dims(), curve), 1e-5 * curve[0]);
    }
    for (std::int64_t dims = 2; dims <= d; dims += 2) {
      const QkReduced reduced = reduction.shrink(dims);
      EXPECT_NEAR(c.loss_of(reduced.maps, reduced.rotary, reduced.pairs), reduced.loss, 1e-5 * curve[0]);
    }
  }
}

TEST(Qk, FullRankIsTheOriginalProduct) {
  for (const std::int64_t tokens : {3, 40}) {
    const std::int64_t group = 2, d = 6, n = 9;
    const QkCase c(random_maps(group, d, n, 70), {}, tokens, 71);
    const QkMaps m = QkReduction(c.maps, {}, c.rq, c.rk).shrink(d).maps;
    for (std::int64_t h = 0; h < group; ++h) {
      const auto of = [&](const QkMaps& maps) {
        const std::vector<double> q(&maps.q[h * d * n], &maps.q[h * d * n] + d * n);
        return times(transposed(q, n), d, maps.k);
      };
      EXPECT_LT(largest_difference(of(m), of(c.maps)), 1e-8) << tokens;
    }
  }
}

// Slices of the maps give the scores of the whole maps with the dropped pairs at zero.
TEST(Qk, SlicedPairsEqualPairsAtZero) {
  for (const RotaryLayout layout : {RotaryLayout::Adjacent, RotaryLayout::Half}) {
    const std::int64_t d = 10;
    const QkCase c(random_maps(2, d, 7, 80), {layout, d}, 5, 81);
    const QkReduced reduced = QkReduction(c.maps, c.rotary, c.rq, c.rk).shrink(6);
    ASSERT_EQ(reduced.pairs.size(), 3u);
    QkMaps zeroed = c.maps;
    for (std::int64_t p = 0; p < d / 2; ++p) {
      if (std::count(reduced.pairs.begin(), reduced.pairs.end(), p)) continue;
      const std::int64_t a = layout == RotaryLayout::Half ? p : 2 * p,
                         b = layout == RotaryLayout::Half ? p + d / 2 : 2 * p + 1;
      for (const std::int64_t j : {a, b}) std::fill_n(&zeroed.k[j * 7], 7, 0.0);
    }
    EXPECT_LT(largest_difference(c.scores_of(reduced.maps, reduced.rotary, reduced.pairs),
                                 c.scores_of(zeroed, c.rotary, {0, 1, 2, 3, 4})),
              1e-12);
  }
}

TEST(Qk, ImportanceChoosesThePairsOfMostEnergy) {
  // Pair 0 has its queries in one dimension and its keys in the other: the paper's rule sees nothing there.
  QkMaps maps = random_maps(1, 4, 4, 90);
  maps.q = {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  maps.k = {0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  const std::vector<double> identity{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  const QkRotary rotary{RotaryLayout::Adjacent, 4};
  const QkReduced energy = QkReduction(maps, rotary, identity, identity).shrink(2);
  EXPECT_EQ(energy.pairs, std::vector<std::int64_t>{0});
  EXPECT_EQ(energy.loss, 2);  // ½ (1 + 1)(1 + 1)
  const QkReduced paper = QkReduction(maps, rotary, identity, identity, QkImportance::Paper).shrink(2);
  EXPECT_EQ(paper.pairs, std::vector<std::int64_t>{1});
  EXPECT_EQ(paper.loss, 8);
  maps.q = maps.k = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};  // equals: the first
  EXPECT_EQ(QkReduction(maps, rotary, identity, identity).shrink(2).pairs, std::vector<std::int64_t>{0});
}

TEST(Qk, PartialRotarySplitsTheBudgetBest) {
  const QkCase c(random_maps(2, 9, 12, 100), {RotaryLayout::Half, 4}, 40, 101);
  const QkReduction reduction(c.maps, c.rotary, c.rq, c.rk);
  for (std::int64_t dims = 1; dims <= 9; ++dims)
    EXPECT_LE(reduction.loss_by_dims()[dims], reduction.loss_by_dims()[dims - 1]);
  QkCase loud = c;  // keys of the rotated dimensions large: they stay, the rest goes
  for (std::int64_t i = 0; i < 4 * 12; ++i) loud.maps.k[i] *= 100;
  EXPECT_EQ(QkReduction(loud.maps, c.rotary, c.rq, c.rk).shrink(4).pairs.size(), 2u);
  for (std::int64_t i = 0; i < 4 * 12; ++i) loud.maps.k[i] *= 1e-4;
  EXPECT_EQ(QkReduction(loud.maps, c.rotary, c.rq, c.rk).shrink(4).pairs.size(), 0u);
}

// Tokens of ± signs: each has the same squares, so that the norm is a constant and the loss is exact.
TEST(Qk, NormsKeepTheScaleOfWhatIsKept) {
  const std::int64_t d = 6, tokens = 1 << d;
  for (const QkRotary rotary : {QkRotary{}, {RotaryLayout::Half, 6}, {RotaryLayout::Adjacent, 4}}) {
    QkMaps maps = random_maps(2, d, d, 110);
    maps.q_norm = random_matrix(2, d, 111);
    maps.k_norm = random_matrix(1, d, 112);
    for (std::int64_t j = 0; j < 2 * d; ++j)
      for (std::int64_t i = 0; i < d; ++i)
        if (i != j % d) maps.q[j * d + i] = 0;
    for (std::int64_t j = 0; j < d; ++j)
      for (std::int64_t i = 0; i < d; ++i)
        if (i != j) maps.k[j * d + i] = 0;
    QkCase c(maps, rotary, tokens, 113);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t j = 0; j < d; ++j) c.xq[t * d + j] = c.xk[t * d + j] = t >> j & 1 ? 1 : -1;
    c.rq = c.rk = autocorrelation(c.xq, tokens);
    const QkReduced reduced = QkReduction(maps, rotary, c.rq, c.rk).shrink(4);
    EXPECT_EQ(reduced.maps.q_norm.size(), 8u);
    EXPECT_EQ(reduced.maps.k_norm.size(), 4u);
    EXPECT_GT(reduced.loss, 0);
    EXPECT_NEAR(qk_loss(maps, rotary, reduced.maps, reduced.pairs, c.rq, c.rk), reduced.loss,
                1e-12 * reduced.loss);
    // A part of the tokens is enough for the scores: all have the same squares.
    c.xq.resize(5 * d);
    EXPECT_NEAR(c.loss_of(reduced.maps, reduced.rotary, reduced.pairs) * tokens / 5, reduced.loss,
                1e-10 * reduced.loss);
    if (rotary.dims == 0) {
      EXPECT_EQ(QkReduction(maps, rotary, c.rq, c.rk, QkImportance::Paper).shrink(6).maps.q_norm,
                maps.q_norm);
    }
  }
}

// Queries and keys of the tokens carry the same statistics as their input.
TEST(Qk, CovariancesOfQueriesAndKeysAreEnough) {
  const QkCase c(random_maps(2, 5, 9, 115, true), {RotaryLayout::Half, 2}, 20, 116);
  const auto covariance_of = [&](const std::vector<double>& x, const double* w, const double* bias) {
    std::vector<double> rows;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const std::vector<double> y = head_of(w, bias, nullptr, c.maps, &x[t * 9], {}, {}, 0, 1);
      rows.insert(rows.end(), y.begin(), y.end());
    }
    return autocorrelation(rows, c.tokens);
  };
  QkCovariances sums;
  for (std::int64_t h = 0; h < 2; ++h)
    sums.q.push_back(covariance_of(c.xq, &c.maps.q[h * 45], &c.maps.q_bias[h * 5]));
  sums.k = covariance_of(c.xk, c.maps.k.data(), c.maps.k_bias.data());
  const QkReduction from_sums(c.maps, c.rotary, sums), from_input(c.maps, c.rotary, c.rq, c.rk);
  EXPECT_LT(largest_difference(from_sums.loss_by_dims(), from_input.loss_by_dims()),
            1e-11 * from_input.loss_by_dims()[0]);
  sums.q.pop_back();
  EXPECT_THROW(QkReduction(c.maps, c.rotary, sums), Error);
  sums.q.push_back(sums.k);
  sums.q[0][3] = NAN;
  EXPECT_THROW(QkReduction(c.maps, c.rotary, sums), Error);
  sums.q[0][3] = 0;
  EXPECT_NO_THROW(QkReduction(c.maps, c.rotary, sums));
  QkMaps bad = c.maps;
  bad.k_bias[0] = NAN;
  EXPECT_THROW(QkReduction(bad, c.rotary, sums), Error);
}

TEST(Qk, BadInputIsAnError) {
  const QkCase c(random_maps(1, 4, 5, 120), {}, 9, 121);
  const QkReduction reduction(c.maps, {}, c.rq, c.rk);
  EXPECT_THROW(reduction.shrink(0), Error);
  EXPECT_THROW(reduction.shrink(5), Error);
  EXPECT_THROW(QkReduction(c.maps, {RotaryLayout::Half, 3}, c.rq, c.rk), Error);
  EXPECT_THROW(QkReduction(c.maps, {RotaryLayout::Half, 6}, c.rq, c.rk), Error);
  const std::vector<double> wrong(16);
  EXPECT_THROW(QkReduction(c.maps, {}, wrong, c.rk), Error);
  std::vector<double> nan = c.rk;
  nan[0] = NAN;
  EXPECT_THROW(QkReduction(c.maps, {}, c.rq, nan), Error);
  QkMaps bad = c.maps;
  bad.q.pop_back();
  EXPECT_THROW(QkReduction(bad, {}, c.rq, c.rk), Error);
  bad = c.maps;
  bad.q[3] = INFINITY;
  EXPECT_THROW(QkReduction(bad, {}, c.rq, c.rk), Error);
  bad = c.maps;
  bad.q_bias = {1, 2, 3, 4};
  EXPECT_THROW(QkReduction(bad, {}, c.rq, c.rk), Error);  // statistics without the constant
  bad = c.maps;
  bad.k_norm = {1, 2, 3, 4};
  EXPECT_THROW(QkReduction(bad, {}, c.rq, c.rk), Error);
  EXPECT_THROW(qk_loss(c.maps, {}, random_maps(2, 2, 5, 1), {}, c.rq, c.rk), Error);
}

}  // namespace
}  // namespace narrows
