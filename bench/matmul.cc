// Products with the matrices of one 7B-shaped layer (d 4096, d_ff 11008; synthetic weights): one token, where
// memory sets the pace, and 512, where arithmetic does. A layer is larger than the caches in every type.
#include "kernels/matmul.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "base/aligned.h"
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

// q, k, v, output; gate, up; down.
struct Layer {
  std::vector<Matrix> matrices;
  explicit Layer(DType dtype) {
    for (int i = 0; i < 4; ++i) matrices.emplace_back(dtype, kModel, kModel);
    for (int i = 0; i < 2; ++i) matrices.emplace_back(dtype, kInner, kModel);
    matrices.emplace_back(dtype, kModel, kInner);
  }
};

// The last one used, since benchmarks of one type follow each other.
const Layer& layer_of(DType dtype) {
  static std::unique_ptr<Layer> layer;
  if (!layer || layer->matrices[0].view.dtype != dtype) {
    layer.reset();
    layer = std::make_unique<Layer>(dtype);
  }
  return *layer;
}

void products(benchmark::State& state, DType dtype, const std::string& target, int threads,
              std::int64_t tokens) {
  set_dispatch_target(target);
  const Layer& layer = layer_of(dtype);
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
  for (const Matrix& m : layer.matrices) {
    bytes += static_cast<double>(m.view.bytes_read());
    products += static_cast<double>(m.view.rows * m.view.cols * tokens);
  }
  for (auto _ : state) {
    for (const Matrix& m : layer.matrices)
      pool.run([&](int thread) {
        const WeightMatrix& w = m.view;
        const Range tiles = share_of(w.tiles(), thread, threads);
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
  set_dispatch_target("");
}

[[maybe_unused]] const bool registered = [] {
  for (const DType dtype : kTypes)
    for (const std::string& target : dispatch_targets())
      for (const std::int64_t tokens : {1, 512})
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
