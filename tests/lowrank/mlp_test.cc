#include "lowrank/mlp.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lowrank/covariance.h"
#include "lowrank/samples.h"
#include "narrows/error.h"

namespace narrows {
namespace {

struct Case {
  std::int64_t d_out, d_inter, tokens;
  std::vector<double> down, up, h, r;

  Case(std::int64_t out, std::int64_t inter, std::int64_t t, unsigned seed)
      : d_out(out),
        d_inter(inter),
        tokens(t),
        down(random_matrix(out, inter, seed)),
        up(random_matrix(inter, 3, seed + 1)),
        h(correlated_tokens(t, inter, seed + 2)),
        r(autocorrelation(h, t)) {}

  // From the outputs themselves.
  double loss_of(const MlpReduced& m) const {
    const auto rank = static_cast<std::int64_t>(m.kept.size());
    const std::vector<double> before = times(h, d_inter, transposed(down, d_inter));
    const std::vector<double> after =
        times(transposed(take_rows(transposed(h, d_inter), tokens, m.kept), tokens), rank,
              transposed(m.down, rank));
    double sum = 0;
    for (std::size_t i = 0; i < before.size(); ++i) sum += std::pow(before[i] - after[i], 2);
    return sum / static_cast<double>(tokens);
  }

  MlpReduction reduction(NeuronChoice choice) const { return {down, d_out, d_inter, r, choice, up}; }
};

constexpr NeuronChoice kAll[] = {NeuronChoice::Down, NeuronChoice::Up, NeuronChoice::Elimination};

// With c = A h the block is to give (W + A) h: that of another block's refit.
TEST(Mlp, RefitsMakeUpForWhatIsMissing) {
  const Case c(5, 9, 40, 1);
  const std::vector<double> a = random_matrix(c.d_out, c.d_inter, 7), correction = product(a.data(), c.d_out, c.d_inter, c.r.data(), c.d_inter);
  Case other = c;
  for (std::size_t i = 0; i < a.size(); ++i) other.down[i] += a[i];
  const MlpReduction reduction = c.reduction(NeuronChoice::Down);
  EXPECT_LT(largest_difference(reduction.shrink(c.d_inter, 0.0, correction).down, other.down), 1e-8);
  // E ‖c‖², which the loss leaves out
  const double energy = dot(a, correction);
  for (std::int64_t rank = 1; rank <= c.d_inter; ++rank) {
    const MlpReduced refitted = reduction.shrink(rank, 0.0, correction);
    EXPECT_NEAR(refitted.loss + energy, other.loss_of(refitted), 1e-8 * energy);
    EXPECT_LE(refitted.loss, reduction.shrink(rank, 1e-2, correction).loss + 1e-9 * energy);
  }
  EXPECT_THROW(reduction.shrink(3, 0.0, std::span(correction).first(7)), Error);
}

TEST(Mlp, LossesAreThoseOfTheOutputs) {
  for (const Case& c : {Case(5, 9, 30, 1), Case(7, 1, 5, 2), Case(1, 6, 20, 3), Case(4, 12, 5, 4)})
    for (const NeuronChoice choice : kAll) {
      const MlpReduction reduction = c.reduction(choice);
      const std::vector<double>& curve = reduction.loss_by_rank();
      ASSERT_EQ(curve.size(), static_cast<std::size_t>(c.d_inter + 1));
      EXPECT_EQ(curve.back(), 0);
      for (std::int64_t rank = 1; rank <= c.d_inter; ++rank) {
        const MlpReduced plain = reduction.shrink(rank);
        EXPECT_TRUE(std::is_sorted(plain.kept.begin(), plain.kept.end()));
        EXPECT_NEAR(plain.loss, c.loss_of(plain), 1e-11 * curve[0]);
        double last = plain.loss;
        for (const double ridge : {1e3, 1e-2, 1e-4, 0.0}) {  // the weaker the ridge, the less is lost
          const MlpReduced refitted = reduction.shrink(rank, ridge);
          EXPECT_EQ(refitted.kept, plain.kept);
          EXPECT_NEAR(refitted.loss, c.loss_of(refitted), 1e-8 * curve[0]);
          EXPECT_LE(refitted.loss, last + 1e-11 * curve[0]);
          last = refitted.loss;
        }
        if (choice == NeuronChoice::Elimination)
          EXPECT_NEAR(curve[rank], last, 1e-4 * curve[0]);  // but for its ridge
        else
          EXPECT_NEAR(curve[rank], plain.loss, 1e-11 * curve[0]);
      }
    }
}

// No other W'_d on the same neurons loses less: the gradient is zero.
TEST(Mlp, RefitIsTheLeastSquaresSolution) {
  const Case c(4, 8, 40, 10);
  const MlpReduced m = c.reduction(NeuronChoice::Down).shrink(5, 0.0);
  EXPECT_LT(m.loss, 0.95 * c.reduction(NeuronChoice::Down).shrink(5).loss);
  for (std::size_t i = 0; i < m.down.size(); ++i)
    for (const double step : {-1e-3, 1e-3}) {
      MlpReduced moved = m;
      moved.down[i] += step;
      EXPECT_GT(c.loss_of(moved), m.loss);
    }
}

TEST(Mlp, ScoresChooseTheNeurons) {
  // Neuron 0 speaks softly into a large column, 1 loudly into a small one, 2 has a large row of W_u.
  const std::vector<double> down{4, 1, 1, 0, 0, 0}, r{1, 0, 0, 0, 9, 0, 0, 0, 1}, up{1, 1, 10};
  using Kept = std::vector<std::int64_t>;
  EXPECT_EQ(MlpReduction(down, 2, 3, r).shrink(1).kept, Kept{0});
  EXPECT_EQ(MlpReduction(down, 2, 3, r).shrink(2).kept, (Kept{0, 1}));
  EXPECT_EQ(MlpReduction(down, 2, 3, r, NeuronChoice::Up, up).shrink(1).kept, Kept{2});
  EXPECT_EQ(MlpReduction(down, 2, 3, r, NeuronChoice::Elimination).shrink(2).kept, (Kept{0, 1}));
  const std::vector<double> equal{1, 1, 1, 0, 0, 0}, identity{1, 0, 0, 0, 1, 0, 0, 0, 1};
  for (const NeuronChoice choice : {NeuronChoice::Down, NeuronChoice::Elimination})
    EXPECT_EQ(MlpReduction(equal, 2, 3, identity, choice).shrink(2).kept, (Kept{0, 1}));  // equals: the first
}

// Two neurons that say the same: one is enough, if its column takes over the other's.
TEST(Mlp, EliminationDropsWhatOthersCanSay) {
  Case c(4, 6, 40, 20);
  for (std::int64_t t = 0; t < c.tokens; ++t) c.h[t * 6 + 4] = 2 * c.h[t * 6 + 1];
  for (std::int64_t o = 0; o < 4; ++o) c.down[o * 6 + 1] *= 10;  // neither is the least by itself
  c.r = autocorrelation(c.h, c.tokens);
  const MlpReduction elimination = c.reduction(NeuronChoice::Elimination);
  const MlpReduced m = elimination.shrink(5, 0.0);
  EXPECT_LT(m.loss, 1e-7 * elimination.loss_by_rank()[0]);
  EXPECT_GT(c.reduction(NeuronChoice::Down).shrink(5, 0.0).loss, 1e3 * m.loss);
}

TEST(Mlp, EliminationFollowsItsDefinition) {
  const Case c(3, 7, 30, 30);
  std::vector<std::int64_t> left(7);
  std::iota(left.begin(), left.end(), 0);
  const MlpReduction elimination = c.reduction(NeuronChoice::Elimination);
  for (std::int64_t rank = 6; rank >= 1; --rank) {
    double best = INFINITY;
    std::int64_t best_at = 0;
    for (std::int64_t i = 0; i <= rank; ++i) {
      std::vector<std::int64_t> kept = left;
      kept.erase(kept.begin() + i);
      // The least loss on these neurons, through a down projection that scores the others out.
      std::vector<double> up(7);
      for (const std::int64_t j : kept) up[j] = 1e6;
      const double loss = MlpReduction(c.down, 3, 7, c.r, NeuronChoice::Up, up).shrink(rank, 0.0).loss;
      if (loss < best) {
        best = loss;
        best_at = i;
      }
    }
    left.erase(left.begin() + best_at);
    EXPECT_EQ(elimination.shrink(rank).kept, left);
  }
}

TEST(Mlp, RoundedStatisticsDoLittleHarm) {
  const Case c(5, 24, 8, 60);
  const std::vector<double> r = rounded(c.r, 24, 61);
  for (const NeuronChoice choice : kAll) {
    const MlpReduction reduction(c.down, 5, 24, r, choice, c.up);
    const double whole = MlpReduction(c.down, 5, 24, c.r).loss_by_rank()[0];
    for (std::int64_t rank = 1; rank <= 24; ++rank) {
      const MlpReduced m = reduction.shrink(rank, 0.0);
      EXPECT_NEAR(c.loss_of(m), m.loss, 1e-4 * whole) << rank;
    }
  }
}

TEST(Mlp, SilentNeuronsAreFree) {
  const std::vector<double> down = random_matrix(3, 4, 40), zeros(16);
  for (const NeuronChoice choice : {NeuronChoice::Down, NeuronChoice::Elimination}) {
    const MlpReduction reduction(down, 3, 4, zeros, choice);
    EXPECT_EQ(reduction.loss_by_rank()[0], 0);
    EXPECT_EQ(reduction.shrink(2, 0.0).loss, 0);
  }
}

TEST(Mlp, BadInputIsAnError) {
  const Case c(3, 5, 20, 50);
  const MlpReduction reduction = c.reduction(NeuronChoice::Down);
  EXPECT_THROW(reduction.shrink(0), Error);
  EXPECT_THROW(reduction.shrink(6), Error);
  EXPECT_THROW(reduction.shrink(2, -1.0), Error);
  EXPECT_THROW(reduction.shrink(2, NAN), Error);
  EXPECT_THROW(MlpReduction(c.down, 3, 4, c.r), Error);
  EXPECT_THROW(MlpReduction(c.down, 3, 5, c.down), Error);
  EXPECT_THROW(MlpReduction(c.down, 3, 5, c.r, NeuronChoice::Up), Error);
  std::vector<double> nan = c.r;
  nan[7] = NAN;
  EXPECT_THROW(MlpReduction(c.down, 3, 5, nan), Error);
  EXPECT_THROW(MlpReduction(c.down, 3, 5, nan, NeuronChoice::Elimination), Error);
}

}  // namespace
}  // namespace narrows
