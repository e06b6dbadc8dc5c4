// A model some of whose layers have been shrunk: running it, and its file.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lowrank/layer_maps.h"
#include "model/loaded_model.h"

namespace narrows {

// A layer's maps as they are stored. Addresses inside must not change while a model runs with them.
struct ShrunkLayer {
  LayerSpec sizes;
  std::vector<int> pairs;  // as in AttentionMaps
  StoredMap q, k, v, o, down;
  std::vector<StoredMap> up;            // gate and up
  AlignedVector<float> q_norm, k_norm;  // [heads][d_qk], [kv_heads][d_qk]; empty: none
};

// Fill a part of `layer` and let the model run with it from now on. `number` is the layer's. Throw Error if a
// weight is not finite or too large for the type.
void set_attention(LoadedModel& model, int number, const AttentionMaps& maps, DType type, ShrunkLayer& layer);
void set_output(LoadedModel& model, int number, const MapValues& o, DType type, ShrunkLayer& layer);
void set_feed_forward(LoadedModel& model, int number, const FeedForwardMaps& maps, DType type,
                      ShrunkLayer& layer);

// Lets the model run with a layer that is filled already.
void run_with(LoadedModel& model, int number, ShrunkLayer& layer);

// Puts a layer's matrices into the file. The model cannot run with the layer any more: its sites are taken out.
void spill(LoadedModel& model, int number, ShrunkLayer& layer, SpillFile& file);

// Writes a model file of these layers, one for each of `in`: everything else, maps without rows too, is
// copied, tensors as they are stored and metadata with the new sizes; where all heads are as they were their
// keys are too. All layers scale their scores alike (check_can_shrink). An architecture says that the file is to be
// portable (portable.h): written under that name, heads of one size with the rotary frequencies of the first layer's in
// rope_freqs.weight. Matrices that have been spilled are read from `spilled`. The file appears whole or
// not at all.
void write_shrunk_model(const GgufFile& in, std::span<const ShrunkLayer> layers, DType type,
                        const std::string& path, const std::string& architecture = {},
                        const SpillFile* spilled = nullptr);

}  // namespace narrows
