// Calibration of a basis by the depth cascade: one pass over the tokens, starting from the basis of the layer
// before. Gated subspace inference, section 2.3; METHODS, section 1 (bases). The residual is orthogonalised
// twice: Daniel, Gragg, Kaufman, Stewart 1976 (DGKS).
#pragma once
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "subspace/basis.h"

namespace narrows {

// For each token x in order: g = V x, r = x - Vᵀ g, orthogonalised once more. If ‖r‖ / ‖x‖ > tolerance, the
// direction r / ‖r‖ is appended to V. When that makes k + 1 directions, the one with the least score is
// dropped (it may be the new one). A score is Σ (v·x)² / ‖x‖² over the tokens, each weighing kDecay of the
// next one: relative to ‖x‖ as the gate is, so that a few massive activations do not decide. An inherited
// direction starts with its share of the energy as if it had been seen for kInheritedTokens.
//
// A basis that was inherited and never changed (appended() == 0) means that every token of this layer lies
// within the tolerance of the layer before's subspace: no more. It spans the same subspace, it is not the
// best one of its size for this layer, and directions that this layer does not use keep their place.
//
// Tokens are worked on in blocks of 64, counted from the first: bits do not depend on how they are divided
// among calls of add, but may on OpenBLAS's threads.
class CascadeBasis {
 public:
  static constexpr double kDecay = 1 - 1.0 / 1024;
  static constexpr double kInheritedTokens = 64;

  // At most k directions of d elements. `previous` is the basis of the layer before at the site of the same
  // kind, or nullptr; it is ignored if its width differs, and its first k directions are taken if it has
  // more. Throws Error if k is not in 1 … d or the tolerance not in 1e-5 … 1 (below that, rounding is what is
  // left).
  CascadeBasis(std::int64_t d, std::int64_t k, double tolerance, const Basis* previous = nullptr);

  // x [rows][d], rows `stride` floats apart, in the order of the text. Throws Error as SecondMoment::add
  // does.
  void add(const float* x, std::int64_t rows, std::int64_t stride);

  // The basis after the tokens so far, rotated within its span to the principal directions of the g that the
  // tokens had, each direction counting from when it came: energies are sums over those tokens only, so those
  // of late directions are small. Fewer than k directions if no more were needed. orthogonality_loss < 1e-5.
  // Tokens added later start a new block. Throws Error if there is no direction (no token but zeros).
  Basis finish();

  std::int64_t tokens() const { return tokens_; }
  bool inherited() const { return inherited_; }        // it started from `previous`
  std::int64_t appended() const { return appended_; }  // directions that tokens brought
  std::int64_t dropped() const { return dropped_; }    // directions given up for them, or new ones that lost
  double flops() const { return flops_; }              // multiply-adds spent so far, finish() included

 private:
  void work();
  void project();
  double residual(std::int64_t t);
  void append(std::int64_t t, double share);

  const std::int64_t d_, k_;
  const double tolerance_;
  bool inherited_ = false;
  std::int64_t count_ = 0;      // directions in place
  AlignedVector<float> v_;      // [k][d]
  std::vector<double> scores_;  // [k]
  std::vector<double>
      gram_;  // [k][k] Σ g gᵀ, upper triangle, rows and columns from when their direction came
  AlignedVector<float> x_;      // [64][d] tokens of the block
  std::int64_t rows_ = 0;       // how many there are
  AlignedVector<float> g_;      // [64][k]
  std::vector<double> norms_;   // [64] ‖x‖²
  AlignedVector<float> r_, h_;  // [d], [k] residual and its coordinates
  std::vector<double> wide_;    // [64][k] g in double
  std::int64_t tokens_ = 0, appended_ = 0, dropped_ = 0;
  double total_energy_ = 0, flops_ = 0;
};

// What the cascade is compared with, in multiply-adds: singular values and right vectors of the tokens × d
// activations (Golub and Van Loan's count for R-SVD: 2 m n² + 11 n³ operations, m the larger dimension), and
// the way that svd_basis takes (T d² / 2 for the second moment, 9 d³ operations for its eigenvectors).
double full_svd_flops(std::int64_t tokens, std::int64_t d);
double second_moment_flops(std::int64_t tokens, std::int64_t d);

}  // namespace narrows
