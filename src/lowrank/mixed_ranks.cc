#include "lowrank/mixed_ranks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "generate/layer_walk.h"
#include "lowrank/allocate.h"
#include "lowrank/attention_reduction.h"
#include "lowrank/relative.h"
#include "lowrank/shrunk_model.h"
#include "subspace/observed_site.h"

namespace narrows {
namespace {

// What a layer's three components lose by rank, as noise relative to the stream.
struct Curves {
  std::vector<double> qk, ov, mlp;
};

// Ranks that are not possible count as the largest below them.
void fill_gaps(std::vector<double>& loss) {
  for (std::size_t i = 1; i < loss.size(); ++i)
    if (!std::isfinite(loss[i])) loss[i] = loss[i - 1];
}

void multiply(std::vector<double>& loss, double factor) {
  for (double& l : loss) l *= factor;
}

class Measurement {
 public:
  Measurement(LoadedModel& model, std::string_view text, const CompressOptions& options,
              const std::function<void()>& count)
      : model_(model),
        options_(options),
        count_(count),
        walk_(model, text, options.window,
              options.max_tokens > 0 ? std::min(options.max_tokens, kMixedTokens) : kMixedTokens) {
    walk_.pass_embedding();
  }

  Curves measure(int layer) {
    LayerWeights& w = model_.weights().layer[static_cast<std::size_t>(layer)];
    const LayerSpec sizes = model_.spec().layer[static_cast<std::size_t>(layer)];
    const CompressedLayer uniform = uniform_ranks(sizes.d_qk, sizes.d_vo, sizes.d_inter, options_);
    const std::int64_t d = model_.spec().d;
    AttentionMoments moments(sizes);
    SecondMoment neurons(sizes.d_inter);
    std::vector<AlignedVector<float>> outputs;  // of the attention, by window
    {
      const Wrapping<ObservedOutputs> qkv(
          w.qkv, [&](const float* y, std::int64_t rows) { moments.add_qkv(y, rows); });
      const Wrapping<ObservedSite> o_inputs(
          w.o,
          [&](const float* x, std::int64_t rows) {
            moments.add_mixed(relative(x, rows, sizes.heads * sizes.d_vo, scales()).data(), rows);
          },
          true);
      const Wrapping<ObservedOutputs> o(
          w.o, [&](const float* y, std::int64_t rows) { outputs.emplace_back(y, y + rows * d); });
      const Wrapping<ObservedSite> down(
          w.down,
          [&](const float* x, std::int64_t rows) {
            neurons.add(relative(x, rows, sizes.d_inter, scales()).data(), rows, sizes.d_inter);
          },
          false);
      walk_.show_layer(layer, count_);
    }
    const AttentionMaps maps = attention_maps(model_.spec(), sizes, w);
    const AttentionReduction attention(maps, moments);
    Curves curves{attention.qk_loss(), attention.ov_loss(), {}};
    fill_gaps(curves.qk);
    const double loss = curves.qk[static_cast<std::size_t>(uniform.d_qk)];
    const double noise = noise_of_scores(layer, attention.shrink(uniform.d_qk, sizes.d_vo), outputs);
    multiply(curves.qk, loss > 0 ? noise / loss : 0);

    const FeedForwardMaps block = feed_forward_maps(w);
    const std::vector<double> r = neurons.mean();
    const MlpReduction mlp(block.down.w, d, sizes.d_inter, r, options_.neurons, block.up.back().w);
    curves.mlp = mlp.loss_by_rank();
    if (const double plain = curves.mlp[static_cast<std::size_t>(uniform.d_inter)];
        plain > 0 && options_.refit)
      multiply(curves.mlp, mlp.shrink(uniform.d_inter, options_.refit).loss / plain);
    walk_.pass_layer(layer, count_);
    return curves;
  }

 private:
  // The stream before the layer: known while a window passes it.
  std::vector<float> scales() const {
    const std::span<const float> stream = walk_.stream(walk_.current_window());
    return inverse_norms(stream.data(), walk_.window_tokens(walk_.current_window()), model_.spec().d);
  }

  double noise_of_scores(int layer, const AttentionMaps& maps,
                         const std::vector<AlignedVector<float>>& outputs) {
    LayerWeights& w = model_.weights().layer[static_cast<std::size_t>(layer)];
    ModelSpec& spec = model_.changing_spec();
    const LayerSpec sizes = spec.layer[static_cast<std::size_t>(layer)];
    const std::size_t rotaries = spec.rotaries.size();
    const Norm q_norm = w.q_norm, k_norm = w.k_norm;
    const bool q_by_head = w.q_norm_by_head, k_by_head = w.k_norm_by_head;
    std::unique_ptr<LinearSite> qkv = std::move(w.qkv), o = std::move(w.o);
    ShrunkLayer shrunk;
    set_attention(model_, layer, maps, DType::F16, shrunk);
    walk_.spec_changed();
    const std::int64_t d = spec.d;
    double noise = 0;
    {
      const Wrapping<ObservedOutputs> watched(w.o, [&](const float* y, std::int64_t rows) {
        const AlignedVector<float>& before = outputs[static_cast<std::size_t>(walk_.current_window())];
        const std::vector<float> scale = scales();
        for (std::int64_t i = 0; i < rows * d; ++i) {
          const double e =
              (double{y[i]} - before[static_cast<std::size_t>(i)]) * scale[static_cast<std::size_t>(i / d)];
          noise += e * e;
        }
      });
      const Wrapping<SilentSite> up(w.up), down(w.down);
      walk_.show_layer(layer, count_);
    }
    w.qkv = std::move(qkv);
    w.o = std::move(o);
    w.q_norm = q_norm;
    w.k_norm = k_norm;
    w.q_norm_by_head = q_by_head;
    w.k_norm_by_head = k_by_head;
    spec.layer[static_cast<std::size_t>(layer)] = sizes;
    spec.rotaries.resize(rotaries);
    walk_.spec_changed();
    return noise / static_cast<double>(walk_.tokens());
  }

  LoadedModel& model_;
  const CompressOptions& options_;
  const std::function<void()>& count_;
  LayerWalk walk_;
};

}  // namespace

std::vector<CompressedLayer> mixed_ranks(LoadedModel& model, std::string_view text,
                                         const CompressOptions& options, const std::function<void()>& count) {
  constexpr double kLeastShare = 0.25;  // of each dimension: curves are not to be trusted to nothing
  Measurement measurement(model, text, options, count);
  const double d = static_cast<double>(model.spec().d);
  std::vector<RankChoice> choices;  // three a layer
  double budget = 0;
  for (int i = 0; i < model.spec().layers; ++i) {
    const LayerSpec& l = model.spec().layer[static_cast<std::size_t>(i)];
    const auto add = [&](std::vector<double> loss, double cost, double share, std::int64_t step) {
      const auto full = static_cast<std::int64_t>(loss.size()) - 1;
      const auto least = std::max<std::int64_t>(
          std::min(step, full), static_cast<std::int64_t>(kLeastShare * static_cast<double>(full)));
      budget += cost * static_cast<double>(full) * (1 - share);
      choices.push_back(
          {std::move(loss), cost, 1, step,
           share > 0 ? std::min(least, static_cast<std::int64_t>((1 - share) * static_cast<double>(full)))
                     : full});
      choices.back().minimum = std::max<std::int64_t>(choices.back().minimum, 1);
    };
    try {
      Curves curves = measurement.measure(i);
      add(std::move(curves.qk), d * (l.heads + l.kv_heads), options.qk, 2);
      add(std::move(curves.ov), d * (l.heads + l.kv_heads), options.ov, 2);
      add(std::move(curves.mlp),
          d * static_cast<double>(1 + model.weights().layer[static_cast<std::size_t>(i)].up->maps().size()),
          options.mlp, neuron_step(l.d_inter, options.type));
    } catch (const Error& error) {
      fail("{}: layer {}: {}", model.path(), i, error.what());
    }
  }
  const Allocation allocation = allocate_ranks(choices, budget);
  std::vector<CompressedLayer> layers;
  for (std::size_t i = 0; i < allocation.ranks.size(); i += 3)
    layers.push_back({static_cast<int>(allocation.ranks[i]), static_cast<int>(allocation.ranks[i + 1]),
                      static_cast<int>(allocation.ranks[i + 2]), 0, 0, 0, 0});
  return layers;
}

}  // namespace narrows
