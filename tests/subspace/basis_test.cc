#include "subspace/basis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "narrows/error.h"
#include "subspace/random_tokens.h"

namespace narrows {
namespace {

SecondMoment moment_of(const std::vector<float>& x, std::int64_t d) {
  SecondMoment m(d);
  m.add(x.data(), static_cast<std::int64_t>(x.size()) / d, d);
  return m;
}

// Σ (v·x)² over tokens, summed directly.
double energy(const Basis& b, std::int64_t i, const std::vector<float>& x) {
  double sum = 0;
  for (std::size_t t = 0; t < x.size(); t += b.d) {
    double dot = 0;
    for (std::int64_t j = 0; j < b.d; ++j) dot += static_cast<double>(b.vectors[i * b.d + j]) * x[t + j];
    sum += dot * dot;
  }
  return sum;
}

// Unit vectors along the given axes.
Basis axes(std::int64_t d, const std::vector<std::int64_t>& which) {
  Basis b;
  b.d = d;
  b.k = static_cast<std::int64_t>(which.size());
  b.vectors.resize(b.k * d);
  for (std::int64_t i = 0; i < b.k; ++i) b.vectors[i * d + which[i]] = 1;
  return b;
}

TEST(SvdBasis, OrthonormalWithTheEnergiesItStates) {
  const std::int64_t d = 96, tokens = 500, k = 24;
  const std::vector<float> x = random_tokens(tokens, d, power_law(d, -0.7), random_rotation(d, 1), 2);
  const Basis b = svd_basis(moment_of(x, d), k);
  EXPECT_EQ(b.k, k);
  EXPECT_EQ(b.tokens, tokens);
  EXPECT_LT(orthogonality_loss(b), 1e-5);
  EXPECT_TRUE(std::is_sorted(b.energies.rbegin(), b.energies.rend()));
  for (std::int64_t i = 0; i < k; ++i) EXPECT_NEAR(b.energies[i], energy(b, i, x), 1e-5 * b.energies[0]);
  for (std::int64_t i = 0; i < k; ++i) {
    const auto row = b.vectors.begin() + i * d;
    const auto [low, high] = std::minmax_element(row, row + d);
    EXPECT_GT(*high, -*low);
  }
}

TEST(SvdBasis, ToleranceTrims) {
  const std::int64_t d = 64;
  const std::vector<float> x = random_tokens(400, d, power_law(d, -1), random_rotation(d, 3), 4);
  const SecondMoment m = moment_of(x, d);
  const Basis b = svd_basis(m, d, 0.3);
  const auto residual = [&](std::int64_t k) {
    return 1 - std::accumulate(b.energies.begin(), b.energies.begin() + k, 0.0) / b.total_energy;
  };
  EXPECT_LT(b.k, d);
  EXPECT_LT(residual(b.k), 0.09);
  EXPECT_GE(residual(b.k - 1), 0.09);
  EXPECT_EQ(svd_basis(m, 2, 1e-3).k, 2);  // not reached: as many as allowed
}

TEST(SvdBasis, RankDeficient) {
  const std::int64_t d = 40, rank = 5, k = 12;
  const std::vector<float> x =
      random_tokens(100, d, std::vector<double>(rank, 1.0), random_rotation(d, 5), 6);
  const Basis b = svd_basis(moment_of(x, d), k);
  EXPECT_LT(orthogonality_loss(b), 1e-5);
  for (std::int64_t i = rank; i < k; ++i) EXPECT_LT(b.energies[i], 1e-5 * b.energies[0]);
  EXPECT_EQ(svd_basis(moment_of(x, d), k, 1e-2).k, rank);
  const std::vector<float> zeros(100 * d);
  EXPECT_LT(orthogonality_loss(svd_basis(moment_of(zeros, d), k)), 1e-5);
}

TEST(SvdBasis, Errors) {
  const SecondMoment m = moment_of(std::vector<float>(5 * 8, 1.0f), 8);
  EXPECT_THROW(svd_basis(m, 0), Error);
  EXPECT_THROW(svd_basis(m, 9), Error);
  try {
    svd_basis(m, 6);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "5 calibration tokens: expected at least 6");
  }
}

TEST(SubspaceSimilarity, KnownCases) {
  EXPECT_NEAR(subspace_similarity(axes(6, {0, 1, 2}), axes(6, {2, 0, 1})), 1, 1e-12);
  EXPECT_NEAR(subspace_similarity(axes(6, {0, 1, 2}), axes(6, {3, 4, 5})), 0, 1e-12);
  EXPECT_NEAR(subspace_similarity(axes(6, {0, 1}), axes(6, {1, 2})), 0.5, 1e-12);
  EXPECT_NEAR(subspace_similarity(axes(6, {0, 1, 2, 3}), axes(6, {3, 1})), 1, 1e-12);  // contained
  EXPECT_NEAR(subspace_similarity(axes(6, {3}), axes(6, {0, 1, 2})), 0, 1e-12);
  Basis turned = axes(3, {0});
  turned.vectors = {std::cos(0.3f), std::sin(0.3f), 0};
  EXPECT_NEAR(subspace_similarity(turned, axes(3, {0})), std::cos(0.3), 1e-6);
  EXPECT_THROW(subspace_similarity(axes(6, {0}), axes(5, {0})), Error);
  EXPECT_THROW(subspace_similarity(axes(6, {}), axes(6, {0})), Error);
}

TEST(SubspaceSimilarity, RotationWithinTheSpanChangesNothing) {
  const std::int64_t d = 30, k = 10;
  Basis a = axes(d, {}), b = a;
  a.k = b.k = k;
  std::vector<double> v = random_matrix(k, d, 7), rotated(k * d);
  orthonormalize_rows(v.data(), k, d);
  const std::vector<double> q = random_rotation(k, 8);
  gemm(Transpose::No, Transpose::No, k, d, k, 1.0, q.data(), k, v.data(), d, 0.0, rotated.data(), d);
  a.vectors.assign(v.begin(), v.end());
  b.vectors.assign(rotated.begin(), rotated.end());
  EXPECT_NEAR(subspace_similarity(a, b), 1, 1e-6);
}

// Σ ‖W x - decoder encoder x‖² over the tokens.
double output_error(const std::vector<float>& w, std::int64_t d_out, const std::vector<double>& decoder,
                    const std::vector<double>& encoder, std::int64_t k, const std::vector<float>& x,
                    std::int64_t d) {
  std::vector<double> map(w.begin(), w.end());
  gemm(Transpose::No, Transpose::No, d_out, d, k, -1.0, decoder.data(), k, encoder.data(), d, 1.0, map.data(),
       d);
  const std::vector<double> tokens(x.begin(), x.end());
  const auto t = static_cast<std::int64_t>(x.size()) / d;
  std::vector<double> y(t * d_out);
  gemm(Transpose::No, Transpose::Yes, t, d_out, d, 1.0, tokens.data(), d, map.data(), d, 0.0, y.data(),
       d_out);
  return std::inner_product(y.begin(), y.end(), y.begin(), 0.0);
}

TEST(OutputAwareBasis, BeatsTheSvdBasisAndObliqueProjections) {
  const std::int64_t d = 48, tokens = 400, k = 12;
  const std::vector<float> x = random_tokens(tokens, d, power_law(d, -0.5), random_rotation(d, 9), 10);
  const SecondMoment m = moment_of(x, d);
  const Basis svd = svd_basis(m, k);
  for (const std::int64_t d_out : {12, 30, 48, 130}) {
    // Rows of W favour directions that hold little of x's energy.
    const std::vector<float> w = random_tokens(d_out, d, power_law(d, 0.5), random_rotation(d, 9), 11);
    const OutputBasis best = output_aware_basis(m, w.data(), d_out, k);
    const std::vector<double> decoder(best.decoder.begin(), best.decoder.end()),
        encoder(best.encoder.begin(), best.encoder.end()), wide(w.begin(), w.end());
    const double error = output_error(w, d_out, decoder, encoder, k, x, d);
    EXPECT_NEAR(error, best.total_energy * (1 - best.energy_kept()), 1e-5 * best.total_energy) << d_out;
    EXPECT_TRUE(std::is_sorted(best.energies.rbegin(), best.energies.rend()));
    std::vector<double> gram(k * k);
    gemm(Transpose::Yes, Transpose::No, k, k, d_out, 1.0, decoder.data(), k, decoder.data(), k, 0.0,
         gram.data(), k);
    for (std::int64_t i = 0; i < k * k; ++i) EXPECT_NEAR(gram[i], i % (k + 1) == 0 ? 1 : 0, 1e-5);

    // x̂ = Vᵀ V x: decoder W Vᵀ, encoder V.
    const std::vector<double> v(svd.vectors.begin(), svd.vectors.end());
    std::vector<double> wv(d_out * k);
    gemm(Transpose::No, Transpose::Yes, d_out, k, d, 1.0, wide.data(), d, v.data(), d, 0.0, wv.data(), k);
    EXPECT_LE(error, output_error(w, d_out, wv, v, k, x, d) + 1e-6 * best.total_energy) << d_out;
    if (d_out > k) {
      EXPECT_LT(error, 0.95 * output_error(w, d_out, wv, v, k, x, d)) << d_out;
    }

    for (unsigned seed = 20; seed < 30; ++seed) {
      // x̂ = P x with P = D E, E random near the best encoder, D least squares would only help: a random
      // pair near the optimum must not beat it.
      std::vector<double> e = encoder, u = decoder;
      const std::vector<double> de = random_matrix(k, d, seed), du = random_matrix(d_out, k, seed + 100);
      const double step = seed % 2 ? 1e-3 : 1e-1;
      for (std::size_t i = 0; i < e.size(); ++i) e[i] += step * de[i];
      for (std::size_t i = 0; i < u.size(); ++i) u[i] += step * du[i];
      EXPECT_GE(output_error(w, d_out, u, e, k, x, d), error - 1e-6 * best.total_energy) << d_out;
    }
  }
}

TEST(OutputAwareBasis, DegenerateInputAndErrors) {
  const std::int64_t d = 16;
  const std::vector<float> x = random_tokens(50, d, {1.0, 1.0}, random_rotation(d, 12), 13);
  const SecondMoment m = moment_of(x, d);
  for (const std::int64_t d_out : {8, 40}) {
    const std::vector<float> w = random_tokens(d_out, d, power_law(d, 0), random_rotation(d, 14), 15);
    const OutputBasis b = output_aware_basis(m, w.data(), d_out, 6);  // k above the rank
    EXPECT_NEAR(b.energy_kept(), 1, 1e-6);
    double most = 0;
    for (std::int64_t i = 0; i < 6; ++i)
      for (std::int64_t j = 0; j < 6; ++j) {
        double dot = i == j ? -1 : 0;
        for (std::int64_t o = 0; o < d_out; ++o)
          dot += static_cast<double>(b.decoder[o * 6 + i]) * b.decoder[o * 6 + j];
        most = std::max(most, std::abs(dot));
      }
    EXPECT_LT(most, 1e-5);
    EXPECT_THROW(output_aware_basis(m, w.data(), d_out, 0), Error);
    EXPECT_THROW(output_aware_basis(m, w.data(), d_out, std::min(d, d_out) + 1), Error);
  }
  EXPECT_THROW(output_aware_basis(moment_of(std::vector<float>(3 * d, 1.0f), d), x.data(), 8, 4), Error);
}

}  // namespace
}  // namespace narrows
