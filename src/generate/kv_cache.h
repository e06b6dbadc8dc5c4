// Dense attention: every key and value is kept, in pages.
#pragma once
#include <vector>

#include "base/aligned.h"
#include "kernels/attention.h"
#include "model/attention_policy.h"

namespace narrows {

// Pages of one layer by their number; a page that a sliding window has left behind is given back.
struct LayerPages {
  KvShape shape;
  int window = 0;
  std::vector<AlignedVector<std::byte>> pages;  // [page]; empty: not held
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
  std::vector<LayerPages> layers_;
  std::int64_t length_ = 0;
  std::int64_t first_kept_ = 0;  // positions before this are gone from some layer
};

// Bytes that DenseCache holds for `length` positions.
std::size_t dense_cache_bytes(const ModelSpec& spec, KvFormat format, std::int64_t length);

class DenseAttention final : public AttentionPolicy {
 public:
  DenseAttention(const ModelSpec& spec, KvFormat format);  // spec must outlive it
  ~DenseAttention() override;
  std::unique_ptr<SequenceCache> new_sequence() const override;
  void begin(const Batch& batch) override;
  void end(const Batch& batch) override;
  void attend(int layer, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) override;

 private:
  struct Tile;

  const ModelSpec& spec_;
  KvFormat format_;
  std::vector<float> alibi_slopes_;  // [heads of a layer] where positions are ALiBi
  std::vector<Tile> tiles_;          // of the layer at hand
  AlignedVector<float> partial_;     // out of each state
  std::vector<AttentionState> states_;
};

}  // namespace narrows
