// Dense linear algebra: the only door to OpenBLAS and LAPACK. Matrices are row-major, [rows][columns]; a
// leading dimension (ld) is the distance between rows in elements. Last bits depend on the processor and on
// the number of threads that OpenBLAS uses. Sizes beyond 2^31 - 1 and failures of LAPACK throw Error.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace narrows {

// Threads for everything below, process-wide; at least 1.
void set_linear_algebra_threads(int threads);

// The name, for the environment variable OPENBLAS_CORETYPE, of kernels that suit this processor better than those that
// OpenBLAS has chosen; empty if it has chosen well. It tells processors apart by model numbers, and takes one that is
// newer than itself for the oldest that it knows: a third of the speed. It reads the variable as it is loaded.
std::string better_linear_algebra_core();

// The name of those that it has chosen.
std::string linear_algebra_core();

enum class Transpose { No, Yes };

// C [m][n] = alpha · op(A) op(B) + beta · C, op(A) being m × k and op(B) k × n. With beta 0, C need not be
// initialised.
void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc);
void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
          const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
          std::int64_t ldc);

// y = alpha · op(A) x + beta · y, A [m][n].
void gemv(Transpose ta, std::int64_t m, std::int64_t n, float alpha, const float* a, std::int64_t lda,
          const float* x, float beta, float* y);

// The upper triangle (the diagonal included) of C [n][n] = alpha · op(A) op(A)ᵀ + beta · C, op(A) being n ×
// k. The strictly lower triangle is not touched.
void symmetric_rank_k(Transpose ta, std::int64_t n, std::int64_t k, float alpha, const float* a,
                      std::int64_t lda, float beta, float* c, std::int64_t ldc);
void symmetric_rank_k(Transpose ta, std::int64_t n, std::int64_t k, double alpha, const double* a,
                      std::int64_t lda, double beta, double* c, std::int64_t ldc);

// Y [rows][n] = X [rows][n] · A, A [n][n] symmetric, of which the upper triangle is read.
void rows_times_symmetric(const double* x, std::int64_t rows, const double* a, std::int64_t n, double* y);

// Copies the upper triangle of A [n][n] to the lower.
void mirror_upper(double* a, std::int64_t n);

// Eigenvalues in falling order, with orthonormal eigenvectors as rows [values.size()][n].
struct Spectrum {
  std::vector<double> values;
  std::vector<double> vectors;
};

// All of A [n][n], symmetric, of which the upper triangle is read. Divide and conquer (dsyevd); memory beside
// A: 24 n² bytes. n at most 32766.
Spectrum symmetric_eigen(const double* a, std::int64_t n);

// The k leading eigenpairs of A [n][n], symmetric positive semidefinite, of which the upper triangle is read.
// From n = 512 on and up to k = n / 10: Chebyshev-filtered block subspace iteration with Rayleigh-Ritz from
// a fixed start, until ‖A v - λ v‖ ≤ tolerance · λ_k + 1e-15 · √n · λ_1 for each (outside the span of the
// pairs before it, which are as accurate); otherwise, or if kIterationProducts · n products of a row with A do not
// suffice, symmetric_eigen.
Spectrum leading_eigen(const double* a, std::int64_t n, std::int64_t k, double tolerance = 1e-7);
constexpr std::int64_t kIterationProducts = 10;  // some half of what symmetric_eigen takes

// The iteration alone, for 1 ≤ k ≤ n / 2; an empty result if it has not converged by then.
Spectrum subspace_iteration(const double* a, std::int64_t n, std::int64_t k, double tolerance,
                            std::int64_t most_products = INT64_MAX);

// Replaces the rows of A [rows][columns], rows ≤ columns, by orthonormal ones (thin QR of Aᵀ, R's diagonal
// not negative): row i spans with those before it what it did in A. Rows that depend on earlier ones are
// replaced by some direction that completes the set.
void orthonormalize_rows(double* a, std::int64_t rows, std::int64_t columns);

// Replaces the upper triangle (the diagonal included) of A [n][n], symmetric, by U with A = UᵀU; the strictly
// lower triangle is neither read nor touched. False, A being spoilt, if A is not positive definite.
bool cholesky(double* a, std::int64_t n);

// B [rows][n] = B A⁻¹, `u` being what cholesky left of A.
void solve_rows(const double* u, std::int64_t n, double* b, std::int64_t rows);

// A [m][n] = U diag(values) Vᵀ with r = min(m, n): u [m][r], vt [r][n], values falling.
struct Svd {
  std::vector<double> u, values, vt;
};
Svd thin_svd(const double* a, std::int64_t m, std::int64_t n);

// ‖A‖₂ of A [m][n] by power iteration on AᵀA from a fixed start, until it grows by less than `tolerance` of
// itself over several steps. Approached from below: where the two largest singular values lie close together
// it falls short by up to their difference. A is read in single precision.
double spectral_norm(const float* a, std::int64_t m, std::int64_t n, double tolerance = 1e-6);

}  // namespace narrows
