// A loop over the rows of a matrix, shared among threads.
#pragma once
#include <cstdint>
#include <utility>

#include "base/threads.h"

namespace narrows {

// body(row) for every row, on more than one thread where that is worth waking them.
template <typename Body>
void for_rows(ThreadPool& pool, std::int64_t rows, Body&& body) {
  pool.share(rows, 4, [&](int, Range range) {
    for (std::int64_t r = range.begin; r < range.end; ++r) body(r);
  });
}

}  // namespace narrows
