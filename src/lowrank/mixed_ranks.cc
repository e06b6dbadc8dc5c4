#include "lowrank/mixed_ranks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "generate/layer_walk.h"
#include "generate/log_softmax.h"
#include "lowrank/allocate.h"
#include "lowrank/attention_reduction.h"
#include "lowrank/relative.h"
#include "lowrank/shrunk_model.h"
#include "subspace/observed_site.h"

namespace narrows {
namespace {

// What a layer's three components cost by rank: Kullback-Leibler divergence of the whole model, in nats a token.
struct Curves {
  std::vector<double> qk, ov, mlp;
};

// Ranks that are not possible count as the largest below them.
void fill_gaps(std::vector<double>& loss) {
  for (std::size_t i = 1; i < loss.size(); ++i)
    if (!std::isfinite(loss[i])) loss[i] = loss[i - 1];
}

// The curve's form, and a measurement at one rank.
void scale_to(std::vector<double>& loss, std::int64_t rank, double measured) {
  const double there = loss[static_cast<std::size_t>(rank)];
  for (double& l : loss) l *= there > 0 ? measured / there : 0;
}

class Measurement {
 public:
  Measurement(LoadedModel& model, std::string_view text, const CompressOptions& options,
              const std::function<void()>& count)
      : model_(model),
        options_(options),
        count_(count),
        walk_(model, text, options.window,
              mixed_tokens(options), WindowChoice::Spread) {
    walk_.pass_embedding();
    const std::int64_t vocab = model.spec().vocab,
                       most = std::max<std::int64_t>(kLogitBytes / 4 / vocab / walk_.windows(), 1);
    for (std::int64_t w = 0; w < walk_.windows(); ++w) {
      const std::int64_t tokens = walk_.window_tokens(w), step = (tokens + most - 1) / most;
      std::vector<std::int64_t>& judged = judged_.emplace_back();
      for (std::int64_t t = step - 1; t < tokens; t += step) judged.push_back(t);
      if (judged.empty()) judged.push_back(tokens - 1);
      AlignedVector<float>& logits = dense_.emplace_back(judged.size() * static_cast<std::size_t>(vocab));
      walk_.finish(0, w, judged, logits.data());
      most_judged_ = std::max(most_judged_, judged.size());
    }
    logits_.resize(most_judged_ * static_cast<std::size_t>(vocab));
  }

  Curves measure(int layer) {
    LayerWeights& w = model_.weights().layer[static_cast<std::size_t>(layer)];
    const LayerSpec sizes = model_.spec().layer[static_cast<std::size_t>(layer)];
    const CompressedLayer uniform = uniform_ranks(sizes.d_qk, sizes.d_vo, sizes.d_inter, options_);
    const std::int64_t d = model_.spec().d;
    AttentionMoments moments(sizes);
    SecondMoment neurons(sizes.d_inter);
    {
      const Wrapping<ObservedOutputs> qkv(
          w.qkv, [&](const float* y, std::int64_t rows) { moments.add_qkv(y, rows); });
      const Wrapping<ObservedSite> o(
          w.o,
          [&](const float* x, std::int64_t rows) {
            moments.add_mixed(relative(x, rows, sizes.heads * sizes.d_vo, scales()).data(), rows);
          },
          true);
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
    if (!options_.portable && uniform.d_qk < sizes.d_qk)
      scale_to(curves.qk, uniform.d_qk, with_attention(layer, attention.shrink(uniform.d_qk, sizes.d_vo)));
    if (!options_.portable && uniform.d_vo < sizes.d_vo)
      scale_to(curves.ov, uniform.d_vo, with_attention(layer, attention.shrink(sizes.d_qk, uniform.d_vo)));

    const FeedForwardMaps block = feed_forward_maps(w);
    const std::vector<double> r = neurons.mean();
    const MlpReduction mlp(block.down.w, d, sizes.d_inter, r, options_.neurons, block.up.back().w);
    curves.mlp = mlp.loss_by_rank();
    if (uniform.d_inter < sizes.d_inter)
      scale_to(curves.mlp, uniform.d_inter,
               with_feed_forward(layer, take_neurons(block, mlp.shrink(uniform.d_inter, options_.refit))));
    walk_.pass_layer(layer, count_);
    return curves;
  }

 private:
  static constexpr std::int64_t kLogitBytes = 256 << 20;  // of the dense model's logits

  // The stream before the layer: known while a window passes it.
  std::vector<float> scales() const {
    const std::span<const float> stream = walk_.stream(walk_.current_window());
    return inverse_norms(stream.data(), walk_.window_tokens(walk_.current_window()), model_.spec().d);
  }

  // Of the model as it is now from the model as it was, mean over the tokens judged.
  double divergence(int layer) {
    const auto vocab = static_cast<std::size_t>(model_.spec().vocab);
    double sum = 0;
    std::size_t rows = 0;
    for (std::int64_t i = 0; i < walk_.windows(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      walk_.finish(layer, i, judged_[at], logits_.data());
      for (std::size_t r = 0; r < judged_[at].size(); ++r, ++rows)
        sum += kl_divergence(LogSoftmax(std::span(dense_[at]).subspan(r * vocab, vocab)),
                             LogSoftmax(std::span(logits_).subspan(r * vocab, vocab)));
      count_();
    }
    return sum / static_cast<double>(rows);
  }

  double with_attention(int layer, const AttentionMaps& maps) {
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
    const double kl = divergence(layer);
    w.qkv = std::move(qkv);
    w.o = std::move(o);
    w.q_norm = q_norm;
    w.k_norm = k_norm;
    w.q_norm_by_head = q_by_head;
    w.k_norm_by_head = k_by_head;
    spec.layer[static_cast<std::size_t>(layer)] = sizes;
    spec.rotaries.resize(rotaries);
    walk_.spec_changed();
    return kl;
  }

  double with_feed_forward(int layer, const FeedForwardMaps& maps) {
    LayerWeights& w = model_.weights().layer[static_cast<std::size_t>(layer)];
    int& d_inter = model_.changing_spec().layer[static_cast<std::size_t>(layer)].d_inter;
    const int before = d_inter;
    std::unique_ptr<LinearSite> up = std::move(w.up), down = std::move(w.down);
    ShrunkLayer shrunk;
    set_feed_forward(model_, layer, maps, DType::F16, shrunk);
    walk_.spec_changed();
    const double kl = divergence(layer);
    w.up = std::move(up);
    w.down = std::move(down);
    d_inter = before;
    walk_.spec_changed();
    return kl;
  }

  LoadedModel& model_;
  const CompressOptions& options_;
  const std::function<void()>& count_;
  LayerWalk walk_;
  std::vector<std::vector<std::int64_t>> judged_;  // by window: tokens whose logits are compared
  std::vector<AlignedVector<float>> dense_;        // their logits
  std::size_t most_judged_ = 0;
  AlignedVector<float> logits_;
};

}  // namespace

std::vector<CompressedLayer> mixed_ranks(LoadedModel& model, std::string_view text,
                                         const CompressOptions& options, const std::function<void()>& count) {
  constexpr double kLeastShare = 0.25;  // of each dimension: curves are not to be trusted to nothing
  Measurement measurement(model, text, options, count);
  const double d = static_cast<double>(model.spec().d);
  std::vector<RankChoice> choices;  // three a layer, or its neurons alone
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
      if (!options.portable) {  // where all heads have one size
        add(std::move(curves.qk), d * (l.heads + l.kv_heads), options.qk, 2);
        add(std::move(curves.ov), d * (l.heads + l.kv_heads), options.ov, 2);
      }
      add(std::move(curves.mlp),
          d * static_cast<double>(1 + model.weights().layer[static_cast<std::size_t>(i)].up->maps().size()),
          options.mlp, neuron_step(l.d_inter, options.type));
    } catch (const Error& error) {
      fail("{}: layer {}: {}", model.path(), i, error.what());
    }
  }
  const Allocation allocation = allocate_ranks(choices, budget);
  std::vector<CompressedLayer> layers;
  auto rank = allocation.ranks.begin();
  for (const LayerSpec& l : model.spec().layer) {
    CompressedLayer& layer = layers.emplace_back(uniform_ranks(l.d_qk, l.d_vo, l.d_inter, options));
    if (!options.portable) {
      layer.d_qk = static_cast<int>(*rank++);
      layer.d_vo = static_cast<int>(*rank++);
    }
    layer.d_inter = static_cast<int>(*rank++);
  }
  return layers;
}

}  // namespace narrows
