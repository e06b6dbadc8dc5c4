#include "subspace/linear_algebra.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "narrows/error.h"
#include "subspace/random_tokens.h"

namespace narrows {
namespace {

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

double orthogonality_loss(const std::vector<double>& rows, std::int64_t k, std::int64_t n) {
  std::vector<double> gram(k * k);
  gemm(Transpose::No, Transpose::Yes, k, k, n, 1.0, rows.data(), n, rows.data(), n, 0.0, gram.data(), k);
  for (std::int64_t i = 0; i < k; ++i) gram[i * k + i] -= 1;
  return largest_difference(gram, std::vector<double>(k * k));
}

// max ‖A v - λ v‖
double eigen_residual(const std::vector<double>& a, std::int64_t n, const Spectrum& s) {
  const auto k = static_cast<std::int64_t>(s.values.size());
  std::vector<double> av(k * n);
  rows_times_symmetric(s.vectors.data(), k, a.data(), n, av.data());
  double most = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j)
      sum += std::pow(av[i * n + j] - s.values[i] * s.vectors[i * n + j], 2);
    most = std::max(most, std::sqrt(sum));
  }
  return most;
}

TEST(LinearAlgebra, ProductsAgreeWithLoops) {
  const std::int64_t m = 7, n = 5, k = 9;
  const std::vector<double> a = random_matrix(m, k, 1), b = random_matrix(k, n, 2);
  std::vector<double> expected(m * n);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      for (int l = 0; l < k; ++l) expected[i * n + j] += a[i * k + l] * b[l * n + j];
  std::vector<double> c(m * n, NAN), at(k * m), bt(n * k);
  for (int i = 0; i < m; ++i)
    for (int l = 0; l < k; ++l) at[l * m + i] = a[i * k + l];
  for (int l = 0; l < k; ++l)
    for (int j = 0; j < n; ++j) bt[j * k + l] = b[l * n + j];
  gemm(Transpose::No, Transpose::No, m, n, k, 1.0, a.data(), k, b.data(), n, 0.0, c.data(), n);
  EXPECT_LT(largest_difference(c, expected), 1e-13);
  gemm(Transpose::Yes, Transpose::Yes, m, n, k, 1.0, at.data(), m, bt.data(), k, 0.0, c.data(), n);
  EXPECT_LT(largest_difference(c, expected), 1e-13);

  const std::vector<float> af(a.begin(), a.end()), bf(b.begin(), b.end());
  std::vector<float> cf(m * n), y(m), yt(k, 1.0f);
  gemm(Transpose::No, Transpose::No, m, n, k, 1.0f, af.data(), k, bf.data(), n, 0.0f, cf.data(), n);
  EXPECT_LT(largest_difference({cf.begin(), cf.end()}, expected), 1e-5);
  std::vector<float> column(k);
  for (int l = 0; l < k; ++l) column[l] = bf[l * n];
  gemv(Transpose::No, m, k, 1.0f, af.data(), k, column.data(), 0.0f, y.data());
  for (int i = 0; i < m; ++i) EXPECT_NEAR(y[i], expected[i * n], 1e-5);
  gemv(Transpose::Yes, m, k, 2.0f, af.data(), k, y.data(), 1.0f, yt.data());
  for (int l = 0; l < k; ++l) {
    double sum = 1;
    for (int i = 0; i < m; ++i) sum += 2 * a[i * k + l] * expected[i * n];
    EXPECT_NEAR(yt[l], sum, 1e-4);
  }
}

TEST(LinearAlgebra, SymmetricUpdatesTouchTheUpperTriangleOnly) {
  const std::int64_t n = 5, k = 3;
  const std::vector<double> a = random_matrix(n, k, 3);
  std::vector<double> c(n * n, 7.0);
  symmetric_rank_k(Transpose::No, n, k, 2.0, a.data(), k, 1.0, c.data(), n);
  const std::vector<float> af(a.begin(), a.end());
  std::vector<float> cf(n * n, 7.0f);
  symmetric_rank_k(Transpose::No, n, k, 2.0f, af.data(), k, 1.0f, cf.data(), n);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) {
      double expected = 7;
      if (j >= i)
        for (int l = 0; l < k; ++l) expected += 2 * a[i * k + l] * a[j * k + l];
      EXPECT_NEAR(c[i * n + j], expected, 1e-13);
      EXPECT_NEAR(cf[i * n + j], expected, 1e-5);
    }
  mirror_upper(c.data(), n);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) EXPECT_EQ(c[i * n + j], c[j * n + i]);
}

TEST(LinearAlgebra, KnownEigenpairs) {
  const double unread = 1e300;
  const double a[] = {2, 1, unread, 2};
  const Spectrum s = symmetric_eigen(a, 2);
  EXPECT_NEAR(s.values[0], 3, 1e-14);
  EXPECT_NEAR(s.values[1], 1, 1e-14);
  EXPECT_NEAR(std::abs(s.vectors[0]), std::sqrt(0.5), 1e-14);
  EXPECT_NEAR(s.vectors[0] * s.vectors[1], 0.5, 1e-14);
  EXPECT_NEAR(s.vectors[2] * s.vectors[3], -0.5, 1e-14);
}

TEST(LinearAlgebra, EigenpairsAtOddSizes) {
  for (const std::int64_t n : {1, 2, 17, 65, 300}) {
    std::vector<double> a = random_matrix(n, n, 4);
    mirror_upper(a.data(), n);
    const Spectrum s = symmetric_eigen(a.data(), n);
    EXPECT_LT(eigen_residual(a, n, s), 1e-12 * n) << n;
    EXPECT_LT(orthogonality_loss(s.vectors, n, n), 1e-12) << n;
    EXPECT_TRUE(std::is_sorted(s.values.rbegin(), s.values.rend())) << n;
  }
}

// Leading pairs against the whole decomposition.
void expect_leading(const std::vector<double>& values, std::int64_t k, double gap) {
  const auto n = static_cast<std::int64_t>(values.size());
  const std::vector<double> a = with_spectrum(values, random_rotation(n, 5));
  const Spectrum all = symmetric_eigen(a.data(), n);
  const Spectrum s = subspace_iteration(a.data(), n, k, 1e-8);
  ASSERT_EQ(s.values.size(), static_cast<std::size_t>(k)) << "not converged";
  for (std::int64_t i = 0; i < k; ++i)
    EXPECT_NEAR(s.values[i], all.values[i], 1e-8 * all.values[i] + 1e-12 * n * all.values[0]) << i;
  EXPECT_LT(orthogonality_loss(s.vectors, k, n), 1e-12);
  EXPECT_LE(eigen_residual(a, n, s), 1e-7 * all.values[k - 1] + 1e-13 * all.values[0]);
  if (gap > 0) {  // the subspace is determined: ‖V_all V_sᵀ‖ = k
    std::vector<double> cosines(k * k);
    gemm(Transpose::No, Transpose::Yes, k, k, n, 1.0, all.vectors.data(), n, s.vectors.data(), n, 0.0,
         cosines.data(), k);
    double sum = 0;
    for (const double c : cosines) sum += c * c;
    EXPECT_NEAR(sum, static_cast<double>(k), 1e-6);
  }
}

TEST(LinearAlgebra, LeadingPairsOfPowerLaws) {
  for (const double exponent : {-0.5, -1.0, -3.0}) expect_leading(power_law(600, exponent), 40, 1);
}

TEST(LinearAlgebra, LeadingPairsOfDegenerateSpectra) {
  expect_leading(std::vector<double>(600, 3.0), 40, 0);  // the identity
  std::vector<double> cluster = power_law(600, -1);      // equal from within the k on to beyond the block
  std::fill(cluster.begin() + 20, cluster.begin() + 200, cluster[20]);
  expect_leading(cluster, 40, 0);
  std::vector<double> few(600);  // fewer directions than k
  std::fill_n(few.begin(), 7, 2.0);
  expect_leading(few, 40, 0);
  expect_leading(std::vector<double>(600), 40, 0);
  std::vector<double> massive = power_law(600, -1);  // one direction far above the rest
  massive[0] = 1e7;
  massive[1] = 1e4;
  expect_leading(massive, 40, 1);
}

TEST(LinearAlgebra, LeadingEigenOfSmallMatricesIsTheWholeCutShort) {
  const std::vector<double> a = with_spectrum(power_law(65, -1), random_rotation(65, 6));
  const Spectrum s = leading_eigen(a.data(), 65, 3);
  ASSERT_EQ(s.vectors.size(), 3u * 65);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(s.values[i], 1.0 / (i + 1), 1e-12);
  EXPECT_THROW(leading_eigen(a.data(), 65, 0), Error);
  EXPECT_THROW(leading_eigen(a.data(), 65, 66), Error);
  EXPECT_THROW(subspace_iteration(a.data(), 65, 33, 1e-8), Error);
}

TEST(LinearAlgebra, OrthonormalRows) {
  for (const std::int64_t rows : {1, 2, 17, 64}) {
    const std::int64_t columns = 65;
    const std::vector<double> a = random_matrix(rows, columns, 7);
    std::vector<double> q = a, r(rows * rows);
    orthonormalize_rows(q.data(), rows, columns);
    EXPECT_LT(orthogonality_loss(q, rows, columns), 1e-13);
    gemm(Transpose::No, Transpose::Yes, rows, rows, columns, 1.0, a.data(), columns, q.data(), columns, 0.0,
         r.data(), rows);
    for (int i = 0; i < rows; ++i) {
      EXPECT_GT(r[i * rows + i], 0);
      for (int j = i + 1; j < rows; ++j) EXPECT_NEAR(r[i * rows + j], 0, 1e-12);  // nothing in later rows
    }
  }
  std::vector<double> dependent(3 * 4);
  dependent[0] = dependent[4] = 2;  // the first row twice, then zeros
  orthonormalize_rows(dependent.data(), 3, 4);
  EXPECT_LT(orthogonality_loss(dependent, 3, 4), 1e-14);
  EXPECT_NEAR(dependent[0], 1, 1e-14);
  EXPECT_THROW(orthonormalize_rows(dependent.data(), 4, 3), Error);
}

TEST(LinearAlgebra, CholeskyFactorsSolve) {
  for (const std::int64_t n : {1, 2, 17, 65}) {
    const std::int64_t rows = 3;
    const std::vector<double> a = with_spectrum(power_law(n, -1), random_rotation(n, 10));
    const std::vector<double> x = random_matrix(rows, n, 11);
    std::vector<double> u = a, b(rows * n), product(n * n);
    for (std::int64_t i = 0; i < n; ++i) std::fill_n(&u[i * n], i, NAN);  // the lower triangle is not read
    ASSERT_TRUE(cholesky(u.data(), n));
    rows_times_symmetric(x.data(), rows, a.data(), n, b.data());
    solve_rows(u.data(), n, b.data(), rows);
    EXPECT_LT(largest_difference(b, x), 1e-11);
    for (std::int64_t i = 0; i < n; ++i) std::fill_n(&u[i * n], i, 0.0);
    gemm(Transpose::Yes, Transpose::No, n, n, n, 1.0, u.data(), n, u.data(), n, 0.0, product.data(), n);
    EXPECT_LT(largest_difference(product, a), 1e-14);
  }
  double indefinite[] = {1, 2, 2, 1};
  EXPECT_FALSE(cholesky(indefinite, 2));
}

TEST(LinearAlgebra, SingularValues) {
  const double known[] = {3, 0, 0, 0, -2, 0};
  const Svd two = thin_svd(known, 2, 3);
  EXPECT_NEAR(two.values[0], 3, 1e-14);
  EXPECT_NEAR(two.values[1], 2, 1e-14);
  for (const auto& [m, n] : {std::pair{1, 1}, {2, 17}, {17, 2}, {65, 64}, {40, 300}}) {
    const std::int64_t r = std::min(m, n);
    const std::vector<double> a = random_matrix(m, n, 8);
    Svd svd = thin_svd(a.data(), m, n);
    EXPECT_TRUE(std::is_sorted(svd.values.rbegin(), svd.values.rend()));
    EXPECT_LT(orthogonality_loss(svd.vt, r, n), 1e-12);
    for (std::int64_t i = 0; i < m * r; ++i) svd.u[i] *= svd.values[i % r];
    std::vector<double> product(m * n);
    gemm(Transpose::No, Transpose::No, m, n, r, 1.0, svd.u.data(), r, svd.vt.data(), n, 0.0, product.data(),
         n);
    EXPECT_LT(largest_difference(product, a), 1e-12);
  }
}

TEST(LinearAlgebra, SpectralNorm) {
  for (const auto& [m, n] : {std::pair{1, 1}, {3, 65}, {65, 3}, {200, 120}}) {
    const std::vector<double> a = random_matrix(m, n, 9);
    const std::vector<float> af(a.begin(), a.end());
    const double exact = thin_svd(a.data(), m, n).values[0], norm = spectral_norm(af.data(), m, n);
    EXPECT_LT(norm, exact * (1 + 1e-5));
    EXPECT_GT(norm, exact * (1 - 1e-4));
  }
  const float zeros[6] = {};
  EXPECT_EQ(spectral_norm(zeros, 2, 3), 0);
  const float bad[] = {1, NAN};
  EXPECT_THROW(spectral_norm(bad, 1, 2), Error);
}

TEST(LinearAlgebra, FailuresOfLapackAreErrors) {
  const double bad[] = {1, NAN, NAN, 1};
  EXPECT_THROW(symmetric_eigen(bad, 2), Error);
  EXPECT_THROW(thin_svd(bad, 2, 2), Error);
  double factored[] = {1, NAN, NAN, 1};
  EXPECT_THROW(cholesky(factored, 2), Error);
  EXPECT_THROW(
      gemm(Transpose::No, Transpose::No, std::int64_t{1} << 31, 1, 1, 1.0, bad, 1, bad, 1, 0.0, nullptr, 1),
      Error);
}

}  // namespace
}  // namespace narrows
