#include "selection/probe_importance.h"

#include <algorithm>
#include <cmath>

#include "formats/dtype.h"
#include "kernels/outer.h"

namespace narrows {
AlignedVector<float> output_products(const LayerSpec& layer, const WeightMatrix& output) {
  const std::int64_t d = output.rows, width = output.cols, padded = KvShape{1, layer.d_qk, layer.d_vo}.padded_d_vo();
  AlignedVector<float> rows(static_cast<std::size_t>(d * width)), columns(static_cast<std::size_t>(d * padded));
  const std::size_t stride = row_bytes(output.dtype, width);
  for (std::int64_t r = 0; r < d; ++r)
    dequantize(output.dtype, output.data + static_cast<std::size_t>(r) * stride, rows.data() + r * width, width);
  AlignedVector<float> products(static_cast<std::size_t>(layer.heads * padded * padded));
  for (std::int64_t h = 0; h < layer.heads; ++h) {
    for (std::int64_t r = 0; r < d; ++r)
      std::copy_n(rows.data() + r * width + h * layer.d_vo, layer.d_vo, columns.data() + r * padded);
    outer_products({columns.data(), padded, 1}, columns.data(), padded, d, padded, padded,
                   products.data() + h * padded * padded, padded);
  }
  return products;
}

void load_entries(const KvShape& shape, const std::vector<KvPage>& pages, std::int64_t entries, float* keys,
                  float* values) {
  for (std::int64_t first = 0; first < entries; first += kPageTokens) {
    const KvPage& page = pages[static_cast<std::size_t>(first / kPageTokens)];
    load_kv(shape.with_page(page.tokens), page.data, 0, std::min(entries - first, kPageTokens),
            keys ? keys + first * shape.d_qk : nullptr, values + first * shape.padded_d_vo());
  }
}

void attention_probabilities(const KvShape& shape, const std::vector<KvPage>& pages, const ScoreRule& rule,
                             std::span<const QueryRow> rows, float* p, std::int64_t stride, float* out) {
  const std::size_t n = rows.size(), padded = static_cast<std::size_t>(shape.padded_d_vo());
  AlignedVector<float> partial(n * padded);
  alignas(64) float weights[kMostQueryRows * kPageTokens];
  std::vector<AttentionState> states(n), running(n);
  std::vector<float> maxima(n * pages.size());
  std::int64_t end = 0;
  for (std::size_t r = 0; r < n; ++r) {
    states[r].out = partial.data() + r * padded;
    running[r] = {0, 0, out + r * padded};
    end = std::max(end, rows[r].end_key);
  }
  const std::int64_t used = (end + kPageTokens - 1) / kPageTokens;
  for (std::int64_t number = 0; number < used; ++number) {
    const KvPage& page = pages[static_cast<std::size_t>(number)];
    attend_page(shape.with_page(page.tokens), page.data, 0, number * kPageTokens, rule, rows, states, {page.bias, weights});
    for (std::size_t r = 0; r < n; ++r) {
      std::copy_n(weights + r * kPageTokens, kPageTokens, p + static_cast<std::int64_t>(r) * stride + number * kPageTokens);
      maxima[static_cast<std::size_t>(number) * n + r] = states[r].sum > 0 ? states[r].max : -INFINITY;
      merge_attention(running[r], states[r], shape.d_vo);
    }
  }
  for (std::size_t r = 0; r < n; ++r) {
    for (std::int64_t number = 0; number < used; ++number) {
      const float factor = std::exp2(maxima[static_cast<std::size_t>(number) * n + r] - running[r].max) / running[r].sum;
      float* row = p + static_cast<std::int64_t>(r) * stride + number * kPageTokens;
      for (std::int64_t e = 0; e < kPageTokens; ++e) row[e] *= factor;
    }
    finish_attention(running[r], running[r].out, shape.d_vo);
  }
}

ProbeTurns probe_turns(const Rotary& rotary, std::span<const std::int64_t> positions, std::int64_t length) {
  constexpr std::int64_t kStep = 317;  // 0.618 of the horizon, and prime to it
  ProbeTurns turns;
  for (std::int64_t i = 0; i < std::ssize(positions); ++i)
    for (const float frequency : rotary.frequencies) {
      const double angle = static_cast<double>(length + i * kStep % kHorizon - positions[static_cast<std::size_t>(i)]) * frequency;
      turns.cosines.push_back(static_cast<float>(std::cos(angle)));
      turns.sines.push_back(static_cast<float>(std::sin(angle)));
    }
  return turns;
}

void turn_probe(const Rotary& rotary, const ProbeTurns& turns, std::int64_t probe, int kv_head, float* q) {
  const std::int64_t n = std::ssize(rotary.frequencies);
  const std::int64_t at = probe * n + (n > rotary.pairs ? std::int64_t{kv_head} * rotary.pairs : 0);
  if (rotary.layout == RotaryLayout::Adjacent)
    rotate_adjacent(q, turns.cosines.data() + at, turns.sines.data() + at, rotary.pairs);
  else
    rotate_half(q, turns.cosines.data() + at, turns.sines.data() + at, rotary.pairs);
}

Importance probe_importance(const KvShape& shape, const std::vector<KvPage>& pages, std::int64_t seen,
                                    std::int64_t entries, const ScoreRule& rule, const float* q,
                                    std::span<const int> heads, int group, const float* products,
                                    ImportanceScratch& scratch) {
  const std::int64_t n = std::ssize(heads), d = shape.padded_d_vo(), square = d * d;
  const std::int64_t stride = (seen + kPageTokens - 1) / kPageTokens * kPageTokens;
  float* p = room(scratch.p, n * stride);
  float* out = room(scratch.out, n * d);
  std::fill_n(out, n * d, 0.0f);
  for (std::int64_t first = 0; first < n; first += kMostQueryRows) {
    const std::int64_t count = std::min<std::int64_t>(kMostQueryRows, n - first);
    QueryRow rows[kMostQueryRows];
    for (std::int64_t i = 0; i < count; ++i) rows[i] = {q + (first + i) * shape.d_qk, 0, seen};
    attention_probabilities(shape, pages, rule, {rows, static_cast<std::size_t>(count)}, p + first * stride, stride,
                            out + first * d);
  }
  for (std::int64_t i = 0; i < n * stride; ++i) p[i] *= p[i];
  // With C = Wᵀ W: Σ p² (v - o)ᵀ C (v - o) = v · (Σ_h (Σ_{i of h} p²) C_h v - 2 Σ p² C o) + Σ p² oᵀ C o. One product gives
  // the sums over probes: columns C o, then one for each head, then oᵀ C o.
  const std::int64_t width = d + (group + 1 + 15) / 16 * 16;
  float* columns = room(scratch.columns, n * width);
  std::fill_n(columns, n * width, 0.0f);
  for (std::int64_t i = 0; i < n; ++i) {
    const int h = heads[static_cast<std::size_t>(i)];
    float* row = columns + i * width;
    outer_products({out + i * d, 1, d}, products + h * square, d, d, 1, d, row, width);
    row[d + h] = 1;
    for (std::int64_t k = 0; k < d; ++k) row[d + group] += row[k] * out[i * d + k];
  }
  float* gathered = room(scratch.gathered, entries * width);
  outer_products({p, stride, 1}, columns, width, n, entries, width, gathered, width);
  float* values = room(scratch.values, stride * d);
  load_entries(shape, pages, entries, nullptr, values);
  float* weighted = room(scratch.weighted, entries * d);
  for (std::int64_t e = 0; e < entries; ++e)
    for (std::int64_t k = 0; k < d; ++k) weighted[e * d + k] = -2 * gathered[e * width + k];
  float* transformed = room(scratch.products, entries * d);
  for (int h = 0; h < group; ++h) {
    outer_products({values, 1, d}, products + h * square, d, d, entries, d, transformed, d);
    for (std::int64_t e = 0; e < entries; ++e) {
      const float mass = gathered[e * width + d + h];
      for (std::int64_t k = 0; k < d; ++k) weighted[e * d + k] += mass * transformed[e * d + k];
    }
  }
  Importance importance;
  importance.of_entry.resize(static_cast<std::size_t>(entries));
  for (std::int64_t i = 0; i < n; ++i) importance.output += static_cast<double>(columns[i * width + d + group]);
  for (std::int64_t e = 0; e < entries; ++e) {
    float sums[16] = {};
    for (std::int64_t k = 0; k < d; k += 16)
      for (std::int64_t i = 0; i < 16; ++i) sums[i] += values[e * d + k + i] * weighted[e * d + k + i];
    float sum = gathered[e * width + d + group];
    for (const float s : sums) sum += s;
    importance.of_entry[static_cast<std::size_t>(e)] = std::max(sum, 0.0f);
  }
  return importance;
}

}  // namespace narrows
