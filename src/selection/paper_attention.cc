#include "selection/paper_attention.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "kernels/attention.h"
#include "selection/representatives.h"

namespace narrows {
namespace {

// One layer of one sequence. Keys and values lie in pages by the representatives' order, not by position.
struct SparseLayer {
  KvShape shape;
  AlignedVector<float> inputs;            // [tokens][d]
  std::vector<TokenRow> representatives;  // positions, ascending
  std::vector<TokenRow> nearest;          // [tokens]: who stands for each
  AlignedVector<std::byte> pages;         // [⌈representatives / kPageTokens⌉][page bytes]
  AlignedVector<float> outputs;           // [representatives][heads · d_vo]
};

class SparseCache final : public SequenceCache {
 public:
  explicit SparseCache(const ModelSpec& spec) : d_(spec.d) {
    for (const LayerSpec& layer : spec.layer)
      layers_.push_back({{layer.kv_heads, layer.d_qk, layer.d_vo, KvFormat::F32}, {}, {}, {}, {}, {}});
  }
  std::int64_t length() const override { return length_; }
  void truncate(std::int64_t length) override {
    length_ = std::min(length_, length);
    for (SparseLayer& layer : layers_) {
      auto& reps = layer.representatives;
      const std::size_t kept =
          static_cast<std::size_t>(std::lower_bound(reps.begin(), reps.end(), length_) - reps.begin());
      if (!reps.empty()) layer.outputs.resize(layer.outputs.size() / reps.size() * kept);
      reps.resize(kept);
      layer.inputs.resize(static_cast<std::size_t>(length_ * d_));
    }
  }
  std::size_t bytes() const override {
    std::size_t bytes = 0;
    for (const SparseLayer& l : layers_)
      bytes += (l.inputs.size() + l.outputs.size() + l.nearest.size() + l.representatives.size()) * 4 +
               l.pages.size();
    return bytes;
  }
  std::size_t bytes_read() const override {
    std::size_t bytes = 0;
    for (const SparseLayer& l : layers_)
      bytes += l.representatives.size() * l.shape.page_bytes() / kPageTokens;
    return bytes;
  }
  SparseLayer& layer(int index) { return layers_[static_cast<std::size_t>(index)]; }
  void advance(std::int64_t end) { length_ = end; }

 private:
  std::int64_t d_, length_ = 0;
  std::vector<SparseLayer> layers_;
};

class PaperAttention final : public AttentionPolicy {
 public:
  PaperAttention(const ModelSpec& spec, float tau) : spec_(spec), threshold_(selection_threshold(tau)) {
    if (spec.positions == Positions::Alibi)
      fail("attention among representatives: expected a model without ALiBi");
  }
  std::unique_ptr<SequenceCache> new_sequence() const override {
    return std::make_unique<SparseCache>(spec_);
  }
  void begin(const Batch&) override {}
  void end(ThreadPool&, const Batch& batch) override {
    for (const Run& run : batch.runs)
      static_cast<SparseCache*>(run.cache)->advance(run.position + std::ssize(run.tokens));
  }

  void observe(int index, ThreadPool& pool, const Batch& batch, const float* x) override {
    for (const Run& run : batch.runs) {
      auto& cache = *static_cast<SparseCache*>(run.cache);
      SparseLayer& layer = cache.layer(index);
      const std::int64_t count = std::ssize(run.tokens), d = spec_.d;
      layer.inputs.resize(static_cast<std::size_t>(run.position * d));
      layer.inputs.insert(layer.inputs.end(), x + run.first_row * d, x + (run.first_row + count) * d);
      rows_.assign(layer.inputs.data(), run.position + count, d, pool, "attention among representatives");
      layer.representatives =
          index == 0 ? select_independently(rows_, threshold_, pool).representatives
                     : select_by_cascade(rows_, threshold_, cache.layer(index - 1).representatives, pool)
                           .representatives;
      layer.nearest = nearest_representatives(rows_, layer.representatives, pool);
    }
  }

  void attend(int index, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) override {
    for (const Run& run : batch.runs)
      attend(spec_.layer[static_cast<std::size_t>(index)], static_cast<SparseCache*>(run.cache)->layer(index),
             pool, run, qkv, out);
  }

 private:
  void attend(const LayerSpec& spec, SparseLayer& layer, ThreadPool& pool, const Run& run, const float* qkv,
              float* out) {
    const std::int64_t q_width = std::int64_t{spec.heads} * spec.d_qk,
                       k_width = std::int64_t{spec.kv_heads} * spec.d_qk;
    const std::int64_t width = q_width + k_width + std::int64_t{spec.kv_heads} * spec.d_vo;
    const std::int64_t out_width = std::int64_t{spec.heads} * spec.d_vo;
    const auto& reps = layer.representatives;
    const auto page_of = [&](std::int64_t r) {
      return layer.pages.data() + static_cast<std::size_t>(r / kPageTokens) * layer.shape.page_bytes();
    };
    const auto ordinal = [&](std::int64_t position) {
      return std::lower_bound(reps.begin(), reps.end(), position) - reps.begin();
    };
    const std::int64_t first = ordinal(run.position), end = std::ssize(reps);
    layer.pages.resize(static_cast<std::size_t>((end + kPageTokens - 1) / kPageTokens) *
                       layer.shape.page_bytes());
    layer.outputs.resize(static_cast<std::size_t>(end * out_width));
    for (std::int64_t r = first; r < end; ++r) {
      const float* k =
          qkv + (run.first_row + reps[static_cast<std::size_t>(r)] - run.position) * width + q_width;
      store_kv(layer.shape, page_of(r), r % kPageTokens, k, k + k_width);
    }
    const int group = spec.heads / spec.kv_heads;
    const auto padded = static_cast<std::size_t>(layer.shape.padded_d_vo());
    buffers_.resize(2 * padded * static_cast<std::size_t>(pool.size()));
    pool.share(end - first, 1, [&](int thread, Range range) {
      float* own = buffers_.data() + 2 * padded * static_cast<std::size_t>(thread);
      for (std::int64_t r = first + range.begin; r < first + range.end; ++r) {
        const std::int64_t position = reps[static_cast<std::size_t>(r)];
        const std::int64_t from = spec.window > 0 ? ordinal(position - spec.window + 1) : 0;
        for (int head = 0; head < spec.heads; ++head) {
          const QueryRow query{qkv + (run.first_row + position - run.position) * width + head * spec.d_qk,
                               from, r + 1};
          AttentionState running{0, 0, own}, partial{0, 0, own + padded};
          for (std::int64_t p = from / kPageTokens; p * kPageTokens <= r; ++p) {
            attend_page(layer.shape, page_of(p * kPageTokens), head / group, p * kPageTokens,
                        {spec.score_scale, spec_.score_cap}, {&query, 1}, {&partial, 1});
            merge_attention(running, partial, spec.d_vo);
          }
          finish_attention(running, layer.outputs.data() + r * out_width + head * spec.d_vo, spec.d_vo);
        }
      }
    });
    for (std::int64_t t = 0; t < std::ssize(run.tokens); ++t)
      std::copy_n(layer.outputs.data() +
                      ordinal(layer.nearest[static_cast<std::size_t>(run.position + t)]) * out_width,
                  out_width, out + (run.first_row + t) * out_width);
  }

  const ModelSpec& spec_;
  const float threshold_;
  UnitRows rows_;
  AlignedVector<float> buffers_;
};

}  // namespace

std::unique_ptr<AttentionPolicy> paper_attention(const ModelSpec& spec, float tau) {
  return std::make_unique<PaperAttention>(spec, tau);
}

}  // namespace narrows
