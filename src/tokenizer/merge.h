// The merging loop that byte-level BPE and SPM share: join the neighbouring pair of the smallest priority,
// the leftmost of equals, until no pair can be joined.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "tokenizer/token_index.h"

namespace narrows {

struct Symbol {
  TokenId id = kNoToken;
  std::uint32_t begin = 0;   // of the symbol's bytes in the text
  std::uint32_t length = 0;  // in bytes
};

struct Join {
  std::uint32_t priority = kNever;
  TokenId id = kNoToken;  // what the pair becomes
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
};

// `join_of(left, right)` gives the Join of two neighbouring symbols. O(n log n); short sequences go without
// the queue.
class Merger {
 public:
  template <typename JoinOf>
  void merge(std::vector<Symbol>& symbols, const JoinOf& join_of) {
    if (symbols.size() < 2) return;
    if (symbols.size() <= kShort) {
      merge_short(symbols, join_of);
    } else {
      merge_long(symbols, join_of);
    }
  }

 private:
  static constexpr std::size_t kShort = 48;
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  struct Link {
    Join join;  // with the next symbol
    std::uint32_t previous, next;
  };

  static void absorb(Symbol& left, const Symbol& right, TokenId id) {
    left.id = id;
    left.length += right.length;
  }

  template <typename JoinOf>
  void merge_short(std::vector<Symbol>& symbols, const JoinOf& join_of) {
    Join joins[kShort];
    std::size_t pairs = symbols.size() - 1;
    for (std::size_t i = 0; i < pairs; ++i) joins[i] = join_of(symbols[i], symbols[i + 1]);
    while (pairs > 0) {
      const auto by_priority = [](const Join& a, const Join& b) { return a.priority < b.priority; };
      const auto best = static_cast<std::size_t>(std::min_element(joins, joins + pairs, by_priority) - joins);
      if (joins[best].priority == Join::kNever) break;
      absorb(symbols[best], symbols[best + 1], joins[best].id);
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      std::copy(joins + best + 1, joins + pairs, joins + best);
      --pairs;
      if (best > 0) joins[best - 1] = join_of(symbols[best - 1], symbols[best]);
      if (best < pairs) joins[best] = join_of(symbols[best], symbols[best + 1]);
    }
  }

  template <typename JoinOf>
  void merge_long(std::vector<Symbol>& symbols, const JoinOf& join_of) {
    const auto count = static_cast<std::uint32_t>(symbols.size());
    links_.resize(count);
    queue_.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool last = i + 1 == count;
      const Join join = last ? Join{} : join_of(symbols[i], symbols[i + 1]);
      links_[i] = {join, i == 0 ? kNone : i - 1, last ? kNone : i + 1};
      if (join.priority != Join::kNever) queue_.push_back(key(join, i));
    }
    std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
      const std::uint64_t top = queue_.back();
      queue_.pop_back();
      const auto left = static_cast<std::uint32_t>(top);
      // An entry whose pair has changed since is recognised by its priority: symbols joined away have kNever.
      if (links_[left].join.priority != static_cast<std::uint32_t>(top >> 32)) continue;
      const std::uint32_t right = links_[left].next;
      absorb(symbols[left], symbols[right], links_[left].join.id);
      symbols[right].length = 0;
      links_[right].join = {};
      links_[left].next = links_[right].next;
      if (links_[left].next != kNone) links_[links_[left].next].previous = left;
      update(symbols, join_of, left);
      if (links_[left].previous != kNone) update(symbols, join_of, links_[left].previous);
    }
    std::erase_if(symbols, [](const Symbol& symbol) { return symbol.length == 0; });
  }

  template <typename JoinOf>
  void update(const std::vector<Symbol>& symbols, const JoinOf& join_of, std::uint32_t left) {
    const std::uint32_t right = links_[left].next;
    const Join join = right == kNone ? Join{} : join_of(symbols[left], symbols[right]);
    links_[left].join = join;
    if (join.priority == Join::kNever) return;
    queue_.push_back(key(join, left));
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  }

  static std::uint64_t key(const Join& join, std::uint32_t left) {
    return std::uint64_t{join.priority} << 32 | left;
  }

  std::vector<Link> links_;
  std::vector<std::uint64_t> queue_;
};

}  // namespace narrows
