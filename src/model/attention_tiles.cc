#include "model/attention_tiles.h"

#include <algorithm>

namespace narrows {
namespace {

void attend_page_of(const ScoreRule& rule, const AttentionTile& tile, std::int64_t number, std::span<AttentionState> into) {
  const KvPage& page = (*tile.pages)[static_cast<std::size_t>(number)];
  const std::span<const QueryRow> queries(tile.queries.data(), static_cast<std::size_t>(tile.count));
  attend_page(tile.shape->with_page(page.tokens), page.data, tile.kv_head, number * kPageTokens, rule, queries, into,
              {page.bias, nullptr});
}

}  // namespace

void AttentionTiles::attend(const ScoreRule& rule, ThreadPool& pool) {
  // With few tiles (decode) their pages are shared out and merged afterwards; with many, each tile stays with a thread.
  if (tiles_.size() < 4 * static_cast<std::size_t>(pool.size()))
    attend_pages(rule, pool);
  else
    attend_tiles(rule, pool);
}

void AttentionTiles::attend_tiles(const ScoreRule& rule, ThreadPool& pool) {
  const int d_vo = tiles_.front().shape->d_vo;
  const std::size_t padded = static_cast<std::size_t>(tiles_.front().shape->padded_d_vo());
  const std::size_t buffers = 2 * kMostQueryRows * static_cast<std::size_t>(pool.size());
  if (partial_.size() < buffers * padded) partial_.resize(buffers * padded);
  pool.share(std::ssize(tiles_), 1, [&](int thread, Range range) {
    std::array<AttentionState, kMostQueryRows> running, partial;
    float* own = partial_.data() + 2 * kMostQueryRows * static_cast<std::size_t>(thread) * padded;
    for (std::size_t i = 0; i < kMostQueryRows; ++i) {
      running[i].out = own + i * padded;
      partial[i].out = own + (kMostQueryRows + i) * padded;
    }
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      const AttentionTile& tile = tiles_[static_cast<std::size_t>(t)];
      const std::size_t count = static_cast<std::size_t>(tile.count);
      for (std::size_t i = 0; i < count; ++i) running[i].sum = 0;
      for (std::int64_t page = tile.first_page; page < tile.end_page; ++page) {
        attend_page_of(rule, tile, page, {partial.data(), count});
        for (std::size_t i = 0; i < count; ++i) merge_attention(running[i], partial[i], d_vo);
      }
      for (std::size_t i = 0; i < count; ++i) finish_attention(running[i], tile.out[i], d_vo);
    }
  });
}

void AttentionTiles::attend_pages(const ScoreRule& rule, ThreadPool& pool) {
  const int d_vo = tiles_.front().shape->d_vo;
  const std::size_t padded = static_cast<std::size_t>(tiles_.front().shape->padded_d_vo());
  pages_.clear();
  rows_.clear();
  std::size_t states = 0;
  for (const AttentionTile& tile : tiles_) {
    for (int i = 0; i < tile.count; ++i) rows_.push_back({&tile, i, states});
    for (std::int64_t page = tile.first_page; page < tile.end_page; ++page) {
      pages_.push_back({&tile, page, states});
      states += static_cast<std::size_t>(tile.count);
    }
  }
  if (states_.size() < states) states_.resize(states);
  if (partial_.size() < (states + rows_.size()) * padded) partial_.resize((states + rows_.size()) * padded);
  for (std::size_t i = 0; i < states; ++i) states_[i].out = partial_.data() + i * padded;
  pool.share(std::ssize(pages_), 1, [&](int, Range range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const PageItem& item = pages_[static_cast<std::size_t>(i)];
      attend_page_of(rule, *item.tile, item.page, {states_.data() + item.state, static_cast<std::size_t>(item.tile->count)});
    }
  });
  pool.share(std::ssize(rows_), 1, [&](int, Range range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const RowItem& item = rows_[static_cast<std::size_t>(i)];
      AttentionState running{0, 0, partial_.data() + (states + static_cast<std::size_t>(i)) * padded};
      for (std::int64_t page = 0; page < item.tile->end_page - item.tile->first_page; ++page)
        merge_attention(running,
                        states_[item.state + static_cast<std::size_t>(page * item.tile->count + item.row)], d_vo);
      finish_attention(running, item.tile->out[static_cast<std::size_t>(item.row)], d_vo);
    }
  });
}

}  // namespace narrows
