#include "selection/representatives.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/gram.h"

namespace narrows {
namespace {

using Tokens = std::span<const TokenRow>;

constexpr float kLeastTau = 0.001f;
constexpr std::int64_t kCoverBlock = 16 * kGramRows;
constexpr float kNone = -1;  // the largest of no cosines

std::vector<TokenRow> all_tokens(std::int64_t count) {
  std::vector<TokenRow> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Cosines of each row with the columns before it; both ascending. Calls use(i, c, n, cosines): those of
// rows[i] with columns[c] to columns[c + n - 1]; of one row from one thread, in ascending order. Returns how
// many were computed.
template <typename Use>
std::int64_t with_preceding(const UnitRows& x, Tokens rows, Tokens columns, ThreadPool& pool, Use&& use) {
  std::vector<std::int64_t> before(rows.size());  // columns before each row
  std::int64_t column = 0, computed = 0;
  const auto count = std::ssize(rows);
  for (std::int64_t i = 0; i < count; ++i) {
    while (column < std::ssize(columns) &&
           columns[static_cast<std::size_t>(column)] < rows[static_cast<std::size_t>(i)])
      ++column;
    before[static_cast<std::size_t>(i)] = column;
  }
  for (std::int64_t i = 0; i < count; i += kGramRows) {
    const std::int64_t end = std::min(i + kGramRows, count);
    computed += (end - i) * before[static_cast<std::size_t>(end - 1)];
  }
  // Columns outside, so that a block of them stays in the second-level cache while the rows pass.
  pool.share(count, kGramRows, [&](int, Range range) {
    alignas(kCacheLine) float cosines[kGramRows * kGramColumns];
    const std::int64_t most = before[static_cast<std::size_t>(range.end - 1)];
    for (std::int64_t c = 0; c < most; c += kGramColumns)
      for (std::int64_t i = range.begin; i < range.end; i += kGramRows) {
        const std::int64_t end = std::min(i + kGramRows, range.end);
        const std::int64_t n = std::min(before[static_cast<std::size_t>(end - 1)] - c, kGramColumns);
        if (n <= 0) continue;
        gram_block(x.data(), x.stride(),
                   rows.subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(end - i)),
                   columns.subspan(static_cast<std::size_t>(c), static_cast<std::size_t>(n)), cosines);
        for (std::int64_t row = i; row < end; ++row) {
          const std::int64_t needed = std::min(before[static_cast<std::size_t>(row)] - c, n);
          if (needed > 0) use(row, c, needed, cosines + (row - i) * kGramColumns);
        }
      }
  });
  return computed;
}

std::int64_t largest_with_preceding(const UnitRows& x, Tokens rows, Tokens columns, ThreadPool& pool,
                                    std::vector<float>& best) {
  best.assign(rows.size(), kNone);
  return with_preceding(x, rows, columns, pool,
                        [&](std::int64_t i, std::int64_t, std::int64_t n, const float* cosines) {
                          float& most = best[static_cast<std::size_t>(i)];
                          most = largest(cosines, n, most);
                        });
}

std::vector<TokenRow> those_below(float threshold, Tokens tokens, const std::vector<float>& best) {
  std::vector<TokenRow> kept;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (best[i] < threshold) kept.push_back(tokens[i]);
  return kept;
}

// Of ascending tokens, in order, those whose cosines with the ones kept before stay below the threshold.
// Blocks of them are compared with all kept so far, then the rest of the block with itself.
std::int64_t cover(const UnitRows& x, float threshold, Tokens tokens, ThreadPool& pool,
                   std::vector<TokenRow>& kept) {
  std::int64_t computed = 0;
  std::vector<float> best;
  std::vector<std::uint8_t> close(static_cast<std::size_t>(kCoverBlock * kCoverBlock));
  for (std::size_t first = 0; first < tokens.size(); first += kCoverBlock) {
    const Tokens block = tokens.subspan(first, std::min<std::size_t>(kCoverBlock, tokens.size() - first));
    computed += largest_with_preceding(x, block, kept, pool, best);
    const std::vector<TokenRow> rest = those_below(threshold, block, best);
    computed += with_preceding(
        x, rest, rest, pool, [&](std::int64_t i, std::int64_t c, std::int64_t n, const float* cosines) {
          for (std::int64_t j = 0; j < n; ++j)
            close[static_cast<std::size_t>(i * kCoverBlock + c + j)] = cosines[j] >= threshold;
        });
    bool keep[kCoverBlock];
    for (std::size_t i = 0; i < rest.size(); ++i) {
      keep[i] = true;
      for (std::size_t j = 0; j < i && keep[i]; ++j) keep[i] = !(keep[j] && close[i * kCoverBlock + j]);
      if (keep[i]) kept.push_back(rest[i]);
    }
  }
  return computed;
}

void check_ascending(Tokens tokens, std::int64_t count, const char* what) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= count || (i > 0 && tokens[i] <= tokens[i - 1]))
      fail("{}: expected ascending tokens below {}, found {} at {}", what, count, tokens[i], i);
}

std::vector<TokenRow> others(Tokens tokens, std::int64_t count) {
  std::vector<TokenRow> rest;
  rest.reserve(static_cast<std::size_t>(count) - tokens.size());
  std::size_t next = 0;
  for (TokenRow t = 0; t < count; ++t) {
    if (next < tokens.size() && tokens[next] == t)
      ++next;
    else
      rest.push_back(t);
  }
  return rest;
}

}  // namespace

float selection_threshold(float tau) {
  if (tau == 0) fail("tau: 0 means that nothing is selected; expected from {} to less than 1", kLeastTau);
  if (!(tau >= kLeastTau && tau < 1)) fail("tau: expected from {} to less than 1, found {}", kLeastTau, tau);
  return static_cast<float>(1 - static_cast<double>(tau) * tau);
}

Selection PrecedingMaxima::below(float threshold) const {
  Selection selection;
  selection.representatives = those_below(threshold, all_tokens(std::ssize(cosine)), cosine);
  selection.cosines = cosines;
  return selection;
}

PrecedingMaxima preceding_maxima(const UnitRows& x, ThreadPool& pool) {
  PrecedingMaxima maxima;
  const std::vector<TokenRow> all = all_tokens(x.tokens());
  maxima.cosines = largest_with_preceding(x, all, all, pool, maxima.cosine);
  return maxima;
}

Selection select_independently(const UnitRows& x, float threshold, ThreadPool& pool) {
  return preceding_maxima(x, pool).below(threshold);
}

Selection select_by_cascade(const UnitRows& x, float threshold, Tokens inherited, ThreadPool& pool) {
  check_ascending(inherited, x.tokens(), "inherited representatives");
  Selection selection;
  std::vector<TokenRow> survivors, additions;
  selection.cosines = cover(x, threshold, inherited, pool, survivors);
  // One that was dropped is close to a survivor, which stays: it need not be tested again.
  const std::vector<TokenRow> rest = others(inherited, x.tokens());
  std::vector<float> best;
  selection.cosines += largest_with_preceding(x, rest, survivors, pool, best);
  // What survivors leave uncovered competes with its own kind only: the others would not be added in any
  // case.
  selection.cosines += cover(x, threshold, those_below(threshold, rest, best), pool, additions);
  selection.removed = std::ssize(inherited) - std::ssize(survivors);
  selection.added = std::ssize(additions);
  std::merge(survivors.begin(), survivors.end(), additions.begin(), additions.end(),
             std::back_inserter(selection.representatives));
  return selection;
}

Selection select_by_cover(const UnitRows& x, float threshold, ThreadPool& pool) {
  Selection selection;
  selection.cosines = cover(x, threshold, all_tokens(x.tokens()), pool, selection.representatives);
  return selection;
}

std::vector<TokenRow> nearest_representatives(const UnitRows& x, Tokens representatives, ThreadPool& pool) {
  check_ascending(representatives, x.tokens(), "representatives");
  if (representatives.empty() || representatives[0] != 0)
    fail("representatives: expected token 0 among them");
  const std::vector<TokenRow> rest = others(representatives, x.tokens());
  std::vector<float> best(rest.size(), -2);  // below every cosine, rounding included
  std::vector<TokenRow> nearest = all_tokens(x.tokens());
  with_preceding(x, rest, representatives, pool,
                 [&](std::int64_t i, std::int64_t c, std::int64_t n, const float* cosines) {
                   const auto row = static_cast<std::size_t>(i);
                   for (std::int64_t j = 0; j < n; ++j)
                     if (cosines[j] > best[row]) {
                       best[row] = cosines[j];
                       nearest[static_cast<std::size_t>(rest[row])] =
                           representatives[static_cast<std::size_t>(c + j)];
                     }
                 });
  return nearest;
}

}  // namespace narrows
