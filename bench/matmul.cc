// Products with the matrices of 7B-shaped layers (d 4096, d_ff 11008; synthetic weights): one token, where memory sets the
// pace, with a stack of layers far larger than the caches; and 8 and 512 tokens with one layer, where arithmetic does. "of
// read" is the share of the bandwidth at which as many threads plainly read memory, measured in the same run.
#include "kernels/matmul.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>

#include "base/aligned.h"
#include "base/bandwidth.h"
#include "kernels/dispatch.h"

namespace narrows {
namespace {

constexpr std::int64_t kModel = 4096, kInner = 11008;
constexpr DType kTypes[] = {DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K,
                            DType::Q6_K, DType::F16,  DType::BF16};

// A matrix whose every tile of 16 rows holds the same numbers: quick to make, and read no faster for it.
struct Matrix {
  WeightMatrix view;
  LargeBuffer data{0};

  Matrix(DType dtype, std::int64_t rows, std::int64_t cols) : view{dtype, rows, cols, nullptr, nullptr} {
    std::mt19937 bits(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> values(static_cast<std::size_t>(kTileRows * cols));
    for (float& v : values) v = normal(bits);
    AlignedVector<std::byte> rows16(kTileRows * row_bytes(dtype, cols));
    quantize(dtype, values.data(), rows16.data(), std::ssize(values));
    AlignedVector<std::byte> tile = rows16;
    if (is_packed_type(dtype)) {
      tile.resize(packed_tile_bytes(dtype, cols));
      pack_tile({dtype, kTileRows, cols, rows16.data(), nullptr}, 0, tile.data());
    }
    data = LargeBuffer(static_cast<std::size_t>(view.tiles()) * tile.size());
    for (std::int64_t t = 0; t < view.tiles(); ++t)
      std::memcpy(data.data() + static_cast<std::size_t>(t) * tile.size(), tile.data(), tile.size());
    (is_packed_type(dtype) ? view.packed : view.data) = data.data();
  }
};

// Layers of q, k, v, output; gate, up; down: as many as fill kStackBytes.
constexpr std::size_t kStackBytes = std::size_t{3} << 30, kLayerMatrices = 7;
struct Stack {
  std::vector<Matrix> matrices;
  explicit Stack(DType dtype) {
    for (std::size_t bytes = 0; bytes < kStackBytes;) {
      for (int i = 0; i < 4; ++i) matrices.emplace_back(dtype, kModel, kModel);
      for (int i = 0; i < 2; ++i) matrices.emplace_back(dtype, kInner, kModel);
      matrices.emplace_back(dtype, kModel, kInner);
      for (std::size_t i = matrices.size() - kLayerMatrices; i < matrices.size(); ++i)
        bytes += matrices[i].view.bytes_read();
    }
  }
};

// The last one used, since benchmarks of one type follow each other.
const Stack& stack_of(DType dtype) {
  static std::unique_ptr<Stack> stack;
  if (!stack || stack->matrices[0].view.dtype != dtype) {
    stack.reset();
    stack = std::make_unique<Stack>(dtype);
  }
  return *stack;
}

double read_bandwidth(int threads) {
  static std::map<int, double> measured;
  if (!measured.contains(threads)) measured[threads] = measure_read_bandwidth(threads);
  return measured[threads];
}

void products(benchmark::State& state, DType dtype, const std::string& target, int threads,
              std::int64_t tokens) {
  set_dispatch_target(target);
  const Stack& stack = stack_of(dtype);
  const std::span<const Matrix> layers(stack.matrices.data(), tokens == 1 ? stack.matrices.size() : kLayerMatrices);
  ThreadPool pool(threads);
  std::mt19937 bits(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(tokens * kInner)), y(x.size());
  for (float& v : x) v = normal(bits);
  QuantizedRows wide, narrow;
  wide.resize(tokens, kInner);
  narrow.resize(tokens, kModel);
  quantize_rows(x.data(), kInner, {0, tokens}, wide);
  quantize_rows(x.data(), kModel, {0, tokens}, narrow);
  std::vector<TileScratch> scratch(static_cast<std::size_t>(threads));

  double bytes = 0, products = 0;
  for (const Matrix& m : layers) {
    bytes += static_cast<double>(m.view.bytes_read());
    products += static_cast<double>(m.view.rows * m.view.cols * tokens);
  }
  for (auto _ : state) {
    for (const Matrix& m : layers)
      pool.share(m.view.tiles(), 1, [&](int thread, Range tiles) {
        const WeightMatrix& w = m.view;
        if (is_packed_type(dtype))
          matmul_quantized(w, tiles, w.cols == kModel ? narrow : wide, {0, tokens}, nullptr, y.data(), w.rows,
                           scratch[static_cast<std::size_t>(thread)]);
        else
          matmul_float(w, {tiles.begin * kTileRows, tiles.end * kTileRows}, x.data(), w.cols, {0, tokens},
                       nullptr, y.data(), w.rows);
      });
    benchmark::ClobberMemory();
  }
  const auto rate = [&](double amount) {
    return benchmark::Counter(amount * static_cast<double>(state.iterations()) / 1e9,
                              benchmark::Counter::kIsRate);
  };
  state.counters["GB/s"] = rate(bytes);
  state.counters["GMAC/s"] = rate(products);
  if (tokens == 1)
    state.counters["of read"] = benchmark::Counter(
        bytes * static_cast<double>(state.iterations()) / read_bandwidth(threads), benchmark::Counter::kIsRate);
  set_dispatch_target("");
}

[[maybe_unused]] const bool registered = [] {
  for (const DType dtype : kTypes)
    for (const std::string& target : dispatch_targets())
      for (const std::int64_t tokens : {1, 8, 512})
        for (const int threads : {1, 2})
          benchmark::RegisterBenchmark(
              fmt::format("{}/{}/tokens:{}/threads:{}", dtype_info(dtype).name, target, tokens, threads)
                  .c_str(),
              [=](benchmark::State& state) { products(state, dtype, target, threads, tokens); })
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace narrows
