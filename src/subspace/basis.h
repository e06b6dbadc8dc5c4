// Bases of the subspace that the activations of one linear site occupy.
#pragma once
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "subspace/second_moment.h"

namespace narrows {

// V_k of gated subspace inference (section 2.1; METHODS, section 1): x ≈ Vᵀ V x. Each direction's largest
// component is positive.
struct Basis {
  std::int64_t d = 0, k = 0;
  AlignedVector<float> vectors;  // [k][d], orthonormal rows, falling energy
  std::vector<double> energies;  // [k], Σ (v·x)² over calibration tokens
  double total_energy = 0;       // Σ ‖x‖² over all of them
  std::int64_t tokens = 0;
};

// The k leading eigenvectors of the second moment: the k directions that keep most of Σ ‖x‖². tolerance > 0
// trims k to the fewest directions with (total_energy - Σ energies) < tolerance² · total_energy, if so many
// suffice. Where the tokens span fewer than k directions the rest are arbitrary, with an energy of 0. Throws
// Error if k is not in 1 … d or there are fewer than k tokens.
Basis svd_basis(const SecondMoment& moment, std::int64_t k, double tolerance = 0);

// The mean cosine of the principal angles between two subspaces, over the smaller k; 1 if one holds the
// other. Throws Error if the widths differ or one is empty.
double subspace_similarity(const Basis& a, const Basis& b);

// The largest |V Vᵀ - I|, summed in double.
double orthogonality_loss(const Basis& basis);

// The best map of rank k in place of y = W x: ŷ = U_k U_kᵀ W x minimises Σ ‖y - ŷ‖² over the calibration
// tokens (METHODS, section 1, output-aware subspace). U_k holds the leading eigenvectors of W R Wᵀ.
struct OutputBasis {
  std::int64_t d = 0, d_out = 0, k = 0;
  AlignedVector<float> encoder;  // [k][d], U_kᵀ W: not orthonormal
  AlignedVector<float> decoder;  // [d_out][k], U_k: orthonormal columns, falling energy
  std::vector<double> energies;  // [k], Σ (u·y)²
  double total_energy = 0;       // Σ ‖y‖²; the error is total_energy - Σ energies
  std::int64_t tokens = 0;
  // The fraction of Σ ‖y‖² kept.
  double energy_kept() const;
};

// weights [d_out][d]: the rows of all maps of the site, one map after the other. Throws Error if k is not in
// 1 … min(d, d_out) or there are fewer than k tokens.
OutputBasis output_aware_basis(const SecondMoment& moment, const float* weights, std::int64_t d_out,
                               std::int64_t k);

// Turns each of the k rows [k][d] so that its component of largest magnitude, the first of equal ones, is
// positive.
void fix_signs(double* rows, std::int64_t k, std::int64_t d);

}  // namespace narrows
