#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace narrows {
namespace {

// Turns of the waiting loop before a waiter sleeps (idle workers) or yields (barriers): some 50 microseconds,
// longer than the gaps between the operations of one token. Where threads share cores, waiting keeps others
// from working.
constexpr int kSpins = 2000, kSpinsSharing = 20;

inline void pause() { __builtin_ia32_pause(); }

}  // namespace

int ThreadPool::default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = CPU_COUNT(&set);
  std::ifstream quota("/sys/fs/cgroup/cpu.max");
  std::string most;
  double period = 0;
  if (quota >> most >> period && most != "max" && period > 0)
    count = std::min(count, static_cast<int>(std::ceil(std::strtod(most.c_str(), nullptr) / period)));
  return std::max(count, 1);
}

ThreadPool::ThreadPool(int threads)
    : size_(threads < 1 ? default_threads() : threads), cores_(static_cast<std::size_t>(size_)) {
  CPU_ZERO(&allowed_);
  spread_ = sched_getaffinity(0, sizeof(allowed_), &allowed_) == 0 && CPU_COUNT(&allowed_) >= size_;
  spins_ = spread_ ? kSpins : kSpinsSharing;
  for (auto& core : cores_) core.store(-1, std::memory_order_relaxed);
  for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// Where other programs keep every core busy, the scheduler may leave two threads of the pool on one core for
// good: they take turns, and each waits for the other. So a thread that finds itself on the core of a lower
// one moves away. The caller's thread is not touched.
void ThreadPool::keep_apart(int thread) {
  if (!spread_) return;
  int mine = sched_getcpu();
  bool shared = false;
  for (int other = 0; other < thread; ++other)
    shared |= cores_[static_cast<std::size_t>(other)].load(std::memory_order_relaxed) == mine;
  if (shared) {
    cpu_set_t free = allowed_;
    for (int other = 0; other < thread; ++other) {
      const int core = cores_[static_cast<std::size_t>(other)].load(std::memory_order_relaxed);
      if (core >= 0) CPU_CLR(core, &free);
    }
    sched_setaffinity(0, sizeof(free), &free);
    mine = sched_getcpu();
  }
  // Written when it changes only, so that the line stays in every cache.
  auto& seen = cores_[static_cast<std::size_t>(thread)];
  if (seen.load(std::memory_order_relaxed) != mine) seen.store(mine, std::memory_order_relaxed);
}

void ThreadPool::dispatch(Call call, void* body) {
  keep_apart(0);
  call_ = call;
  body_ = body;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  call(body, 0);
  wait_all();
}

void ThreadPool::wait_all() {
  const std::uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; phase_.load(std::memory_order_acquire) == phase;) {
    if (++spin < spins_)
      pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; job_.load(std::memory_order_acquire) == seen && spin < spins_; ++spin) pause();
    job_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stop_) return;
    keep_apart(thread);
    call_(body_, thread);
    wait_all();
  }
}

}  // namespace narrows
