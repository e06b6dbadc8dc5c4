#include "lowrank/qk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "lowrank/covariance.h"
#include "lowrank/loss_curve.h"
#include "lowrank/qk_maps.h"

namespace narrows {
namespace {

// Positions in falling order of importance, of equals the first first.
std::vector<std::int64_t> falling(const std::vector<double>& importance) {
  std::vector<std::int64_t> order(importance.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return importance[a] > importance[b]; });
  return order;
}

std::vector<std::int64_t> first_ascending(const std::vector<std::int64_t>& order, std::int64_t count) {
  std::vector<std::int64_t> kept(order.begin(), order.begin() + count);
  std::sort(kept.begin(), kept.end());
  return kept;
}

// The last d dimensions of a [n][n].
std::vector<double> trailing_block(const std::vector<double>& a, std::int64_t n, std::int64_t d) {
  std::vector<double> block(d * d);
  for (std::int64_t i = 0; i < d; ++i) std::copy_n(&a[(n - d + i) * n + n - d], d, &block[i * d]);
  return block;
}

}  // namespace

QkCovariances qk_covariances(const QkMaps& maps, std::span<const double> r_q, std::span<const double> r_kv) {
  check_qk(maps, {});
  const ExtendedQk w(maps, has_bias(maps), r_q, r_kv);
  const std::int64_t d = maps.d_qk;
  QkCovariances c;
  for (std::int64_t h = 0; h < maps.group; ++h)
    c.q.push_back(covariance(w.q_rows(h), d, r_q.data(), w.n, w.q_rows(h), d, "queries"));
  c.k = covariance(w.k.data(), d, r_kv.data(), w.n, w.k.data(), d, "keys");
  return c;
}

QkReduction::QkReduction(QkMaps maps, QkRotary rotary, QkCovariances covariances, QkImportance importance)
    : maps_(std::move(maps)), rotary_(rotary), c_(std::move(covariances)) {
  check_qk(maps_, rotary_);
  const std::int64_t d = maps_.d_qk;
  if (static_cast<std::int64_t>(c_.q.size()) != maps_.group)
    fail("covariances of queries: expected one for each of {} heads, found {}", maps_.group, c_.q.size());
  const auto prepare = [&](std::vector<double>& c, const std::vector<double>& norm, std::int64_t head,
                           std::vector<double>& energies, const char* what) {
    expect_size(c, d * d, what);
    expect_finite(c, what);
    for (std::int64_t j = 0; j < d; ++j) {
      c[j * d + j] = std::max(c[j * d + j], 0.0);  // rounding
      energies.push_back(c[j * d + j]);
    }
    if (norm.empty()) return;
    const std::vector<double> factors = norm_factors(&energies[head * d], &norm[head * d], d);
    for (std::int64_t i = 0; i < d * d; ++i) c[i] *= factors[i / d] * factors[i % d];
  };
  for (std::int64_t h = 0; h < maps_.group; ++h)
    prepare(c_.q[h], maps_.q_norm, h, q_energy_, "covariance of queries");
  prepare(c_.k, maps_.k_norm, 0, k_energy_, "covariance of keys");
  order_rest(importance);
  measure_pairs(importance);
}

void QkReduction::measure_pairs(QkImportance importance) {
  const std::int64_t d = maps_.d_qk, pairs = rotary_.dims / 2;
  std::vector<double> keys(pairs);
  pair_losses_.assign(pairs, 0.0);
  for (const std::vector<double>& cq : c_.q)
    for (std::int64_t p = 0; p < pairs; ++p) {
      const auto [a, b] = dimensions_of(p, rotary_);
      const double qa = cq[a * d + a], qb = cq[b * d + b], ka = c_.k[a * d + a], kb = c_.k[b * d + b];
      pair_losses_[p] += 0.5 * (qa + qb) * (ka + kb);
      keys[p] += importance == QkImportance::Energy ? (qa + qb) * (ka + kb)
                                                    : std::sqrt(qa * ka) + std::sqrt(qb * kb);
    }
  order_pairs(keys);
}

void QkReduction::order_pairs(std::span<const double> importance) {
  const std::int64_t pairs = rotary_.dims / 2;
  if (std::ssize(importance) != pairs) fail("importance of {} rotary pairs, found {}", pairs, importance.size());
  pair_order_ = falling({importance.begin(), importance.end()});
  std::vector<double> ordered(pairs);
  for (std::int64_t i = 0; i < pairs; ++i) ordered[i] = pair_losses_[pair_order_[i]];
  pair_loss_ = loss_by_rank(ordered);
  split();
}

void QkReduction::order_rest(QkImportance importance) {
  const std::int64_t d = maps_.d_qk, rest = d - rotary_.dims;
  const std::vector<double> k = trailing_block(c_.k, d, rest);
  std::vector<std::vector<double>> q;
  for (const std::vector<double>& cq : c_.q) q.push_back(trailing_block(cq, d, rest));

  if (maps_.q_norm.empty()) {
    std::vector<double> sum(rest * rest);
    for (const std::vector<double>& block : q)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += block[i];
    rest_ = inner_spectrum(sum.data(), k.data(), rest);
    rest_loss_ = loss_by_rank(rest_.energies);
    return;
  }
  // The error of a set of dropped dimensions is Σ_{i, j dropped} E q_i q_j · E k_i k_j.
  std::vector<double> errors(rest * rest), keys(rest);
  for (const std::vector<double>& block : q) {
    for (std::size_t i = 0; i < errors.size(); ++i) errors[i] += block[i] * k[i];
    for (std::int64_t j = 0; j < rest; ++j) {
      const double energy = block[j * rest + j] * k[j * rest + j];
      keys[j] += importance == QkImportance::Energy ? energy : std::sqrt(energy);
    }
  }
  rest_order_ = falling(keys);
  rest_loss_ = loss_by_order(errors, rest_order_);
}

void QkReduction::split() {
  const std::int64_t d = maps_.d_qk, pairs = rotary_.dims / 2, rest = d - rotary_.dims;
  loss_.assign(d + 1, std::numeric_limits<double>::infinity());
  pairs_at_.assign(d + 1, -1);
  for (std::int64_t m = 0; m <= pairs; ++m)
    for (std::int64_t r = 0; r <= rest; ++r) {
      const double loss = pair_loss_[m] + rest_loss_[r];
      const std::int64_t dims = 2 * m + r;
      if (loss < loss_[dims]) {
        loss_[dims] = loss;
        pairs_at_[dims] = m;
      }
    }
  for (std::int64_t dims = 1; dims <= d; ++dims)
    if (pairs_at_[dims] < 0) loss_[dims] = loss_[dims - 1];
}

QkMaps QkReduction::choose(const std::vector<std::int64_t>& kept) const {
  const std::int64_t d = maps_.d_qk, n = maps_.d_in, dims = static_cast<std::int64_t>(kept.size());
  QkMaps chosen;
  chosen.group = maps_.group;
  chosen.d_qk = dims;
  chosen.d_in = n;
  chosen.k = take_rows(maps_.k, n, kept);
  std::vector<std::int64_t> all;  // of the stacked query heads
  for (std::int64_t h = 0; h < maps_.group; ++h)
    for (const std::int64_t j : kept) all.push_back(h * d + j);
  chosen.q = take_rows(maps_.q, n, all);
  if (!maps_.q_bias.empty()) chosen.q_bias = take_rows(maps_.q_bias, 1, all);
  if (!maps_.k_bias.empty()) chosen.k_bias = take_rows(maps_.k_bias, 1, kept);
  if (maps_.q_norm.empty()) return chosen;

  const auto scaled = [&](const std::vector<double>& norm, std::span<const double> energy, std::int64_t h) {
    double part = 0, whole = 0;
    for (const std::int64_t j : kept) part += energy[h * d + j];
    for (std::int64_t j = 0; j < d; ++j) whole += energy[h * d + j];
    const double constant = whole > 0 ? std::sqrt(part / dims / (whole / d)) : 1;
    std::vector<double> weights;
    for (const std::int64_t j : kept) weights.push_back(norm[h * d + j] * constant);
    return weights;
  };
  for (std::int64_t h = 0; h < maps_.group; ++h) {
    const std::vector<double> weights = scaled(maps_.q_norm, q_energy_, h);
    chosen.q_norm.insert(chosen.q_norm.end(), weights.begin(), weights.end());
  }
  chosen.k_norm = scaled(maps_.k_norm, k_energy_, 0);
  return chosen;
}

double QkReduction::loss(std::int64_t dims, std::int64_t pairs) const {
  const std::int64_t rest = dims - 2 * pairs;
  if (pairs < 0 || pairs > rotary_.dims / 2 || rest < 0 || rest > maps_.d_qk - rotary_.dims)
    return std::numeric_limits<double>::infinity();
  return pair_loss_[pairs] + rest_loss_[rest];
}

QkReduced QkReduction::shrink(std::int64_t dims) const {
  const std::int64_t d = maps_.d_qk;
  if (dims < 1 || dims > d) fail("query and key dimensions: expected 1 to {}, found {}", d, dims);
  if (pairs_at_[dims] < 0)
    fail("query and key dimensions: expected an even number, as all are rotated in pairs, found {}", dims);
  return shrink(dims, pairs_at_[dims]);
}

QkReduced QkReduction::shrink(std::int64_t dims, std::int64_t count) const {
  const std::int64_t d = maps_.d_qk, n = maps_.d_in, rest = dims - 2 * count;
  if (dims < 1 || std::isinf(loss(dims, count)))
    fail("query and key dimensions: expected up to {} of which {} are rotated, found {} and {}", d,
         rotary_.dims, dims, 2 * count);
  QkReduced reduced;
  reduced.pairs = first_ascending(pair_order_, count);
  reduced.rotary = {rotary_.layout, 2 * count};
  reduced.loss = loss(dims, count);
  std::vector<std::int64_t> kept(2 * count);  // old dimensions in the places of the new
  for (std::int64_t p = 0; p < count; ++p) {
    const auto [a, b] = dimensions_of(reduced.pairs[p], rotary_);
    const auto [new_a, new_b] = dimensions_of(p, reduced.rotary);
    kept[new_a] = a;
    kept[new_b] = b;
  }
  const bool selects = !maps_.q_norm.empty();
  if (selects)
    for (const std::int64_t j : first_ascending(rest_order_, rest)) kept.push_back(rotary_.dims + j);
  else
    for (std::int64_t j = 0; j < rest; ++j) kept.push_back(rotary_.dims + j);  // overwritten below
  reduced.maps = choose(kept);
  if (selects || rest == 0) return reduced;

  std::vector<double> ones(rest, 1.0), left(rest_.left.begin(), rest_.left.begin() + rest * rest_.d),
      right(rest_.right.begin(), rest_.right.begin() + rest * rest_.d);
  std::vector<double> energies(rest_.energies.begin(), rest_.energies.begin() + rest);
  for (double& e : energies) e /= static_cast<double>(maps_.group);
  const std::vector<double> scales = balance(energies, ones);
  for (std::int64_t i = 0; i < rest; ++i)
    for (std::int64_t j = 0; j < rest_.d; ++j) {
      left[i * rest_.d + j] /= scales[i];
      right[i * rest_.d + j] *= scales[i];
    }
  const auto replace = [&](const std::vector<double>& l, const std::vector<double>& from,
                           std::int64_t columns, std::int64_t h, std::vector<double>& to) {
    if (from.empty()) return;
    const std::vector<double> rows =
        product(l.data(), rest, rest_.d, &from[(h * d + rotary_.dims) * columns], columns);
    std::copy(rows.begin(), rows.end(), to.begin() + (h * dims + 2 * count) * columns);
  };
  for (std::int64_t h = 0; h < maps_.group; ++h) {
    replace(left, maps_.q, n, h, reduced.maps.q);
    replace(left, maps_.q_bias, 1, h, reduced.maps.q_bias);
  }
  replace(right, maps_.k, n, 0, reduced.maps.k);
  replace(right, maps_.k_bias, 1, 0, reduced.maps.k_bias);
  return reduced;
}

}  // namespace narrows
