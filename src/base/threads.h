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
