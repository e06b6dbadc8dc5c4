#include "lowrank/allocate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace narrows {
namespace {

std::int64_t full_rank(const RankChoice& c) { return static_cast<std::int64_t>(c.loss.size()) - 1; }

void check(const RankChoice& c, std::size_t number) {
  if (full_rank(c) < 1)
    fail("component {}: expected a loss for rank 0 and others, found {}", number, c.loss.size());
  for (const double l : c.loss)
    if (!std::isfinite(l)) fail("component {}: expected finite losses, found {}", number, l);
  if (!(c.cost > 0 && std::isfinite(c.cost)))
    fail("component {}: expected a cost above 0, found {}", number, c.cost);
  if (!(c.weight >= 0 && std::isfinite(c.weight)))
    fail("component {}: expected a weight of 0 or more, found {}", number, c.weight);
  if (c.step < 1) fail("component {}: expected steps of at least 1, found {}", number, c.step);
  if (c.minimum < 1 || c.minimum > full_rank(c))
    fail("component {}: expected a minimum from 1 to {}, found {}", number, full_rank(c), c.minimum);
}

std::vector<std::int64_t> possible_ranks(const RankChoice& c) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t r = (c.minimum + c.step - 1) / c.step * c.step; r < full_rank(c); r += c.step)
    ranks.push_back(r);
  ranks.push_back(full_rank(c));
  return ranks;
}

struct Step {
  std::size_t component;
  std::int64_t from, to;
  double gain;  // of weighted loss for its cost
};

Step step_of(std::span<const RankChoice> components, std::size_t i, std::int64_t from, std::int64_t to) {
  const RankChoice& c = components[i];
  return {i, from, to, c.weight * (c.loss[from] - c.loss[to]) / (c.cost * static_cast<double>(to - from))};
}

// The falling part of the lower convex hull: steps of falling gain.
std::vector<Step> hull(std::span<const RankChoice> components, std::size_t i,
                       const std::vector<std::int64_t>& ranks) {
  std::vector<Step> steps;
  for (std::size_t k = 1; k < ranks.size(); ++k) {
    Step step = step_of(components, i, ranks[k - 1], ranks[k]);
    while (!steps.empty() && steps.back().gain < step.gain) {
      step = step_of(components, i, steps.back().from, step.to);
      steps.pop_back();
    }
    steps.push_back(step);
  }
  std::erase_if(steps, [](const Step& s) { return !(s.gain > 0); });
  return steps;
}

double cost_of(std::span<const RankChoice> components, const std::vector<std::int64_t>& ranks) {
  double cost = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) cost += components[i].cost * static_cast<double>(ranks[i]);
  return cost;
}

}  // namespace

Allocation allocate_ranks(std::span<const RankChoice> components, double budget) {
  if (std::isnan(budget)) fail("budget of ranks: expected a number, found {}", budget);
  std::vector<std::vector<std::int64_t>> possible;
  std::vector<Step> steps;
  Allocation allocation;
  for (std::size_t i = 0; i < components.size(); ++i) {
    check(components[i], i);
    possible.push_back(possible_ranks(components[i]));
    allocation.ranks.push_back(possible[i][0]);
    const std::vector<Step> own = hull(components, i, possible[i]);
    steps.insert(steps.end(), own.begin(), own.end());
  }
  const double least = cost_of(components, allocation.ranks);
  if (least > budget)
    fail("budget of ranks: expected at least {}, the cost of the least ranks, found {}", least, budget);

  const auto take_if_it_fits = [&](const Step& step) {
    std::vector<std::int64_t> ranks = allocation.ranks;
    ranks[step.component] = step.to;
    if (cost_of(components, ranks) > budget) return false;
    allocation.ranks = std::move(ranks);
    return true;
  };
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.gain > b.gain; });
  for (const Step& step : steps)
    if (allocation.ranks[step.component] == step.from) take_if_it_fits(step);

  std::vector<Step> rest;
  do {
    rest.clear();
    for (std::size_t i = 0; i < components.size(); ++i)
      for (const std::int64_t rank : possible[i])
        if (rank > allocation.ranks[i]) {
          const Step step = step_of(components, i, allocation.ranks[i], rank);
          if (step.gain > 0) rest.push_back(step);
        }
    std::stable_sort(rest.begin(), rest.end(), [](const Step& a, const Step& b) { return a.gain > b.gain; });
  } while (std::any_of(rest.begin(), rest.end(), take_if_it_fits));

  allocation.cost = cost_of(components, allocation.ranks);
  for (std::size_t i = 0; i < components.size(); ++i)
    allocation.loss += components[i].weight * components[i].loss[allocation.ranks[i]];
  return allocation;
}

}  // namespace narrows
