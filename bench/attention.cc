// Attention of a 7B-shaped model (32 heads, 8 KV heads, d 128; synthetic cache): one token at a depth, where
// memory sets the pace, and a prompt of 512 tokens, where arithmetic does.
#include "kernels/attention.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <random>
#include <string>

#include "base/aligned.h"
#include "base/threads.h"
#include "kernels/dispatch.h"

namespace narrows {
namespace {

constexpr int kHeads = 32, kKvHeads = 8, kGroup = kHeads / kKvHeads, kHead = 128;
constexpr const char* kFormatNames[] = {"F16", "F32", "Q8_0"};

using Pages = std::vector<AlignedVector<std::byte>>;

// One layer's cache of `depth` positions.
Pages filled(const KvShape& shape, std::int64_t depth) {
  std::mt19937 bits(1);
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<std::size_t>(kKvHeads * kHead) + 16);
  for (float& v : row) v = normal(bits);
  AlignedVector<std::byte> page(shape.page_bytes());
  for (std::int64_t slot = 0; slot < kPageTokens; ++slot)
    store_kv(shape, page.data(), slot, row.data() + slot % 16, row.data() + slot % 15);
  return Pages(static_cast<std::size_t>(depth / kPageTokens), page);
}

// Attends `tokens` queries at positions depth - tokens … depth - 1, `tokens_together` of a KV head at once,
// in each of `layers` caches.
void attend(benchmark::State& state, const std::string& target, KvFormat format, int threads,
            std::int64_t depth, std::int64_t tokens, std::int64_t tokens_together, int layers) {
  set_dispatch_target(target);
  const KvShape shape{kKvHeads, kHead, kHead, format};
  const std::vector<Pages> caches(static_cast<std::size_t>(layers), filled(shape, depth));
  ThreadPool pool(threads);
  std::mt19937 bits(2);
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<std::size_t>(tokens * kHeads * kHead)), out(q.size());
  for (float& v : q) v = normal(bits);
  const ScoreRule rule{0.088f, 0};

  const std::int64_t blocks = tokens / tokens_together;
  const auto attend_block = [&](const Pages& pages, int head, std::int64_t block) {
    alignas(64) float partial[kMostQueryRows][kHead], gathered[kMostQueryRows][kHead];
    QueryRow rows[kMostQueryRows];
    AttentionState states[kMostQueryRows], running[kMostQueryRows];
    std::size_t n = 0;
    std::int64_t at[kMostQueryRows], last = 0;
    for (std::int64_t t = block * tokens_together; t < (block + 1) * tokens_together; ++t)
      for (int h = 0; h < kGroup; ++h, ++n) {
        at[n] = (t * kHeads + head * kGroup + h) * kHead;
        last = depth - tokens + t;
        rows[n] = {q.data() + at[n], 0, last + 1, 0};
        states[n] = {0, 0, partial[n]};
        running[n] = {0, 0, gathered[n]};
      }
    for (std::int64_t page = 0; page * kPageTokens <= last; ++page) {
      attend_page(shape, pages[static_cast<std::size_t>(page)].data(), head, page * kPageTokens, rule,
                  {rows, n}, {states, n});
      for (std::size_t r = 0; r < n; ++r) merge_attention(running[r], states[r], kHead);
    }
    for (std::size_t r = 0; r < n; ++r) finish_attention(running[r], out.data() + at[r], kHead);
  };
  for (auto _ : state) {
    for (const Pages& pages : caches)
      pool.run([&](int thread) {
        const Range mine = share_of(kKvHeads * blocks, thread, threads);
        for (std::int64_t i = mine.begin; i < mine.end; ++i)
          attend_block(pages, static_cast<int>(i / blocks), i % blocks);
      });
    benchmark::ClobberMemory();
  }
  const double seen =
      static_cast<double>(tokens) * (static_cast<double>(depth) - static_cast<double>(tokens - 1) / 2);
  const auto rate = [&](double amount) {
    return benchmark::Counter(amount * layers * static_cast<double>(state.iterations()) / 1e9,
                              benchmark::Counter::kIsRate);
  };
  if (tokens == 1)
    state.counters["GB/s"] = rate(static_cast<double>(shape.page_bytes()) * depth / kPageTokens);
  state.counters["GMAC/s"] = rate(seen * kHeads * 2 * kHead);
  set_dispatch_target("");
}

[[maybe_unused]] const bool registered = [] {
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMillisecond);
  };
  for (const std::string& target : dispatch_targets())
    for (const KvFormat format : {KvFormat::F16, KvFormat::F32, KvFormat::Q8_0}) {
      const char* name = kFormatNames[static_cast<int>(format)];
      for (const int threads : {1, 2}) {
        for (const std::int64_t depth : {2048, 8192})
          add(fmt::format("decode/{}/{}/depth:{}/threads:{}", name, target, depth, threads),
              [=](benchmark::State& state) {  // caches of 256 MiB and more together
                attend(state, target, format, threads, depth, 1, 1, depth == 2048 ? 32 : 8);
              });
        for (const std::int64_t depth : {512, 2560})
          add(fmt::format("prompt of 512/{}/{}/depth:{}/threads:{}", name, target, depth, threads),
              [=](benchmark::State& state) { attend(state, target, format, threads, depth, 512, 2, 1); });
      }
    }
  return true;
}();

}  // namespace
}  // namespace narrows
