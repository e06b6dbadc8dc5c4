// What A3 is compared with: one linear map as the product of two thin ones, each of which costs a product at
// run time.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace narrows {

struct LinearFactors {
  std::int64_t rank = 0;
  std::vector<double> a, b;  // [d_out][rank], [rank][d_in]: W x becomes A (B x)
  double loss = 0;           // E ‖(W - A B) x‖²
};

// All take W [d_out][d_in] and R = E x xᵀ [d_in][d_in], of which the upper triangle is read, and truncate the
// singular value decomposition of W S at `rank`, for an S that weighs the input: A B = U Uᵀ W, U its leading
// left vectors. Throw Error unless rank is in 1 … min(d_out, d_in), and on sizes that do not match, NaN and
// infinity.

// S = I: the least ‖W - A B‖. R serves for the loss only.
LinearFactors truncated_svd(std::span<const double> w, std::int64_t d_out, std::int64_t d_in,
                            std::span<const double> r, std::int64_t rank);

// ASVD (Yuan et al., arXiv 2312.05821): S = diag(mean |x_j|^alpha). mean_abs [d_in], none negative; values
// below 1e-6 of the largest S_j are raised to that.
LinearFactors activation_aware_svd(std::span<const double> w, std::int64_t d_out, std::int64_t d_in,
                                   std::span<const double> r, std::span<const double> mean_abs,
                                   std::int64_t rank, double alpha = 0.5);

// SVD-LLM (Wang et al., arXiv 2403.07378): S S ᵀ = R, the least loss of all maps of this rank. Any such S
// (Cholesky factor, R^{1/2}) gives the same A B; with d_out ≤ d_in none is needed.
LinearFactors whitened_svd(std::span<const double> w, std::int64_t d_out, std::int64_t d_in,
                           std::span<const double> r, std::int64_t rank);

}  // namespace narrows
