// Mixed ranks: one budget shared by components that lose differently by rank. METHODS, section 3.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace narrows {

struct RankChoice {
  std::vector<double> loss;  // by rank, from 0 to the full rank (loss_by_rank() and the like)
  double cost = 1;           // of one unit of rank, e.g. parameters; above 0
  double weight = 1;         // of the loss in the sum: the model's sensitivity to it; at least 0
  std::int64_t step = 1;     // ranks are multiples of it, or the full rank
  std::int64_t minimum = 1;  // at least 1
};

struct Allocation {
  std::vector<std::int64_t> ranks;
  double cost = 0;  // Σ cost · rank, at most the budget
  double loss = 0;  // Σ weight · loss
};

// Ranks that make Σ weight · loss small within the budget. All start at the least possible; then steps along
// the lower convex hulls of the curves, those with the largest gain for their cost first, as long as they fit
// (optimal at the budgets that this reaches exactly, and within the gain of the first step that did not fit
// of the optimum always); what is left of the budget goes to the best step to any larger rank that fits. Of
// equals, the first component's smallest rank. No rank rises for nothing. Throws Error if a number is out of
// range or not finite, or if the least ranks are above the budget.
Allocation allocate_ranks(std::span<const RankChoice> components, double budget);

}  // namespace narrows
