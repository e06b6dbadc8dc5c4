// Memory aligned to cache lines.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace narrows {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kPrefetchBytes = 4096;  // how far ahead streams through memory ask for it
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Memory aligned to a cache line; from kHugePage bytes on, to huge pages where the system grants them:
// walking through small pages would cost a look at the page table every 4 KB. Freed with std::free.
inline void* allocate_aligned(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  void* p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!p) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(std::size_t n) {
    if (n > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(allocate_aligned(n * sizeof(T)));
  }
  void deallocate(T* p, std::size_t) { std::free(p); }
  template <typename U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }
};

// A std::vector whose data starts on a cache line, as the kernels expect.
template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// A buffer that only grows: at least n elements of it.
template <typename T, typename N>
T* room(AlignedVector<T>& buffer, N n) {
  if (buffer.size() < static_cast<std::size_t>(n)) buffer.resize(static_cast<std::size_t>(n));
  return buffer.data();
}

// A large uninitialised block.
class LargeBuffer {
 public:
  explicit LargeBuffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(allocate_aligned(bytes))), size_(bytes) {}
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace narrows
