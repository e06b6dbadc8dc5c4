// The graded gate: a linear site that reads, for each token, only the columns that matter, and of those only as many
// bits as matter. Rank and precision follow the token, where the paper's gate knows fast or slow.
//
// Column c at grade γ adds an error of x_c² · e_γ(c) to the squared error of the outputs, e_γ(c) = Σ over rows of
// (w - w_γ)²: e_0 = Σ w², e_2 = 0. A grade is worth its bytes if the error that it takes away, times what such an error
// costs (`sensitivity`), exceeds the bits that it reads times a price that is the same for the whole model:
//   coarse if x_c² (e_0 - e_1) · sensitivity > price · rows · coarse bits,  fine too if x_c² e_1 · … > … fine bits.
// Where half the bits are worth less than the other half, they go together: skipped, or exact.
// With the sensitivity of a site in KL divergence per squared error this is reverse water-filling over all columns of
// all sites. (Magnitude gating of columns: TEAL, arXiv 2408.14690; grades of precision: ours.)
#pragma once
#include <memory>
#include <vector>

#include "kernels/graded.h"
#include "model/wrapped_site.h"
#include "subspace/gsi_file.h"

namespace narrows {

// Whether every map of the site is of a type that can be graded.
bool can_grade(const LinearSite& site);
// Whether the site can be graded in this basis: all d directions, images of such a type.
bool can_rotate(const LinearSite& site, const GsiSite& basis);

class GradedSite final : public WrappedSite {
 public:
  // threshold = price / sensitivity, at least 0; 0: everything that is not zero is read. The planes are made from the
  // maps as stored; 4-bit types are read whole or not at all. Throws Error if a type cannot be graded.
  // With `rotated`, columns are those of M = W V and coordinates those of Vᵀx, V square: energy gathers in few columns.
  // The basis and M are copied; reading V is counted.
  GradedSite(std::unique_ptr<LinearSite> dense, double threshold, ThreadPool& pool, const GsiSite* rotated = nullptr);

  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override;
  // The mean over the tokens so far; before the first: all columns.
  std::size_t bytes_read() const override;

  double threshold() const { return threshold_; }
  void set_threshold(double threshold);  // clears the counts
  std::size_t dense_bytes() const { return inner().bytes_read(); }
  bool rotated() const { return basis_.rows > 0; }
  // What the grades of apply()'s token t were chosen by: its x, or its Vᵀx, which is in the scratch of that call.
  const float* coordinates(const SiteScratch& scratch, const float* x, std::int64_t t) const {
    return (rotated() ? scratch.projected.data() : x) + t * columns();
  }
  // The squared error that a token's grades leave, as a mean over the outputs: Σ x_c² e(c) / outputs.
  double error_variance(const float* coordinates) const;
  // Shares of the columns that were read at least coarsely, and exactly, over the tokens so far.
  double coarse_share() const;
  double fine_share() const;

 private:
  std::int64_t columns() const { return static_cast<std::int64_t>(coarse_gain_.size()); }

  LargeBuffer basis_storage_{0};
  WeightMatrix basis_;  // of a rotated site
  std::vector<LargeBuffer> planes_;
  std::vector<GradedMatrix> matrices_;
  std::vector<double> coarse_gain_, fine_gain_;    // [in]: e_0 - e_1 and e_1, each over the bits that it costs
  double coarse_bits_ = 0, fine_bits_ = 0;         // of a column
  std::vector<float> coarse_limit_, fine_limit_;   // [in]
  double threshold_;
  std::int64_t tokens_ = 0, coarse_ = 0, fine_ = 0;
};

// Exact outputs where they matter most: the `best` largest outputs of each token that a graded site gives are computed
// anew from the dense weights, with the dense bits. For the head: the likeliest tokens' logits. The other logits carry
// errors of a known variance σ², which would make their sum of exponentials too large by e^(σ²/2): they are lowered by
// σ²/2.
class RescoredSite final : public WrappedSite {
 public:
  RescoredSite(std::unique_ptr<GradedSite> approximate, std::int64_t best);

  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override;
  std::size_t bytes_read() const override;

  std::int64_t best() const { return best_; }
  GradedSite& approximate() const { return static_cast<GradedSite&>(inner()); }

 private:
  std::int64_t best_;
  AlignedVector<std::byte> gathered_;  // rows of the weights, as stored
};

// Indices of the `count` largest of values (not NaN) in ascending order of index; of equal ones the first.
std::vector<std::int64_t> largest(const float* values, std::int64_t n, std::int64_t count);

}  // namespace narrows
