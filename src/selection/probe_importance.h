// How much attention would miss each entry of a head: queries of earlier positions, turned to positions to come, attend
// to the entries; dropping entry j changes the output o of a probe that gives it weight p by some p · (v_j - o), which
// the output map W of the probe's head makes p · W (v_j - o) in the residual stream. An entry's importance is the sum of
// those squared lengths.
#pragma once
#include <vector>

#include "base/aligned.h"
#include "model/attention_tiles.h"
#include "model/spec.h"
#include "model/weights.h"

namespace narrows {

// Wᵀ W of every head's columns of a layer's output map: [heads][padded d_vo][padded d_vo].
AlignedVector<float> output_products(const LayerSpec& layer, const WeightMatrix& output);

// What is stored of the first `entries` entries of a head: keys [entries][d_qk], or nullptr, and values
// [entries][padded d_vo].
void load_entries(const KvShape& shape, const std::vector<KvPage>& pages, std::int64_t entries, float* keys, float* values);

// Probability of each entry for each query, and what the queries gather. Rows see [0, end_key) of the entries.
// p: [rows][stride], zeros beyond end_key up to whole pages; out: [rows][padded d_vo]; up to kMostQueryRows rows.
void attention_probabilities(const KvShape& shape, const std::vector<KvPage>& pages, const ScoreRule& rule,
                             std::span<const QueryRow> rows, float* p, std::int64_t stride, float* out);

// Cosines and sines of the turn of each probe: [probes][frequencies].
struct ProbeTurns {
  std::vector<float> cosines, sines;
};
// Probe i, of position positions[i], goes to one of the kHorizon positions from `length` on.
inline constexpr std::int64_t kHorizon = 512;
ProbeTurns probe_turns(const Rotary& rotary, std::span<const std::int64_t> positions, std::int64_t length);
void turn_probe(const Rotary& rotary, const ProbeTurns& turns, std::int64_t probe, int kv_head, float* q);

struct ImportanceScratch {
  AlignedVector<float> p, out, columns, gathered, values, products, weighted;
};

struct Importance {
  std::vector<float> of_entry;
  double output = 0;  // Σ ‖W o‖² over the probes: what the entries' squared errors are a part of
};

// q: [probes][d_qk], turned; heads[i]: whose query it is, of the group's; products: of the group's heads, as
// output_products() gives them. Of the first `entries` entries; `seen` entries are attended to.
Importance probe_importance(const KvShape& shape, const std::vector<KvPage>& pages, std::int64_t seen,
                                    std::int64_t entries, const ScoreRule& rule, const float* q,
                                    std::span<const int> heads, int group, const float* products,
                                    ImportanceScratch& scratch);

}  // namespace narrows
