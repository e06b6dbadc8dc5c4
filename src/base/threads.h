// A pool of threads for kernels: work is split statically, waiting costs about a microsecond.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace narrows {

// The half-open range of items that one of `parts` threads works on. Boundaries are multiples of `grain`.
struct Range {
  std::int64_t begin, end;
};
inline Range share_of(std::int64_t items, int part, int parts, std::int64_t grain = 1) {
  const std::int64_t grains = (items + grain - 1) / grain;
  const std::int64_t begin = grains * part / parts * grain, end = grains * (part + 1) / parts * grain;
  return {begin < items ? begin : items, end < items ? end : items};
}

// Ranges of [0, items) for whoever asks next.
class Shares {
 public:
  Shares(std::int64_t items, std::int64_t grain, int threads)
      : items_(items), grain_(grain), parts_(2 * threads) {}
  bool next(Range& range) {
    std::int64_t begin = next_.load(std::memory_order_relaxed);
    for (;;) {
      if (begin >= items_) return false;
      const std::int64_t grains = (items_ - begin + grain_ - 1) / grain_;
      std::int64_t end = begin + (grains + parts_ - 1) / parts_ * grain_;
      if (end > items_) end = items_;
      if (next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) {
        range = {begin, end};
        return true;
      }
    }
  }

 private:
  const std::int64_t items_, grain_, parts_;
  alignas(64) std::atomic<std::int64_t> next_{0};
};

class ThreadPool {
 public:
  // `threads` counts the calling thread; 1 means no helper threads. Values below 1 mean default_threads().
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  // Cores that this process may run on (affinity and cgroup quota respected).
  static int default_threads();

  int size() const { return size_; }

  // Calls body(thread) once on every thread, 0 being the caller, and returns when all are done. The body must
  // not throw. Not re-entrant; one caller at a time.
  template <typename Body>
  void run(Body&& body) {
    if (size_ == 1) {
      body(0);
      return;
    }
    dispatch([](void* b, int thread) { (*static_cast<std::remove_reference_t<Body>*>(b))(thread); }, &body);
  }

  // Calls body(thread, range) until the ranges have covered [0, items), each thread taking the next range
  // when it is done with one: cores are seldom equally fast. Ranges begin at multiples of `grain` and shrink
  // towards it. Which thread gets which is not determined: results must not depend on it.
  template <typename Body>
  void share(std::int64_t items, std::int64_t grain, Body&& body) {
    if (size_ == 1 || items <= grain) {
      if (items > 0) body(0, Range{0, items});
      return;
    }
    Shares shares(items, grain, size_);
    run([&](int thread) {
      for (Range range; shares.next(range);) body(thread, range);
    });
  }

  // Inside run(): waits until every thread has arrived. Writes made before it are seen after it.
  void barrier() {
    if (size_ > 1) wait_all();
  }

 private:
  using Call = void (*)(void*, int);
  void dispatch(Call call, void* body);
  void wait_all();
  void work(int thread);
  void keep_apart(int thread);

  const int size_;
  cpu_set_t allowed_;                                // cores that this process may run on
  bool spread_;                                      // there is one for each thread
  int spins_;                                        // turns of a waiting loop before it gives way
  std::vector<std::atomic<int>> cores_;              // where each thread was last seen
  alignas(64) std::atomic<std::uint32_t> job_{0};    // counts jobs; workers wait for it to change
  alignas(64) std::atomic<int> arrived_{0};          // threads at the barrier
  alignas(64) std::atomic<std::uint32_t> phase_{0};  // counts barriers
  Call call_ = nullptr;
  void* body_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace narrows
