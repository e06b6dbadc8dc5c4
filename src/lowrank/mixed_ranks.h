// Ranks of one parameter budget shared by layers and components that lose differently. METHODS, section 3.
#pragma once
#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "lowrank/compress.h"
#include "model/loaded_model.h"

namespace narrows {

inline constexpr std::int64_t kMixedTokens = 2048;  // at most: ranks ask for less than maps do
inline std::int64_t mixed_tokens(const CompressOptions& o) {
  return o.max_tokens > 0 ? std::min(o.max_tokens, kMixedTokens) : kMixedTokens;
}
inline constexpr int kMixedPasses = 5;              // of each window from each layer on

// The share of the layers' parameters that the options leave, or a little less, spread so that the sum over
// layers and components of what they cost is least. What a component costs: the Kullback-Leibler divergence of the whole
// model's next-token distributions with that component alone at its uniform rank, measured on windows spread over the text (all
// tokens, or as many evenly spaced ones as leave the dense logits in 256 MB); at other ranks it follows the
// component's closed form. Statistics are those of the dense model, which runs changed for a while and is as
// before in the end. With options.portable heads have their uniform size. `count` is called after each window's pass. Throws Error as compress() does.
std::vector<CompressedLayer> mixed_ranks(LoadedModel& model, std::string_view text,
                                         const CompressOptions& options, const std::function<void()>& count);

}  // namespace narrows
