// Fewer query, key and value dimensions for a layer's attention: all its KV groups, which share their sizes.
#pragma once
#include <span>
#include <vector>

#include "lowrank/layer_maps.h"
#include "lowrank/ov.h"
#include "lowrank/qk.h"
#include "subspace/second_moment.h"

namespace narrows {

// What a layer's reductions need of a text: second moments of each head's queries, keys and outputs (values
// averaged with the softmax weights). Memory: 8 d² bytes a head.
class AttentionMoments {
 public:
  explicit AttentionMoments(const LayerSpec& layer);
  // Outputs of the qkv site, before norms and rotation; inputs of the output projection. Throw Error on
  // activations that are not finite.
  void add_qkv(const float* y, std::int64_t rows);
  void add_mixed(const float* x, std::int64_t rows);

  QkCovariances qk(int kv_head) const;
  std::vector<std::vector<double>> ov(int kv_head) const;

 private:
  LayerSpec layer_;
  std::vector<SecondMoment> q_, k_, mixed_;  // by head, KV head, head
};

// What is lost with each rotary pair, summed over the KV heads. Needs no inputs of the output projection.
std::vector<double> pair_losses(const AttentionMaps& maps, const AttentionMoments& moments);

class AttentionReduction {
 public:
  // Not empty: `shared` is the importance of the rotary pairs for all heads, which then keep the same ones. Throws Error
  // if a weight is not finite. `maps` must outlive this.
  AttentionReduction(const AttentionMaps& maps, const AttentionMoments& moments, std::span<const double> shared = {});

  // Summed over the KV heads; by dimensions of a head, from 0 on. Infinite where a number is not possible for
  // all heads.
  const std::vector<double>& qk_loss() const { return qk_loss_; }
  const std::vector<double>& ov_loss() const { return ov_loss_; }
  std::int64_t raised() const;  // eigenvalues of statistics (roots.h)

  // Throws Error unless d_qk and d_vo are possible.
  AttentionMaps shrink(int d_qk, int d_vo) const;

 private:
  void shrink_qk(int d_qk, AttentionMaps& to) const;
  void shrink_ov(int d_vo, AttentionMaps& to) const;

  const AttentionMaps& maps_;
  std::vector<QkReduction> qk_;  // by KV head
  std::vector<OvReduction> ov_;
  std::vector<double> qk_loss_, ov_loss_;
  std::vector<int> pairs_at_;  // rotated pairs among so many dimensions, the same in all heads
};

}  // namespace narrows
