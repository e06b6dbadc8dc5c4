// Equal blocks cut from large slabs.
#pragma once
#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "base/aligned.h"

namespace narrows {

// Hands out blocks of memory, aligned to cache lines and not initialised, from slabs on huge pages. A block
// that is given back is handed out again; the slabs go when no block is out, or with the pool.
class SlabPool {
 public:
  SlabPool() = default;
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  std::byte* take(std::size_t bytes) {
    bytes = rounded(bytes);
    std::vector<std::byte*>& free = free_[bytes];
    if (free.empty()) {
      if (left_ < bytes) {
        slabs_.emplace_back(std::max(bytes, kSlabBytes));
        next_ = slabs_.back().data();
        left_ = slabs_.back().size();
      }
      free.push_back(next_);
      next_ += bytes;
      left_ -= bytes;
    }
    std::byte* block = free.back();
    free.pop_back();
    ++out_;
    return block;
  }

  // `bytes` as it was taken.
  void give(std::byte* block, std::size_t bytes) {
    free_[rounded(bytes)].push_back(block);
    if (--out_ > 0) return;
    free_.clear();
    slabs_.clear();
    left_ = 0;
  }

  // Memory of the slabs, whether handed out or not.
  std::size_t slab_bytes() const {
    std::size_t bytes = 0;
    for (const LargeBuffer& slab : slabs_) bytes += slab.size();
    return bytes;
  }

 private:
  static constexpr std::size_t kSlabBytes = std::size_t{4} << 20;
  static std::size_t rounded(std::size_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

  std::vector<LargeBuffer> slabs_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by size
  std::byte* next_ = nullptr;                            // the rest of the last slab
  std::size_t left_ = 0, out_ = 0;
};

}  // namespace narrows
