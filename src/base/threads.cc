#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace narrows {
namespace {

// Turns of the waiting loop before a waiter sleeps (idle workers) or yields (barriers): some 50 microseconds,
// longer than the gaps between the operations of one token.
constexpr int kSpins = 2000;

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

ThreadPool::ThreadPool(int threads) : size_(threads < 1 ? default_threads() : threads) {
  for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::dispatch(Call call, void* body) {
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
    if (++spin < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; job_.load(std::memory_order_acquire) == seen && spin < kSpins; ++spin) pause();
    job_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stop_) return;
    call_(body_, thread);
    wait_all();
  }
}

}  // namespace narrows
