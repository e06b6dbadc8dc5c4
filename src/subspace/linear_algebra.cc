#include "subspace/linear_algebra.h"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"

namespace narrows {
namespace {

// BLAS takes 32-bit sizes; it multiplies them in 64 bits.
int size32(std::int64_t n) {
  if (n < 0 || n > std::numeric_limits<int>::max())
    fail("linear algebra: expected a size from 0 to 2147483647, found {}", n);
  return static_cast<int>(n);
}

CBLAS_TRANSPOSE blas(Transpose t) { return t == Transpose::Yes ? CblasTrans : CblasNoTrans; }

void check(int info, const char* routine, std::int64_t rows, std::int64_t columns) {
  if (info != 0) fail("{} of a {} × {} matrix: LAPACK reports {}", routine, rows, columns, info);
}

}  // namespace

std::string better_linear_algebra_core() {
  const std::string_view core = openblas_get_corename();
  if (core != "Prescott" && core != "Core2" && core != "Nehalem") return "";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : "";
}

std::string linear_algebra_core() { return openblas_get_corename(); }

void set_linear_algebra_threads(int threads) { openblas_set_num_threads(std::max(threads, 1)); }

void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, blas(ta), blas(tb), size32(m), size32(n), size32(k), alpha, a, size32(lda), b,
              size32(ldb), beta, c, size32(ldc));
}

void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
          const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
          std::int64_t ldc) {
  cblas_dgemm(CblasRowMajor, blas(ta), blas(tb), size32(m), size32(n), size32(k), alpha, a, size32(lda), b,
              size32(ldb), beta, c, size32(ldc));
}

void gemv(Transpose ta, std::int64_t m, std::int64_t n, float alpha, const float* a, std::int64_t lda,
          const float* x, float beta, float* y) {
  cblas_sgemv(CblasRowMajor, blas(ta), size32(m), size32(n), alpha, a, size32(lda), x, 1, beta, y, 1);
}

void symmetric_rank_k(Transpose ta, std::int64_t n, std::int64_t k, float alpha, const float* a,
                      std::int64_t lda, float beta, float* c, std::int64_t ldc) {
  cblas_ssyrk(CblasRowMajor, CblasUpper, blas(ta), size32(n), size32(k), alpha, a, size32(lda), beta, c,
              size32(ldc));
}

void symmetric_rank_k(Transpose ta, std::int64_t n, std::int64_t k, double alpha, const double* a,
                      std::int64_t lda, double beta, double* c, std::int64_t ldc) {
  cblas_dsyrk(CblasRowMajor, CblasUpper, blas(ta), size32(n), size32(k), alpha, a, size32(lda), beta, c,
              size32(ldc));
}

void rows_times_symmetric(const double* x, std::int64_t rows, const double* a, std::int64_t n, double* y) {
  cblas_dsymm(CblasRowMajor, CblasRight, CblasUpper, size32(rows), size32(n), 1.0, a, size32(n), x, size32(n),
              0.0, y, size32(n));
}

void mirror_upper(double* a, std::int64_t n) {
  constexpr std::int64_t kTile = 64;  // reads and writes stay within the cache
  for (std::int64_t i0 = 0; i0 < n; i0 += kTile)
    for (std::int64_t j0 = i0; j0 < n; j0 += kTile)
      for (std::int64_t i = i0; i < std::min(i0 + kTile, n); ++i)
        for (std::int64_t j = std::max(j0, i + 1); j < std::min(j0 + kTile, n); ++j)
          a[j * n + i] = a[i * n + j];
}

Spectrum symmetric_eigen(const double* a, std::int64_t n) {
  if (n > 32766)
    fail("eigenvectors of a {0} × {0} matrix: expected at most 32766 rows", n);  // 2 n² in 32 bits
  Spectrum s;
  s.values.resize(n);
  s.vectors.assign(a, a + n * n);
  if (n == 0) return s;
  // LAPACK counts by columns: the upper triangle is its lower, and its columns of eigenvectors are rows here.
  check(LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', size32(n), s.vectors.data(), size32(n), s.values.data()),
        "eigenvectors (dsyevd)", n, n);
  std::reverse(s.values.begin(), s.values.end());
  for (std::int64_t i = 0; i < n / 2; ++i)
    std::swap_ranges(&s.vectors[i * n], &s.vectors[i * n] + n, &s.vectors[(n - 1 - i) * n]);
  return s;
}

void orthonormalize_rows(double* a, std::int64_t rows, std::int64_t columns) {
  if (rows > columns) fail("orthonormal rows: expected at most {} of them, found {}", columns, rows);
  if (rows == 0) return;
  std::vector<double> tau(rows);
  const int m = size32(columns), n = size32(rows);  // by columns, A is its transpose
  check(LAPACKE_dgeqrf(LAPACK_COL_MAJOR, m, n, a, m, tau.data()), "QR (dgeqrf)", columns, rows);
  std::vector<char> negative(rows);
  for (std::int64_t i = 0; i < rows; ++i) negative[i] = a[i * columns + i] < 0;
  check(LAPACKE_dorgqr(LAPACK_COL_MAJOR, m, n, n, a, m, tau.data()), "QR (dorgqr)", columns, rows);
  for (std::int64_t i = 0; i < rows; ++i)
    if (negative[i])
      for (std::int64_t j = 0; j < columns; ++j) a[i * columns + j] = -a[i * columns + j];
}

bool cholesky(double* a, std::int64_t n) {
  if (n == 0) return true;
  // LAPACK counts by columns: the upper triangle is its lower.
  const int info = LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'L', size32(n), a, size32(n));
  if (info < 0) check(info, "Cholesky factor (dpotrf)", n, n);
  return info == 0;
}

void solve_rows(const double* u, std::int64_t n, double* b, std::int64_t rows) {
  if (n == 0 || rows == 0) return;
  check(LAPACKE_dpotrs(LAPACK_COL_MAJOR, 'L', size32(n), size32(rows), u, size32(n), b, size32(n)),
        "solution (dpotrs)", n, rows);
}

Svd thin_svd(const double* a, std::int64_t m, std::int64_t n) {
  const std::int64_t r = std::min(m, n);
  Svd svd;
  svd.u.resize(m * r);
  svd.values.resize(r);
  svd.vt.resize(r * n);
  if (r == 0) return svd;
  std::vector<double> copy(a, a + m * n);
  // By columns the argument is Aᵀ: its left vectors are A's right ones.
  check(LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'S', size32(n), size32(m), copy.data(), size32(n), svd.values.data(),
                       svd.vt.data(), size32(n), svd.u.data(), size32(r)),
        "singular values (dgesdd)", m, n);
  return svd;
}

double spectral_norm(const float* a, std::int64_t m, std::int64_t n, double tolerance) {
  if (m == 0 || n == 0) return 0;
  std::mt19937 random(1);
  std::vector<float> x(n), y(m);
  for (float& v : x) v = static_cast<float>(random()) / 4294967296.0f - 0.5f;
  const auto normalize = [&](std::vector<float>& v) {
    double sum = 0;
    for (const float e : v) sum += static_cast<double>(e) * e;
    if (!std::isfinite(sum)) fail("spectral norm of a {} × {} matrix: expected finite numbers", m, n);
    const double norm = std::sqrt(sum);
    if (norm > 0)
      for (float& e : v) e = static_cast<float>(e / norm);
    return norm;
  };
  normalize(x);
  constexpr int kMostSteps = 2000, kSteps = 8;  // growth is judged over kSteps: single steps may be small
  double norm = 0, judged = 0;
  for (int step = 1; step <= kMostSteps; ++step) {
    gemv(Transpose::No, m, n, 1.0f, a, n, x.data(), 0.0f, y.data());
    norm = std::max(norm, normalize(y));
    gemv(Transpose::Yes, m, n, 1.0f, a, n, y.data(), 0.0f, x.data());
    norm = std::max(norm, normalize(x));
    if (step % kSteps) continue;
    if (norm - judged <= tolerance * norm) break;
    judged = norm;
  }
  return norm;
}

}  // namespace narrows
