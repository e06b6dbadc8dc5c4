#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "lowrank/covariance.h"
#include "lowrank/qk_maps.h"

namespace narrows {
namespace {

// With the norms as constant factors.
ExtendedQk normalised(const QkMaps& maps, bool extend, std::span<const double> r_q,
                      std::span<const double> r_kv) {
  ExtendedQk w(maps, extend, r_q, r_kv);
  if (maps.q_norm.empty()) return w;
  const auto normalise = [&](double* rows, const double* weights, std::span<const double> r,
                             const char* what) {
    const std::vector<double> c = covariance(rows, w.d_qk, r.data(), w.n, rows, w.d_qk, what);
    std::vector<double> energies;
    for (std::int64_t j = 0; j < w.d_qk; ++j) energies.push_back(std::max(c[j * w.d_qk + j], 0.0));
    const std::vector<double> factors = norm_factors(energies.data(), weights, w.d_qk);
    for (std::int64_t i = 0; i < w.d_qk * w.n; ++i) rows[i] *= factors[i / w.n];
  };
  for (std::int64_t h = 0; h < maps.group; ++h)
    normalise(&w.q[h * w.d_qk * w.n], &maps.q_norm[h * w.d_qk], r_q, "queries");
  normalise(w.k.data(), maps.k_norm.data(), r_kv, "keys");
  return w;
}

// E (s_a · s_b) of the scores that two pairs of maps give to the same tokens, at the same angles, for one
// query head. Pair i of either stands for old pair pairs_a[i], pairs_b[i].
double score_product(const ExtendedQk& a, QkRotary rotary_a, std::span<const std::int64_t> pairs_a,
                     const ExtendedQk& b, QkRotary rotary_b, std::span<const std::int64_t> pairs_b,
                     std::int64_t head, std::span<const double> r_q, std::span<const double> r_kv) {
  const std::vector<double> q =
      covariance(a.q_rows(head), a.d_qk, r_q.data(), a.n, b.q_rows(head), b.d_qk, "queries");
  const std::vector<double> k = covariance(a.k.data(), a.d_qk, r_kv.data(), a.n, b.k.data(), b.d_qk, "keys");
  const std::int64_t columns = b.d_qk;
  double sum = 0;
  // As complex numbers, a pair's score is Re(e^{iφ} q̄ k). Over uniform φ, E s_a s_b = ½ Re (E q_a q̄_b E k̄_a
  // k_b).
  for (std::size_t i = 0; i < pairs_a.size(); ++i)
    for (std::size_t j = 0; j < pairs_b.size(); ++j) {
      if (pairs_a[i] != pairs_b[j]) continue;
      const auto [re_a, im_a] = dimensions_of(static_cast<std::int64_t>(i), rotary_a);
      const auto [re_b, im_b] = dimensions_of(static_cast<std::int64_t>(j), rotary_b);
      const auto parts = [&, re_a = re_a, im_a = im_a, re_b = re_b,
                          im_b = im_b](const std::vector<double>& c) {
        return std::pair(c[re_a * columns + re_b] + c[im_a * columns + im_b],
                         c[im_a * columns + re_b] - c[re_a * columns + im_b]);
      };
      const auto [q_real, q_imaginary] = parts(q);
      const auto [k_real, k_imaginary] = parts(k);
      sum += 0.5 * (q_real * k_real + q_imaginary * k_imaginary);
    }
  for (std::int64_t i = rotary_a.dims; i < a.d_qk; ++i)
    for (std::int64_t j = rotary_b.dims; j < b.d_qk; ++j) sum += q[i * columns + j] * k[i * columns + j];
  return sum;
}

}  // namespace

void check_qk(const QkMaps& maps, QkRotary rotary) {
  const auto [group, d, n] = std::tuple(maps.group, maps.d_qk, maps.d_in);
  if (group < 1 || d < 1 || n < 1)
    fail("query and key maps: expected at least 1 head, dimension and input, found {}, {} and {}", group, d,
         n);
  if (rotary.dims < 0 || rotary.dims > d || rotary.dims % 2)
    fail("rotated dimensions: expected an even number up to {}, found {}", d, rotary.dims);
  expect_size(maps.q, group * d * n, "query map");
  expect_size(maps.k, d * n, "key map");
  if (!maps.q_bias.empty()) expect_size(maps.q_bias, group * d, "query bias");
  if (!maps.k_bias.empty()) expect_size(maps.k_bias, d, "key bias");
  const bool normed = !maps.q_norm.empty() || !maps.k_norm.empty();
  expect_size(maps.q_norm, normed ? group * d : 0, "query norm");
  expect_size(maps.k_norm, normed ? d : 0, "key norm");
  for (const std::vector<double>* numbers : {&maps.q, &maps.q_bias, &maps.q_norm})
    expect_finite(*numbers, "query map");
  for (const std::vector<double>* numbers : {&maps.k, &maps.k_bias, &maps.k_norm})
    expect_finite(*numbers, "key map");
}

ExtendedQk::ExtendedQk(const QkMaps& maps, bool extend, std::span<const double> r_q,
                       std::span<const double> r_kv)
    : d_qk(maps.d_qk),
      n(maps.d_in + extend),
      q(with_bias(maps.q, maps.group * d_qk, maps.d_in, maps.q_bias, extend)),
      k(with_bias(maps.k, d_qk, maps.d_in, maps.k_bias, extend)) {
  expect_size(r_q, n * n, "autocorrelation of the queries' input");
  expect_size(r_kv, n * n, "autocorrelation of the keys' input");
}

std::vector<double> norm_factors(const double* energies, const double* weights, std::int64_t d) {
  const double mean = std::accumulate(energies, energies + d, 0.0) / static_cast<double>(d);
  std::vector<double> factors(d);
  if (mean > 0)
    for (std::int64_t j = 0; j < d; ++j) factors[j] = weights[j] / std::sqrt(mean);
  return factors;
}

double qk_loss(const QkMaps& maps, QkRotary rotary, const QkMaps& candidate,
               std::span<const std::int64_t> pairs, std::span<const double> r_q,
               std::span<const double> r_kv) {
  const auto count = static_cast<std::int64_t>(pairs.size());
  const QkRotary candidate_rotary{rotary.layout, 2 * count};
  check_qk(maps, rotary);
  check_qk(candidate, candidate_rotary);
  if (candidate.group != maps.group || candidate.d_in != maps.d_in)
    fail("candidate query and key maps: expected {} heads and {} inputs, found {} and {}", maps.group,
         maps.d_in, candidate.group, candidate.d_in);
  const bool extend = has_bias(maps) || has_bias(candidate);
  const ExtendedQk before = normalised(maps, extend, r_q, r_kv),
                   after = normalised(candidate, extend, r_q, r_kv);
  std::vector<std::int64_t> all(rotary.dims / 2);
  std::iota(all.begin(), all.end(), 0);
  double loss = 0;
  for (std::int64_t h = 0; h < maps.group; ++h)
    loss += score_product(before, rotary, all, before, rotary, all, h, r_q, r_kv) -
            2 * score_product(before, rotary, all, after, candidate_rotary, pairs, h, r_q, r_kv) +
            score_product(after, candidate_rotary, pairs, after, candidate_rotary, pairs, h, r_q, r_kv);
  return std::max(loss, 0.0);
}

}  // namespace narrows
