// Fewer value dimensions for one KV group: the query heads that share a value head, with their parts of the
// output projection. A3, section OV and theorem 3.3; METHODS, section 3.
//
// The functional loss is E Σ_heads ‖W_o,i W_v z_i - W'_o,i W'_v z_i‖², z_i = X_kvᵀ p_i the input averaged
// with the softmax weights p_i of a query token: each head's output error by itself, as in the paper.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lowrank/inner_dimension.h"

namespace narrows {

struct OvMaps {
  std::int64_t group = 1;  // query heads
  std::int64_t d_vo = 0;   // dimensions of a head
  std::int64_t d_in = 0, d_out = 0;
  std::vector<double> v;       // [d_vo][d_in]
  std::vector<double> o;       // [group][d_out][d_vo]
  std::vector<double> v_bias;  // [d_vo]; empty: none
};

// W_v R_i W_vᵀ of each head, biases included: all that a reduction needs of the statistics. Summed over
// tokens directly, as E v_i v_iᵀ of the heads' outputs v_i = Vᵀ p_i, they take d_vo² numbers a head, where R
// takes d_in². r_px[i] [n][n]: E z_i z_iᵀ (the upper triangle is read), n = d_in, or d_in + 1 with a constant
// 1 as the last element of z if there is a bias. Throws Error if a size does not match or a number is NaN or
// infinite.
std::vector<std::vector<double>> ov_covariances(const OvMaps& maps,
                                                std::span<const std::span<const double>> r_px);

struct OvReduced {
  OvMaps maps;                 // d_vo is the new one
  std::vector<double> losses;  // of the start, then after each sweep of least squares; never rising
  double loss() const { return losses.back(); }
};

// One head: the closed form, a truncated SVD of R^{1/2} W_vᵀ W_oᵀ, computed in the inner dimension alone. It
// is the optimum.
//
// A group: the heads' statistics differ, and no closed form is known. The start is the closed form of the
// summed statistics; then alternating least squares: all W_o,i for a given W_v (exactly), W_v for given W_o,i
// (conjugate gradients), until a sweep gains less than 1e-5 of the loss. New value dimensions are
// combinations of the old: each step costs d_vo³, however large d_in. (Rows of W_v outside of what it spans
// would do better for a group: by 0.3 % of the loss where heads' statistics are alike, by 5 to 9 % where they
// have nothing to do with one another; synthetic.)
//
// A value bias is exact: softmax weights sum to 1, so z extended by a constant 1 carries it.
class OvReduction {
 public:
  // covariances [group] [d_vo][d_vo]. Throws Error if a size does not match or a number is NaN or infinite.
  OvReduction(OvMaps maps, std::span<const std::vector<double>> covariances);
  OvReduction(const OvMaps& maps, std::span<const std::span<const double>> r_px)
      : OvReduction(maps, ov_covariances(maps, r_px)) {}

  // [d_vo + 1]. For one head the loss of each rank; for a group that of the start with the best W_o,i, which
  // shrink betters or reaches. Never rising. Where eigenvalues were raised, losses count what they were
  // raised by: up to about 1e-8 of the whole too much.
  const std::vector<double>& loss_by_rank() const { return loss_; }

  // Throws Error unless rank is in 1 … d_vo.
  OvReduced shrink(std::int64_t rank) const;

  std::int64_t raised() const { return raised_; }  // eigenvalues of all heads' covariances (roots.h)

 private:
  const OvMaps maps_;
  std::int64_t raised_ = 0;
  InnerSpectrum inner_;
  // [group] [d_vo][d_vo] in the coordinates inner_.right v: W_oᵀ W_o and E v vᵀ, whose sum over heads is the
  // identity.
  std::vector<std::vector<double>> outputs_, values_;
  std::vector<double> loss_;
};

// The loss of any maps in the place of others. Cancellation limits it to about 1e-15 of E Σ ‖W_o,i W_v z_i‖².
double ov_loss(const OvMaps& maps, const OvMaps& candidate, std::span<const std::span<const double>> r_px);

}  // namespace narrows
