#include "lowrank/replace_layers.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "lowrank/report.h"
#include "subspace/linear_algebra.h"

namespace narrows {

CompressionReport replace_layers(const std::string& in, std::string_view text, double share, const CompressOptions& options,
                                 const std::string& out, const std::function<void(const LayerToReplace&)>& replace) {
  const auto start = std::chrono::steady_clock::now();
  check_type(options.type);
  check_share(share);
  LoadedModel model(in, {.threads = std::max(options.threads, 0), .repack = true});
  check_can_shrink(model);
  set_linear_algebra_threads(1);  // its last bits depend on the number
  LayerWalk walk(model, text, options.window, options.max_tokens, WindowChoice::Spread);
  const int count = model.spec().layers;
  CompressionReport report;
  report.tokens = walk.tokens();
  std::int64_t done = 0;
  const std::function<void()> passed = [&] {
    if (options.progress) options.progress(++done, 2 * count * walk.windows());
  };
  std::vector<ShrunkLayer> layers(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    LayerWeights& weights = model.weights().layer[at];
    const LayerSpec sizes = model.spec().layer[at];
    report.parameters_before += parameters(weights);
    try {
      replace({model, walk, i, weights, sizes, passed, layers[at], report});
    } catch (const Error& error) {
      fail("{}: layer {}: {}", model.path(), i, error.what());
    }
    report.layers.push_back(unmeasured(sizes));
    walk.spec_changed();
    walk.pass_layer(i, passed);
  }
  write_shrunk_model(model.file(), layers, options.type, out);
  finish(report, start, out);
  return report;
}

}  // namespace narrows
