#include "generate/kv_cache.h"

#include <algorithm>
#include <array>
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
  for (LayerPages& layer : layers_)
    layer.pages.resize(std::min(layer.pages.size(), static_cast<std::size_t>((length_ + kPageTokens - 1) / kPageTokens)));
}

std::size_t DenseCache::bytes() const {
  std::size_t bytes = 0;
  for (const LayerPages& layer : layers_)
    for (const auto& page : layer.pages) bytes += page.size();
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
    layer.pages.resize(std::max(layer.pages.size(), static_cast<std::size_t>((end + kPageTokens - 1) / kPageTokens)));
    for (std::size_t p = static_cast<std::size_t>(length_ / kPageTokens); p < layer.pages.size(); ++p)
      if (layer.pages[p].empty()) layer.pages[p].resize(layer.shape.page_bytes());
  }
}

void DenseCache::advance(std::int64_t end) {
  length_ = end;
  for (LayerPages& layer : layers_) {
    if (layer.window == 0) continue;
    const std::int64_t unseen = (end - layer.window + 1) / kPageTokens;  // pages that lie wholly before the window
    for (std::int64_t p = unseen - 1; p >= 0 && !layer.pages[static_cast<std::size_t>(p)].empty(); --p) {
      layer.pages[static_cast<std::size_t>(p)] = {};
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

// Up to kMostQueryRows queries of one run that share a KV head.
struct DenseAttention::Tile {
  LayerPages* layer;
  int kv_head, count;
  std::array<QueryRow, kMostQueryRows> queries;
  std::array<float*, kMostQueryRows> out;
  std::int64_t first_page, end_page;
  std::size_t first_state = 0;  // of end_page - first_page times `count` states, where pages are shared out
};

DenseAttention::DenseAttention(const ModelSpec& spec, KvFormat format) : spec_(spec), format_(format) {
  if (spec.positions != Positions::Alibi) return;
  // Press et al., arXiv 2108.12409: a geometric sequence; heads beyond a power of two interleave the next one's.
  const int heads = spec.layer[0].heads;
  int power = 1;
  while (2 * power <= heads) power *= 2;
  for (int h = 0; h < heads; ++h) {
    const double exponent = h < power ? (h + 1.0) / power : (2.0 * (h - power) + 1) / (2 * power);
    alibi_slopes_.push_back(static_cast<float>(std::exp2(-spec.alibi_max_bias * exponent)));
  }
}

DenseAttention::~DenseAttention() = default;

std::unique_ptr<SequenceCache> DenseAttention::new_sequence() const {
  return std::make_unique<DenseCache>(spec_, format_);
}

void DenseAttention::begin(const Batch& batch) {
  for (const Run& run : batch.runs)
    static_cast<DenseCache*>(run.cache)->reserve(run.position + static_cast<std::int64_t>(run.tokens.size()));
}

void DenseAttention::end(const Batch& batch) {
  for (const Run& run : batch.runs)
    static_cast<DenseCache*>(run.cache)->advance(run.position + static_cast<std::int64_t>(run.tokens.size()));
}

void DenseAttention::attend(int index, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) {
  const LayerSpec& layer = spec_.layer[static_cast<std::size_t>(index)];
  const int group = layer.heads / layer.kv_heads;
  const std::int64_t q_width = std::int64_t{layer.heads} * layer.d_qk, k_width = std::int64_t{layer.kv_heads} * layer.d_qk;
  const std::int64_t width = q_width + k_width + std::int64_t{layer.kv_heads} * layer.d_vo;
  const std::int64_t out_width = std::int64_t{layer.heads} * layer.d_vo;
  const ScoreRule rule{layer.score_scale, spec_.score_cap};
  const KvShape& shape = static_cast<DenseCache*>(batch.runs.front().cache)->layer(index).shape;
  const std::size_t padded = static_cast<std::size_t>(shape.padded_d_vo());

  tiles_.clear();
  std::size_t states = 0;
  for (const Run& run : batch.runs) {
    LayerPages& pages = static_cast<DenseCache*>(run.cache)->layer(index);
    const std::int64_t queries = static_cast<std::int64_t>(run.tokens.size()) * group;
    for (int kv_head = 0; kv_head < layer.kv_heads; ++kv_head) {
      for (std::int64_t first = 0; first < queries; first += kMostQueryRows) {
        Tile& tile = tiles_.emplace_back();
        tile.layer = &pages;
        tile.kv_head = kv_head;
        tile.count = static_cast<int>(std::min<std::int64_t>(kMostQueryRows, queries - first));
        std::int64_t first_key = run.position, end_key = 0;
        for (int i = 0; i < tile.count; ++i) {
          const std::int64_t token = (first + i) / group, row = run.first_row + token, position = run.position + token;
          const std::int64_t head = kv_head * group + (first + i) % group;
          const std::int64_t from = layer.window > 0 ? std::max<std::int64_t>(position - layer.window + 1, 0) : 0;
          tile.queries[static_cast<std::size_t>(i)] = {
              qkv + row * width + head * layer.d_qk, from, position + 1,
              alibi_slopes_.empty() ? 0 : alibi_slopes_[static_cast<std::size_t>(head)]};
          tile.out[static_cast<std::size_t>(i)] = out + row * out_width + head * layer.d_vo;
          first_key = std::min(first_key, from);
          end_key = std::max(end_key, position + 1);
        }
        tile.first_page = first_key / kPageTokens;
        tile.end_page = (end_key + kPageTokens - 1) / kPageTokens;
        tile.first_state = states;
        states += static_cast<std::size_t>((tile.end_page - tile.first_page) * tile.count);
      }
    }
  }

  // With few tiles (decode) their pages are shared out and merged afterwards; with many, each tile stays with a thread.
  const std::size_t threads = static_cast<std::size_t>(pool.size());
  const bool share_pages = tiles_.size() < 4 * threads;
  const std::size_t buffers = share_pages ? states + tiles_.size() * kMostQueryRows : 2 * kMostQueryRows * threads;
  if (partial_.size() < buffers * padded) partial_.resize(buffers * padded);
  if (share_pages && states_.size() < states) states_.resize(states);
  const auto buffer = [&](std::size_t i) { return partial_.data() + i * padded; };
  const auto attend_one = [&](const Tile& tile, std::int64_t page, std::span<AttentionState> into) {
    attend_page(shape, tile.layer->pages[static_cast<std::size_t>(page)].data(), tile.kv_head, page * kPageTokens, rule,
                {tile.queries.data(), static_cast<std::size_t>(tile.count)}, into);
  };

  pool.run([&](int thread) {
    const std::size_t me = static_cast<std::size_t>(thread);
    for (const Run& run : batch.runs) {
      LayerPages& pages = static_cast<DenseCache*>(run.cache)->layer(index);
      const Range mine = share_of(static_cast<std::int64_t>(run.tokens.size()), thread, pool.size());
      for (std::int64_t t = mine.begin; t < mine.end; ++t) {
        const float* k = qkv + (run.first_row + t) * width + q_width;
        const std::int64_t position = run.position + t;
        store_kv(shape, pages.pages[static_cast<std::size_t>(position / kPageTokens)].data(), position % kPageTokens, k,
                 k + k_width);
      }
    }
    pool.barrier();

    if (!share_pages) {
      std::array<AttentionState, kMostQueryRows> running, partial;
      for (std::size_t i = 0; i < kMostQueryRows; ++i) {
        running[i].out = buffer(2 * kMostQueryRows * me + i);
        partial[i].out = buffer(2 * kMostQueryRows * me + kMostQueryRows + i);
      }
      for (std::size_t t = me; t < tiles_.size(); t += threads) {
        const Tile& tile = tiles_[t];
        const std::size_t count = static_cast<std::size_t>(tile.count);
        for (std::size_t i = 0; i < count; ++i) running[i].sum = 0;
        for (std::int64_t page = tile.first_page; page < tile.end_page; ++page) {
          attend_one(tile, page, {partial.data(), count});
          for (std::size_t i = 0; i < count; ++i) merge_attention(running[i], partial[i], layer.d_vo);
        }
        for (std::size_t i = 0; i < count; ++i) finish_attention(running[i], tile.out[i], layer.d_vo);
      }
      return;
    }

    std::size_t item = 0;
    for (const Tile& tile : tiles_) {
      const std::size_t count = static_cast<std::size_t>(tile.count);
      for (std::int64_t page = tile.first_page; page < tile.end_page; ++page, ++item) {
        if (item % threads != me) continue;
        const std::size_t at = tile.first_state + static_cast<std::size_t>(page - tile.first_page) * count;
        for (std::size_t i = 0; i < count; ++i) states_[at + i].out = buffer(at + i);
        attend_one(tile, page, {states_.data() + at, count});
      }
    }
    pool.barrier();
    for (std::size_t t = me; t < tiles_.size(); t += threads) {
      const Tile& tile = tiles_[t];
      for (std::size_t i = 0; i < static_cast<std::size_t>(tile.count); ++i) {
        AttentionState running{0, 0, buffer(states + t * kMostQueryRows + i)};
        for (std::int64_t page = 0; page < tile.end_page - tile.first_page; ++page)
          merge_attention(running, states_[tile.first_state + static_cast<std::size_t>(page * tile.count) + i], layer.d_vo);
        finish_attention(running, tile.out[i], layer.d_vo);
      }
    }
  });
}

}  // namespace narrows
