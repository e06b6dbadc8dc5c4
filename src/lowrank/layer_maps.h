// The maps of one layer as numbers to compute with, and as they are stored.
#pragma once
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/spill_file.h"
#include "formats/dtype.h"
#include "lowrank/mlp.h"
#include "model/spec.h"
#include "model/weights.h"

namespace narrows {

// y = W x + b.
struct MapValues {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> w;     // [rows][columns]
  std::vector<double> bias;  // [rows]; empty: none
};
MapValues map_values(const Linear& map);

struct StoredMap {
  DType type = DType::F16;
  std::int64_t rows = 0, columns = 0;
  AlignedVector<std::byte> w;
  AlignedVector<float> bias;       // empty: none
  std::int64_t spilled_at = -1;    // of w in a SpillFile, which has it instead
  Linear linear() const;           // into this
  void spill(SpillFile& file);
  std::size_t bytes() const { return static_cast<std::size_t>(rows) * row_bytes(type, columns); }
};
// In F16 where rows are not a whole number of the type's blocks. Throws Error naming `what` if a weight is
// not finite or too large for the type.
StoredMap store(const MapValues& map, DType type, const std::string& what);

// The attention of one layer.
struct AttentionMaps {
  LayerSpec sizes;
  RotaryLayout layout = RotaryLayout::Half;
  std::vector<int> pairs;  // [kv_heads][pairs] of the model's rotary pairs, ascending in each head
  MapValues q, k, v, o;
  std::vector<double> q_norm, k_norm;  // [heads][d_qk], [kv_heads][d_qk]; empty: none
  // Norms of whole rows (OLMo 2), or that subtract a mean (StableLM): of these no dimension can go, queries and keys stay.
  bool queries_fixed = false;

  int pairs_each() const { return static_cast<int>(pairs.size()) / sizes.kv_heads; }
};
bool has_fixed_queries(const ModelSpec& spec, const LayerWeights& weights);
AttentionMaps attention_maps(const ModelSpec& spec, const LayerSpec& layer, const LayerWeights& weights);

// The feed-forward block of one layer.
struct FeedForwardMaps {
  std::vector<MapValues> up;  // gate and up, or up alone
  MapValues down;
};
FeedForwardMaps feed_forward_maps(const LayerWeights& weights);
FeedForwardMaps take_neurons(const FeedForwardMaps& maps, MlpReduced reduced);

}  // namespace narrows
