// Representative tokens: those whose cosines with what precedes them stay below 1 - tau².
//
//   independent  cosines with all preceding tokens: a Gram matrix of T × T, its lower triangle
//   cascade      starts from the layer before: a Gram matrix of the inherited tokens, then one of the others
//   with
//                those that remain. Each test is against some preceding tokens, never against others, and a
//                cosine has the same bits in either, so the cascade's set holds the independent one.
//   cover        greedy, from nothing: cosines with preceding representatives
//
// Results depend neither on the number of threads nor on how the work is cut.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "selection/unit_rows.h"

namespace narrows {

using TokenRow = std::int32_t;

// 1 - tau². Throws Error unless tau is from 0.001, below which rounding tells, to less than 1. 0 means that
// nothing is selected at all, not a threshold of 1, and is for callers to know.
float selection_threshold(float tau);

struct Selection {
  std::vector<TokenRow> representatives;  // ascending
  // Cosines computed, d multiply-adds each. Rows are taken kGramRows at a time, with the columns that the
  // last of them needs, so this is up to a few in a hundred above the pairs compared.
  std::int64_t cosines = 0;
  // Against the layer before (cascade only).
  std::int64_t removed = 0, added = 0;
};

// Each token's largest cosine with those before it; -1 for the first. One Gram matrix serves every tau.
struct PrecedingMaxima {
  std::vector<float> cosine;  // [tokens]
  std::int64_t cosines = 0;
  Selection below(float threshold) const;
};
PrecedingMaxima preceding_maxima(const UnitRows& x, ThreadPool& pool);

Selection select_independently(const UnitRows& x, float threshold, ThreadPool& pool);

// `inherited`: the representatives of the layer before, ascending. Throws Error if they are no ascending
// tokens of x.
Selection select_by_cascade(const UnitRows& x, float threshold, std::span<const TokenRow> inherited,
                            ThreadPool& pool);

Selection select_by_cover(const UnitRows& x, float threshold, ThreadPool& pool);

// For each token the representative that stands for it: itself, or the nearest (by cosine, of equals the
// earliest) of those before it. Token 0 must be a representative, as it is in every selection.
std::vector<TokenRow> nearest_representatives(const UnitRows& x, std::span<const TokenRow> representatives,
                                              ThreadPool& pool);

}  // namespace narrows
