// Work on rows of logits, shared by what scores them.
#pragma once
#include <algorithm>
#include <exception>
#include <vector>

#include "base/threads.h"

namespace narrows {

inline constexpr std::size_t kLogitBytes = std::size_t{64} << 20;  // of one model at a time

// Positions whose logits are held at once.
inline std::size_t logit_rows(std::size_t vocab) {
  return std::max<std::size_t>(1, kLogitBytes / (vocab * sizeof(float)));
}

// Calls score(i) for every row on the pool's threads; the first thread's exception is thrown here.
template <typename Score>
void score_rows(ThreadPool& pool, std::int64_t rows, Score&& score) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(pool.size()));
  pool.run([&](int thread) {
    const Range share = share_of(rows, thread, pool.size());
    try {
      for (std::int64_t i = share.begin; i < share.end; ++i) score(static_cast<std::size_t>(i));
    } catch (...) {
      errors[static_cast<std::size_t>(thread)] = std::current_exception();
    }
  });
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace narrows
