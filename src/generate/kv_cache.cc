#include "generate/kv_cache.h"

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
  if (layer.pages[page]) pool_.give(layer.pages[page], layer.shape.page_bytes());
  layer.pages[page] = nullptr;
}

std::size_t DenseCache::bytes() const {
  std::size_t bytes = 0;
  for (const LayerPages& layer : layers_)
    for (const std::byte* page : layer.pages) bytes += page ? layer.shape.page_bytes() : 0;
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
      if (!layer.pages[p]) layer.pages[p] = pool_.take(layer.shape.page_bytes());
  }
}

void DenseCache::advance(std::int64_t end) {
  length_ = end;
  for (LayerPages& layer : layers_) {
    if (layer.window == 0) continue;
    const std::int64_t unseen = (end - layer.window + 1) / kPageTokens;  // pages that lie wholly before the window
    for (std::int64_t p = unseen - 1; p >= 0 && layer.pages[static_cast<std::size_t>(p)]; --p) {
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

namespace {

// Floats of a row of q, k and v together, of its parts, and of the output.
struct Widths {
  explicit Widths(const LayerSpec& layer)
      : q(std::int64_t{layer.heads} * layer.d_qk),
        k(std::int64_t{layer.kv_heads} * layer.d_qk),
        qkv(q + k + std::int64_t{layer.kv_heads} * layer.d_vo),
        out(std::int64_t{layer.heads} * layer.d_vo) {}
  std::int64_t q, k, qkv, out;
};

}  // namespace

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
  const Widths w{layer};
  for (const Run& run : batch.runs) {
    LayerPages& pages = static_cast<DenseCache*>(run.cache)->layer(index);
    pool.share(static_cast<std::int64_t>(run.tokens.size()), 8, [&](int, Range range) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        const float* k = qkv + (run.first_row + t) * w.qkv + w.q;
        const std::int64_t position = run.position + t;
        store_kv(pages.shape, pages.pages[static_cast<std::size_t>(position / kPageTokens)], position % kPageTokens, k,
                 k + w.k);
      }
    });
  }
  make_tiles(index, batch, qkv, out);
  // With few tiles (decode) their pages are shared out and merged afterwards; with many, each tile stays with a thread.
  if (tiles_.size() < 4 * static_cast<std::size_t>(pool.size()))
    attend_pages(layer, pool);
  else
    attend_tiles(layer, pool);
}

void DenseAttention::make_tiles(int index, const Batch& batch, const float* qkv, float* out) {
  const LayerSpec& layer = spec_.layer[static_cast<std::size_t>(index)];
  const Widths w{layer};
  const int group = layer.heads / layer.kv_heads;
  tiles_.clear();
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
              qkv + row * w.qkv + head * layer.d_qk, from, position + 1,
              alibi_slopes_.empty() ? 0 : alibi_slopes_[static_cast<std::size_t>(head)]};
          tile.out[static_cast<std::size_t>(i)] = out + row * w.out + head * layer.d_vo;
          first_key = std::min(first_key, from);
          end_key = std::max(end_key, position + 1);
        }
        tile.first_page = first_key / kPageTokens;
        tile.end_page = (end_key + kPageTokens - 1) / kPageTokens;
      }
    }
  }
}

void DenseAttention::attend_page_of(const LayerSpec& layer, const Tile& tile, std::int64_t page,
                                    std::span<AttentionState> into) const {
  attend_page(tile.layer->shape, tile.layer->pages[static_cast<std::size_t>(page)], tile.kv_head, page * kPageTokens,
              {layer.score_scale, spec_.score_cap}, {tile.queries.data(), static_cast<std::size_t>(tile.count)}, into);
}

void DenseAttention::attend_tiles(const LayerSpec& layer, ThreadPool& pool) {
  const std::size_t padded = static_cast<std::size_t>(tiles_.front().layer->shape.padded_d_vo());
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
      const Tile& tile = tiles_[static_cast<std::size_t>(t)];
      const std::size_t count = static_cast<std::size_t>(tile.count);
      for (std::size_t i = 0; i < count; ++i) running[i].sum = 0;
      for (std::int64_t page = tile.first_page; page < tile.end_page; ++page) {
        attend_page_of(layer, tile, page, {partial.data(), count});
        for (std::size_t i = 0; i < count; ++i) merge_attention(running[i], partial[i], layer.d_vo);
      }
      for (std::size_t i = 0; i < count; ++i) finish_attention(running[i], tile.out[i], layer.d_vo);
    }
  });
}

void DenseAttention::attend_pages(const LayerSpec& layer, ThreadPool& pool) {
  const std::size_t padded = static_cast<std::size_t>(tiles_.front().layer->shape.padded_d_vo());
  pages_.clear();
  rows_.clear();
  std::size_t states = 0;
  for (const Tile& tile : tiles_) {
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
      attend_page_of(layer, *item.tile, item.page, {states_.data() + item.state, static_cast<std::size_t>(item.tile->count)});
    }
  });
  pool.share(std::ssize(rows_), 1, [&](int, Range range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const RowItem& item = rows_[static_cast<std::size_t>(i)];
      AttentionState running{0, 0, partial_.data() + (states + static_cast<std::size_t>(i)) * padded};
      for (std::int64_t page = 0; page < item.tile->end_page - item.tile->first_page; ++page)
        merge_attention(running,
                        states_[item.state + static_cast<std::size_t>(page * item.tile->count + item.row)], layer.d_vo);
      finish_attention(running, item.tile->out[static_cast<std::size_t>(item.row)], layer.d_vo);
    }
  });
}

}  // namespace narrows
