#include "lowrank/ov.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "lowrank/covariance.h"
#include "lowrank/loss_curve.h"
#include "lowrank/ov_alternation.h"
#include "lowrank/roots.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

void check_ov(const OvMaps& maps) {
  if (maps.group < 1 || maps.d_vo < 1 || maps.d_in < 1 || maps.d_out < 1)
    fail(
        "value and output maps: expected at least 1 head, dimension, input and output, found {}, {}, {} and "
        "{}",
        maps.group, maps.d_vo, maps.d_in, maps.d_out);
  expect_size(maps.v, maps.d_vo * maps.d_in, "value map");
  expect_size(maps.o, maps.group * maps.d_out * maps.d_vo, "output map");
  if (!maps.v_bias.empty()) expect_size(maps.v_bias, maps.d_vo, "value bias");
  expect_finite(maps.v, "value map");
  expect_finite(maps.v_bias, "value bias");
  expect_finite(maps.o, "output map");
}

void check_statistics(std::span<const std::span<const double>> r_px, std::int64_t group, std::int64_t n) {
  if (static_cast<std::int64_t>(r_px.size()) != group)
    fail("autocorrelations of the averaged input: expected one for each of {} heads, found {}", group,
         r_px.size());
  for (const std::span<const double> r : r_px) expect_size(r, n * n, "autocorrelation of the averaged input");
}

// W_aᵀ W_b of one head's output maps [d_out][·].
std::vector<double> inner_products(const OvMaps& a, const OvMaps& b, std::int64_t head) {
  std::vector<double> result(a.d_vo * b.d_vo);
  gemm(Transpose::Yes, Transpose::No, a.d_vo, b.d_vo, a.d_out, 1.0, &a.o[head * a.d_out * a.d_vo], a.d_vo,
       &b.o[head * b.d_out * b.d_vo], b.d_vo, 0.0, result.data(), b.d_vo);
  return result;
}

// The energy that each coordinate of C [d][d] has beyond what those before it explain, as it arrives at the
// output through G: lᵀ G l, l the columns of C's Cholesky factor. Coordinates that depend on earlier ones
// have none.
std::vector<double> conditional_energies(const std::vector<double>& c, const std::vector<double>& g,
                                         std::int64_t d) {
  std::vector<double> rest = c, energies(d), l(d), gl(d);
  for (std::int64_t j = 0; j < d; ++j) {
    const double pivot = rest[j * d + j];
    if (!(pivot > 1e-10 * c[j * d + j])) continue;
    std::fill_n(l.begin(), j, 0.0);
    for (std::int64_t i = j; i < d; ++i) l[i] = rest[i * d + j] / std::sqrt(pivot);
    for (std::int64_t i = j; i < d; ++i)
      for (std::int64_t k = j; k < d; ++k) rest[i * d + k] -= l[i] * l[k];
    energies[j] = std::max(dot(l, product(g.data(), d, d, l.data(), 1)), 0.0);
  }
  return energies;
}

}  // namespace

std::vector<std::vector<double>> ov_covariances(const OvMaps& maps,
                                                std::span<const std::span<const double>> r_px) {
  check_ov(maps);
  const bool extend = !maps.v_bias.empty();
  const std::int64_t d = maps.d_vo, n = maps.d_in + extend;
  check_statistics(r_px, maps.group, n);
  const std::vector<double> v = with_bias(maps.v, d, maps.d_in, maps.v_bias, extend);
  std::vector<std::vector<double>> covariances;
  for (const std::span<const double> r : r_px)
    covariances.push_back(covariance(v.data(), d, r.data(), n, v.data(), d, "values"));
  return covariances;
}

OvReduction::OvReduction(OvMaps maps, std::span<const std::vector<double>> covariances)
    : maps_(std::move(maps)) {
  check_ov(maps_);
  const std::int64_t d = maps_.d_vo;
  if (static_cast<std::int64_t>(covariances.size()) != maps_.group)
    fail("covariances of values: expected one for each of {} heads, found {}", maps_.group,
         covariances.size());
  std::vector<double> output_sum(d * d), value_sum(d * d);
  for (std::int64_t h = 0; h < maps_.group; ++h) {
    outputs_.push_back(inner_products(maps_, maps_, h));
    expect_size(covariances[h], d * d, "covariance of values");
    // As roots, covariances stay positive semidefinite under whatever amplifies their small eigenvalues.
    Roots roots = symmetric_roots(covariances[h].data(), d);
    raised_ += roots.raised;
    if (!(roots.largest > 0)) std::fill(roots.root.begin(), roots.root.end(), 0.0);  // values of zeros
    values_.push_back(roots.root);
    for (std::int64_t i = 0; i < d * d; ++i) output_sum[i] += outputs_[h][i];
    symmetric_rank_k(Transpose::No, d, d, 1.0, roots.root.data(), d, 1.0, value_sum.data(), d);
  }
  inner_ = inner_spectrum(output_sum.data(), value_sum.data(), d);
  std::vector<double> energies(d);
  for (std::int64_t h = 0; h < maps_.group; ++h) {
    outputs_[h] =
        covariance(inner_.left.data(), d, outputs_[h].data(), d, inner_.left.data(), d, "output maps");
    const std::vector<double> roots = product(inner_.right.data(), d, d, values_[h].data(), d);
    symmetric_rank_k(Transpose::No, d, d, 1.0, roots.data(), d, 0.0, values_[h].data(), d);
    mirror_upper(values_[h].data(), d);
    const std::vector<double> of_head = conditional_energies(values_[h], outputs_[h], d);
    for (std::int64_t j = 0; j < d; ++j) energies[j] += of_head[j];
  }
  loss_ = narrows::loss_by_rank(maps_.group == 1 ? inner_.energies : energies);
}

OvReduced OvReduction::shrink(std::int64_t rank) const {
  const std::int64_t d = maps_.d_vo;
  if (rank < 1 || rank > d) fail("value dimensions: expected 1 to {}, found {}", d, rank);
  OvAlternation fit(outputs_, values_, d, rank);
  OvReduced reduced;
  if (maps_.group == 1 || rank == d) {
    reduced.losses = {loss_[rank]};
  } else {
    constexpr int kMostSweeps = 100;
    constexpr double kStalled = 1e-5;
    reduced.losses = {fit.loss()};
    for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
      const OvAlternation before = fit;
      if (sweep) fit.fit_values();
      fit.fit_outputs();
      const double loss = fit.loss(), last = reduced.loss();
      if (!(loss < last)) {  // what is left is rounding
        fit.u = before.u;
        fit.t = before.t;
        break;
      }
      reduced.losses.push_back(loss);
      if (sweep && last - loss < kStalled * last) break;
    }
  }

  std::vector<double> x_energies(rank), y_energies(rank);
  for (std::int64_t h = 0; h < maps_.group; ++h) {
    const std::vector<double> gt = product(outputs_[h].data(), d, d, fit.t[h].data(), rank);
    const std::vector<double> cu = product(values_[h].data(), d, d, fit.u.data(), rank);
    for (std::int64_t i = 0; i < d; ++i)
      for (std::int64_t j = 0; j < rank; ++j) {
        x_energies[j] += fit.t[h][i * rank + j] * gt[i * rank + j];
        y_energies[j] += fit.u[i * rank + j] * cu[i * rank + j];
      }
  }
  const std::vector<double> scales = balance(x_energies, y_energies);

  OvMaps& m = reduced.maps;
  m.group = maps_.group;
  m.d_vo = rank;
  m.d_in = maps_.d_in;
  m.d_out = maps_.d_out;
  std::vector<double> onto(rank * d);  // uᵀ right
  gemm(Transpose::Yes, Transpose::No, rank, d, d, 1.0, fit.u.data(), rank, inner_.right.data(), d, 0.0,
       onto.data(), d);
  for (std::int64_t i = 0; i < rank * d; ++i) onto[i] *= scales[i / d];
  m.v = product(onto.data(), rank, d, maps_.v.data(), m.d_in);
  if (!maps_.v_bias.empty()) m.v_bias = product(onto.data(), rank, d, maps_.v_bias.data(), 1);
  for (std::int64_t h = 0; h < m.group; ++h) {
    std::vector<double> back(d * rank);  // leftᵀ t
    gemm(Transpose::Yes, Transpose::No, d, rank, d, 1.0, inner_.left.data(), d, fit.t[h].data(), rank, 0.0,
         back.data(), rank);
    for (std::int64_t i = 0; i < d * rank; ++i) back[i] /= scales[i % rank];
    const std::vector<double> o = product(&maps_.o[h * m.d_out * d], m.d_out, d, back.data(), rank);
    m.o.insert(m.o.end(), o.begin(), o.end());
  }
  return reduced;
}

double ov_loss(const OvMaps& maps, const OvMaps& candidate, std::span<const std::span<const double>> r_px) {
  check_ov(maps);
  check_ov(candidate);
  if (candidate.group != maps.group || candidate.d_in != maps.d_in || candidate.d_out != maps.d_out)
    fail("candidate value and output maps: expected {} heads, {} inputs and {} outputs, found {}, {} and {}",
         maps.group, maps.d_in, maps.d_out, candidate.group, candidate.d_in, candidate.d_out);
  const bool extend = !maps.v_bias.empty() || !candidate.v_bias.empty();
  const std::int64_t n = maps.d_in + extend;
  check_statistics(r_px, maps.group, n);
  const std::vector<double> v = with_bias(maps.v, maps.d_vo, maps.d_in, maps.v_bias, extend),
                            w = with_bias(candidate.v, candidate.d_vo, maps.d_in, candidate.v_bias, extend);
  double loss = 0;
  for (std::int64_t h = 0; h < maps.group; ++h) {
    const double* r = r_px[h].data();
    const auto shared = [&](const OvMaps& a, const std::vector<double>& va, const OvMaps& b,
                            const std::vector<double>& vb) {
      return dot(inner_products(a, b, h), covariance(va.data(), a.d_vo, r, n, vb.data(), b.d_vo, "values"));
    };
    loss += shared(maps, v, maps, v) - 2 * shared(maps, v, candidate, w) + shared(candidate, w, candidate, w);
  }
  return std::max(loss, 0.0);
}

}  // namespace narrows
