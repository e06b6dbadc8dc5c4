// Memory aligned to cache lines.
#pragma once
#include <cstddef>
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

}  // namespace narrows
