#include "selection/compressed_attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "selection/compressed_cache.h"
#include "selection/kv_choice.h"
#include "selection/probe_importance.h"

namespace narrows {
namespace {

constexpr ProbeRule kProbes{128}, kFewProbes{64};  // that stay with the cache; with a small one
constexpr ProbeRule kProbesOnce{1024};             // that go when it has been compressed
constexpr float kNewest = 0.5f;         // part of an entry's importance that the latest probes have
// Entries by whose largest importance one counts.
constexpr std::int64_t kNeighbours = 7;
// Below this budget there is no room for neighbours, and 128 probes would be an eighth of the bytes.
constexpr double kSmallBudget = 0.2;
constexpr std::int64_t kSinks = 4;              // StreamingLLM
constexpr std::int64_t kObserved = 64;          // SnapKV: the latest queries
constexpr std::int64_t kPooled = 7;             // SnapKV: neighbours
constexpr float kMergeCosine = 0.8f;

// Which of the group's heads gives its query of this position as a probe: as if drawn, whatever the stride.
int probe_head(std::int64_t position, int group) {
  return static_cast<int>((static_cast<std::uint32_t>(position) * 2654435761u >> 16) % static_cast<unsigned>(group));
}

class CompressedAttention final : public AttentionPolicy {
 public:
  CompressedAttention(const ModelSpec& spec, const Weights& weights, KvFormat format, const KvCompression& options);

  std::unique_ptr<SequenceCache> new_sequence() const override {
    return std::make_unique<CompressedCache>(spec_, windowed_spec_, format_, first_, memory_,
                                             schedule_.probes);
  }
  void begin(const Batch& batch) override;
  void end(ThreadPool& pool, const Batch& batch) override;
  std::int64_t next_boundary(const SequenceCache& cache) const override {
    return static_cast<const CompressedCache&>(cache).next();
  }
  void attend(int layer, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) override;

 private:
  struct HeadAt {
    int layer, kv_head;
  };
  HeadEntries& head_of(CompressedCache& cache, HeadAt at) const {
    return cache.layer(at.layer).heads[static_cast<std::size_t>(at.kv_head)];
  }
  const LayerSpec& layer_of(HeadAt at) const { return spec_.layer[static_cast<std::size_t>(at.layer)]; }
  // Of one entry of one head: keys and values; with what the policy remembers beside them.
  static std::int64_t kv_bytes(const KvShape& shape) { return static_cast<std::int64_t>(shape.page_bytes()) / kPageTokens; }
  std::int64_t entry_bytes(const KvShape& shape) const { return kv_bytes(shape) + (memory_ != EntryMemory::None ? 4 : 0) + (merges_ ? 4 : 0); }
  ScoreRule rule(const LayerSpec& layer) const { return {layer.score_scale, spec_.score_cap}; }
  // Where to compress next: when the budget asks for it, or, within a tolerance, when a block has come.
  std::int64_t next(std::int64_t position, std::int64_t held) const {
    return o_.tau == 0 ? schedule_.next(position, held) : schedule_.next_block(position);
  }
  void receive(int index, CompressedCache& cache, ThreadPool& pool, const Run& run, const float* qkv);
  void compress(CompressedCache& cache, ThreadPool& pool);
  std::vector<std::vector<Entry>> choose(CompressedCache& cache, ThreadPool& pool, std::int64_t bytes);
  std::vector<std::vector<Entry>> choose_by_probes(CompressedCache& cache, ThreadPool& pool, std::int64_t bytes);
  std::vector<std::int64_t> allocate_by_layer(std::span<const HeadClaim> claims, std::span<const double> outputs, double new_share) const;
  std::vector<float> merge(CompressedCache& cache, HeadAt at, std::span<const Entry> kept) const;

  const ModelSpec& spec_;
  const Weights& weights_;
  const KvFormat format_;
  const KvCompression o_;
  const bool probes_, merges_;
  const EntryMemory memory_;
  ModelSpec windowed_spec_;  // without the layers that are compressed
  DenseAttention windowed_;
  KvSchedule schedule_;
  std::int64_t first_;             // where a sequence is compressed first
  std::vector<HeadAt> heads_;      // that are compressed
  Batch windowed_batch_;
  AttentionTiles tiles_;
  std::vector<AlignedVector<float>> products_;  // of each layer's output map, once needed
};

ModelSpec only_windowed(const ModelSpec& spec) {
  ModelSpec windowed = spec;
  for (LayerSpec& layer : windowed.layer)
    if (layer.window == 0) layer.kv_heads = 0;
  return windowed;
}

CompressedAttention::CompressedAttention(const ModelSpec& spec, const Weights& weights, KvFormat format,
                                         const KvCompression& options)
    : spec_(spec),
      weights_(weights),
      format_(format),
      o_(options),
      probes_(o_.policy == KvPolicy::Representatives),
      merges_(o_.policy == KvPolicy::SnapKvMerge),
      memory_(o_.policy == KvPolicy::Streaming ? EntryMemory::None
              : !probes_                       ? EntryMemory::Running
              : o_.compress_at > 0             ? EntryMemory::None
                                               : EntryMemory::Compressions),
      windowed_spec_(only_windowed(spec)),
      windowed_(windowed_spec_, format) {
  if (spec.positions == Positions::Alibi) fail("compressed cache: expected a model without ALiBi");
  if (!(o_.budget > 0) || o_.budget > 1) fail("cache budget: expected more than 0 and at most 1, found {}", o_.budget);
  if (o_.window < kKeyGroup || o_.window % kKeyGroup != 0)
    fail("cache window: expected a multiple of {} tokens from {} up, found {}", kKeyGroup, kKeyGroup, o_.window);
  if (o_.compress_at < 0) fail("compress at: expected 0 or more tokens, found {}", o_.compress_at);
  if (!(o_.tau >= 0) || o_.tau > 1) fail("cache tau: expected 0 to 1, found {}", o_.tau);
  if (o_.tau > 0 && !probes_) fail("cache tau: expected the policy of representatives");
  schedule_.budget = o_.tau > 0 ? 1 : o_.budget;
  for (int l = 0; l < spec.layers; ++l) {
    const LayerSpec& layer = spec.layer[static_cast<std::size_t>(l)];
    if (layer.window > 0) continue;
    const KvShape shape{1, layer.d_qk, layer.d_vo, format};
    for (int h = 0; h < layer.kv_heads; ++h) {
      heads_.push_back({l, h});
      schedule_.dense_bytes += kv_bytes(shape);
      schedule_.entry_bytes += entry_bytes(shape);
      if (probes_) schedule_.probe_bytes += static_cast<std::int64_t>(probe_bytes(layer.d_qk));
    }
  }
  if (heads_.empty()) fail("compressed cache: expected a layer without a sliding window");
  if (probes_) schedule_.probes = o_.compress_at > 0 ? kProbesOnce : schedule_.budget < kSmallBudget ? kFewProbes : kProbes;
  schedule_.least_entries = o_.window + kKeyGroup;
  first_ = o_.compress_at > 0 ? o_.compress_at : next(0, 0);
  const double least = static_cast<double>(schedule_.least_entries * schedule_.entry_bytes) /
                       static_cast<double>(o_.compress_at * schedule_.dense_bytes);
  if (o_.compress_at > 0 && least > 1)
    fail("compress at: expected more than {} tokens for a window of {}, found {}", schedule_.least_entries, o_.window, o_.compress_at);
  if (o_.compress_at > 0 && schedule_.budget < least)
    fail("cache budget: expected at least {:.3f} at {} tokens, for a window of {}, found {}", least + 0.0005, o_.compress_at, o_.window,
         schedule_.budget);
}

void CompressedAttention::begin(const Batch& batch) {
  windowed_batch_ = batch;
  for (Run& run : windowed_batch_.runs) run.cache = &static_cast<CompressedCache*>(run.cache)->windowed();
  windowed_.begin(windowed_batch_);
  for (const Run& run : batch.runs)
    static_cast<CompressedCache*>(run.cache)->reserve(run.position + std::ssize(run.tokens));
}

void CompressedAttention::end(ThreadPool& pool, const Batch& batch) {
  windowed_.end(pool, windowed_batch_);
  for (const Run& run : batch.runs) {
    auto& cache = *static_cast<CompressedCache*>(run.cache);
    cache.advance(run.position + std::ssize(run.tokens));
    if (cache.length() == cache.next()) compress(cache, pool);
  }
}

void CompressedAttention::attend(int index, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) {
  const LayerSpec& layer = spec_.layer[static_cast<std::size_t>(index)];
  if (layer.window > 0) return windowed_.attend(index, pool, windowed_batch_, qkv, out);
  const QkvWidths w{layer};
  const int group = layer.heads / layer.kv_heads;
  tiles_.clear();
  for (const Run& run : batch.runs) {
    auto& cache = *static_cast<CompressedCache*>(run.cache);
    EntryLayer& entries = cache.layer(index);
    const std::int64_t tokens = std::ssize(run.tokens);
    const auto entry_of = [&](const HeadEntries& head, std::int64_t t) {
      return head.compressed + run.position + t - cache.first_exact();
    };
    pool.share(tokens, 8, [&](int, Range range) {
      for (std::int64_t t = range.begin; t < range.end; ++t)
        for (int h = 0; h < layer.kv_heads; ++h) {
          const HeadEntries& head = entries.heads[static_cast<std::size_t>(h)];
          const float* k = qkv + (run.first_row + t) * w.qkv + w.q;
          const std::int64_t entry = entry_of(head, t);
          const KvPage& page = head.pages[static_cast<std::size_t>(entry / kPageTokens)];
          store_kv(entries.shape.with_page(page.tokens), page.data, entry % kPageTokens, k + h * layer.d_qk,
                   k + w.k + h * layer.d_vo);
        }
    });
    if (probes_)
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t position = run.position + t;
        if (!cache.is_probe(position)) continue;
        const float* q = qkv + (run.first_row + t) * w.qkv + probe_head(position, group) * layer.d_qk;
        for (int h = 0; h < layer.kv_heads; ++h)
          cache.add_probe(entries.heads[static_cast<std::size_t>(h)], q + h * group * layer.d_qk, layer.d_qk);
      }
    for (int h = 0; h < layer.kv_heads; ++h) {
      const HeadEntries& head = entries.heads[static_cast<std::size_t>(h)];
      tiles_.add(entries.shape, head.pages, 0, tokens * group, [&](std::int64_t i, QueryRow& query) {
        const std::int64_t row = run.first_row + i / group, of_head = h * group + i % group;
        query = {qkv + row * w.qkv + of_head * layer.d_qk, 0, entry_of(head, i / group) + 1};
        return out + row * w.out + of_head * layer.d_vo;
      });
    }
    if (memory_ == EntryMemory::Running) receive(index, cache, pool, run, qkv);
  }
  tiles_.attend(rule(layer), pool);
}

// Adds up the attention that entries receive: of all queries, or of the latest ones before a compression.
void CompressedAttention::receive(int index, CompressedCache& cache, ThreadPool& pool, const Run& run, const float* qkv) {
  const LayerSpec& layer = spec_.layer[static_cast<std::size_t>(index)];
  const QkvWidths w{layer};
  const int group = layer.heads / layer.kv_heads;
  EntryLayer& entries = cache.layer(index);
  const bool all = o_.policy == KvPolicy::H2o;
  if (!all && cache.next() == INT64_MAX) return;
  const std::int64_t from = all ? 0 : cache.next() - kObserved;
  pool.share(layer.kv_heads, 1, [&](int, Range range) {
    AlignedVector<float> p, out(static_cast<std::size_t>(kMostQueryRows * entries.shape.padded_d_vo()));
    for (std::int64_t h = range.begin; h < range.end; ++h) {
      HeadEntries& head = entries.heads[static_cast<std::size_t>(h)];
      const std::int64_t stride = std::ssize(head.pages) * kPageTokens;
      p.resize(static_cast<std::size_t>(kMostQueryRows * stride));
      for (std::int64_t t = 0; t < std::ssize(run.tokens); ++t) {
        if (run.position + t < from) continue;
        const std::int64_t end = head.compressed + run.position + t - cache.first_exact() + 1;
        for (int first = 0; first < group; first += kMostQueryRows) {
          const int count = std::min(kMostQueryRows, group - first);
          QueryRow rows[kMostQueryRows];
          for (int i = 0; i < count; ++i)
            rows[i] = {qkv + (run.first_row + t) * w.qkv + (h * group + first + i) * layer.d_qk, 0, end};
          attention_probabilities(entries.shape, head.pages, rule(layer), {rows, static_cast<std::size_t>(count)},
                                  p.data(), stride, out.data());
          for (int i = 0; i < count; ++i)
            for (std::int64_t e = 0; e < end; ++e)
              head.worth[static_cast<std::size_t>(e)] += p[static_cast<std::size_t>(i * stride + e)];
        }
      }
    }
  });
}

void CompressedAttention::compress(CompressedCache& cache, ThreadPool& pool) {
  const bool once = o_.compress_at > 0;
  const std::int64_t bytes =
      once || o_.tau > 0 ? static_cast<std::int64_t>(schedule_.budget * static_cast<double>(cache.length() * schedule_.dense_bytes))
           : schedule_.room(cache.length());
  const std::vector<std::vector<Entry>> kept = choose(cache, pool, bytes);
  std::vector<std::int64_t> counts;
  std::int64_t held = 0;
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    counts.push_back(std::ssize(kept[i]));
    held += counts.back() * entry_bytes(cache.layer(heads_[i].layer).shape);
  }
  std::vector<std::vector<float>> biases(heads_.size());
  pool.share(std::ssize(heads_), 1, [&](int, Range range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const std::size_t n = static_cast<std::size_t>(i);
      HeadEntries& head = head_of(cache, heads_[n]);
      if (merges_) biases[n] = merge(cache, heads_[n], kept[n]);
      cache.keep(cache.layer(heads_[n].layer).shape, head, kept[n]);
      if (memory_ == EntryMemory::Running && o_.policy != KvPolicy::H2o) std::fill(head.worth.begin(), head.worth.end(), 0.0f);
    }
  });
  cache.finish(counts, std::min(o_.window, cache.length()), once ? INT64_MAX : next(cache.length(), held));
  if (merges_)
    for (std::size_t i = 0; i < heads_.size(); ++i) cache.set_biases(head_of(cache, heads_[i]), biases[i]);
}

// What each of heads_ keeps.
std::vector<std::vector<Entry>> CompressedAttention::choose(CompressedCache& cache, ThreadPool& pool, std::int64_t bytes) {
  if (probes_) return choose_by_probes(cache, pool, bytes);
  const std::int64_t keep = std::max(bytes / schedule_.entry_bytes / kKeyGroup * kKeyGroup, schedule_.least_entries);
  std::vector<std::vector<Entry>> kept(heads_.size());
  pool.share(std::ssize(heads_), 1, [&](int, Range range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const HeadEntries& head = head_of(cache, heads_[static_cast<std::size_t>(i)]);
      std::vector<Entry>& chosen = kept[static_cast<std::size_t>(i)];
      switch (o_.policy) {
        case KvPolicy::Streaming: chosen = keep_ends(cache.entries(head), kSinks, keep); break;
        case KvPolicy::H2o: chosen = keep_top(head.worth, std::max(keep / 2, o_.window), keep); break;
        default: chosen = keep_top(pool_max(head.worth, kPooled), o_.window, keep); break;
      }
    }
  });
  return kept;
}

std::vector<std::vector<Entry>> CompressedAttention::choose_by_probes(CompressedCache& cache, ThreadPool& pool,
                                                                      std::int64_t bytes) {
  if (products_.empty()) {
    products_.resize(spec_.layer.size());
    pool.share(std::ssize(products_), 1, [&](int, Range range) {
      for (std::int64_t l = range.begin; l < range.end; ++l)
        if (spec_.layer[static_cast<std::size_t>(l)].window == 0)
          products_[static_cast<std::size_t>(l)] =
              output_products(spec_.layer[static_cast<std::size_t>(l)],
                              weights_.layer[static_cast<std::size_t>(l)].o->maps().front().weight);
    });
  }
  const std::vector<std::int64_t> positions = cache.probe_positions();
  const std::int64_t probes = std::ssize(positions);
  std::vector<ProbeTurns> turns;
  for (const Rotary& rotary : spec_.rotaries) turns.push_back(probe_turns(rotary, positions, cache.length()));
  std::vector<HeadClaim> claims(heads_.size());
  std::vector<double> outputs(heads_.size());
  std::vector<ImportanceScratch> scratch(static_cast<std::size_t>(pool.size()));
  pool.share(std::ssize(heads_), 1, [&](int thread, Range range) {
    std::vector<float> q;
    std::vector<int> of_head(static_cast<std::size_t>(probes));
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const HeadAt at = heads_[static_cast<std::size_t>(i)];
      const LayerSpec& layer = layer_of(at);
      const int group = layer.heads / layer.kv_heads;
      HeadEntries& head = head_of(cache, at);
      const KvShape& shape = cache.layer(at.layer).shape;
      q.resize(static_cast<std::size_t>(probes * layer.d_qk));
      for (std::int64_t n = 0; n < probes; ++n) {
        float* row = q.data() + n * layer.d_qk;
        load_probe(head.probes.data() + static_cast<std::size_t>(n) * probe_bytes(layer.d_qk), layer.d_qk, row);
        if (layer.rotary >= 0)
          turn_probe(spec_.rotaries[static_cast<std::size_t>(layer.rotary)], turns[static_cast<std::size_t>(layer.rotary)],
                     n, at.kv_head, row);
        of_head[static_cast<std::size_t>(n)] = probe_head(positions[static_cast<std::size_t>(n)], group);
      }
      const std::int64_t seen = cache.entries(head), d = shape.padded_d_vo();
      HeadClaim& claim = claims[static_cast<std::size_t>(i)];
      Importance importance = probe_importance(
          shape, head.pages, seen, seen - std::min(o_.window, seen), rule(layer), q.data(), of_head, group,
          products_[static_cast<std::size_t>(at.layer)].data() + at.kv_head * group * d * d, scratch[static_cast<std::size_t>(thread)]);
      const float share = 1.0f / static_cast<float>(probes);
      for (std::size_t e = 0; e < importance.of_entry.size(); ++e) {
        float& value = importance.of_entry[e];
        value *= share;
        if (memory_ == EntryMemory::None) continue;
        float& worth = head.worth[e];
        if (worth > 0) value = (1 - kNewest) * worth + kNewest * value;
        worth = value;
      }
      claim.score = pool_max(importance.of_entry, schedule_.budget >= kSmallBudget ? kNeighbours : 1);
      outputs[static_cast<std::size_t>(i)] = importance.output * static_cast<double>(share);
      claim.entry_bytes = entry_bytes(shape);
    }
  });
  // A twentieth of the mean for each at least.
  const std::int64_t mean = bytes / schedule_.entry_bytes;
  const std::int64_t least = (std::max<std::int64_t>(8, mean / 20) + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
  const std::vector<std::int64_t> counts =
      o_.tau > 0 ? allocate_by_layer(claims, outputs, static_cast<double>(cache.length() - cache.compressed_at()) / static_cast<double>(cache.length()))
                 : allocate_jointly(claims, bytes - o_.window * schedule_.entry_bytes, least, kKeyGroup);
  std::vector<std::vector<Entry>> kept(heads_.size());
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    claims[i].score.resize(static_cast<std::size_t>(cache.entries(head_of(cache, heads_[i]))));
    kept[i] = keep_top(claims[i].score, o_.window, counts[i] + o_.window);
  }
  return kept;
}

// Each layer may err by tau² of its output; of that each text its share, so that errors do not grow with the number of
// compressions.
std::vector<std::int64_t> CompressedAttention::allocate_by_layer(std::span<const HeadClaim> claims, std::span<const double> outputs,
                                                                 double new_share) const {
  std::vector<std::int64_t> counts;
  for (std::size_t first = 0, end = 0; first < heads_.size(); first = end) {
    double output = 0;
    for (end = first; end < heads_.size() && heads_[end].layer == heads_[first].layer; ++end) output += outputs[end];
    const std::vector<std::int64_t> own =
        allocate_within(claims.subspan(first, end - first), o_.tau * o_.tau * new_share * output, kKeyGroup, kKeyGroup);
    counts.insert(counts.end(), own.begin(), own.end());
  }
  return counts;
}

// Merges what is dropped into the most similar of what is kept before the window: means of keys and values, each counted
// as often as it stands for a token. Gives the weights of the kept entries.
std::vector<float> CompressedAttention::merge(CompressedCache& cache, HeadAt at, std::span<const Entry> kept) const {
  const KvShape& shape = cache.layer(at.layer).shape;
  HeadEntries& head = head_of(cache, at);
  const std::int64_t entries = cache.entries(head), d = shape.d_qk, padded = shape.padded_d_vo();
  std::vector<float> keys(static_cast<std::size_t>(entries * d)), values(static_cast<std::size_t>(entries * padded));
  load_entries(shape, head.pages, entries, keys.data(), values.data());
  const std::vector<float> bias = cache.biases(head);
  const std::int64_t targets = std::ssize(kept) - std::min<std::int64_t>(o_.window, std::ssize(kept));
  std::vector<Entry> dropped;
  for (std::int64_t e = 0, k = 0; e < entries; ++e)
    if (k < std::ssize(kept) && kept[static_cast<std::size_t>(k)] == e)
      ++k;
    else
      dropped.push_back(static_cast<Entry>(e));
  const auto gather = [&](std::span<const Entry> which) {
    std::vector<float> rows;
    for (const Entry e : which) rows.insert(rows.end(), keys.begin() + e * d, keys.begin() + (e + 1) * d);
    return rows;
  };
  const std::vector<Entry> nearest =
      most_similar(gather(dropped), gather(kept.first(static_cast<std::size_t>(targets))), d, kMergeCosine);
  std::vector<float> counts(kept.size());
  for (std::size_t k = 0; k < kept.size(); ++k) counts[k] = std::exp2(bias[static_cast<std::size_t>(kept[k])]);
  std::vector<char> changed(kept.size());
  for (std::size_t i = 0; i < dropped.size(); ++i) {
    if (nearest[i] < 0) continue;
    const std::size_t k = static_cast<std::size_t>(nearest[i]);
    const std::int64_t to = kept[k], from = dropped[i];
    const float more = std::exp2(bias[static_cast<std::size_t>(from)]), total = counts[k] + more, part = more / total;
    for (std::int64_t n = 0; n < d; ++n) {
      float& x = keys[static_cast<std::size_t>(to * d + n)];
      x += part * (keys[static_cast<std::size_t>(from * d + n)] - x);
    }
    for (std::int64_t n = 0; n < padded; ++n) {
      float& x = values[static_cast<std::size_t>(to * padded + n)];
      x += part * (values[static_cast<std::size_t>(from * padded + n)] - x);
    }
    counts[k] = total;
    changed[k] = 1;
  }
  for (std::size_t k = 0; k < kept.size(); ++k) {
    if (changed[k]) {
      const KvPage& page = head.pages[static_cast<std::size_t>(kept[k] / kPageTokens)];
      store_kv(shape.with_page(page.tokens), page.data, kept[k] % kPageTokens, keys.data() + kept[k] * d,
               values.data() + kept[k] * padded);
    }
    counts[k] = std::log2(counts[k]);
  }
  return counts;
}

}  // namespace

std::unique_ptr<AttentionPolicy> compressed_attention(const ModelSpec& spec, const Weights& weights, KvFormat format,
                                                      const KvCompression& options) {
  auto policy = std::make_unique<CompressedAttention>(spec, weights, format, options);
  if (options.keeps_everything()) return std::make_unique<DenseAttention>(spec, format);
  return policy;
}

}  // namespace narrows
