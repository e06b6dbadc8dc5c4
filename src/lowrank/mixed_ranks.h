// Ranks of one parameter budget shared by layers and components that lose differently. METHODS, section 3.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "lowrank/compress.h"
#include "model/loaded_model.h"

namespace narrows {

inline constexpr std::int64_t kMixedTokens = 2048;  // at most: ranks ask for less than maps do
inline constexpr int kMixedPasses = 3;              // of each window through each layer

// The share of the layers' parameters that the options leave, or a little less, spread so that the sum over
// layers and components of the noise that they put into the residual stream, relative to that stream (E
// ‖noise‖² / ‖stream‖² over tokens), is least. Values and neurons lose by their closed forms (neurons times
// what a refit leaves of the loss at the uniform rank); what an error of scores does to the stream is
// measured with the layer's queries and keys alone at their uniform rank. Statistics are those of the dense
// model, which runs changed for a while and is as before in the end. `count` is called after each window's
// pass. Throws Error as compress() does.
std::vector<CompressedLayer> mixed_ranks(LoadedModel& model, std::string_view text,
                                         const CompressOptions& options, const std::function<void()>& count);

}  // namespace narrows
