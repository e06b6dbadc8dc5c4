// Dense attention: every key and value is kept, in pages.
#pragma once
#include <span>
#include <vector>

#include "base/slab_pool.h"
#include "model/attention_policy.h"
#include "model/attention_tiles.h"

namespace narrows {

// Floats of a row of q, k and v together, of its parts, and of the output.
struct QkvWidths {
  explicit QkvWidths(const LayerSpec& layer)
      : q(std::int64_t{layer.heads} * layer.d_qk),
        k(std::int64_t{layer.kv_heads} * layer.d_qk),
        qkv(q + k + std::int64_t{layer.kv_heads} * layer.d_vo),
        out(std::int64_t{layer.heads} * layer.d_vo) {}
  std::int64_t q, k, qkv, out;
};

// Pages of one layer by their number; a page that a sliding window has left behind is given back.
struct LayerPages {
  KvShape shape;
  int window = 0;
  std::vector<KvPage> pages;
};

// A layer without KV heads holds nothing: there somebody else remembers.
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
  void end(ThreadPool& pool, const Batch& batch) override;
  void attend(int layer, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) override;

 private:
  void make_tiles(int layer, const Batch& batch, const float* qkv, float* out);

  const ModelSpec& spec_;
  KvFormat format_;
  std::vector<float> alibi_slopes_;  // [heads of a layer] where positions are ALiBi
  AttentionTiles tiles_;  // of the layer at hand
};

}  // namespace narrows
