// Second moments of what linear maps make of activations.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace narrows {

// E (A x)(B x)ᵀ = A R Bᵀ [m][k], A [m][n], B [k][n], R = E x xᵀ [n][n], of which the upper triangle is read.
// Throws Error naming `what` if a result is NaN or infinite.
std::vector<double> covariance(const double* a, std::int64_t m, const double* r, std::int64_t n,
                               const double* b, std::int64_t k, const char* what);

// The rows of A [rows][columns] with the matching element of `bias` after each, for activations with a
// constant 1 after them, so that a bias is a column like any other. Without `extend`, a copy. An empty bias
// is zeros.
std::vector<double> with_bias(std::span<const double> a, std::int64_t rows, std::int64_t columns,
                              std::span<const double> bias, bool extend);

// L A [m][columns] of L [m][k], A [k][columns].
std::vector<double> product(const double* l, std::int64_t m, std::int64_t k, const double* a,
                            std::int64_t columns);

// The rows of A [·][columns] named by `kept`, in that order.
std::vector<double> take_rows(std::span<const double> a, std::int64_t columns,
                              std::span<const std::int64_t> kept);

// Σ aᵢ bᵢ, the Frobenius product of matrices.
double dot(std::span<const double> a, std::span<const double> b);

// Throws Error naming `what` if a has not `size` elements.
void expect_size(std::span<const double> a, std::int64_t size, const char* what);

// Throws Error naming `what` if an element is NaN or infinite.
void expect_finite(std::span<const double> a, const char* what);

}  // namespace narrows
