#include "lowrank/attention_reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace narrows {
namespace {

std::vector<double> rows_of(const std::vector<double>& a, std::int64_t columns, std::int64_t first,
                            std::int64_t count) {
  if (a.empty()) return {};
  return {a.begin() + first * columns, a.begin() + (first + count) * columns};
}

void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

QkMaps qk_maps(const AttentionMaps& m, int kv_head) {
  const std::int64_t group = m.sizes.heads / m.sizes.kv_heads, d = m.sizes.d_qk, n = m.q.columns,
                     q = kv_head * group * d, k = kv_head * d;
  QkMaps maps;
  maps.group = group;
  maps.d_qk = d;
  maps.d_in = n;
  maps.q = rows_of(m.q.w, n, q, group * d);
  maps.k = rows_of(m.k.w, n, k, d);
  maps.q_bias = rows_of(m.q.bias, 1, q, group * d);
  maps.k_bias = rows_of(m.k.bias, 1, k, d);
  maps.q_norm = rows_of(m.q_norm, 1, q, group * d);
  maps.k_norm = rows_of(m.k_norm, 1, k, d);
  return maps;
}

QkReduction qk_reduction(const AttentionMaps& maps, const AttentionMoments& moments, int kv_head) {
  return {qk_maps(maps, kv_head), QkRotary{maps.layout, 2 * maps.pairs_each()}, moments.qk(kv_head)};
}

OvMaps ov_maps(const AttentionMaps& m, int kv_head) {
  const std::int64_t group = m.sizes.heads / m.sizes.kv_heads, d = m.sizes.d_vo, d_out = m.o.rows;
  OvMaps maps;
  maps.group = group;
  maps.d_vo = d;
  maps.d_in = m.v.columns;
  maps.d_out = d_out;
  maps.v = rows_of(m.v.w, maps.d_in, kv_head * d, d);
  maps.v_bias = rows_of(m.v.bias, 1, kv_head * d, d);
  for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
    for (std::int64_t i = 0; i < d_out; ++i)
      maps.o.insert(maps.o.end(), m.o.w.begin() + i * m.o.columns + h * d,
                    m.o.w.begin() + i * m.o.columns + (h + 1) * d);
  return maps;
}

}  // namespace

AttentionMoments::AttentionMoments(const LayerSpec& layer) : layer_(layer) {
  for (int h = 0; h < layer.heads; ++h) {
    q_.emplace_back(layer.d_qk);
    mixed_.emplace_back(layer.d_vo);
  }
  for (int h = 0; h < layer.kv_heads; ++h) k_.emplace_back(layer.d_qk);
}

void AttentionMoments::add_qkv(const float* y, std::int64_t rows) {
  const std::int64_t d = layer_.d_qk, keys = layer_.heads * d,
                     stride = keys + std::int64_t{layer_.kv_heads} * (d + layer_.d_vo);
  for (int h = 0; h < layer_.heads; ++h) q_[static_cast<std::size_t>(h)].add(y + h * d, rows, stride);
  for (int h = 0; h < layer_.kv_heads; ++h)
    k_[static_cast<std::size_t>(h)].add(y + keys + h * d, rows, stride);
}

void AttentionMoments::add_mixed(const float* x, std::int64_t rows) {
  const std::int64_t d = layer_.d_vo;
  for (int h = 0; h < layer_.heads; ++h)
    mixed_[static_cast<std::size_t>(h)].add(x + h * d, rows, std::int64_t{layer_.heads} * d);
}

QkCovariances AttentionMoments::qk(int kv_head) const {
  const int group = layer_.heads / layer_.kv_heads;
  QkCovariances c;
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h)
    c.q.push_back(q_[static_cast<std::size_t>(h)].mean());
  c.k = k_[static_cast<std::size_t>(kv_head)].mean();
  return c;
}

std::vector<std::vector<double>> AttentionMoments::ov(int kv_head) const {
  const int group = layer_.heads / layer_.kv_heads;
  std::vector<std::vector<double>> covariances;
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h)
    covariances.push_back(mixed_[static_cast<std::size_t>(h)].mean());
  return covariances;
}

std::vector<double> pair_losses(const AttentionMaps& maps, const AttentionMoments& moments) {
  std::vector<double> sum(static_cast<std::size_t>(maps.pairs_each()));
  for (int g = 0; g < maps.sizes.kv_heads; ++g) {
    const QkReduction group = qk_reduction(maps, moments, g);
    for (std::size_t p = 0; p < sum.size(); ++p) sum[p] += group.pair_losses()[p];
  }
  return sum;
}

AttentionReduction::AttentionReduction(const AttentionMaps& maps, const AttentionMoments& moments,
                                       std::span<const double> shared)
    : maps_(maps) {
  const LayerSpec& sizes = maps.sizes;
  const int rotated = maps.pairs_each();
  qk_.reserve(static_cast<std::size_t>(sizes.kv_heads));
  ov_.reserve(static_cast<std::size_t>(sizes.kv_heads));
  for (int g = 0; g < sizes.kv_heads; ++g) {
    if (!maps.queries_fixed) qk_.push_back(qk_reduction(maps, moments, g));
    if (!maps.queries_fixed && !shared.empty()) qk_.back().order_pairs(shared);
    ov_.emplace_back(ov_maps(maps, g), moments.ov(g));
  }
  qk_loss_.assign(static_cast<std::size_t>(sizes.d_qk) + 1, std::numeric_limits<double>::infinity());
  pairs_at_.assign(qk_loss_.size(), -1);
  if (maps.queries_fixed) {
    qk_loss_.front() = 1;  // with nothing, everything is lost
    qk_loss_.back() = 0;
    pairs_at_.back() = rotated;
  }
  for (int dims = 0; dims <= sizes.d_qk && !maps.queries_fixed; ++dims)
    for (int pairs = 0; pairs <= rotated; ++pairs) {
      double loss = 0;
      for (const QkReduction& group : qk_) loss += group.loss(dims, pairs);
      if (!(loss < qk_loss_[static_cast<std::size_t>(dims)])) continue;
      qk_loss_[static_cast<std::size_t>(dims)] = loss;
      pairs_at_[static_cast<std::size_t>(dims)] = pairs;
    }
  ov_loss_.assign(static_cast<std::size_t>(sizes.d_vo) + 1, 0.0);
  for (const OvReduction& group : ov_)
    for (std::size_t i = 0; i < ov_loss_.size(); ++i) ov_loss_[i] += group.loss_by_rank()[i];
}

std::int64_t AttentionReduction::raised() const {
  std::int64_t raised = 0;
  for (const QkReduction& group : qk_) raised += group.raised();
  for (const OvReduction& group : ov_) raised += group.raised();
  return raised;
}

AttentionMaps AttentionReduction::shrink(int d_qk, int d_vo) const {
  AttentionMaps to;
  to.sizes = maps_.sizes;
  to.layout = maps_.layout;
  shrink_qk(d_qk, to);
  shrink_ov(d_vo, to);
  return to;
}

void AttentionReduction::shrink_qk(int d_qk, AttentionMaps& to) const {
  const LayerSpec& sizes = maps_.sizes;
  if (d_qk < 1 || d_qk > sizes.d_qk || pairs_at_[static_cast<std::size_t>(d_qk)] < 0)
    fail("query and key dimensions: expected up to {}, {} of them in pairs, found {}", sizes.d_qk,
         2 * maps_.pairs_each(), d_qk);
  to.sizes.d_qk = d_qk;
  if (maps_.queries_fixed) {
    to.pairs = maps_.pairs;
    to.q = maps_.q;
    to.k = maps_.k;
    return;
  }
  to.q = {std::int64_t{sizes.heads} * d_qk, maps_.q.columns, {}, {}};
  to.k = {std::int64_t{sizes.kv_heads} * d_qk, maps_.k.columns, {}, {}};
  for (int g = 0; g < sizes.kv_heads; ++g) {
    const QkReduced reduced =
        qk_[static_cast<std::size_t>(g)].shrink(d_qk, pairs_at_[static_cast<std::size_t>(d_qk)]);
    for (const std::int64_t pair : reduced.pairs)
      to.pairs.push_back(maps_.pairs[static_cast<std::size_t>(g * maps_.pairs_each() + pair)]);
    append(to.q.w, reduced.maps.q);
    append(to.q.bias, reduced.maps.q_bias);
    append(to.k.w, reduced.maps.k);
    append(to.k.bias, reduced.maps.k_bias);
    append(to.q_norm, reduced.maps.q_norm);
    append(to.k_norm, reduced.maps.k_norm);
  }
}

void AttentionReduction::shrink_ov(int d_vo, AttentionMaps& to) const {
  const LayerSpec& sizes = maps_.sizes;
  const std::int64_t group = sizes.heads / sizes.kv_heads, d_out = maps_.o.rows,
                     width = std::int64_t{sizes.heads} * d_vo;
  to.sizes.d_vo = d_vo;
  to.v = {std::int64_t{sizes.kv_heads} * d_vo, maps_.v.columns, {}, {}};
  to.o = {d_out, width, {}, maps_.o.bias};
  for (int g = 0; g < sizes.kv_heads; ++g) {
    const OvReduced reduced = ov_[static_cast<std::size_t>(g)].shrink(d_vo);
    append(to.v.w, reduced.maps.v);
    append(to.v.bias, reduced.maps.v_bias);
    to.o.w.resize(static_cast<std::size_t>(d_out * width));
    for (std::int64_t h = 0; h < group; ++h)
      for (std::int64_t i = 0; i < d_out; ++i)
        std::copy_n(reduced.maps.o.begin() + (h * d_out + i) * d_vo, d_vo,
                    to.o.w.begin() + i * width + (g * group + h) * d_vo);
  }
}

}  // namespace narrows
