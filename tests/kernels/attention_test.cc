// Attention over pages, against softmax in double of the stored keys and values.
#include "kernels/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/aligned.h"
#include "formats/dtype.h"
#include "kernels/on_targets.h"

namespace narrows {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::F32, KvFormat::F16, KvFormat::Q8_0};

// What the cache keeps of a head's n values.
std::vector<float> stored(KvFormat format, const float* x, int n) {
  std::vector<float> y(x, x + n);
  if (format == KvFormat::F16)
    for (float& v : y) v = f16_to_f32(f32_to_f16(v));
  if (format == KvFormat::Q8_0)
    for (int first = 0; first < n; first += 32) {
      const auto block = std::span(y).subspan(static_cast<std::size_t>(first),
                                              static_cast<std::size_t>(std::min(32, n - first)));
      float largest = 0;
      for (const float v : block) largest = std::max(largest, std::fabs(v));
      const float scale = f16_to_f32(f32_to_f16(largest / 127));
      for (float& v : block)
        v = scale > 0 ? scale * std::clamp(std::nearbyint(v * (1 / scale)), -127.0f, 127.0f) : 0;
    }
  return y;
}

struct Query {
  std::vector<float> q;
  std::int64_t first_key, end_key;
  float slope = 0;
};

// A sequence of random keys and values, in pages and as stored.
struct Sequence {
  KvShape shape;
  std::int64_t length;
  std::vector<float> keys, values;  // [length][kv_heads][d], as stored
  std::vector<AlignedVector<std::byte>> pages;

  Sequence(const KvShape& s, std::int64_t n) : shape(s), length(n) {
    const std::size_t k = static_cast<std::size_t>(s.kv_heads * s.d_qk),
                      v = static_cast<std::size_t>(s.kv_heads * s.d_vo);
    keys = gaussian(static_cast<std::size_t>(n) * k, 1);
    values = gaussian(static_cast<std::size_t>(n) * v, 2);
    pages.assign(static_cast<std::size_t>((n + kPageTokens - 1) / kPageTokens),
                 AlignedVector<std::byte>(s.page_bytes()));
    for (std::int64_t t = 0; t < n; ++t) {
      float* key = keys.data() + static_cast<std::size_t>(t) * k;
      float* value = values.data() + static_cast<std::size_t>(t) * v;
      store_kv(s, pages[static_cast<std::size_t>(t / kPageTokens)].data(), t % kPageTokens, key, value);
      for (int h = 0; h < s.kv_heads; ++h) {
        std::ranges::copy(stored(s.format, key + h * s.d_qk, s.d_qk), key + h * s.d_qk);
        std::ranges::copy(stored(s.format, value + h * s.d_vo, s.d_vo), value + h * s.d_vo);
      }
    }
  }

  // Writes other numbers over the positions from `first` on, as a rewound cache holds them.
  void make_stale(std::int64_t first) {
    const std::vector<float> key(static_cast<std::size_t>(shape.kv_heads * shape.d_qk), 100.0f);
    const std::vector<float> value(static_cast<std::size_t>(shape.kv_heads * shape.d_vo), -1e4f);
    for (std::int64_t t = first; t < std::ssize(pages) * kPageTokens; ++t)
      store_kv(shape, pages[static_cast<std::size_t>(t / kPageTokens)].data(), t % kPageTokens, key.data(),
               value.data());
  }

  Query query(std::uint32_t seed, std::int64_t first, std::int64_t end, float slope = 0) const {
    return {gaussian(static_cast<std::size_t>(shape.d_qk), 100 + seed), first, end, slope};
  }

  // What `queries` of KV head `head` see: [query][d_vo]; as many queries at once as `together`.
  std::vector<float> attend(int head, const ScoreRule& rule, const std::vector<Query>& queries,
                            std::size_t together = kMostQueryRows) const {
    const std::size_t padded = static_cast<std::size_t>(shape.padded_d_vo()),
                      d = static_cast<std::size_t>(shape.d_vo);
    std::vector<float> out(queries.size() * d);
    for (std::size_t first = 0; first < queries.size(); first += together) {
      const std::size_t n = std::min(together, queries.size() - first);
      AlignedVector<float> partial(n * padded), gathered(n * padded);
      std::vector<QueryRow> rows;
      std::vector<AttentionState> states, running;
      for (std::size_t r = 0; r < n; ++r) {
        const Query& query = queries[first + r];
        rows.push_back({query.q.data(), query.first_key, query.end_key, query.slope});
        states.push_back({0, 0, partial.data() + r * padded});
        running.push_back({0, 0, gathered.data() + r * padded});
      }
      for (std::size_t page = 0; page < pages.size(); ++page) {
        attend_page(shape, pages[page].data(), head, static_cast<std::int64_t>(page) * kPageTokens, rule,
                    rows, states);
        for (std::size_t r = 0; r < n; ++r) merge_attention(running[r], states[r], shape.d_vo);
      }
      for (std::size_t r = 0; r < n; ++r)
        finish_attention(running[r], out.data() + (first + r) * d, shape.d_vo);
    }
    return out;
  }

  // Expects `out` to be the softmax-weighted mean of values, each within `tolerance` of the values' size.
  void expect_close(int head, const ScoreRule& rule, const std::vector<Query>& queries,
                    const std::vector<float>& out, double tolerance) const {
    const std::size_t heads = static_cast<std::size_t>(shape.kv_heads), h = static_cast<std::size_t>(head);
    const std::size_t d_qk = static_cast<std::size_t>(shape.d_qk),
                      d_vo = static_cast<std::size_t>(shape.d_vo);
    for (std::size_t r = 0; r < queries.size(); ++r) {
      const Query& query = queries[r];
      std::vector<double> scores;
      for (std::int64_t t = query.first_key; t < query.end_key; ++t) {
        double s = 0;
        for (std::size_t i = 0; i < d_qk; ++i)
          s += static_cast<double>(query.q[i]) * keys[(static_cast<std::size_t>(t) * heads + h) * d_qk + i];
        s *= rule.scale;
        if (rule.soft_cap > 0) s = rule.soft_cap * std::tanh(s / rule.soft_cap);
        scores.push_back(s + query.slope * static_cast<double>(t - (query.end_key - 1)));
      }
      const double most = *std::ranges::max_element(scores);
      double sum = 0;
      for (double& s : scores) sum += s = std::exp(s - most);
      for (std::size_t i = 0; i < d_vo; ++i) {
        double mean = 0, size = 0;
        for (std::size_t t = 0; t < scores.size(); ++t) {
          const double term =
              scores[t] / sum *
              values[((static_cast<std::size_t>(query.first_key) + t) * heads + h) * d_vo + i];
          mean += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(out[r * d_vo + i], mean, tolerance * size) << "query " << r << ", dimension " << i;
      }
    }
  }
};

// Products of stored values round as f32 does whatever the format.
constexpr double kTolerance = 4e-6;

ScoreRule rule_for(int d_qk) { return {1 / std::sqrt(static_cast<float>(d_qk)), 0}; }

class Attention : public OnTargets {};
NARROWS_ON_TARGETS(Attention);

TEST_P(Attention, WeighsValuesBySoftmax) {
  const std::pair<int, int> shapes[] = {{8, 8},     {12, 12}, {16, 16}, {64, 64}, {80, 80},
                                        {256, 256}, {64, 12}, {12, 80}, {40, 100}};
  for (const KvFormat format : kFormats)
    for (const auto& [d_qk, d_vo] : shapes)
      for (const std::int64_t length : {1, 15, 16, 17, 127, 128, 129, 300}) {
        SCOPED_TRACE(fmt::format("format {}, d_qk {}, d_vo {}, length {}", static_cast<int>(format), d_qk,
                                 d_vo, length));
        const Sequence sequence({2, d_qk, d_vo, format}, length);
        std::vector<Query> queries;
        for (std::int64_t r = 0; r < 3; ++r)
          queries.push_back(
              sequence.query(static_cast<std::uint32_t>(r), 0, std::max<std::int64_t>(length - r, 1)));
        for (const int head : {0, 1})
          ASSERT_NO_FATAL_FAILURE(sequence.expect_close(
              head, rule_for(d_qk), queries, sequence.attend(head, rule_for(d_qk), queries), kTolerance));
      }
}

TEST_P(Attention, SeesItsWindowOnly) {
  for (const KvFormat format : kFormats) {
    const Sequence sequence({1, 64, 64, format}, 300);
    std::vector<Query> queries;
    for (const std::int64_t end : {1, 2, 16, 17, 90, 127, 128, 129, 144, 250, 256, 300})
      for (const std::int64_t width : {1, 5, 16, 17, 64, 100, 128, 200})
        queries.push_back(sequence.query(static_cast<std::uint32_t>(end + width),
                                         std::max<std::int64_t>(end - width, 0), end));
    const ScoreRule rule = rule_for(64);
    for (std::size_t together = 1; together <= kMostQueryRows; ++together)
      ASSERT_NO_FATAL_FAILURE(
          sequence.expect_close(0, rule, queries, sequence.attend(0, rule, queries, together), kTolerance))
          << together;
  }
}

TEST_P(Attention, AddsAlibiAndCapsScores) {
  for (const KvFormat format : kFormats) {
    const Sequence sequence({1, 80, 64, format}, 300);
    for (const float soft_cap : {0.0f, 0.5f, 50.0f})
      for (const float slope : {0.0f, 0.5f, 0.0039f}) {
        const ScoreRule rule{0.3f, soft_cap};  // scores of some 2.7: caps bite
        std::vector<Query> queries;
        for (std::uint32_t r = 0; r < 9; ++r)
          queries.push_back(sequence.query(r, r % 2 * 40, 290 - 20 * r, slope * (1 + r)));
        ASSERT_NO_FATAL_FAILURE(
            sequence.expect_close(0, rule, queries, sequence.attend(0, rule, queries), 2e-5))
            << "cap " << soft_cap << ", slope " << slope;
      }
  }
}

TEST_P(Attention, KeepsItsBitsHoweverQueriesAreGrouped) {
  for (const KvFormat format : kFormats)
    for (const int d : {12, 64, 80, 256}) {
      const Sequence sequence({1, d, d, format}, 300);
      std::vector<Query> queries;
      for (std::uint32_t r = 0; r < 9; ++r) {  // as in a prompt: each sees one more; some have windows
        const std::int64_t end = 250 + r;
        queries.push_back(sequence.query(r, r % 3 == 2 ? end - 70 : 0, end, r % 3 == 1 ? 0.1f : 0.0f));
      }
      const std::vector<float> expected = sequence.attend(0, rule_for(d), queries, 1);
      for (std::size_t together = 2; together <= kMostQueryRows; ++together)
        EXPECT_TRUE(same_bits(sequence.attend(0, rule_for(d), queries, together), expected))
            << "format " << static_cast<int>(format) << ", d " << d << ", together " << together;
    }
}

TEST_P(Attention, IgnoresWhatLiesBeyond) {
  for (const KvFormat format : kFormats)
    for (const std::int64_t end : {1, 15, 100, 128, 140, 257}) {
      Sequence sequence({2, 40, 24, format}, 300);
      std::vector<Query> queries;
      for (std::uint32_t r = 0; r < 5; ++r)
        queries.push_back(
            sequence.query(r, end > 100 ? 20 : 0, std::max<std::int64_t>(end - r, 1 + (end > 100 ? 20 : 0))));
      const std::vector<float> expected = sequence.attend(1, rule_for(40), queries);
      sequence.make_stale(end);
      EXPECT_TRUE(same_bits(sequence.attend(1, rule_for(40), queries), expected))
          << "format " << static_cast<int>(format) << ", end " << end;
    }
}

TEST_P(Attention, LeavesRowsThatSeeNothingOfAPage) {
  const Sequence sequence({1, 16, 16, KvFormat::F32}, 256);
  const Query before = sequence.query(1, 0, 100), here = sequence.query(2, 130, 140),
              after = sequence.query(3, 200, 256);
  const QueryRow rows[] = {
      {before.q.data(), 0, 100, 0}, {here.q.data(), 130, 140, 0}, {after.q.data(), 200, 256, 0}};
  AlignedVector<float> out(3 * 16);
  AttentionState states[] = {{0, -1, out.data()}, {0, -1, out.data() + 16}, {0, -1, out.data() + 32}};
  attend_page(sequence.shape, sequence.pages[1].data(), 0, 128, rule_for(16), rows, states);
  EXPECT_EQ(states[0].sum, 0.0f);
  EXPECT_GE(states[1].sum, 1.0f);
  EXPECT_GE(states[2].sum, 1.0f);
  attend_page(sequence.shape, sequence.pages[0].data(), 0, 0, rule_for(16), rows, states);
  EXPECT_GE(states[0].sum, 1.0f);
  EXPECT_EQ(states[1].sum, 0.0f);
  EXPECT_EQ(states[2].sum, 0.0f);
}

// Scores hundreds apart: exponentials underflow, nothing overflows.
TEST_P(Attention, TakesScoresFarApart) {
  for (const KvFormat format : kFormats)
    for (const float scale : {1.0f, 30.0f, -30.0f}) {
      const Sequence sequence({1, 64, 64, format}, 300);
      const std::vector<Query> queries = {sequence.query(1, 0, 300), sequence.query(2, 0, 290)};
      const std::vector<float> out = sequence.attend(0, {scale, 0}, queries);
      for (const float v : out) ASSERT_TRUE(std::isfinite(v));
      // Rounding of a score of hundreds is some 1e-5 of the weight.
      ASSERT_NO_FATAL_FAILURE(
          sequence.expect_close(0, {scale, 0}, queries, out, 2e-6 * 8 * std::fabs(scale)));
    }
}

// Pages of fewer positions: the bits of whole ones, and nothing read beyond them (a matter for sanitizers).
TEST_P(Attention, KeepsItsBitsInShorterPages) {
  for (const KvFormat format : kFormats)
    for (const int d : {12, 64, 80})
      for (std::int64_t capacity = kKeyGroup; capacity <= kPageTokens; capacity += kKeyGroup) {
        const Sequence sequence({2, d, d, format}, capacity - 3);
        std::vector<Query> queries;
        for (std::uint32_t r = 0; r < 8; ++r)
          queries.push_back(sequence.query(r, r % 2, std::max<std::int64_t>(capacity - 3 - 2 * r, 2)));
        const std::vector<float> expected = sequence.attend(1, rule_for(d), queries);
        Sequence shorter = sequence;
        shorter.shape = sequence.shape.with_page(capacity);
        shorter.pages[0] = AlignedVector<std::byte>(shorter.shape.page_bytes());
        for (std::int64_t t = 0; t < capacity - 3; ++t)
          copy_kv(sequence.shape, sequence.pages[0].data(), t, shorter.shape, shorter.pages[0].data(), t);
        for (std::size_t together = 1; together <= kMostQueryRows; ++together)
          EXPECT_TRUE(same_bits(shorter.attend(1, rule_for(d), queries, together), expected))
              << "format " << static_cast<int>(format) << ", d " << d << ", capacity " << capacity;
        std::vector<float> keys(static_cast<std::size_t>((capacity - 3) * d)),
            values(static_cast<std::size_t>((capacity - 3) * shorter.shape.padded_d_vo()));
        load_kv(shorter.shape, shorter.pages[0].data(), 1, capacity - 3, keys.data(), values.data());
        for (std::int64_t t = 0; t < capacity - 3; ++t)
          for (int i = 0; i < d; ++i) {
            const std::size_t at = static_cast<std::size_t>((t * 2 + 1) * d + i);
            ASSERT_EQ(keys[static_cast<std::size_t>(t * d + i)], sequence.keys[at]);
            ASSERT_EQ(values[static_cast<std::size_t>(t * shorter.shape.padded_d_vo() + i)], sequence.values[at]);
          }
      }
}

// An entry with bias b counts 2^b times; the weights that come back say so.
TEST_P(Attention, AddsBiasAndGivesWeights) {
  for (const KvFormat format : kFormats)
    for (const float soft_cap : {0.0f, 5.0f})
      for (const std::int64_t length : {5, 100, 128}) {
        const KvShape shape{1, 64, 64, format};
        const Sequence sequence(shape, length);
        std::vector<float> bias = gaussian(kPageTokens, 9, 2);
        const Query query = sequence.query(4, 0, length), windowed = sequence.query(5, length / 2, length);
        const ScoreRule rule{0.125f, soft_cap};
        AlignedVector<float> out(2 * 64);
        std::vector<float> weights(2 * kPageTokens, -1);
        AttentionState states[] = {{0, 0, out.data()}, {0, 0, out.data() + 64}};
        const QueryRow rows[] = {{query.q.data(), 0, length, 0}, {windowed.q.data(), length / 2, length, 0}};
        attend_page(shape, sequence.pages[0].data(), 0, 0, rule, rows, states, {bias.data(), weights.data()});
        for (std::size_t r = 0; r < 2; ++r) {
          double sum = 0;
          std::vector<double> mean(64);
          for (std::int64_t t = 0; t < kPageTokens; ++t) {
            const float weight = weights[r * kPageTokens + static_cast<std::size_t>(t)];
            if (t < rows[r].first_key || t >= length) {
              ASSERT_EQ(weight, 0.0f);
              continue;
            }
            double score = 0;
            for (std::size_t i = 0; i < 64; ++i)
              score += static_cast<double>(rows[r].q[i]) * sequence.keys[static_cast<std::size_t>(t) * 64 + i];
            score *= rule.scale;
            if (soft_cap > 0) score = soft_cap * std::tanh(score / soft_cap);
            score = score / std::log(2.0) + bias[static_cast<std::size_t>(t)];
            ASSERT_NEAR(weight, std::exp2(score - states[r].max), 1e-5);
            sum += weight;
            for (std::size_t i = 0; i < 64; ++i)
              mean[i] += weight * sequence.values[static_cast<std::size_t>(t) * 64 + i];
          }
          ASSERT_NEAR(states[r].sum, sum, 1e-5 * sum);
          for (std::size_t i = 0; i < 64; ++i) ASSERT_NEAR(states[r].out[i], mean[i], 2e-5 * sum);
        }
      }
}

TEST(AttentionTargets, AgreeToTheBit) {
  for (const KvFormat format : kFormats) {
    const Sequence sequence({1, 80, 64, format}, 300);
    std::vector<Query> queries;
    for (std::uint32_t r = 0; r < 7; ++r) queries.push_back(sequence.query(r, r * 10, 300 - r, 0.01f));
    std::vector<float> expected;
    for (const std::string& name : fma_targets()) {
      const WithTarget target(name);
      const std::vector<float> out = sequence.attend(0, {0.2f, 20}, queries);
      if (expected.empty()) expected = out;
      EXPECT_TRUE(same_bits(out, expected)) << "format " << static_cast<int>(format) << " on " << name;
    }
  }
}

TEST(KvShape, CountsBytes) {
  const KvShape f16{3, 64, 80, KvFormat::F16};
  EXPECT_EQ(f16.page_bytes(), 3u * 128 * (64 + 80) * 2);
  const KvShape q8{2, 64, 64, KvFormat::Q8_0};
  EXPECT_EQ(q8.page_bytes(), 2u * 128 * (64 + 64) * 34 / 32);
  EXPECT_EQ(f16.with_page(48).page_bytes(), 3u * 48 * (64 + 80) * 2);
  for (const int d : {1, 8, 12, 40, 100, 255})
    for (const KvFormat format : kFormats) {
      const KvShape shape{1, d, d, format};
      EXPECT_EQ(shape.key_group_bytes() % 64, 0u);
      EXPECT_EQ(shape.head_bytes() % 64, 0u);
    }
}

// Rounding of the 8-bit cache: half a step, and more at the largest values where the f16 scale falls short.
TEST(StoreKv, RoundsToHalfAStep) {
  const KvShape shape{1, 64, 64, KvFormat::Q8_0};
  for (const float size : {1e-2f, 1.0f, 1e4f}) {
    AlignedVector<std::byte> page(shape.page_bytes());
    const std::vector<float> x = gaussian(64, 3, size);
    store_kv(shape, page.data(), 5, x.data(), x.data());
    // One key seen alone: the output is its value.
    alignas(64) float out[64];
    AttentionState state{0, 0, out};
    const std::vector<float> q(64);
    const QueryRow row{q.data(), 5, 6, 0};
    attend_page(shape, page.data(), 0, 0, {}, {&row, 1}, {&state, 1});
    for (int first = 0; first < 64; first += 32) {
      float largest = 0;
      for (int i = first; i < first + 32; ++i)
        largest = std::max(largest, std::fabs(x[static_cast<std::size_t>(i)]));
      for (int i = first; i < first + 32; ++i)
        EXPECT_NEAR(out[i], x[static_cast<std::size_t>(i)], largest * (0.5 / 127 + 1e-3)) << "size " << size;
    }
  }
}

}  // namespace
}  // namespace narrows
