// The closed form behind QK and OV: two maps meet in an inner dimension d (queries and keys; values and the
// columns of the output projection), and only products across it count. A3, theorems 3.2 and 3.3.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace narrows {

// x and y [d] are what the two maps make of their inputs, X = E x xᵀ, Y = E y yᵀ. Of all P of rank r,
//   P = Σ_{i<r} left_iᵀ right_i   makes   E (xᵀ y - xᵀ P y)² = tr(X (I - P) Y (I - P)ᵀ)
// the least, Σ_{i≥r} σ_i², σ the singular values of X^{1/2} Y^{1/2}. As x and y reach all that their maps can
// make, no other pair of maps of inner dimension r does better: this is the SVD of R_q^{1/2} W_qᵀ W_k
// R_k^{1/2} without a matrix larger than d × d. Of Y with raised eigenvalues (roots.h).
struct InnerSpectrum {
  std::int64_t d = 0;
  std::vector<double> energies;     // [d] σ², falling, none negative
  std::vector<double> left, right;  // [d][d]; all d rows: leftᵀ right = I. E (right y)(right y)ᵀ = I
  std::int64_t raised = 0;          // eigenvalues of Y
};
InnerSpectrum inner_spectrum(const double* x, const double* y, std::int64_t d);

// Factors s [r] that make both sides of each inner dimension equally large, so that storage in few bits
// favours neither: x'_i / s_i and y'_i · s_i, whose product stays, from E x'_i² and E y'_i² [r].
std::vector<double> balance(std::span<const double> x_energies, std::span<const double> y_energies);

}  // namespace narrows
