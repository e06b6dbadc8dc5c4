#include "model/kv_cache.h"

#include <algorithm>
#include <cmath>

namespace narrows {

DenseCache::DenseCache(const ModelSpec& spec, KvFormat format) {
  for (const LayerSpec& layer : spec.layer)
    layers_.push_back({{layer.kv_heads, layer.d_qk, layer.d_vo, format}, layer.window, {}});
}

void DenseCache::truncate(std::int64_t length) {
  length_ = std::min(length_, length);
  // The next token at `length_` sees back as far as its window: all of that must still be here.
  for (const LayerPages& layer : layers_)
    if (layer.window > 0 && std::max<std::int64_t>(length_ - layer.window + 1, 0) < first_kept_) length_ = 0;
  if (length_ == 0) first_kept_ = 0;
  const std::size_t kept = static_cast<std::size_t>((length_ + kPageTokens - 1) / kPageTokens);
  for (LayerPages& layer : layers_) {
    for (std::size_t p = kept; p < layer.pages.size(); ++p) give_back(layer, p);
    layer.pages.resize(std::min(layer.pages.size(), kept));
  }
}

void DenseCache::give_back(LayerPages& layer, std::size_t page) {
  if (layer.pages[page].data) pool_.give(layer.pages[page].data, layer.shape.page_bytes());
  layer.pages[page].data = nullptr;
}

std::size_t DenseCache::bytes() const {
  std::size_t bytes = 0;
  for (const LayerPages& layer : layers_)
    for (const KvPage& page : layer.pages) bytes += page.data ? layer.shape.page_bytes() : 0;
  return bytes;
}

std::size_t DenseCache::bytes_read() const {
  std::size_t bytes = 0;
  for (const LayerPages& layer : layers_) {
    const std::int64_t seen = layer.window > 0 ? std::min<std::int64_t>(length_, layer.window) : length_;
    bytes += static_cast<std::size_t>(seen) * layer.shape.page_bytes() / kPageTokens;
  }
  return bytes;
}

void DenseCache::reserve(std::int64_t end) {
  for (LayerPages& layer : layers_) {
    if (layer.shape.kv_heads == 0) continue;
    layer.pages.resize(std::max(layer.pages.size(), static_cast<std::size_t>((end + kPageTokens - 1) / kPageTokens)));
    for (std::size_t p = static_cast<std::size_t>(length_ / kPageTokens); p < layer.pages.size(); ++p)
      if (!layer.pages[p].data) layer.pages[p].data = pool_.take(layer.shape.page_bytes());
  }
}

void DenseCache::advance(std::int64_t end) {
  length_ = end;
  for (LayerPages& layer : layers_) {
    if (layer.window == 0 || layer.shape.kv_heads == 0) continue;
    const std::int64_t unseen = (end - layer.window + 1) / kPageTokens;  // pages that lie wholly before the window
    for (std::int64_t p = unseen - 1; p >= 0 && layer.pages[static_cast<std::size_t>(p)].data; --p) {
      give_back(layer, static_cast<std::size_t>(p));
      first_kept_ = std::max(first_kept_, (p + 1) * kPageTokens);
    }
  }
}

std::size_t dense_cache_bytes(const ModelSpec& spec, KvFormat format, std::int64_t length) {
  std::size_t bytes = 0;
  for (const LayerSpec& layer : spec.layer) {
    const std::int64_t first = layer.window > 0 ? std::max<std::int64_t>(length - layer.window + 1, 0) / kPageTokens : 0;
    const std::int64_t pages = (length + kPageTokens - 1) / kPageTokens - first;
    bytes += static_cast<std::size_t>(pages) * KvShape{layer.kv_heads, layer.d_qk, layer.d_vo, format}.page_bytes();
  }
  return bytes;
}

DenseAttention::DenseAttention(const ModelSpec& spec, KvFormat format) : spec_(spec), format_(format) {
  if (spec.positions != Positions::Alibi) return;
  // Press et al., arXiv 2108.12409: a geometric sequence; heads beyond a power of two interleave the next one's.
  const int heads = spec.layer[0].heads;
  int power = 1;
  while (2 * power <= heads) power *= 2;
  for (int h = 0; h < heads; ++h) {
    const double exponent = h < power ? (h + 1.0) / power : (2.0 * (h - power) + 1) / (2 * power);
    alibi_slopes_.push_back(static_cast<float>(std::exp2(-spec.alibi_max_bias * exponent)) *
                            (spec.alibi_scaled ? spec.layer[0].score_scale : 1));
  }
}

std::unique_ptr<SequenceCache> DenseAttention::new_sequence() const {
  return std::make_unique<DenseCache>(spec_, format_);
}

void DenseAttention::begin(const Batch& batch) {
  for (const Run& run : batch.runs)
    static_cast<DenseCache*>(run.cache)->reserve(run.position + static_cast<std::int64_t>(run.tokens.size()));
}

void DenseAttention::end(ThreadPool&, const Batch& batch) {
  for (const Run& run : batch.runs)
    static_cast<DenseCache*>(run.cache)->advance(run.position + static_cast<std::int64_t>(run.tokens.size()));
}

void DenseAttention::attend(int index, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) {
  const LayerSpec& layer = spec_.layer[static_cast<std::size_t>(index)];
  const QkvWidths w{layer};
  for (const Run& run : batch.runs) {
    LayerPages& pages = static_cast<DenseCache*>(run.cache)->layer(index);
    pool.share(static_cast<std::int64_t>(run.tokens.size()), 8, [&](int, Range range) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        const float* k = qkv + (run.first_row + t) * w.qkv + w.q;
        const std::int64_t position = run.position + t;
        store_kv(pages.shape, pages.pages[static_cast<std::size_t>(position / kPageTokens)].data, position % kPageTokens, k,
                 k + w.k);
      }
    });
  }
  make_tiles(index, batch, qkv, out);
  tiles_.attend({layer.score_scale, spec_.score_cap}, pool);
}

void DenseAttention::make_tiles(int index, const Batch& batch, const float* qkv, float* out) {
  const LayerSpec& layer = spec_.layer[static_cast<std::size_t>(index)];
  const QkvWidths w{layer};
  const int group = layer.heads / layer.kv_heads;
  tiles_.clear();
  for (const Run& run : batch.runs) {
    LayerPages& pages = static_cast<DenseCache*>(run.cache)->layer(index);
    const std::int64_t queries = static_cast<std::int64_t>(run.tokens.size()) * group;
    for (int kv_head = 0; kv_head < layer.kv_heads; ++kv_head)
      tiles_.add(pages.shape, pages.pages, kv_head, queries, [&](std::int64_t i, QueryRow& query) {
        const std::int64_t token = i / group, row = run.first_row + token, position = run.position + token;
        const std::int64_t head = kv_head * group + i % group;
        query = {qkv + row * w.qkv + head * layer.d_qk,
                 layer.window > 0 ? std::max<std::int64_t>(position - layer.window + 1, 0) : 0, position + 1,
                 alibi_slopes_.empty() ? 0 : alibi_slopes_[static_cast<std::size_t>(head)]};
        return out + row * w.out + head * layer.d_vo;
      });
  }
}

}  // namespace narrows
