// What llama.cpp's loader asks of a model, as far as a shrunk one could miss it. Its llama architecture takes one size
// for the neurons of all layers, one for heads (queries, keys, values and rotary dimensions alike) and one set of
// rotary frequencies, which rope_freqs.weight can make any; it does not read attention.scale. "deci" is the same with neurons by layer. Its
// other architectures read no rope_freqs.weight: there heads stay as they are.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lowrank/compress.h"
#include "lowrank/layer_maps.h"
#include "model/loaded_model.h"

namespace narrows {

// The options with heads of the size that options.heads says, and with as many weights removed by neurons as are then left to
// remove. Throws Error if that is not possible in this model.
CompressOptions portable_options(LoadedModel& model, const CompressOptions& options);

// Importance of the rotary pairs for all heads of all layers: the sum over layers of each pair's share of the layer's loss
// (QkImportance::Energy), measured on a part of the text. Empty if all pairs are kept.
std::vector<double> shared_pair_importance(LoadedModel& model, std::string_view text, const CompressOptions& options);

// Queries that want scores scaled by 1 / √d_qk of their own, as llama.cpp does whatever the file says.
void fold_score_scale(AttentionMaps& maps);

// The architecture to write: the model's own, or deci.
std::string portable_architecture(const std::string& own, const std::vector<CompressedLayer>& layers);

}  // namespace narrows
