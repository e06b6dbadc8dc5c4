#include "lowrank/linear.h"

#include <gtest/gtest.h>

#include "lowrank/roots.h"
#include "lowrank/samples.h"
#include "narrows/error.h"

namespace narrows {
namespace {

struct Case {
  std::int64_t d_out, d_in, tokens;
  std::vector<double> w, x, r, mean_abs;

  Case(std::int64_t out, std::int64_t in, std::int64_t t, unsigned seed)
      : d_out(out),
        d_in(in),
        tokens(t),
        w(random_matrix(out, in, seed)),
        x(correlated_tokens(t, in, seed + 1)),
        r(autocorrelation(x, t)),
        mean_abs(in) {
    for (std::size_t i = 0; i < x.size(); ++i) mean_abs[i % in] += std::abs(x[i]) / static_cast<double>(t);
  }

  double loss_of(const LinearFactors& f) const {
    const std::vector<double> before = times(x, d_in, transposed(w, d_in));
    const std::vector<double> after =
        times(times(x, d_in, transposed(f.b, d_in)), f.rank, transposed(f.a, f.rank));
    double sum = 0;
    for (std::size_t i = 0; i < before.size(); ++i) sum += std::pow(before[i] - after[i], 2);
    return sum / static_cast<double>(tokens);
  }

  // A B of the truncated SVD of W S, times S⁻¹; s [d_in][d_in].
  std::vector<double> reference(const std::vector<double>& s, const std::vector<double>& inverse,
                                std::int64_t rank) const {
    const std::vector<double> ws = times(w, d_in, s);
    Svd svd = thin_svd(ws.data(), d_out, d_in);
    const std::int64_t k = std::min(d_out, d_in);
    for (std::int64_t i = 0; i < d_out * k; ++i) svd.u[i] *= i % k < rank ? svd.values[i % k] : 0;
    return times(times(svd.u, k, svd.vt), d_in, inverse);
  }

  void expect_map(const LinearFactors& f, const std::vector<double>& s,
                  const std::vector<double>& inverse) const {
    EXPECT_LT(largest_difference(times(f.a, f.rank, f.b), reference(s, inverse, f.rank)), 1e-9);
    EXPECT_NEAR(f.loss, loss_of(f), 1e-11 * (1 + f.loss));
  }
};

TEST(Linear, FactorsAreTheTruncatedDecompositions) {
  for (const Case& c : {Case(5, 8, 40, 1), Case(8, 5, 40, 2), Case(1, 7, 30, 3), Case(7, 1, 30, 4)}) {
    const std::int64_t n = c.d_in;
    std::vector<double> one(n * n), s(n * n), inverse(n * n);
    for (std::int64_t i = 0; i < n; ++i) {
      one[i * n + i] = 1;
      s[i * n + i] = std::pow(c.mean_abs[i], 0.5);
      inverse[i * n + i] = 1 / s[i * n + i];
    }
    const Roots roots = symmetric_roots(c.r.data(), n);
    for (std::int64_t rank = 1; rank <= std::min(c.d_out, n); ++rank) {
      const LinearFactors plain = truncated_svd(c.w, c.d_out, n, c.r, rank);
      const LinearFactors aware = activation_aware_svd(c.w, c.d_out, n, c.r, c.mean_abs, rank);
      const LinearFactors whitened = whitened_svd(c.w, c.d_out, n, c.r, rank);
      c.expect_map(plain, one, one);
      c.expect_map(aware, s, inverse);
      c.expect_map(whitened, roots.root, roots.inverse);
      EXPECT_LE(whitened.loss, plain.loss * (1 + 1e-9) + 1e-12);
      EXPECT_LE(whitened.loss, aware.loss * (1 + 1e-9) + 1e-12);
    }
  }
}

TEST(Linear, FewTokensAndSilentChannels) {
  for (const auto& [out, in] : {std::pair{6, 9}, {9, 6}}) {
    Case c(out, in, 3, 10);
    EXPECT_LT(whitened_svd(c.w, out, in, c.r, 3).loss, 1e-9);
    std::vector<double> magnitudes(in, 1.0);
    magnitudes[2] = 0;
    const LinearFactors f = activation_aware_svd(c.w, out, in, c.r, magnitudes, 6);
    EXPECT_LT(largest_difference(times(f.a, 6, f.b), c.w), 1e-8);  // full rank
  }
}

TEST(Linear, BadInputIsAnError) {
  const Case c(4, 6, 20, 20);
  EXPECT_THROW(truncated_svd(c.w, 4, 6, c.r, 0), Error);
  EXPECT_THROW(whitened_svd(c.w, 4, 6, c.r, 5), Error);
  EXPECT_THROW(truncated_svd(c.w, 4, 5, c.r, 1), Error);
  EXPECT_THROW(whitened_svd(c.w, 4, 6, c.w, 1), Error);
  std::vector<double> bad = c.r;
  bad[1] = NAN;
  EXPECT_THROW(whitened_svd(c.w, 4, 6, bad, 1), Error);
  EXPECT_THROW(truncated_svd(c.w, 4, 6, bad, 1), Error);
  bad = c.w;
  bad[1] = INFINITY;
  EXPECT_THROW(truncated_svd(bad, 4, 6, c.r, 1), Error);
  std::vector<double> magnitudes(6);
  EXPECT_THROW(activation_aware_svd(c.w, 4, 6, c.r, magnitudes, 1), Error);
  magnitudes[0] = -1;
  EXPECT_THROW(activation_aware_svd(c.w, 4, 6, c.r, magnitudes, 1), Error);
}

}  // namespace
}  // namespace narrows
