#include "lowrank/compress_linear.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/measure.h"
#include "formats/requantize.h"
#include "generate/layer_walk.h"
#include "lowrank/covariance.h"
#include "lowrank/linear.h"
#include "lowrank/report.h"
#include "lowrank/shrunk_model.h"
#include "subspace/linear_algebra.h"
#include "subspace/observed_site.h"
#include "subspace/second_moment.h"

namespace narrows {
namespace {

// The inputs of one site.
class InputStatistics {
 public:
  explicit InputStatistics(std::int64_t d) : moment_(d), sums_(static_cast<std::size_t>(d)) {}
  void add(const float* x, std::int64_t rows) {
    moment_.add(x, rows, moment_.width());
    for (std::int64_t i = 0; i < rows * moment_.width(); ++i)
      sums_[static_cast<std::size_t>(i % moment_.width())] += std::abs(double{x[i]});
  }
  std::vector<double> autocorrelation() const { return moment_.mean(); }
  std::vector<double> mean_magnitudes() const {
    std::vector<double> means = sums_;
    for (double& v : means) v /= static_cast<double>(moment_.tokens());
    return means;
  }

 private:
  SecondMoment moment_;
  std::vector<double> sums_;
};

class Replacer {
 public:
  Replacer(LinearMethod method, double share, const InputStatistics& statistics)
      : method_(method),
        share_(share),
        r_(statistics.autocorrelation()),
        magnitudes_(statistics.mean_magnitudes()) {}

  // Puts A B in the map's place and returns the parameters of A and B, the bias included.
  std::int64_t replace(MapValues& map) const {
    const std::int64_t rows = map.rows, columns = map.columns;
    const auto affordable = static_cast<std::int64_t>((1 - share_) * static_cast<double>(rows * columns) /
                                                      static_cast<double>(rows + columns));
    const std::int64_t rank = std::clamp<std::int64_t>(affordable, 1, std::min(rows, columns));
    const LinearFactors f = method_ == LinearMethod::Svd ? truncated_svd(map.w, rows, columns, r_, rank)
                            : method_ == LinearMethod::Asvd
                                ? activation_aware_svd(map.w, rows, columns, r_, magnitudes_, rank)
                                : whitened_svd(map.w, rows, columns, r_, rank);
    map.w = product(f.a.data(), rows, rank, f.b.data(), columns);
    return rank * (rows + columns) + std::ssize(map.bias);
  }

 private:
  LinearMethod method_;
  double share_;
  std::vector<double> r_, magnitudes_;
};

}  // namespace

CompressionReport compress_linear(const std::string& in, std::string_view text, LinearMethod method,
                                  double share, const CompressOptions& options, const std::string& out) {
  const auto start = std::chrono::steady_clock::now();
  gguf_file_type(options.type);  // throws for one that cannot be encoded
  if (!(share >= 0 && share < 1)) fail("share to remove: expected at least 0 and below 1, found {}", share);
  LoadedModel model(in, {.threads = std::max(options.threads, 0), .repack = true});
  const float score_scale = common_score_scale(model);
  set_linear_algebra_threads(1);  // its last bits depend on the number
  LayerWalk walk(model, text, options.window, options.max_tokens, WindowChoice::Spread);
  const int count = model.spec().layers;
  CompressionReport report;
  report.tokens = walk.tokens();
  std::int64_t done = 0;
  const auto progress = [&] {
    if (options.progress) options.progress(++done, 2 * count * walk.windows());
  };
  std::vector<ShrunkLayer> layers(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    LayerWeights& w = model.weights().layer[static_cast<std::size_t>(i)];
    const LayerSpec sizes = model.spec().layer[static_cast<std::size_t>(i)];
    report.parameters_before += parameters(w);
    report.few_tokens |= walk.tokens() < sizes.d_inter;
    try {
      InputStatistics qkv(w.qkv->in()), o(w.o->in()), up(w.up->in()), down(w.down->in());
      {
        const auto watch = [](std::unique_ptr<LinearSite>& site, InputStatistics& statistics) {
          return Wrapping<ObservedSite>(
              site, [&](const float* x, std::int64_t rows) { statistics.add(x, rows); }, true);
        };
        const auto a = watch(w.qkv, qkv), b = watch(w.o, o), c = watch(w.up, up), d = watch(w.down, down);
        walk.show_layer(i, progress);
      }
      AttentionMaps attention = attention_maps(model.spec(), sizes, w);
      FeedForwardMaps block = feed_forward_maps(w);
      const Replacer of_qkv(method, share, qkv), of_o(method, share, o), of_up(method, share, up),
          of_down(method, share, down);
      for (MapValues* map : {&attention.q, &attention.k, &attention.v})
        report.parameters += of_qkv.replace(*map);
      report.parameters += of_o.replace(attention.o);
      for (MapValues& map : block.up) report.parameters += of_up.replace(map);
      report.parameters += of_down.replace(block.down);
      ShrunkLayer& layer = layers[static_cast<std::size_t>(i)];
      set_attention(model, i, attention, options.type, layer);
      set_feed_forward(model, i, block, options.type, layer);
    } catch (const Error& error) {
      fail("{}: layer {}: {}", model.path(), i, error.what());
    }
    report.layers.push_back(unmeasured(sizes));
    walk.spec_changed();
    walk.pass_layer(i, progress);
  }
  write_shrunk_model(model.file(), layers, score_scale, options.type, out);
  finish(report, start, out);
  return report;
}

}  // namespace narrows
