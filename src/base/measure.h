// Times, and what repeated ones come to.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace narrows {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of an even number, the mean of the middle two. There must be some.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace narrows
