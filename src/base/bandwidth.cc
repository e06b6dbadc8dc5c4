#include "base/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/aligned.h"
#include "base/threads.h"

namespace narrows {
namespace {

constexpr std::int64_t kWords = (std::int64_t{512} << 20) / sizeof(std::uint64_t);
constexpr int kPasses = 5;

// Independent lanes: the additions never wait for one another, the loads set the pace; asked for ahead, as
// the kernels do.
std::uint64_t sum(const std::uint64_t* words, std::int64_t count) {
  constexpr int kLanes = 32;
  std::uint64_t lanes[kLanes] = {};
  constexpr int kAhead = kPrefetchBytes / sizeof(std::uint64_t), kLine = kCacheLine / sizeof(std::uint64_t);
  for (std::int64_t i = 0; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; l += kLine) __builtin_prefetch(words + i + kAhead + l);
    for (int l = 0; l < kLanes; ++l) lanes[l] += words[i + l];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace

double measure_read_bandwidth(int threads) {
  using Clock = std::chrono::steady_clock;
  ThreadPool pool(threads);
  const LargeBuffer buffer(kWords * sizeof(std::uint64_t));
  std::uint64_t* words = reinterpret_cast<std::uint64_t*>(buffer.data());
  const auto share = [&](int thread) { return share_of(kWords, thread, pool.size(), 512); };
  // Each thread writes its own share first: pages must exist, and near the thread that reads them.
  pool.run([&](int thread) {
    const Range r = share(thread);
    for (std::int64_t i = r.begin; i < r.end; ++i) words[i] = static_cast<std::uint64_t>(i);
  });
  double best = 0;
  volatile std::uint64_t sink = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    pool.run([&](int thread) {
      const Range r = share(thread);
      sink = sum(&words[r.begin], r.end - r.begin);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(kWords) * sizeof(std::uint64_t) / seconds);
  }
  return best;
}

}  // namespace narrows
