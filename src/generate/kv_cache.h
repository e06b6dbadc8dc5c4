// Dense attention: every key and value is kept, in pages.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/slab_pool.h"
#include "kernels/attention.h"
#include "model/attention_policy.h"

namespace narrows {

// Pages of one layer by their number; a page that a sliding window has left behind is given back.
struct LayerPages {
  KvShape shape;
  int window = 0;
  std::vector<std::byte*> pages;  // [page]; nullptr: not held
};

class DenseCache final : public SequenceCache {
 public:
  DenseCache(const ModelSpec& spec, KvFormat format);
  std::int64_t length() const override { return length_; }
  void truncate(std::int64_t length) override;
  std::size_t bytes() const override;
  std::size_t bytes_read() const override;

  // Makes room for positions [length(), end).
  void reserve(std::int64_t end);
  // Counts the positions before `end` in, and gives back pages that no later token can see.
  void advance(std::int64_t end);
  LayerPages& layer(int index) { return layers_[static_cast<std::size_t>(index)]; }

 private:
  void give_back(LayerPages& layer, std::size_t page);

  SlabPool pool_;
  std::vector<LayerPages> layers_;
  std::int64_t length_ = 0;
  std::int64_t first_kept_ = 0;  // positions before this are gone from some layer
};

// Bytes that DenseCache holds for `length` positions.
std::size_t dense_cache_bytes(const ModelSpec& spec, KvFormat format, std::int64_t length);

class DenseAttention final : public AttentionPolicy {
 public:
  DenseAttention(const ModelSpec& spec, KvFormat format);  // spec must outlive it
  std::unique_ptr<SequenceCache> new_sequence() const override;
  void begin(const Batch& batch) override;
  void end(const Batch& batch) override;
  void attend(int layer, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) override;

 private:
  // Up to kMostQueryRows queries of one run that share a KV head.
  struct Tile {
    const LayerPages* layer;
    int kv_head, count;
    std::array<QueryRow, kMostQueryRows> queries;
    std::array<float*, kMostQueryRows> out;
    std::int64_t first_page, end_page;
  };
  // A tile's work at one page, and the merging of one of its rows: `state` is its first one in states_.
  struct PageItem {
    const Tile* tile;
    std::int64_t page;
    std::size_t state;
  };
  struct RowItem {
    const Tile* tile;
    int row;
    std::size_t state;
  };

  void make_tiles(int layer, const Batch& batch, const float* qkv, float* out);
  void attend_tiles(const LayerSpec& layer, ThreadPool& pool);
  void attend_pages(const LayerSpec& layer, ThreadPool& pool);
  void attend_page_of(const LayerSpec& layer, const Tile& tile, std::int64_t page, std::span<AttentionState> into) const;

  const ModelSpec& spec_;
  KvFormat format_;
  std::vector<float> alibi_slopes_;  // [heads of a layer] where positions are ALiBi
  // Of the layer at hand:
  std::vector<Tile> tiles_;
  std::vector<PageItem> pages_;
  std::vector<RowItem> rows_;
  AlignedVector<float> partial_;  // out of each state
  std::vector<AttentionState> states_;
};

}  // namespace narrows
