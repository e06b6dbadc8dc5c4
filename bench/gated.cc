// Gated sites where they apply: a stack of 7B-shaped layers (synthetic: random weights) whose activations lie in a
// subspace of 256 directions at every site, against the same stack dense, in alternating rounds. The stack is several
// times larger than the caches. 0.2 % of the tokens take the slow path, at each site by itself.
//
//   bench_gated [--benchmark_filter=BF16|Q4_0]      threads: NARROWS_BENCH_THREADS (default: every core)
//
// Counters: dense and gated seconds a token; `ratio` of the two; `bytes` ratio, the most that it could be, V, M, slow
// tokens and all; `of_bytes` = ratio / bytes.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>

#include "subspace/gated_site.h"

namespace narrows {
namespace {

constexpr std::int64_t kD = 4096, kInner = 11008, kK = 256;
constexpr double kSlow = 0.002;

struct Shape {
  std::int64_t in;
  std::vector<std::int64_t> out;
};
const std::vector<Shape> kLayer = {{kD, {kD, kD, kD}}, {kD, {kD}}, {kD, {kInner, kInner}}, {kInner, {kD}}};

// Row j of the basis: Hadamard's matrix of order 256, repeated along the row. Orthonormal, and exact in every type.
float basis_value(std::int64_t j, std::int64_t i, std::int64_t d) {
  const int sign = __builtin_popcountll(static_cast<unsigned long long>(j & (i % kK))) % 2 ? -1 : 1;
  return static_cast<float>(sign) / std::sqrt(static_cast<float>(d));
}

class Stack {
 public:
  Stack(int layers, DType weights, DType helpers, ThreadPool& pool) : pool_(pool) {
    for (const Shape& shape : kLayer) {
      std::vector<float> values(static_cast<std::size_t>(kK * shape.in));
      for (std::int64_t j = 0; j < kK; ++j)
        for (std::int64_t i = 0; i < shape.in; ++i) values[static_cast<std::size_t>(j * shape.in + i)] = basis_value(j, i, shape.in);
      bases_.emplace_back(static_cast<std::size_t>(kK) * row_bytes(helpers, shape.in));
      quantize(helpers, values.data(), bases_.back().data(), kK * shape.in);
    }
    for (int layer = 0; layer < layers; ++layer)
      for (std::size_t s = 0; s < kLayer.size(); ++s) add_site(s, weights, helpers);
    make_tokens();
  }

  // One token through every site, dense or gated; `slow` holds, for each site, whether the token is far from its basis.
  void run(bool gated, std::size_t token, const std::vector<char>& slow) {
    for (std::size_t i = 0; i < gated_.size(); ++i) {
      const std::size_t s = i % kLayer.size();
      const std::vector<float>& from = slow[i] ? far_[s] : near_[s];
      const float* x = from.data() + token % kTokens * static_cast<std::size_t>(kLayer[s].in);
      LinearSite& site = gated ? static_cast<LinearSite&>(*gated_[i]) : *dense_[i];
      site.apply(pool_, scratch_, x, 1, y_.data());
    }
  }
  std::size_t sites() const { return gated_.size(); }
  double dense_bytes() const {
    double bytes = 0;
    for (const auto& site : dense_) bytes += static_cast<double>(site->bytes_read());
    return bytes;
  }
  double gated_bytes() const {
    double bytes = 0;
    for (const auto& site : gated_) bytes += static_cast<double>(site->bytes_read());
    return bytes;
  }

 private:
  static constexpr std::size_t kTokens = 16;

  void add_site(std::size_t s, DType weights, DType helpers) {
    const Shape& shape = kLayer[s];
    std::vector<Linear> maps;
    std::vector<WeightMatrix> images;
    std::vector<AlignedVector<std::byte>> image_data;
    for (const std::int64_t rows : shape.out) {
      WeightMatrix w{weights, rows, shape.in, nullptr, nullptr};
      const bool packs = is_packed_type(weights);
      storage_.emplace_back(packs ? static_cast<std::size_t>(w.tiles()) * packed_tile_bytes(weights, shape.in)
                                  : static_cast<std::size_t>(rows) * row_bytes(weights, shape.in));
      fill(weights, storage_.back().data(), storage_.back().size());
      (packs ? w.packed : w.data) = storage_.back().data();
      maps.push_back({w, nullptr});
      image_data.emplace_back(static_cast<std::size_t>(rows) * row_bytes(helpers, kK));
      std::vector<float> row(kK);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (float& v : row) v = static_cast<float>(static_cast<int>(random_() % 255) - 127) / 127;
        quantize(helpers, row.data(), image_data.back().data() + static_cast<std::size_t>(r) * row_bytes(helpers, kK), kK);
      }
      images.push_back({helpers, rows, kK, image_data.back().data(), nullptr});
    }
    dense_.push_back(std::make_unique<DenseSite>(maps));
    gated_.push_back(std::make_unique<GatedSite>(std::make_unique<DenseSite>(maps),
                                                 WeightMatrix{helpers, kK, shape.in, bases_[s].data(), nullptr}, images, kK, 0.1f,
                                                 pool_));
  }

  // Any finite values: what they are changes no time. A pattern of random bytes with harmless f16 and bf16 exponents.
  void fill(DType, std::byte* to, std::size_t bytes) {
    std::uint64_t state = random_();
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const std::uint64_t word = (state & 0x83ff83ff83ff83ffu) | 0x3c003c003c003c00u;
      std::memcpy(to + i, &word, 8);
    }
  }

  void make_tokens() {
    std::normal_distribution<float> normal;
    std::int64_t widest = 0;
    for (const Shape& shape : kLayer) {
      std::vector<float> &near = near_.emplace_back(), &far = far_.emplace_back();
      for (std::size_t t = 0; t < kTokens; ++t) {
        std::vector<float> g(kK);
        for (float& v : g) v = normal(random_);
        for (std::int64_t i = 0; i < shape.in; ++i) {
          double sum = 0.01 * normal(random_) * std::sqrt(double{kK} / static_cast<double>(shape.in));
          for (std::int64_t j = 0; j < kK; ++j) sum += g[static_cast<std::size_t>(j)] * basis_value(j, i, shape.in);
          near.push_back(static_cast<float>(sum));
          far.push_back(normal(random_));
        }
      }
      std::int64_t out = 0;
      for (const std::int64_t rows : shape.out) out += rows;
      widest = std::max(widest, out);
    }
    y_.resize(static_cast<std::size_t>(widest));
  }

  ThreadPool& pool_;
  std::mt19937_64 random_{1};
  std::vector<LargeBuffer> storage_;
  std::vector<AlignedVector<std::byte>> bases_;
  std::vector<std::unique_ptr<DenseSite>> dense_;
  std::vector<std::unique_ptr<GatedSite>> gated_;
  std::vector<std::vector<float>> near_, far_;
  std::vector<float> y_;
  SiteScratch scratch_;
};

void gated_stack(benchmark::State& state, DType weights, DType helpers, int layers) {
  using Clock = std::chrono::steady_clock;
  const char* threads = std::getenv("NARROWS_BENCH_THREADS");
  ThreadPool pool(threads ? std::atoi(threads) : 0);
  Stack stack(layers, weights, helpers, pool);
  std::mt19937 random(9);
  std::vector<char> slow(stack.sites());
  std::vector<double> dense, gated;
  constexpr int kDenseTokens = 2, kGatedTokens = 25;
  const auto time = [&](bool is_gated, int tokens) {
    const auto start = Clock::now();
    for (int t = 0; t < tokens; ++t) {
      for (char& s : slow) s = random() < kSlow * 4294967296.0;
      stack.run(is_gated, static_cast<std::size_t>(t), slow);
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / tokens;
  };
  time(true, 2);
  for (auto _ : state) {
    dense.push_back(time(false, kDenseTokens));
    gated.push_back(time(true, kGatedTokens));
    state.SetIterationTime(gated.back());
  }
  const auto median = [](std::vector<double>& v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  const double ratio = median(dense) / median(gated), bytes = stack.dense_bytes() / stack.gated_bytes();
  state.counters["dense_s"] = median(dense);
  state.counters["gated_s"] = median(gated);
  state.counters["ratio"] = ratio;
  state.counters["bytes"] = bytes;
  state.counters["of_bytes"] = ratio / bytes;
}

BENCHMARK_CAPTURE(gated_stack, BF16, DType::BF16, DType::BF16, 14)->UseManualTime()->Iterations(7)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(gated_stack, Q4_0_with_Q8_0, DType::Q4_0, DType::Q8_0, 32)->UseManualTime()->Iterations(7)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace narrows
