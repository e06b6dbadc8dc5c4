// Queries, keys and their rotated scores computed token by token, for tests of qk.h.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "lowrank/qk.h"
#include "lowrank/samples.h"
#include "narrows/error.h"

namespace narrows {

inline QkMaps random_maps(std::int64_t group, std::int64_t d_qk, std::int64_t d_in, unsigned seed,
                          bool bias = false) {
  QkMaps maps;
  maps.group = group;
  maps.d_qk = d_qk;
  maps.d_in = d_in;
  maps.q = random_matrix(group * d_qk, d_in, seed);
  maps.k = random_matrix(d_qk, d_in, seed + 1);
  if (bias) {
    maps.q_bias = random_matrix(group, d_qk, seed + 2);
    maps.k_bias = random_matrix(1, d_qk, seed + 3);
  }
  return maps;
}

// What a head makes of a token: map, bias, norm, rotation by 2π · position / period times the pair's
// frequency.
inline std::vector<double> head_of(const double* w, const double* bias, const double* norm,
                                   const QkMaps& maps, const double* x, QkRotary rotary,
                                   const std::vector<std::int64_t>& frequencies, std::int64_t position,
                                   std::int64_t period) {
  std::vector<double> y(maps.d_qk);
  double squares = 0;
  for (std::int64_t j = 0; j < maps.d_qk; ++j) {
    y[j] = bias ? bias[j] : 0;
    for (std::int64_t i = 0; i < maps.d_in; ++i) y[j] += w[j * maps.d_in + i] * x[i];
    squares += y[j] * y[j];
  }
  if (norm)
    for (std::int64_t j = 0; j < maps.d_qk; ++j)
      y[j] *= norm[j] / std::sqrt(squares / static_cast<double>(maps.d_qk));
  for (std::int64_t p = 0; p < rotary.dims / 2; ++p) {
    const bool adjacent = rotary.layout == RotaryLayout::Adjacent;
    double &a = y[adjacent ? 2 * p : p], &b = y[adjacent ? 2 * p + 1 : p + rotary.dims / 2];
    const double angle = 2 * std::numbers::pi * static_cast<double>(frequencies[p] * position % period) /
                         static_cast<double>(period);
    const double turned = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = turned;
  }
  return y;
}

inline const double* or_null(const std::vector<double>& v, std::int64_t at) {
  return v.empty() ? nullptr : &v[at];
}

// Scores [group][query tokens][key tokens][positions]. Over a whole period of distinct frequencies below half
// of it, products of the cosines and sines of different pairs average to 0: as if angles were independent.
inline std::vector<double> scores(const QkMaps& maps, QkRotary rotary,
                                  const std::vector<std::int64_t>& frequencies, std::int64_t period,
                                  const std::vector<double>& xq, const std::vector<double>& xk) {
  std::vector<double> all;
  for (std::int64_t h = 0; h < maps.group; ++h)
    for (std::size_t tq = 0; tq < xq.size(); tq += maps.d_in)
      for (std::size_t tk = 0; tk < xk.size(); tk += maps.d_in)
        for (std::int64_t position = 0; position < period; ++position) {
          const std::int64_t at = h * maps.d_qk;
          const std::vector<double> q =
              head_of(&maps.q[at * maps.d_in], or_null(maps.q_bias, at), or_null(maps.q_norm, at), maps,
                      &xq[tq], rotary, frequencies, position + 3, period);
          const std::vector<double> k =
              head_of(maps.k.data(), or_null(maps.k_bias, 0), or_null(maps.k_norm, 0), maps, &xk[tk], rotary,
                      frequencies, 3, period);
          all.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0));
        }
  return all;
}

// Maps with the tokens that they read.
struct QkCase {
  QkMaps maps;
  QkRotary rotary;
  std::vector<double> xq, xk, rq, rk;
  std::int64_t tokens;

  QkCase(QkMaps m, QkRotary r, std::int64_t t, unsigned seed) : maps(std::move(m)), rotary(r), tokens(t) {
    const bool one = !maps.q_bias.empty() || !maps.k_bias.empty();
    xq = correlated_tokens(t, maps.d_in, seed);
    xk = correlated_tokens(t, maps.d_in, seed + 7);
    rq = autocorrelation(xq, t, one);
    rk = autocorrelation(xk, t, one);
  }

  std::int64_t period() const { return rotary.dims ? 2 * rotary.dims + 3 : 1; }

  std::vector<double> scores_of(const QkMaps& m, QkRotary r, const std::vector<std::int64_t>& pairs) const {
    std::vector<std::int64_t> frequencies;
    for (const std::int64_t p : pairs) frequencies.push_back(p + 1);
    return scores(m, r, frequencies, period(), xq, xk);
  }

  // The loss from the scores themselves.
  double loss_of(const QkMaps& m, QkRotary r, const std::vector<std::int64_t>& pairs) const {
    std::vector<std::int64_t> all(rotary.dims / 2);
    std::iota(all.begin(), all.end(), 0);
    const std::vector<double> before = scores_of(maps, rotary, all), after = scores_of(m, r, pairs);
    double sum = 0;
    for (std::size_t i = 0; i < before.size(); ++i) sum += std::pow(before[i] - after[i], 2);
    return sum / static_cast<double>(tokens * tokens * period());
  }

  // All numbers of dimensions: the curve, the result's loss, qk_loss and the scores agree.
  void expect_exact(QkImportance importance = QkImportance::Energy) const {
    const QkReduction reduction(maps, rotary, rq, rk, importance);
    const std::vector<double>& curve = reduction.loss_by_dims();
    ASSERT_EQ(curve.size(), static_cast<std::size_t>(maps.d_qk + 1));
    EXPECT_EQ(curve.back(), 0);
    for (std::int64_t dims = 1; dims <= maps.d_qk; ++dims) {
      if (rotary.dims == maps.d_qk && dims % 2) {
        EXPECT_THROW(reduction.shrink(dims), Error);
        EXPECT_EQ(curve[dims], curve[dims - 1]);
        continue;
      }
      const QkReduced reduced = reduction.shrink(dims);
      EXPECT_EQ(reduced.maps.d_qk, dims);
      EXPECT_EQ(reduced.rotary.dims, 2 * static_cast<std::int64_t>(reduced.pairs.size()));
      EXPECT_TRUE(std::is_sorted(reduced.pairs.begin(), reduced.pairs.end()));
      EXPECT_EQ(reduced.loss, curve[dims]);
      const double exact = loss_of(reduced.maps, reduced.rotary, reduced.pairs);
      EXPECT_NEAR(reduced.loss, exact, 1e-10 * curve[0]) << dims;
      EXPECT_NEAR(qk_loss(maps, rotary, reduced.maps, reduced.pairs, rq, rk), exact, 1e-10 * curve[0])
          << dims;
    }
  }
};

}  // namespace narrows
