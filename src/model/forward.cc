#include "model/forward.h"

#include <algorithm>
#include <cmath>

#include "model/for_rows.h"
#include "model/mixture.h"

namespace narrows {
namespace {

void apply_norm(const ModelSpec& spec, const Norm& norm, const float* x, float* y, std::int64_t n) {
  if (!norm.present)
    std::copy_n(x, x == y ? 0 : n, y);
  else if (spec.norm == NormKind::Rms)
    rms_norm(x, norm.weight, spec.norm_eps, y, n);
  else
    layer_norm(x, norm.weight, norm.bias, spec.norm_eps, y, n);
}

struct Pass {
  const ModelSpec& spec;
  const Weights& weights;
  AttentionPolicy& attention;
  ThreadPool& pool;
  Workspace& work;
  const Batch& batch;
  const std::int64_t rows, d;
  std::vector<std::int64_t> angle_offsets;  // of each rotary's table in work.cosines and work.sines
  std::size_t cache_bytes = 0;              // that one layer's attention reads, for the profile

  void embed();
  void tabulate_angles();
  void prepare_queries_and_keys(const LayerSpec& layer, const LayerWeights& w, float* qkv, std::int64_t width);
  void attend(int index, const float* h, float* out);
  void feed_forward(int index, const float* h, float* out);
  void layer(int index);
  void head(const LogitRows& wanted);
  void apply(Operation operation, LinearSite& site, const float* from, std::int64_t count, float* to);
};

void Pass::apply(Operation operation, LinearSite& site, const float* from, std::int64_t count, float* to) {
  const Timed timed(work.profile, operation, work.profile ? site.bytes_read() : 0);
  site.apply(pool, work.sites, from, count, to);
}

void Pass::embed() {
  const std::int64_t width = spec.embedding_width;
  const Timed timed(work.profile, Operation::Embedding,
                    static_cast<std::size_t>(rows) * row_bytes(weights.embedding.dtype, width));
  float* x = room(work.x, rows * d);
  float* embedded = weights.embedding_map ? room(work.block, rows * width) : x;
  std::vector<TokenId> ids;
  for (const Run& run : batch.runs) ids.insert(ids.end(), run.tokens.begin(), run.tokens.end());
  const std::size_t stride = row_bytes(weights.embedding.dtype, width);
  const auto complete = [&](std::int64_t r) {
    float* row = x + r * d;
    if (spec.embedding_scale != 1) scale(spec.embedding_scale, row, d);
    if (spec.positions == Positions::Learned) {
      const WeightMatrix& table = weights.position_embedding;
      AlignedVector<float> learned(static_cast<std::size_t>(d));
      dequantize(table.dtype, table.data + static_cast<std::size_t>(batch.positions[r]) * row_bytes(table.dtype, d),
                 learned.data(), d);
      add(learned.data(), row, d);
    }
    if (weights.embedding_norm.present) apply_norm(spec, weights.embedding_norm, row, row, d);
  };
  for_rows(pool, rows, [&](std::int64_t r) {
    dequantize(weights.embedding.dtype, weights.embedding.data + static_cast<std::size_t>(ids[r]) * stride,
               embedded + r * width, width);
    if (!weights.embedding_map) complete(r);
  });
  if (!weights.embedding_map) return;
  weights.embedding_map->apply(pool, work.sites, embedded, rows, x);
  for_rows(pool, rows, complete);
}

// Cosines and sines of every rotary for every row: the same for all layers.
void Pass::tabulate_angles() {
  const Timed timed(work.profile, Operation::Rotary);
  std::int64_t total = 0;
  angle_offsets.clear();
  for (const Rotary& rotary : spec.rotaries) {
    angle_offsets.push_back(total);
    total += rows * static_cast<std::int64_t>(rotary.frequencies.size());
  }
  float* cosines = room(work.cosines, total);
  float* sines = room(work.sines, total);
  std::vector<bool> is_long;  // by row; of most models no row is
  if (spec.original_context > 0) {
    is_long.resize(static_cast<std::size_t>(rows));
    for (const Run& run : batch.runs)
      if (run.cache && run.cache->long_context)
        std::fill_n(is_long.begin() + run.first_row, run.tokens.size(), true);
  }
  for_rows(pool, rows, [&](std::int64_t r) {
    for (std::size_t i = 0; i < spec.rotaries.size(); ++i) {
      const Rotary& rotary = spec.rotaries[i];
      const std::int64_t n = static_cast<std::int64_t>(rotary.frequencies.size());
      if (rotary.base >= 0) {
        const std::int64_t to = angle_offsets[i] + r * n,
                           from = angle_offsets[static_cast<std::size_t>(rotary.base)] +
                                  r * spec.rotaries[static_cast<std::size_t>(rotary.base)].pairs;
        for (std::int64_t j = 0; j < n; ++j) {
          cosines[to + j] = cosines[from + rotary.kept[static_cast<std::size_t>(j)]];
          sines[to + j] = sines[from + rotary.kept[static_cast<std::size_t>(j)]];
        }
        continue;
      }
      const float* frequencies = !rotary.long_frequencies.empty() && is_long[static_cast<std::size_t>(r)]
                                     ? rotary.long_frequencies.data()
                                     : rotary.frequencies.data();
      for (std::int64_t j = 0; j < n; ++j) {
        const double angle = static_cast<double>(batch.positions[r]) * frequencies[j];
        cosines[angle_offsets[i] + r * n + j] = static_cast<float>(std::cos(angle)) * rotary.magnitude;
        sines[angle_offsets[i] + r * n + j] = static_cast<float>(std::sin(angle)) * rotary.magnitude;
      }
    }
  });
}

// Norms and rotates the heads of one row after another.
void Pass::prepare_queries_and_keys(const LayerSpec& layer, const LayerWeights& w, float* qkv, std::int64_t width) {
  const int q_width = layer.heads * layer.d_qk, k_width = layer.kv_heads * layer.d_qk;
  if (spec.qkv_clamp > 0)
    for_rows(pool, rows, [&](std::int64_t r) {
      for (float& v : std::span(qkv + r * width, static_cast<std::size_t>(width)))
        v = std::clamp(v, -spec.qkv_clamp, spec.qkv_clamp);
    });
  if (!w.q_norm.present && !w.k_norm.present && layer.rotary < 0) return;
  const Timed timed(work.profile, Operation::Rotary);
  for_rows(pool, rows, [&](std::int64_t r) {
    float* q = qkv + r * width;
    float* k = q + q_width;
    if (w.qk_norm_whole) {
      apply_norm(spec, w.q_norm, q, q, q_width);
      apply_norm(spec, w.k_norm, k, k, k_width);
    }
    const int group = layer.heads / layer.kv_heads;
    for (int i = 0; i < layer.heads + layer.kv_heads; ++i) {
      float* head = q + i * layer.d_qk;
      const bool is_query = i < layer.heads;
      const int kv_head = is_query ? i / group : i - layer.heads;
      if (!w.qk_norm_whole) {
        Norm norm = is_query ? w.q_norm : w.k_norm;
        if (is_query ? w.q_norm_by_head : w.k_norm_by_head) norm.weight += (is_query ? i : kv_head) * layer.d_qk;
        apply_norm(spec, norm, head, head, layer.d_qk);
      }
      if (layer.rotary < 0) continue;
      const Rotary& rotary = spec.rotaries[static_cast<std::size_t>(layer.rotary)];
      const std::int64_t n = static_cast<std::int64_t>(rotary.frequencies.size());
      const std::int64_t own = n > rotary.pairs ? std::int64_t{kv_head} * rotary.pairs : 0;
      const std::int64_t at = angle_offsets[static_cast<std::size_t>(layer.rotary)] + r * n + own;
      if (rotary.layout == RotaryLayout::Adjacent)
        rotate_adjacent(head, work.cosines.data() + at, work.sines.data() + at, rotary.pairs);
      else
        rotate_half(head, work.cosines.data() + at, work.sines.data() + at, rotary.pairs);
    }
  });
}

void Pass::attend(int index, const float* h, float* out) {
  const LayerSpec& layer = spec.layer[static_cast<std::size_t>(index)];
  const LayerWeights& w = weights.layer[static_cast<std::size_t>(index)];
  float* qkv = room(work.qkv, rows * w.qkv->out());
  float* mixed = room(work.mixed, rows * w.o->in());
  apply(Operation::Qkv, *w.qkv, h, rows, qkv);
  prepare_queries_and_keys(layer, w, qkv, w.qkv->out());
  {
    const Timed timed(work.profile, Operation::Attention, cache_bytes);
    attention.attend(index, pool, batch, qkv, mixed);
  }
  apply(Operation::Output, *w.o, mixed, rows, out);
}

void Pass::feed_forward(int index, const float* h, float* out) {
  const LayerWeights& w = weights.layer[static_cast<std::size_t>(index)];
  if (w.experts.empty())
    apply_feed_forward({spec, pool, work}, *w.up, *w.down, h, rows, out);
  else
    apply_mixture({spec, pool, work}, w, h, rows, out);
}

void Pass::layer(int index) {
  const LayerWeights& w = weights.layer[static_cast<std::size_t>(index)];
  float *x = work.x.data(), *h = room(work.h, rows * d), *block = room(work.block, rows * d);
  attention.observe(index, pool, batch, x);
  const bool norm_first = !spec.post_block_norm;
  const auto norm_rows = [&](const Norm& norm, const float* from, float* to) {
    const Timed timed(work.profile, Operation::Norm);
    for_rows(pool, rows, [&](std::int64_t r) { apply_norm(spec, norm, from + r * d, to + r * d, d); });
  };
  // x += norm(block), the norm being absent in most models.
  const auto add_block = [&](const Norm& norm, float* what) {
    const Timed timed(work.profile, Operation::Residual);
    for_rows(pool, rows, [&](std::int64_t r) {
      apply_norm(spec, norm, what + r * d, what + r * d, d);
      add(what + r * d, x + r * d, d);
    });
  };

  const float* input = x;
  if (norm_first && w.attention_norm.present) {
    norm_rows(w.attention_norm, x, h);
    input = h;
  }
  attend(index, input, block);
  if (spec.parallel_block) {
    float* ffn = room(work.ffn, rows * d);
    if (w.ffn_norm.present) {
      norm_rows(w.ffn_norm, x, h);
      input = h;
    }
    feed_forward(index, input, ffn);
    add_block(w.attention_post_norm, block);
    add_block(w.ffn_post_norm, ffn);
    return;
  }
  add_block(w.attention_post_norm, block);
  if (!norm_first) norm_rows(w.attention_norm, x, x);
  input = x;
  if (norm_first && w.ffn_norm.present) {
    norm_rows(w.ffn_norm, x, h);
    input = h;
  }
  feed_forward(index, input, block);
  add_block(w.ffn_post_norm, block);
  if (!norm_first) norm_rows(w.ffn_norm, x, x);
}

// Only the rows whose logits are wanted pass the head.
void Pass::head(const LogitRows& wanted) {
  const std::int64_t count = static_cast<std::int64_t>(wanted.rows.size());
  if (count == 0) return;
  float* h = room(work.h, count * d);
  const Timed timed(work.profile, Operation::Head, work.profile ? weights.head->bytes_read() : 0);
  for_rows(pool, count, [&](std::int64_t i) {
    apply_norm(spec, weights.output_norm, work.x.data() + wanted.rows[static_cast<std::size_t>(i)] * d, h + i * d, d);
  });
  if (weights.output_map) {
    float* narrow = room(work.block, count * spec.embedding_width);
    weights.output_map->apply(pool, work.sites, h, count, narrow);
    h = narrow;
  }
  weights.head->apply(pool, work.sites, h, count, wanted.logits);
  if (spec.logit_scale == 1 && spec.logit_cap == 0) return;
  for_rows(pool, count, [&](std::int64_t i) {
    float* logits = wanted.logits + i * spec.vocab;
    if (spec.logit_scale != 1) scale(spec.logit_scale, logits, spec.vocab);
    if (spec.logit_cap > 0) soft_cap(spec.logit_cap, logits, spec.vocab);
  });
}

}  // namespace

void forward(const ModelSpec& spec, const Weights& weights, AttentionPolicy& attention, ThreadPool& pool,
             Workspace& workspace, const Batch& batch, const LogitRows& wanted) {
  forward(spec, weights, attention, pool, workspace, batch, wanted, {0, spec.layers});
}

void forward(const ModelSpec& spec, const Weights& weights, AttentionPolicy& attention, ThreadPool& pool,
             Workspace& workspace, const Batch& batch, const LogitRows& wanted, LayerRange layers) {
  Pass pass{spec, weights, attention, pool, workspace, batch, batch.rows, spec.d, {}};
  attention.begin(batch);
  if (workspace.profile) {
    for (const Run& run : batch.runs) pass.cache_bytes += run.cache->bytes_read();
    pass.cache_bytes /= static_cast<std::size_t>(spec.layers);
  }
  if (layers.begin == 0) pass.embed();
  pass.tabulate_angles();
  for (int layer = layers.begin; layer < layers.end; ++layer) pass.layer(layer);
  attention.end(pool, batch);
  pass.head(wanted);
}

}  // namespace narrows
