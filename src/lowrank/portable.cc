#include "lowrank/portable.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "generate/layer_walk.h"
#include "lowrank/attention_reduction.h"
#include "lowrank/mixed_ranks.h"
#include "subspace/observed_site.h"

namespace narrows {
namespace {

bool sizes_by_layer(const std::string& architecture) { return architecture == "llama" || architecture == "deci"; }

void check_heads(const LoadedModel& model) {
  const ModelSpec& spec = model.spec();
  if (!sizes_by_layer(spec.architecture))
    fail("{}: portable: heads of architecture {} have to stay as they are", model.path(), spec.architecture);
  const LayerSpec& first = spec.layer[0];
  for (const LayerSpec& l : spec.layer) {
    const bool rotated = l.rotary >= 0 && 2 * spec.rotaries[static_cast<std::size_t>(l.rotary)].pairs == l.d_qk &&
                         spec.rotaries[static_cast<std::size_t>(l.rotary)].kept.empty();
    if (!rotated || l.d_qk != l.d_vo || l.d_qk != first.d_qk || l.rotary != first.rotary)
      fail("{}: portable: expected heads of one size in all layers, all of it rotated", model.path());
  }
  if (model.file().find_string(spec.architecture + ".rope.scaling.type").value_or("none") != "none")
    fail("{}: portable: heads with scaled rotary positions have to stay as they are", model.path());
}

}  // namespace

CompressOptions portable_options(LoadedModel& model, const CompressOptions& options) {
  CompressOptions o = options;
  if (o.heads > 0) check_heads(model);
  double left = 0, neurons = 0;
  for (std::size_t i = 0; i < model.spec().layer.size(); ++i) {
    const LayerSpec& l = model.spec().layer[i];
    const double each = static_cast<double>(1 + model.weights().layer[i].up->maps().size()) * l.d_inter;
    neurons += each;
    left += o.mlp * each + (l.heads + l.kv_heads) * ((o.qk - o.heads) * l.d_qk + (o.ov - o.heads) * l.d_vo);
  }
  o.qk = o.ov = o.heads;
  o.mlp = std::max(left / neurons, 0.0);
  constexpr double kMost = 0.9;
  if (o.mlp > kMost)
    fail("{}: portable: {:.0f} % of the neurons would have to go, expected at most {:.0f} %", model.path(), 100 * o.mlp,
         100 * kMost);
  if (!sizes_by_layer(model.spec().architecture)) o.allocation = RankAllocation::Uniform;
  return o;
}

std::vector<double> shared_pair_importance(LoadedModel& model, std::string_view text, const CompressOptions& options) {
  if (options.heads == 0) return {};
  LayerWalk walk(model, text, options.window, mixed_tokens(options), WindowChoice::Spread);
  walk.pass_embedding();
  std::vector<double> sum;
  for (int layer = 0; layer < model.spec().layers; ++layer) {
    LayerWeights& w = model.weights().layer[static_cast<std::size_t>(layer)];
    const LayerSpec& sizes = model.spec().layer[static_cast<std::size_t>(layer)];
    AttentionMoments moments(sizes);
    {
      const Wrapping<ObservedOutputs> qkv(w.qkv, [&](const float* y, std::int64_t rows) { moments.add_qkv(y, rows); });
      walk.pass_layer(layer);
    }
    const AttentionMaps maps = attention_maps(model.spec(), sizes, w);
    const std::vector<double> own = pair_losses(maps, moments);
    const double all = std::accumulate(own.begin(), own.end(), 0.0);
    sum.resize(own.size());
    for (std::size_t p = 0; p < own.size() && all > 0; ++p) sum[p] += own[p] / all;
  }
  return sum;
}

void fold_score_scale(AttentionMaps& maps) {
  const double own = 1 / std::sqrt(static_cast<double>(maps.sizes.d_qk)), factor = maps.sizes.score_scale / own;
  for (double& w : maps.q.w) w *= factor;
  for (double& b : maps.q.bias) b *= factor;
  maps.sizes.score_scale = static_cast<float>(own);
}

std::string portable_architecture(const std::string& own, const std::vector<CompressedLayer>& layers) {
  const bool equal = std::ranges::all_of(layers, [&](const CompressedLayer& l) { return l.d_inter == layers[0].d_inter; });
  return equal || !sizes_by_layer(own) ? own : "deci";
}

}  // namespace narrows
