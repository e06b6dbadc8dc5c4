// Attention of many queries over pages, shared among threads: what attention policies have in common.
#pragma once
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/threads.h"
#include "kernels/attention.h"

namespace narrows {

struct KvPage {
  std::byte* data = nullptr;  // nullptr: not held
  float* bias = nullptr;      // [kPageTokens], or nullptr: none
  std::int64_t tokens = kPageTokens;
};

// Up to kMostQueryRows queries that share a KV head, and the pages that they see, by number.
struct AttentionTile {
  const KvShape* shape;
  const std::vector<KvPage>* pages;
  int kv_head, count;
  std::array<QueryRow, kMostQueryRows> queries;
  std::array<float*, kMostQueryRows> out;
  std::int64_t first_page, end_page;
};

class AttentionTiles {
 public:
  void clear() { tiles_.clear(); }
  // Adds `count` queries of one KV head, query(i, row) telling the i-th and where its output goes.
  template <typename Query>
  void add(const KvShape& shape, const std::vector<KvPage>& pages, int kv_head, std::int64_t count, Query&& query) {
    for (std::int64_t first = 0; first < count; first += kMostQueryRows) {
      AttentionTile& tile = tiles_.emplace_back();
      tile.shape = &shape;
      tile.pages = &pages;
      tile.kv_head = kv_head;
      tile.count = static_cast<int>(std::min<std::int64_t>(kMostQueryRows, count - first));
      std::int64_t first_key = INT64_MAX, end_key = 0;
      for (int i = 0; i < tile.count; ++i) {
        QueryRow& row = tile.queries[static_cast<std::size_t>(i)];
        tile.out[static_cast<std::size_t>(i)] = query(first + i, row);
        first_key = std::min(first_key, row.first_key);
        end_key = std::max(end_key, row.end_key);
      }
      tile.first_page = first_key / kPageTokens;
      tile.end_page = (end_key + kPageTokens - 1) / kPageTokens;
    }
  }
  // Computes them all; all values of d_vo must be equal.
  void attend(const ScoreRule& rule, ThreadPool& pool);

 private:
  // A tile's work at one page, and the merging of one of its rows: `state` is its first one in states_.
  struct PageItem {
    const AttentionTile* tile;
    std::int64_t page;
    std::size_t state;
  };
  struct RowItem {
    const AttentionTile* tile;
    int row;
    std::size_t state;
  };
  void attend_tiles(const ScoreRule& rule, ThreadPool& pool);
  void attend_pages(const ScoreRule& rule, ThreadPool& pool);

  std::vector<AttentionTile> tiles_;
  std::vector<PageItem> pages_;
  std::vector<RowItem> rows_;
  AlignedVector<float> partial_;  // out of each state
  std::vector<AttentionState> states_;
};

}  // namespace narrows
