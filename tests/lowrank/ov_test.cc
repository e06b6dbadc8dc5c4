#include "lowrank/ov.h"

#include <gtest/gtest.h>

#include "lowrank/roots.h"
#include "lowrank/samples.h"
#include "narrows/error.h"

namespace narrows {
namespace {

OvMaps random_maps(std::int64_t group, std::int64_t d_vo, std::int64_t d_in, std::int64_t d_out,
                   unsigned seed, bool bias = false) {
  OvMaps maps;
  maps.group = group;
  maps.d_vo = d_vo;
  maps.d_in = d_in;
  maps.d_out = d_out;
  maps.v = random_matrix(d_vo, d_in, seed);
  maps.o = random_matrix(group * d_out, d_vo, seed + 1);
  if (bias) maps.v_bias = random_matrix(1, d_vo, seed + 2);
  return maps;
}

struct Case {
  OvMaps maps;
  std::int64_t tokens;
  std::vector<std::vector<double>> z, r;  // [group]: tokens of each head and their autocorrelation

  Case(OvMaps m, std::int64_t t, unsigned seed) : maps(std::move(m)), tokens(t) {
    for (std::int64_t h = 0; h < maps.group; ++h) {
      z.push_back(correlated_tokens(t, maps.d_in, seed + 10 * static_cast<unsigned>(h)));
      r.push_back(autocorrelation(z.back(), t, !maps.v_bias.empty()));
    }
  }

  std::vector<std::span<const double>> statistics() const { return {r.begin(), r.end()}; }

  // From the outputs themselves.
  double loss_of(const OvMaps& m) const {
    const auto outputs = [&](const OvMaps& of, std::int64_t h) {
      std::vector<double> v = times(z[h], of.d_in, transposed(of.v, of.d_in));
      for (std::size_t i = 0; i < v.size(); ++i)
        if (!of.v_bias.empty()) v[i] += of.v_bias[i % of.d_vo];
      const std::int64_t size = of.d_out * of.d_vo;
      return times(v, of.d_vo, transposed({&of.o[h * size], &of.o[h * size] + size}, of.d_vo));
    };
    double sum = 0;
    for (std::int64_t h = 0; h < maps.group; ++h) {
      const std::vector<double> before = outputs(maps, h), after = outputs(m, h);
      for (std::size_t i = 0; i < before.size(); ++i) sum += std::pow(before[i] - after[i], 2);
    }
    return sum / static_cast<double>(tokens);
  }

  void expect_exact() const {
    const OvReduction reduction(maps, statistics());
    const std::vector<double>& curve = reduction.loss_by_rank();
    ASSERT_EQ(curve.size(), static_cast<std::size_t>(maps.d_vo + 1));
    EXPECT_TRUE(std::is_sorted(curve.rbegin(), curve.rend()));
    OvMaps nothing = maps;
    std::fill(nothing.v.begin(), nothing.v.end(), 0.0);
    std::fill(nothing.v_bias.begin(), nothing.v_bias.end(), 0.0);
    EXPECT_NEAR(curve[0], loss_of(nothing), 1e-9 * curve[0]);
    for (std::int64_t rank = 1; rank <= maps.d_vo; ++rank) {
      const OvReduced reduced = reduction.shrink(rank);
      EXPECT_EQ(reduced.maps.d_vo, rank);
      EXPECT_TRUE(std::is_sorted(reduced.losses.rbegin(), reduced.losses.rend()));
      const double exact = loss_of(reduced.maps), most = 1e-8 * curve[0];
      EXPECT_NEAR(reduced.loss(), exact, most) << rank;
      EXPECT_NEAR(ov_loss(maps, reduced.maps, statistics()), exact, most) << rank;
      EXPECT_LE(reduced.loss(), curve[rank] + most) << rank;
      if (maps.group == 1) {
        EXPECT_NEAR(curve[rank], exact, most) << rank;
      } else if (rank < maps.d_vo && reduced.losses.size() > 1) {
        EXPECT_NEAR(curve[rank], reduced.losses[1], most) << rank;
      }
    }
  }
};

TEST(Ov, ClosedFormIsNotBeatenByAnOptimiser) {
  const std::int64_t d = 4, n = 6, out = 5;
  const Case c(random_maps(1, d, n, out, 20), 30, 21);
  const std::vector<double>&w = c.maps.v, &r = c.r[0];
  const Svd svd = thin_svd(
      times(times(symmetric_roots(r.data(), n).root, n, transposed(w, n)), d, transposed(c.maps.o, d)).data(),
      n, out);
  const OvReduction reduction(c.maps, c.statistics());
  const std::vector<double> whole = times(c.maps.o, d, w);  // [out][n]
  for (const std::int64_t rank : {1, 2, 3}) {
    double optimum = 0;
    for (std::int64_t i = rank; i < d; ++i) optimum += svd.values[i] * svd.values[i];
    EXPECT_NEAR(reduction.shrink(rank).loss(), optimum, 1e-12 * reduction.loss_by_rank()[0]);
    double best = INFINITY;
    for (unsigned start = 0; start < 200; ++start) {
      OvMaps m = random_maps(1, rank, n, out, 1000 + 2 * start);
      for (int step = 0; step < 20; ++step) {  // each side by the normal equations
        const std::vector<double> vr = times(m.v, n, r);
        std::vector<double> gram = times(vr, n, transposed(m.v, n));
        m.o = times(whole, n, transposed(vr, n));
        ASSERT_TRUE(cholesky(gram.data(), rank));
        solve_rows(gram.data(), rank, m.o.data(), out);
        gram = times(transposed(m.o, rank), out, m.o);
        std::vector<double> columns = times(transposed(whole, n), out, m.o);  // [n][rank]
        ASSERT_TRUE(cholesky(gram.data(), rank));
        solve_rows(gram.data(), rank, columns.data(), n);
        m.v = transposed(columns, rank);
      }
      best = std::min(best, ov_loss(c.maps, m, c.statistics()));
    }
    EXPECT_GE(best, optimum * (1 - 1e-9));
    EXPECT_LE(best, optimum * 1.01);
  }
}

TEST(Ov, LossesAreThoseOfTheOutputs) {
  for (const bool bias : {false, true}) {
    Case(random_maps(1, 5, 7, 6, 30, bias), 20, 31).expect_exact();
    Case(random_maps(3, 5, 9, 11, 32, bias), 20, 33).expect_exact();
    Case(random_maps(2, 1, 1, 1, 34, bias), 5, 35).expect_exact();
    Case(random_maps(1, 3, 1, 2, 36, bias), 5, 37).expect_exact();
    Case(random_maps(2, 6, 13, 3, 38, bias), 4, 39)
        .expect_exact();  // fewer tokens and outputs than dimensions
    Case(random_maps(3, 6, 4, 7, 40, bias), 20, 41).expect_exact();  // fewer inputs than dimensions
  }
}

TEST(Ov, RoundedStatisticsDoLittleHarm) {
  const std::int64_t n = 24, d = 10;
  for (const std::int64_t group : {1, 3}) {
    const Case c(random_maps(group, d, n, 16, 47), 5, 48);
    std::vector<std::vector<double>> r;
    for (std::int64_t h = 0; h < group; ++h) r.push_back(rounded(c.r[h], n, 49));
    const OvReduction exact(c.maps, c.statistics()),
        reduction(c.maps, std::vector<std::span<const double>>(r.begin(), r.end()));
    const double whole = exact.loss_by_rank()[0];
    EXPECT_LT(largest_difference(reduction.loss_by_rank(), exact.loss_by_rank()), 1e-4 * whole);
    for (std::int64_t rank = 1; rank <= d; ++rank) {
      const OvReduced reduced = reduction.shrink(rank);
      EXPECT_TRUE(std::is_sorted(reduced.losses.rbegin(), reduced.losses.rend()));
      EXPECT_NEAR(c.loss_of(reduced.maps), reduced.loss(), 1e-4 * whole) << rank;
    }
  }
}

TEST(Ov, ValuesOfZerosLoseNothing) {
  for (const std::int64_t group : {1, 2}) {
    Case c(random_maps(group, 3, 5, 4, 45), 9, 46);
    std::fill(c.maps.v.begin(), c.maps.v.end(), 0.0);
    const OvReduced reduced = OvReduction(c.maps, c.statistics()).shrink(2);
    EXPECT_EQ(reduced.loss(), 0);
    EXPECT_EQ(c.loss_of(reduced.maps), 0);
  }
}

TEST(Ov, AGroupsAlternationGains) {
  const Case c(random_maps(4, 12, 20, 20, 50), 60, 51);
  const OvReduction reduction(c.maps, c.statistics());
  const OvReduced reduced = reduction.shrink(6);
  ASSERT_GT(reduced.losses.size(), 3u);
  EXPECT_LT(reduced.losses[1], 0.999 * reduced.losses[0]);
  EXPECT_LT(reduced.loss(), 0.999 * reduced.losses[1]);
}

// Heads with the same statistics have a closed form: that of their stacked output maps.
TEST(Ov, EqualStatisticsNeedNoAlternation) {
  Case c(random_maps(3, 6, 9, 7, 60), 30, 61);
  c.r[1] = c.r[2] = c.r[0];
  OvMaps stacked = c.maps;
  stacked.group = 1;
  stacked.d_out = 21;
  const std::vector<std::span<const double>> one{c.r[0]};
  const OvReduction reduction(c.maps, c.statistics()), of_stacked(stacked, one);
  for (std::int64_t rank = 1; rank <= 6; ++rank)
    EXPECT_NEAR(reduction.shrink(rank).loss(), of_stacked.loss_by_rank()[rank],
                1e-11 * of_stacked.loss_by_rank()[0]);
  EXPECT_LT(largest_difference(reduction.loss_by_rank(), of_stacked.loss_by_rank()),
            1e-11 * of_stacked.loss_by_rank()[0]);
}

TEST(Ov, FullRankIsTheOriginalProduct) {
  for (const std::int64_t group : {1, 3})
    for (const std::int64_t tokens : {3, 40}) {
      const std::int64_t d = 6, n = 9, out = 8;
      const Case c(random_maps(group, d, n, out, 70), tokens, 71);
      const OvReduced reduced = OvReduction(c.maps, c.statistics()).shrink(d);
      EXPECT_EQ(reduced.loss(), 0);
      EXPECT_LT(largest_difference(times(reduced.maps.o, d, reduced.maps.v), times(c.maps.o, d, c.maps.v)),
                1e-8);
    }
}

TEST(Ov, BadInputIsAnError) {
  const Case c(random_maps(2, 4, 5, 6, 80), 9, 81);
  const std::vector<std::vector<double>> one{std::vector<double>(16)}, small{2, std::vector<double>(9)};
  EXPECT_THROW(OvReduction(c.maps, one), Error);
  EXPECT_THROW(OvReduction(c.maps, small), Error);
  const OvReduction reduction(c.maps, c.statistics());
  EXPECT_THROW(reduction.shrink(0), Error);
  EXPECT_THROW(reduction.shrink(5), Error);
  EXPECT_THROW(OvReduction(c.maps, std::vector<std::span<const double>>{c.r[0]}), Error);
  const std::vector<double> wrong(16);
  EXPECT_THROW(OvReduction(c.maps, std::vector<std::span<const double>>{c.r[0], wrong}), Error);
  OvMaps bad = c.maps;
  bad.v[1] = NAN;
  EXPECT_THROW(OvReduction(bad, c.statistics()), Error);
  bad = c.maps;
  bad.o[1] = NAN;
  EXPECT_THROW(OvReduction(bad, c.statistics()), Error);
  bad = c.maps;
  bad.o.pop_back();
  EXPECT_THROW(OvReduction(bad, c.statistics()), Error);
  bad = c.maps;
  bad.v_bias = {1, 2, 3, 4};
  EXPECT_THROW(OvReduction(bad, c.statistics()), Error);
  EXPECT_THROW(ov_loss(c.maps, random_maps(2, 2, 5, 7, 1), c.statistics()), Error);
}

}  // namespace
}  // namespace narrows
