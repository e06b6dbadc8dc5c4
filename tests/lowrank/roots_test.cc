#include "lowrank/roots.h"

#include <gtest/gtest.h>

#include "lowrank/inner_dimension.h"
#include "lowrank/loss_curve.h"
#include "lowrank/samples.h"
#include "narrows/error.h"

namespace narrows {
namespace {

TEST(Roots, SquaresAndInverses) {
  for (const std::int64_t n : {1, 2, 17, 40}) {
    const std::vector<double> r = with_spectrum(power_law(n, -2), random_rotation(n, 1));
    const Roots roots = symmetric_roots(r.data(), n);
    EXPECT_EQ(roots.raised, 0);
    EXPECT_NEAR(roots.largest, 1, 1e-13);
    EXPECT_LT(largest_difference(times(roots.root, n, roots.root), r), 1e-13);
    std::vector<double> identity(n * n);
    for (std::int64_t i = 0; i < n; ++i) identity[i * n + i] = 1;
    EXPECT_LT(largest_difference(times(roots.root, n, roots.inverse), identity), 1e-11);
  }
}

TEST(Roots, SmallAndNegativeEigenvaluesAreRaised) {
  std::vector<double> values = power_law(6, -1);
  values[4] = 1e-5;
  values[5] = -1e-9;
  const std::vector<double> q = random_rotation(6, 2), r = with_spectrum(values, q);
  const Roots roots = symmetric_roots(r.data(), 6, 1e-4);
  EXPECT_EQ(roots.raised, 2);
  values[4] = values[5] = 1e-4;
  EXPECT_LT(largest_difference(times(roots.root, 6, roots.root), with_spectrum(values, q)), 1e-12);

  const std::vector<double> zeros(9), identity{1, 0, 0, 0, 1, 0, 0, 0, 1};
  const Roots none = symmetric_roots(zeros.data(), 3);
  EXPECT_EQ(none.raised, 3);
  EXPECT_LT(largest_difference(none.root, identity), 1e-15);
}

TEST(Roots, BadInputIsAnError) {
  const std::vector<double> nan{1, NAN, 0, 1}, infinite{1, 0, 0, INFINITY}, unread{1, 0, NAN, 1};
  EXPECT_THROW(symmetric_roots(nan.data(), 2), Error);
  EXPECT_THROW(symmetric_roots(infinite.data(), 2), Error);
  EXPECT_NO_THROW(symmetric_roots(unread.data(), 2));
  EXPECT_THROW(symmetric_roots(unread.data(), 2, 0), Error);
  EXPECT_THROW(symmetric_roots(unread.data(), 2, 1.5), Error);
}

TEST(InnerDimension, EnergiesAreTheSquaredSingularValuesOfTheRootsProduct) {
  const std::int64_t d = 7;
  const std::vector<double> x = with_spectrum(power_law(d, -1), random_rotation(d, 3));
  const std::vector<double> y = with_spectrum(power_law(d, -0.5), random_rotation(d, 4));
  const InnerSpectrum inner = inner_spectrum(x.data(), y.data(), d);
  const Svd svd =
      thin_svd(times(symmetric_roots(x.data(), d).root, d, symmetric_roots(y.data(), d).root).data(), d, d);
  for (std::int64_t i = 0; i < d; ++i) EXPECT_NEAR(inner.energies[i], svd.values[i] * svd.values[i], 1e-14);
  std::vector<double> identity(d * d);
  for (std::int64_t i = 0; i < d; ++i) identity[i * d + i] = 1;
  EXPECT_LT(largest_difference(times(transposed(inner.left, d), d, inner.right), identity), 1e-13);
}

TEST(InnerDimension, BalanceEvensEnergiesOut) {
  const std::vector<double> x{16, 1e-30, 1}, y{1, 1, 81};
  const std::vector<double> s = balance(x, y);
  EXPECT_NEAR(s[0], 2, 1e-14);
  EXPECT_NEAR(s[1], std::pow(16e-12, 0.25), 1e-14);  // bounded
  EXPECT_NEAR(s[2], 1.0 / 3, 1e-14);
  const std::vector<double> zeros(3), ones(3, 1.0);
  EXPECT_EQ(balance(zeros, y), ones);
  EXPECT_TRUE(balance({}, {}).empty());
}

TEST(LossCurve, SumsWhatIsDropped) {
  const std::vector<double> energies{4, 2, 1}, by_rank{7, 3, 1, 0};
  EXPECT_EQ(loss_by_rank(energies), by_rank);
  const std::vector<double> errors{4, 1, -2, 1, 3, 0.5, -2, 0.5, 2};
  const std::vector<std::int64_t> order{1, 0, 2};
  const std::vector<double> by_order{8, 2, 2, 0};  // 2; 4 + 2 - 2 · 2; all
  EXPECT_EQ(loss_by_order(errors, order), by_order);
}

}  // namespace
}  // namespace narrows
