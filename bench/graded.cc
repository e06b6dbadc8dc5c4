// Products that read only some columns, and of those only some bits, for one token, beside the dense kernel
// with packed tiles: on stacks of matrices far larger than the caches, of 7B-like and of small shapes
// (synthetic weights). Each iteration times one pass over either stack, in turn, so that both see the same
// machine; the best passes are compared.
//   bytes   what the graded product reads, of what the dense one does
//   time    its time, of the dense one's (best of the iterations)
//   work    the time that threads spend in its kernels, of the dense ones': what `time` would be if nobody
//   else used the
//           machine and waiting cost nothing
//   GB/s, dense GB/s   of the best passes
#include "kernels/graded.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "kernels/dispatch.h"

namespace narrows {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 30;

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{4096, 4096}, {11008, 4096}, {4096, 11008},
                             {576, 576},   {3072, 576},   {576, 1536}};

// As many copies of one matrix, in both layouts, as fill kStackBytes.
struct Stack {
  WeightMatrix dense;
  GradedMatrix graded;
  std::size_t copies, dense_bytes;
  LargeBuffer dense_data{0}, graded_data{0};

  Stack(DType dtype, GradedSplit split, Shape shape)
      : dense{dtype, shape.rows, shape.cols, nullptr, nullptr}, graded(dtype, split, shape.rows, shape.cols) {
    std::mt19937 bits(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> values(static_cast<std::size_t>(64 * shape.cols));
    for (float& v : values) v = normal(bits);
    const std::size_t some = 64 * row_bytes(dtype, shape.cols);
    AlignedVector<std::byte> rows(static_cast<std::size_t>(shape.rows) * row_bytes(dtype, shape.cols));
    quantize(dtype, values.data(), rows.data(), std::ssize(values));
    for (std::size_t at = some; at < rows.size(); at += some)
      std::memcpy(rows.data() + at, rows.data(), std::min(some, rows.size() - at));
    dense.data = rows.data();
    const std::size_t tile_bytes = packed_tile_bytes(dtype, shape.cols);
    dense_bytes = static_cast<std::size_t>(dense.tiles()) * tile_bytes;
    copies = kStackBytes / dense_bytes + 1;
    dense_data = LargeBuffer(copies * dense_bytes);
    graded_data = LargeBuffer(copies * graded.bytes());
    for (std::int64_t t = 0; t < dense.tiles(); ++t)
      pack_tile(dense, t, dense_data.data() + static_cast<std::size_t>(t) * tile_bytes);
    pack_graded(dense, graded, {0, graded.strips()}, graded_data.data());
    for (std::size_t i = 1; i < copies; ++i) {
      std::memcpy(dense_data.data() + i * dense_bytes, dense_data.data(), dense_bytes);
      std::memcpy(graded_data.data() + i * graded.bytes(), graded_data.data(), graded.bytes());
    }
    dense.data = nullptr;
  }
};

// Adds up the processor time that threads spend.
struct Work {
  struct alignas(64) Slot {
    double seconds = 0;
  };
  std::vector<Slot> threads;
  template <class F>
  void operator()(int thread, const F& f) {
    const double begin = now();
    f();
    threads[static_cast<std::size_t>(thread)].seconds += now() - begin;
  }
  double take() {
    double sum = 0;
    for (Slot& s : threads) sum += std::exchange(s.seconds, 0.0);
    return sum;
  }
  static double now() {
    timespec t;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
};

const Stack& stack_of(DType dtype, GradedSplit split, Shape shape) {
  static std::unique_ptr<Stack> stack;
  if (!stack || stack->graded.dtype != dtype || stack->graded.split != split ||
      stack->graded.rows != shape.rows || stack->graded.cols != shape.cols) {
    stack.reset();
    stack = std::make_unique<Stack>(dtype, split, shape);
  }
  return *stack;
}

// A limit that lets this share of normally distributed values through.
float limit_of(double share) {
  double low = 0, high = 10;
  for (int i = 0; i < 50; ++i)
    (std::erfc((low + high) / 2 / std::sqrt(2.0)) > share ? low : high) = (low + high) / 2;
  return share >= 1   ? std::numeric_limits<float>::infinity()
         : share <= 0 ? 0.0f
                      : static_cast<float>(1 / low);
}

void products(benchmark::State& state, DType dtype, GradedSplit split, Shape shape, double coarse,
              double fine, int threads) {
  const Stack& stack = stack_of(dtype, split, shape);
  ThreadPool pool(threads);
  std::mt19937 bits(2);
  std::normal_distribution<float> normal;
  const std::int64_t tokens = 8, rows = shape.rows, cols = shape.cols;
  std::vector<float> x(static_cast<std::size_t>(tokens * cols)), y(static_cast<std::size_t>(rows));
  for (float& v : x) v = normal(bits);
  const std::vector<float> coarse_limit(static_cast<std::size_t>(cols), limit_of(coarse)),
      fine_limit(static_cast<std::size_t>(cols), limit_of(fine));
  GradedTokens grades;
  grades.resize(tokens, cols);
  choose_grades(x.data(), cols, {0, tokens}, coarse_limit.data(), fine_limit.data(), grades);
  QuantizedRows quantized;
  quantized.resize(1, cols);
  quantize_rows(x.data(), cols, {0, 1}, quantized);
  AlignedVector<float> partials(static_cast<std::size_t>(tokens * stack.graded.partials()));
  std::vector<TileScratch> scratch(static_cast<std::size_t>(threads));

  Work work{std::vector<Work::Slot>(static_cast<std::size_t>(threads))};
  const auto seconds = [](const auto& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double best = 1e9, best_dense = 1e9, least = 1e9, least_dense = 1e9, bytes = 0;
  for (std::size_t i = 0; i < stack.copies; ++i) {
    const std::int64_t t = static_cast<std::int64_t>(i) % tokens;
    bytes +=
        static_cast<double>(graded_bytes(stack.graded, grades.coarse_columns(t), grades.fine_columns(t)));
  }
  for (auto _ : state) {
    const double dense_time = seconds([&] {
      for (std::size_t i = 0; i < stack.copies; ++i) {
        WeightMatrix w = stack.dense;
        w.packed = stack.dense_data.data() + i * stack.dense_bytes;
        pool.share(w.tiles(), 1, [&](int thread, Range tiles) {
          work(thread, [&] {
            matmul_quantized(w, tiles, quantized, {0, 1}, nullptr, y.data(), rows,
                             scratch[static_cast<std::size_t>(thread)]);
          });
        });
      }
    });
    least_dense = std::min(least_dense, work.take());
    const double time = seconds([&] {
      for (std::size_t i = 0; i < stack.copies; ++i) {
        const std::int64_t t = static_cast<std::int64_t>(i) % tokens;
        GradedMatrix m = stack.graded;
        m.data = stack.graded_data.data() + i * m.bytes();
        pool.share(m.units(), 1, [&](int thread, Range units) {
          work(thread, [&] { graded_units(m, units, grades, {t, t + 1}, partials.data()); });
        });
        pool.share(rows, 64, [&](int thread, Range r) {
          work(thread, [&] {
            graded_sum(m, r, {t, t + 1}, partials.data(), nullptr, y.data() - t * rows, rows);
          });
        });
      }
    });
    state.SetIterationTime(time);
    least = std::min(least, work.take());
    best = std::min(best, time);
    best_dense = std::min(best_dense, dense_time);
  }
  const double dense_bytes = static_cast<double>(stack.copies * stack.dense_bytes);
  state.counters["bytes"] = bytes / dense_bytes;
  state.counters["time"] = best / best_dense;
  state.counters["work"] = least / least_dense;
  state.counters["work GB/s"] = bytes / least / 1e9;
  state.counters["dense work GB/s"] = dense_bytes / least_dense / 1e9;
  state.counters["GB/s"] = bytes / best / 1e9;
  state.counters["dense GB/s"] = dense_bytes / best_dense / 1e9;
}

void choose(benchmark::State& state) {
  const std::int64_t cols = state.range(0);
  std::mt19937 bits(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(cols));
  for (float& v : x) v = normal(bits);
  const std::vector<float> coarse_limit(x.size(), limit_of(0.5)), fine_limit(x.size(), limit_of(0.2));
  GradedTokens grades;
  grades.resize(1, cols);
  for (auto _ : state) {
    choose_grades(x.data(), cols, {0, 1}, coarse_limit.data(), fine_limit.data(), grades);
    benchmark::DoNotOptimize(grades.column.data());
    benchmark::ClobberMemory();
  }
}

struct Share {
  double coarse, fine;  // shares of columns of grade 1 or 2, and of grade 2
};
constexpr Share kShares[] = {{1, 1}, {1, 0}, {1, 0.5}, {0.75, 0.4}, {0.5, 0.5}, {0.5, 0.17}, {0.3, 0.1}};

[[maybe_unused]] const bool registered = [] {
  for (const std::int64_t cols : {576, 1536, 4096}) benchmark::RegisterBenchmark("choose", choose)->Arg(cols);
  const std::pair<DType, GradedSplit> types[] = {{DType::Q8_0, GradedSplit::Halves},
                                                 {DType::Q4_0, GradedSplit::Whole},
                                                 {DType::Q4_0, GradedSplit::Halves}};
  for (const auto& [dtype, split] : types)
    for (const Shape& shape : kShapes)
      for (const Share& share : kShares)
        for (const int threads : {1, 2}) {
          if (split == GradedSplit::Whole && share.coarse != share.fine && share.coarse == 1) continue;
          const auto name = fmt::format("{}{}/{}x{}/{:.2f},{:.2f}/threads:{}", dtype_info(dtype).name,
                                        split == GradedSplit::Whole ? "_whole" : "", shape.rows, shape.cols,
                                        share.coarse, share.fine, threads);
          benchmark::RegisterBenchmark(name.c_str(),
                                       [=, dtype = dtype, split = split](benchmark::State& state) {
                                         products(state, dtype, split, shape, share.coarse, share.fine,
                                                  threads);
                                       })
              ->UseManualTime()
              ->Iterations(8)
              ->Unit(benchmark::kMillisecond);
        }
  return true;
}();

}  // namespace
}  // namespace narrows
