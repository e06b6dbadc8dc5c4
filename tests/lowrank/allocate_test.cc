#include "lowrank/allocate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "narrows/error.h"

namespace narrows {
namespace {

using Ranks = std::vector<std::int64_t>;

// Every possible choice.
double least_loss(const std::vector<RankChoice>& components, double budget) {
  double best = INFINITY;
  const std::function<void(std::size_t, double, double)> visit = [&](std::size_t i, double cost,
                                                                     double loss) {
    if (cost > budget) return;
    if (i == components.size()) {
      best = std::min(best, loss);
      return;
    }
    const RankChoice& c = components[i];
    const auto full = static_cast<std::int64_t>(c.loss.size()) - 1;
    for (std::int64_t r = c.minimum; r <= full; ++r)
      if (r % c.step == 0 || r == full)
        visit(i + 1, cost + c.cost * static_cast<double>(r), loss + c.weight * c.loss[r]);
  };
  visit(0, 0, 0);
  return best;
}

// The largest gain of any step along a hull is no more than the component's whole range.
double largest_range(const std::vector<RankChoice>& components) {
  double most = 0;
  for (const RankChoice& c : components)
    most = std::max(most, c.weight * (*std::max_element(c.loss.begin(), c.loss.end()) -
                                      *std::min_element(c.loss.begin(), c.loss.end())));
  return most;
}

TEST(Allocate, AgainstAllChoices) {
  std::mt19937 random(1);
  const auto uniform = [&](int most) { return static_cast<int>(random() % (most + 1)); };
  double excess = 0;
  int cases = 0;
  for (int i = 0; i < 600; ++i) {
    std::vector<RankChoice> components(1 + uniform(3));
    double least = 0, whole = 0;
    for (RankChoice& c : components) {
      const int full = 1 + uniform(7);
      c.loss.assign(full + 1, 0.0);
      for (int r = full; r-- > 0;) c.loss[r] = c.loss[r + 1] + uniform(20);  // falling, not convex
      if (uniform(4) == 0) std::shuffle(c.loss.begin(), c.loss.end(), random);
      c.cost = 1 + uniform(4);
      c.weight = uniform(3);
      c.step = 1 + uniform(2);
      c.minimum = 1 + uniform(full - 1);
      std::int64_t first = c.minimum;
      while (first % c.step && first < full) ++first;
      least += c.cost * static_cast<double>(first);
      whole += c.cost * full;
    }
    const double budget = least + (whole - least) * uniform(100) / 100;
    const Allocation a = allocate_ranks(components, budget);
    double cost = 0, loss = 0;
    for (std::size_t k = 0; k < components.size(); ++k) {
      const RankChoice& c = components[k];
      ASSERT_GE(a.ranks[k], c.minimum);
      ASSERT_LT(a.ranks[k], static_cast<std::int64_t>(c.loss.size()));
      ASSERT_TRUE(a.ranks[k] % c.step == 0 || a.ranks[k] + 1 == static_cast<std::int64_t>(c.loss.size()));
      cost += c.cost * static_cast<double>(a.ranks[k]);
      loss += c.weight * c.loss[a.ranks[k]];
    }
    ASSERT_EQ(a.cost, cost);
    ASSERT_EQ(a.loss, loss);
    ASSERT_LE(cost, budget);
    const double best = least_loss(components, budget);
    ASSERT_GE(loss, best);
    ASSERT_LE(loss, best + largest_range(components));
    if (best > 0) {
      excess += loss / best - 1;
      ++cases;
    }
    EXPECT_EQ(allocate_ranks(components, budget).ranks, a.ranks);
  }
  RecordProperty("mean_excess", std::to_string(excess / cases));
  EXPECT_LT(excess / cases, 0.1);
}

// Convex curves and steps of one cost: the greedy choice is the optimum.
TEST(Allocate, ConvexCurvesOfOneCostAreOptimal) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    std::vector<RankChoice> components(3);
    for (RankChoice& c : components) {
      const int full = 2 + static_cast<int>(random() % 5);
      std::vector<double> gains(full);
      for (double& g : gains) g = static_cast<double>(random() % 50);
      std::sort(gains.begin(), gains.end());
      c.loss.assign(full + 1, 0.0);
      for (int r = full; r-- > 0;) c.loss[r] = c.loss[r + 1] + gains[full - 1 - r];
      c.weight = 1 + static_cast<double>(random() % 3);
      c.cost = 2;
    }
    const double budget = 6 + static_cast<double>(random() % 20);
    EXPECT_EQ(allocate_ranks(components, budget).loss, least_loss(components, budget));
  }
}

TEST(Allocate, TiesStepsAndPlateaus) {
  const RankChoice c{{4, 3, 2, 1, 0}};
  EXPECT_EQ(allocate_ranks(std::vector{c, c}, 5).ranks, (Ranks{4, 1}));  // equals: the first component
  EXPECT_EQ(allocate_ranks(std::vector{c, c}, 2).ranks, (Ranks{1, 1}));
  EXPECT_EQ(allocate_ranks(std::vector{c, c}, 100).ranks, (Ranks{4, 4}));
  EXPECT_EQ(allocate_ranks({}, 0).ranks, Ranks{});
  const RankChoice flat{{5, 3, 3, 3, 0, 0}};
  EXPECT_EQ(allocate_ranks(std::vector{flat}, 3).ranks, Ranks{1});  // nothing to gain
  EXPECT_EQ(allocate_ranks(std::vector{flat}, 9).ranks, Ranks{4});  // nor beyond
  RankChoice stepped{{6, 5, 4, 3, 2, 1, 0, 0}};
  stepped.step = 4;
  EXPECT_EQ(allocate_ranks(std::vector{stepped}, 6).ranks, Ranks{4});
  stepped.minimum = 5;
  EXPECT_EQ(allocate_ranks(std::vector{stepped}, 7).ranks, Ranks{7});  // the full rank needs no step
  // What is left goes to a rank off the hull.
  const RankChoice late{{10, 10, 9, 0}};
  EXPECT_EQ(allocate_ranks(std::vector{late}, 2).ranks, Ranks{2});
}

TEST(Allocate, BadInputIsAnError) {
  const RankChoice good{{2, 1, 0}};
  const auto fails = [&](const std::function<void(RankChoice&)>& spoil) {
    std::vector<RankChoice> components{good, good};
    spoil(components[1]);
    EXPECT_THROW(allocate_ranks(components, 100), Error);
  };
  fails([](RankChoice& c) { c.loss = {1}; });
  fails([](RankChoice& c) { c.loss[1] = NAN; });
  fails([](RankChoice& c) { c.cost = 0; });
  fails([](RankChoice& c) { c.weight = -1; });
  fails([](RankChoice& c) { c.step = 0; });
  fails([](RankChoice& c) { c.minimum = 0; });
  fails([](RankChoice& c) { c.minimum = 3; });
  EXPECT_THROW(allocate_ranks(std::vector{good, good}, 1.5), Error);
  EXPECT_THROW(allocate_ranks(std::vector{good}, NAN), Error);
}

}  // namespace
}  // namespace narrows
