// What a parallel section costs that does nothing: ThreadPool's and OpenMP's. A token of a small model goes
// through hundreds of them.
#include "base/threads.h"

#include <benchmark/benchmark.h>
#include <omp.h>

#include <chrono>

namespace narrows {
namespace {

constexpr int kBarriers = 16;

void pool_section(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.run([](int thread) { benchmark::DoNotOptimize(thread); });
}

void omp_section(benchmark::State& state) {
  omp_set_num_threads(static_cast<int>(state.range(0)));
  for (auto _ : state) {
#pragma omp parallel
    benchmark::DoNotOptimize(omp_get_thread_num());
  }
}

void pool_barriers(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state)
    pool.run([&](int) {
      for (int i = 0; i < kBarriers; ++i) pool.barrier();
    });
  state.SetItemsProcessed(state.iterations() * kBarriers);
}

void omp_barriers(benchmark::State& state) {
  omp_set_num_threads(static_cast<int>(state.range(0)));
  for (auto _ : state) {
#pragma omp parallel
    for (int i = 0; i < kBarriers; ++i) {
#pragma omp barrier
    }
  }
  state.SetItemsProcessed(state.iterations() * kBarriers);
}

// After 100 microseconds of serial work, as between two operations of a token; its time is taken off.
template <class Section>
void after_serial_work(benchmark::State& state, const Section& section) {
  using Clock = std::chrono::steady_clock;
  for (auto _ : state) {
    const auto resume = Clock::now() + std::chrono::microseconds(100);
    while (Clock::now() < resume) {
    }
    const auto start = Clock::now();
    section();
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
  }
}

void pool_after_serial_work(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  after_serial_work(state, [&] { pool.run([](int thread) { benchmark::DoNotOptimize(thread); }); });
}

void omp_after_serial_work(benchmark::State& state) {
  omp_set_num_threads(static_cast<int>(state.range(0)));
  after_serial_work(state, [] {
#pragma omp parallel
    benchmark::DoNotOptimize(omp_get_thread_num());
  });
}

const int kCores = ThreadPool::default_threads();

BENCHMARK(pool_section)->Arg(1)->Arg(kCores)->Arg(kCores + 1)->UseRealTime();
BENCHMARK(omp_section)->Arg(1)->Arg(kCores)->Arg(kCores + 1)->UseRealTime();
BENCHMARK(pool_barriers)->Arg(kCores)->Arg(kCores + 1)->UseRealTime();
BENCHMARK(omp_barriers)->Arg(kCores)->Arg(kCores + 1)->UseRealTime();
BENCHMARK(pool_after_serial_work)->Arg(kCores)->UseManualTime();
BENCHMARK(omp_after_serial_work)->Arg(kCores)->UseManualTime();

}  // namespace
}  // namespace narrows
