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

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(std::size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{kCacheLine}));
  }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t{kCacheLine}); }
  template <typename U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }
};

// A std::vector whose data starts on a cache line, as the kernels expect.
template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// A large uninitialised block on huge pages where the system grants them: reading weights through small pages would
// cost a walk of the page table every 4 KB.
class LargeBuffer {
 public:
  explicit LargeBuffer(std::size_t bytes) {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
    size_ = (bytes + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, size_)));
    if (!data_) throw std::bad_alloc();
    if (alignment == kHugePage) ::madvise(data_.get(), size_, MADV_HUGEPAGE);
  }
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
