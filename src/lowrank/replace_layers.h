// What the methods have in common that replace a model's maps layer by layer, for comparison with A3.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "generate/layer_walk.h"
#include "lowrank/compress.h"
#include "lowrank/shrunk_model.h"

namespace narrows {

// A layer whose turn it is; those before it are replaced already.
struct LayerToReplace {
  LoadedModel& model;
  LayerWalk& walk;  // stands before the layer
  int number;
  LayerWeights& weights;
  LayerSpec sizes;                      // as they were
  const std::function<void()>& passed;  // to be called after each window that is shown to the layer
  ShrunkLayer& to;
  CompressionReport& report;
};

// Calls `replace` for each layer, which shows the walk's layer once to see what it needs, fills `to` with set_attention or
// set_feed_forward and counts report.parameters and report.few_tokens; then writes the model. Linear algebra runs on one thread.
// Of `options` the type, window, max_tokens, threads and progress count. Throws Error as compress() does.
CompressionReport replace_layers(const std::string& in, std::string_view text, double share, const CompressOptions& options,
                                 const std::string& out, const std::function<void(const LayerToReplace&)>& replace);

}  // namespace narrows
