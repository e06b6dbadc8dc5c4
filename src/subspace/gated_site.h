// Gated subspace inference: a linear site that reads M = W V for tokens that lie in the subspace of V, and W for others.
//
// For each token x: g = Vᵀx, r = x - V g with V as stored, ρ = ‖r‖/‖x‖. Fast path if ρ < ε: y = M g. Slow path: the
// dense site, its bits exactly. r costs a second use of every basis vector, and mostly need not be known: with the stored
// V's defect δ = ‖VᵀV - I‖₂, ‖r‖² lies within δ ‖g‖² of ‖x‖² - ‖g‖²; only where ε² ‖x‖² lies there too is r computed.
// (‖x‖² - ‖g‖² alone would be wrong once V is rounded.) All maps of the site share one projection. Biases are added on both paths. A token's
// path and bits depend on the token alone, not on what is computed with it. (Gated subspace inference, sections 2.1
// and 2.2; the error of the fast path is at most ‖W‖₂ ρ ‖x‖, its Theorem 4, plus ‖M - W V‖₂ ‖g‖ and rounding.)
#pragma once
#include <memory>
#include <span>

#include "model/wrapped_site.h"
#include "subspace/gate_counts.h"

namespace narrows {

// Throws Error if a gated site cannot be made of these; see the constructor.
void check_gate(const LinearSite& dense, const WeightMatrix& basis, std::span<const WeightMatrix> images, std::int64_t k);

class GatedSite final : public WrappedSite {
 public:
  // basis: Vᵀ, [≥ k][in] as stored row by row, F32, F16, BF16 or Q8_0. images: M of each map, [its rows][≥ k]. Both are
  // copied, cut to the first k directions; k is a multiple of 32 where images are Q8_0.
  // epsilon 0: always the dense site, the projection is not computed; infinity: no gate, a static projection.
  // Throws Error if a shape or type does not fit.
  GatedSite(std::unique_ptr<LinearSite> dense, const WeightMatrix& basis, std::span<const WeightMatrix> images,
            std::int64_t k, float epsilon, ThreadPool& pool);

  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override;
  // V, M in the measure of the fast path's share so far, W in that of the slow one's, V again where r was computed after
  // all; before the first token: V and W.
  std::size_t bytes_read() const override;

  std::int64_t k() const { return basis_.rows; }
  float epsilon() const { return epsilon_; }
  std::size_t basis_bytes() const { return basis_.bytes_read(); }
  std::size_t image_bytes() const { return images_->bytes_read(); }
  std::size_t dense_bytes() const { return inner().bytes_read(); }
  const GateCounts& counts() const { return counts_; }
  void set_epsilon(float epsilon);  // clears the counts
  // For reports: r of every token, so that the ratios counted are ρ; otherwise they may be off by √δ, their side of ε not.
  void measure_ratios() { measured_ = true; }
  double defect() const { return defect_; }  // a bound of ‖VᵀV - I‖₂

 private:
  void project_tokens(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows);
  void explicit_ratios(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* g, float* ratios);

  LargeBuffer storage_{0};  // of basis and images
  WeightMatrix basis_;
  std::unique_ptr<DenseSite> images_;
  float epsilon_;
  double defect_ = 0;
  bool measured_ = false;
  std::int64_t again_ = 0;  // tokens whose r was computed after all
  GateCounts counts_;
  std::vector<std::int64_t> fast_, slow_, unsure_;  // rows of a call
  std::vector<float> ratios_;              // [rows]
};

}  // namespace narrows
