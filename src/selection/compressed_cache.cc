#include "selection/compressed_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/dtype.h"

namespace narrows {
namespace {

std::int64_t page_tokens_for(std::int64_t entries) {
  return std::min((entries + kKeyGroup - 1) / kKeyGroup * kKeyGroup, kPageTokens);
}

std::size_t bias_bytes(const KvPage& page) { return static_cast<std::size_t>(page.tokens) * sizeof(float); }

// The first `tokens` positions, page to page.
void copy_page(const KvShape& shape, const KvPage& from, const KvPage& to, std::int64_t tokens) {
  const KvShape a = shape.with_page(from.tokens), b = shape.with_page(to.tokens), part = shape.with_page(tokens);
  const std::size_t n = static_cast<std::size_t>(tokens),
                    row = static_cast<std::size_t>(shape.padded_d_vo()) * shape.element_bytes();
  std::memcpy(to.data, from.data, part.keys_bytes());
  std::memcpy(to.data + b.keys_bytes(), from.data + a.keys_bytes(), n * row);
  std::memcpy(to.data + b.keys_bytes() + static_cast<std::size_t>(to.tokens) * row,
              from.data + a.keys_bytes() + static_cast<std::size_t>(from.tokens) * row, part.value_bytes() - n * row);
}

}  // namespace

std::size_t probe_bytes(int d_qk) { return static_cast<std::size_t>(d_qk + (d_qk + 31) / 32 * 2); }

// 8-bit codes, then an f16 scale for each 32.
void store_probe(const float* q, int d_qk, std::byte* to) {
  for (int first = 0; first < d_qk; first += 32) {
    const int end = std::min(first + 32, d_qk);
    float largest = 0;
    for (int i = first; i < end; ++i) largest = std::max(largest, std::fabs(q[i]));
    const std::uint16_t half = f32_to_f16(largest / 127);
    const float scale = f16_to_f32(half), inverse = scale > 0 ? 1 / scale : 0;
    std::memcpy(to + d_qk + first / 32 * 2, &half, 2);
    for (int i = first; i < end; ++i)
      to[i] = static_cast<std::byte>(
          static_cast<std::int8_t>(std::clamp(std::nearbyint(q[i] * inverse), -127.0f, 127.0f)));
  }
}

void load_probe(const std::byte* from, int d_qk, float* q) {
  for (int i = 0; i < d_qk; ++i) {
    std::uint16_t half;
    std::memcpy(&half, from + d_qk + i / 32 * 2, 2);
    q[i] = f16_to_f32(half) * static_cast<float>(static_cast<std::int8_t>(from[i]));
  }
}

CompressedCache::CompressedCache(const ModelSpec& spec, const ModelSpec& windowed, KvFormat format, std::int64_t first,
                                 EntryMemory memory, ProbeRule probes)
    : windowed_(windowed, format),
      first_next_(first),
      memory_(memory),
      probes_(probes),
      next_(first) {
  for (const LayerSpec& layer : spec.layer) {
    EntryLayer& entries = layers_.emplace_back();
    entries.shape = {1, layer.d_qk, layer.d_vo, format};
    if (layer.window == 0) entries.heads.resize(static_cast<std::size_t>(layer.kv_heads));
  }
}

KvPage CompressedCache::take(const KvShape& shape, std::int64_t tokens) {
  return {pool_->take(shape.with_page(tokens).page_bytes()), nullptr, tokens};
}

void CompressedCache::give(const KvShape& shape, KvPage& page) {
  if (page.bias) pool_->give(reinterpret_cast<std::byte*>(page.bias), bias_bytes(page));
  pool_->give(page.data, shape.with_page(page.tokens).page_bytes());
}

void CompressedCache::resize(const KvShape& shape, KvPage& page, std::int64_t tokens) {
  KvPage fresh = take(shape, tokens);
  copy_page(shape, page, fresh, std::min(tokens, page.tokens));
  if (page.bias) {
    fresh.bias = reinterpret_cast<float*>(pool_->take(bias_bytes(fresh)));
    std::fill_n(std::copy_n(page.bias, std::min(tokens, page.tokens), fresh.bias),
                std::max<std::int64_t>(tokens - page.tokens, 0), 0.0f);
  }
  give(shape, page);
  page = fresh;
}

// Gives the head the pages that `entries` need.
void CompressedCache::fit(const KvShape& shape, HeadEntries& head, std::int64_t entries) {
  const std::int64_t pages = (entries + kPageTokens - 1) / kPageTokens;
  for (std::int64_t p = pages; p < std::ssize(head.pages); ++p) give(shape, head.pages[static_cast<std::size_t>(p)]);
  if (std::ssize(head.pages) > pages) head.pages.resize(static_cast<std::size_t>(pages));
  for (std::int64_t p = std::max<std::int64_t>(std::ssize(head.pages) - 1, 0); p < pages; ++p) {
    const std::int64_t tokens = page_tokens_for(entries - p * kPageTokens);
    if (p == std::ssize(head.pages))
      head.pages.push_back(take(shape, tokens));
    else if (head.pages[static_cast<std::size_t>(p)].tokens != tokens)
      resize(shape, head.pages[static_cast<std::size_t>(p)], tokens);
  }
}

void CompressedCache::reserve(std::int64_t end) {
  for (EntryLayer& layer : layers_)
    for (HeadEntries& head : layer.heads) {
      const std::int64_t entries = head.compressed + end - first_exact_;
      fit(layer.shape, head, entries);
      if (memory_ == EntryMemory::None) continue;
      if (std::ssize(head.worth) < entries) head.worth.reserve(static_cast<std::size_t>(entries + 15) / 16 * 16);
      head.worth.resize(static_cast<std::size_t>(entries));
    }
}

void CompressedCache::truncate(std::int64_t length) {
  length = std::min(length_, length);
  windowed_.truncate(length);
  // What has been compressed knows of later tokens, and so do sums over them.
  if (length < compressed_at_ || (memory_ == EntryMemory::Running && length < length_) || windowed_.length() < length) length = 0;
  if (length == 0) {
    windowed_.truncate(0);
    for (EntryLayer& layer : layers_)
      for (HeadEntries& head : layer.heads) {
        fit(layer.shape, head, 0);
        head = {};
      }
    first_exact_ = compressed_at_ = 0;
    next_ = first_next_;
  }
  length_ = length;
  const std::size_t probes = probe_positions().size();
  for (EntryLayer& layer : layers_)
    for (HeadEntries& head : layer.heads) {
      fit(layer.shape, head, entries(head));
      if (memory_ != EntryMemory::None) {
        head.worth.resize(static_cast<std::size_t>(entries(head)));
        head.worth.shrink_to_fit();
      }
      head.probes.resize(probes * probe_bytes(layer.shape.d_qk));
    }
}

void CompressedCache::add_probe(HeadEntries& head, const float* q, int d_qk) {
  const std::size_t end = head.probes.size(), row = probe_bytes(d_qk);
  if (end == head.probes.capacity()) head.probes.reserve(static_cast<std::size_t>(probes_.most(next_)) * row);
  head.probes.resize(end + row);
  store_probe(q, d_qk, head.probes.data() + end);
}

std::size_t CompressedCache::bytes() const {
  std::size_t bytes = windowed_.bytes();
  for (const EntryLayer& layer : layers_)
    for (const HeadEntries& head : layer.heads) {
      for (const KvPage& page : head.pages)
        bytes += layer.shape.with_page(page.tokens).page_bytes() + (page.bias ? bias_bytes(page) : 0);
      bytes += head.probes.capacity() + head.worth.capacity() * sizeof(float);
    }
  return bytes;
}

std::size_t CompressedCache::bytes_read() const {
  std::size_t bytes = windowed_.bytes_read();
  for (const EntryLayer& layer : layers_)
    for (const HeadEntries& head : layer.heads) {
      bytes += static_cast<std::size_t>(entries(head)) * layer.shape.page_bytes() / kPageTokens;
      for (const KvPage& page : head.pages) bytes += page.bias ? bias_bytes(page) : 0;
    }
  return bytes;
}

void CompressedCache::keep(const KvShape& shape, HeadEntries& head, std::span<const Entry> kept) const {
  for (std::int64_t to = 0; to < std::ssize(kept); ++to) {
    const std::int64_t from = kept[static_cast<std::size_t>(to)];
    if (from == to) continue;
    const KvPage &a = head.pages[static_cast<std::size_t>(from / kPageTokens)],
                 &b = head.pages[static_cast<std::size_t>(to / kPageTokens)];
    copy_kv(shape.with_page(a.tokens), a.data, from % kPageTokens, shape.with_page(b.tokens), b.data, to % kPageTokens);
    if (memory_ != EntryMemory::None) head.worth[static_cast<std::size_t>(to)] = head.worth[static_cast<std::size_t>(from)];
  }
}

std::vector<float> CompressedCache::biases(const HeadEntries& head) const {
  std::vector<float> biases(static_cast<std::size_t>(entries(head)));
  for (std::size_t p = 0; p < head.pages.size(); ++p)
    if (head.pages[p].bias)
      std::copy_n(head.pages[p].bias,
                  std::min<std::int64_t>(head.pages[p].tokens, std::ssize(biases) - static_cast<std::int64_t>(p) * kPageTokens),
                  biases.begin() + static_cast<std::int64_t>(p) * kPageTokens);
  return biases;
}

// Pages whose weights are all 0 need none.
void CompressedCache::set_biases(HeadEntries& head, std::span<const float> biases) {
  for (std::size_t p = 0; p < head.pages.size(); ++p) {
    KvPage& page = head.pages[p];
    const std::size_t first = p * static_cast<std::size_t>(kPageTokens);
    const auto part = first < biases.size()
                          ? biases.subspan(first, std::min(static_cast<std::size_t>(page.tokens), biases.size() - first))
                          : std::span<const float>{};
    const bool any = std::any_of(part.begin(), part.end(), [](float b) { return b != 0; });
    if (any && !page.bias) page.bias = reinterpret_cast<float*>(pool_->take(bias_bytes(page)));
    if (!any && page.bias) {
      pool_->give(reinterpret_cast<std::byte*>(page.bias), bias_bytes(page));
      page.bias = nullptr;
    }
    if (any) std::fill_n(std::copy(part.begin(), part.end(), page.bias), page.tokens - std::ssize(part), 0.0f);
  }
}

void CompressedCache::finish(std::span<const std::int64_t> kept, std::int64_t window, std::int64_t next) {
  std::vector<std::size_t> probes;  // that stay, of those held
  const std::vector<std::int64_t> held = probe_positions();
  for (std::size_t i = 0; i < held.size(); ++i)
    if (probes_.keeps(held[i], next)) probes.push_back(i);
  compressed_at_ = length_;
  first_exact_ = std::max<std::int64_t>(length_ - window, 0);
  next_ = next;
  std::size_t at = 0;
  for (EntryLayer& layer : layers_)
    for (HeadEntries& head : layer.heads) {
      const std::int64_t entries = kept[at++];
      head.compressed = entries - (length_ - first_exact_);
      fit(layer.shape, head, entries);
      const std::size_t row = probe_bytes(layer.shape.d_qk);
      for (std::size_t i = 0; i < probes.size(); ++i)
        std::memmove(head.probes.data() + i * row, head.probes.data() + probes[i] * row, row);
      head.probes.resize(probes.size() * row);
      head.probes.shrink_to_fit();
      if (memory_ != EntryMemory::None) {
        head.worth.resize(static_cast<std::size_t>(entries));
        head.worth.shrink_to_fit();
      }
    }
  repack();
}

// Moves everything to other slabs where most of those held lie idle.
void CompressedCache::repack() {
  constexpr std::size_t kSlack = std::size_t{8} << 20;
  if (pool_->slab_bytes() < bytes() + bytes() / 2 + kSlack) return;
  auto old = std::exchange(pool_, std::make_unique<SlabPool>());
  for (EntryLayer& layer : layers_)
    for (HeadEntries& head : layer.heads)
      for (KvPage& page : head.pages) {
        KvPage fresh = take(layer.shape, page.tokens);
        std::memcpy(fresh.data, page.data, layer.shape.with_page(page.tokens).page_bytes());
        if (page.bias) {
          fresh.bias = reinterpret_cast<float*>(pool_->take(bias_bytes(fresh)));
          std::copy_n(page.bias, page.tokens, fresh.bias);
        }
        page = fresh;
      }
}

}  // namespace narrows
