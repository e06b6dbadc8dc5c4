// Times, what repeated ones come to, and memory.
#pragma once
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace narrows {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bytes that this process has held at most.
inline std::size_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

// Of an even number, the mean of the middle two. There must be some.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace narrows
