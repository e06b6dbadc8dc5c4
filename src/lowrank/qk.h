// Fewer query and key dimensions for one KV group: the query heads that share a key head. A3, section QK and
// theorem 3.2; METHODS, section 3.
//
// The functional loss is E Σ_heads (qᵀk - q'ᵀk')² over a query token and a key token drawn independently (the
// Frobenius norm of the error of all scores, divided by their number), before the softmax scale, which stays
// 1/√(original d_qk). With rotary positions the relative angle of each pair counts as uniform and independent
// of the others': a pair then contributes ½ (E q_a² + E q_b²)(E k_a² + E k_b²), and nothing mixes. (Pairs too
// slow to turn within the context are not that random.)
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lowrank/inner_dimension.h"
#include "model/spec.h"

namespace narrows {

struct QkMaps {
  std::int64_t group = 1;              // query heads
  std::int64_t d_qk = 0;               // dimensions of a head, the rotated ones first
  std::int64_t d_in = 0;               // of the input
  std::vector<double> q;               // [group][d_qk][d_in]
  std::vector<double> k;               // [d_qk][d_in]
  std::vector<double> q_bias, k_bias;  // [group][d_qk], [d_qk]; empty: none
  std::vector<double> q_norm, k_norm;  // weights of the RMS norm before rotation (QK-norm), likewise
};

// `dims` dimensions are rotated, in pairs: none, all, or the first few.
struct QkRotary {
  RotaryLayout layout = RotaryLayout::Half;
  std::int64_t dims = 0;
};

// What orders pairs, and the single dimensions chosen under QK-norm. Losses are the functional loss always.
enum class QkImportance {
  Energy,  // the pair's share of the loss: Σ_heads (E q_a² + E q_b²)(E k_a² + E k_b²)
  Paper,   // Σ_heads Σ_{j in a, b} √(E q_j² · E k_j²)
};

// Of one KV group's queries and keys before norm and rotation, biases included: all that a reduction needs of
// the statistics. Summed over tokens directly, they take d_qk² numbers a head, where R takes d_in².
struct QkCovariances {
  std::vector<std::vector<double>> q;  // [group] [d_qk][d_qk] E q qᵀ of the tokens that ask
  std::vector<double> k;               // [d_qk][d_qk] E k kᵀ of the tokens that are asked
};

// W R Wᵀ of each map. r_q and r_kv [n][n]: E x xᵀ of the tokens that ask and that are asked (the upper
// triangle is read), n = d_in, or d_in + 1 with a constant 1 as the last element of x if there is a bias.
// Throws Error if a size does not match or a number is NaN or infinite.
QkCovariances qk_covariances(const QkMaps& maps, std::span<const double> r_q, std::span<const double> r_kv);

struct QkReduced {
  QkMaps maps;      // d_qk is the new one; layout as before
  QkRotary rotary;  // dims is the new number
  // Kept, ascending: new pair i turns with the frequency of old pair pairs[i].
  std::vector<std::int64_t> pairs;
  double loss = 0;
};

// What is left of the maps:
// - Dimensions not rotated: all rank-r maps are open, and the SVD of the stacked heads is the optimum for one
//   head and for a group (heads stacked above one another share their row space, the new key map).
// - Rotated dimensions: whole pairs, kept or dropped (CUR).
// - Both (partial rotary): the split of a number of dimensions that makes the sum of both losses least.
// - QK-norm (q_norm and k_norm given): kept or dropped as they are, for no map can fold what a norm divides
//   by. The norm counts as a division by √(E mean q²). An RMS norm over the kept dimensions alone sees
//   another mean square, so their weights are multiplied by √(E mean of the kept q² / E mean of all q²), by
//   head: a token whose kept share is the usual one keeps its values. The loss is that of what is dropped.
// Biases are exact: they count as columns for a constant 1, and a map's new bias depends on its old one only.
class QkReduction {
 public:
  // Throws Error if a size does not match (one of q_norm and k_norm alone is such), or on a NaN or infinity.
  QkReduction(QkMaps maps, QkRotary rotary, QkCovariances covariances,
              QkImportance importance = QkImportance::Energy);
  QkReduction(const QkMaps& maps, QkRotary rotary, std::span<const double> r_q, std::span<const double> r_kv,
              QkImportance importance = QkImportance::Energy)
      : QkReduction(maps, rotary, qk_covariances(maps, r_q, r_kv), importance) {}

  // [d_qk + 1] loss by the number of dimensions kept. Falling, but for single dimensions under QK-norm, whose
  // errors may cancel. Where all are rotated, odd numbers are not possible and repeat the number below.
  const std::vector<double>& loss_by_dims() const { return loss_; }

  // Throws Error unless dims is in 1 … d_qk, and even where all are rotated.
  QkReduced shrink(std::int64_t dims) const;

  // The same with a given number of rotated pairs among the dimensions, for groups that must agree on it.
  // Infinite where it is not possible; shrink then throws Error.
  double loss(std::int64_t dims, std::int64_t pairs) const;
  QkReduced shrink(std::int64_t dims, std::int64_t pairs) const;

  const std::vector<double>& pair_losses() const { return pair_losses_; }  // what is lost with each rotary pair
  // From now on pairs are kept by this importance, one number each. Throws Error if they are not as many.
  void order_pairs(std::span<const double> importance);

  std::int64_t raised() const { return rest_.raised; }  // eigenvalues of the keys' covariance (roots.h)

 private:
  void measure_pairs(QkImportance importance);
  void order_rest(QkImportance importance);
  void split();
  QkMaps choose(const std::vector<std::int64_t>& kept) const;

  const QkMaps maps_;
  const QkRotary rotary_;
  QkCovariances c_;                                    // normalised under QK-norm
  std::vector<double> q_energy_, k_energy_;            // [group][d_qk], [d_qk] E q², E k² before the norm
  std::vector<std::int64_t> pair_order_, rest_order_;  // falling importance; rest_order_ under QK-norm only
  InnerSpectrum rest_;                                 // otherwise
  std::vector<double> pair_losses_;                    // of each
  std::vector<double> pair_loss_, rest_loss_;          // by the number kept
  std::vector<std::int64_t> pairs_at_;                 // [d_qk + 1] how many of the dimensions kept are pairs
  std::vector<double> loss_;
};

// The loss of any maps in the place of others: `pairs` names the old pair that each rotated pair of the
// candidate stands for. Cancellation limits it to about 1e-15 of E Σ (qᵀk)². Throws Error as QkReduction
// does.
double qk_loss(const QkMaps& maps, QkRotary rotary, const QkMaps& candidate,
               std::span<const std::int64_t> pairs, std::span<const double> r_q,
               std::span<const double> r_kv);

}  // namespace narrows
