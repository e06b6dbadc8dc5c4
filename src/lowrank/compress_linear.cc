#include "lowrank/compress_linear.h"

#include <algorithm>
#include <cmath>

#include "lowrank/covariance.h"
#include "lowrank/linear.h"
#include "lowrank/replace_layers.h"
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
  return replace_layers(in, text, share, options, out, [&](const LayerToReplace& layer) {
    LayerWeights& w = layer.weights;
    std::int64_t& count = layer.report.parameters;
    layer.report.few_tokens |= layer.walk.tokens() < layer.sizes.d_inter;
    InputStatistics qkv(w.qkv->in()), o(w.o->in()), up(w.up->in()), down(w.down->in());
    {
      const auto watch = [](std::unique_ptr<LinearSite>& site, InputStatistics& statistics) {
        return Wrapping<ObservedSite>(
            site, [&](const float* x, std::int64_t rows) { statistics.add(x, rows); }, true);
      };
      const auto a = watch(w.qkv, qkv), b = watch(w.o, o), c = watch(w.up, up), d = watch(w.down, down);
      layer.walk.show_layer(layer.number, layer.passed);
    }
    AttentionMaps attention = attention_maps(layer.model.spec(), layer.sizes, w);
    FeedForwardMaps block = feed_forward_maps(w);
    const Replacer of_qkv(method, share, qkv), of_o(method, share, o), of_up(method, share, up),
        of_down(method, share, down);
    for (MapValues* map : {&attention.q, &attention.k, &attention.v}) count += of_qkv.replace(*map);
    count += of_o.replace(attention.o);
    for (MapValues& map : block.up) count += of_up.replace(map);
    count += of_down.replace(block.down);
    set_attention(layer.model, layer.number, attention, options.type, layer.to);
    set_feed_forward(layer.model, layer.number, block, options.type, layer.to);
  });
}

}  // namespace narrows
