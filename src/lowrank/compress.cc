#include "lowrank/compress.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "generate/layer_walk.h"
#include "lowrank/attention_reduction.h"
#include "lowrank/checkpoint.h"
#include "lowrank/covariance.h"
#include "lowrank/mixed_ranks.h"
#include "lowrank/portable.h"
#include "lowrank/relative.h"
#include "lowrank/report.h"
#include "lowrank/ridge.h"
#include "lowrank/shrunk_model.h"
#include "lowrank/stream_moment.h"
#include "model/load.h"
#include "subspace/linear_algebra.h"
#include "subspace/observed_site.h"
#include "subspace/second_moment.h"

namespace narrows {
namespace {

void check_options(const CompressOptions& o) {
  check_type(o.type);
  for (const double share : {o.qk, o.ov, o.mlp}) check_share(share);
  if (o.refit && !(*o.refit >= 0 && std::isfinite(*o.refit)))
    fail("refit: expected a ridge of 0 or more, found {}", *o.refit);
}

void check_queries(LoadedModel& model, const CompressOptions& options) {
  for (const LayerWeights& layer : model.weights().layer)
    if (options.qk > 0 && options.ranks.empty() && has_fixed_queries(model.spec(), layer))
      fail("{}: queries and keys are normed as whole rows or less their mean, so that none of their dimensions can go: expected "
           "a share of 0 for them (--qk 0)", model.path());
}

class Compressor {
 public:
  Compressor(LoadedModel& model, LoadedModel& dense, std::string_view text, const CompressOptions& options)
      : model_(model),
        dense_(dense),
        options_(options),
        walk_(model, text, options.window, options.max_tokens, WindowChoice::Spread),
        dense_walk_(dense, text, options.window, options.max_tokens, WindowChoice::Spread) {
    report_.tokens = walk_.tokens();
    const int layers = model.spec().layers;
    layers_.resize(static_cast<std::size_t>(layers));
    dense_walk_.pass_embedding();
    total_ = passes() * layers * walk_.windows();
    if (options.ranks.empty() && options.allocation == RankAllocation::Mixed)
      mixed_ = kMixedPasses * layers * ((std::min(walk_.tokens(), kMixedTokens) + options.window - 1) / options.window);
    total_ += mixed_;
  }

  void choose_ranks(std::string_view text) {
    measure_pairs(text);
    if (!options_.ranks.empty()) {
      check_ranks(options_.ranks);
      ranks_ = options_.ranks;
      return;
    }
    if (options_.allocation == RankAllocation::Mixed) {
      ranks_ = mixed_ranks(model_, text, options_, count());
      return;
    }
    for (const LayerSpec& l : model_.spec().layer)
      ranks_.push_back(uniform_ranks(l.d_qk, l.d_vo, l.d_inter, options_));
  }

  // What an earlier run has done: its ranks and its first layers. Throws Error if they are not this model's.
  void restore(std::string_view text, const std::vector<CompressedLayer>& ranks, std::vector<FinishedLayer>& finished) {
    measure_pairs(text);
    check_ranks(ranks);
    ranks_ = ranks;
    done_ += mixed_;
    for (std::size_t i = 0; i < finished.size(); ++i) {
      const int layer = static_cast<int>(i);
      LayerWeights& weights = model_.weights().layer[i];
      try {
        check_finished(model_, layer, ranks_[i], options_.type, finished[i]);
      } catch (const Error& error) {
        fail("layer {}: {}", layer, error.what());
      }
      count_dense(layer, weights);
      layers_[i] = std::move(finished[i].maps);
      run_with(model_, layer, layers_[i]);
      walk_.spec_changed();
      done_ += (passes() - 2) * walk_.windows();
      dense_walk_.pass_layer(layer, count());
      walk_.pass_layer(layer, count());
      ranks_[i] = finished[i].report;
      report_.raised += finished[i].raised;
      report_.parameters += parameters(weights);
    }
  }

  void shrink(int layer) {
    LayerWeights& weights = model_.weights().layer[static_cast<std::size_t>(layer)];
    const std::vector<WeightMatrix> replaced = layer_matrices(weights);
    count_dense(layer, weights);
    CompressedLayer& ranks = ranks_[static_cast<std::size_t>(layer)];
    try {
      shrink_attention(layer, weights, ranks);
      if (options_.correct && !weights.attention_post_norm.present) refit_output(layer, weights);
      dense_walk_.pass_layer(layer, count());
      shrink_feed_forward(layer, weights, ranks);
    } catch (const Error& error) {
      fail("{}: layer {}: {}", model_.path(), layer, error.what());
    }
    walk_.pass_layer(layer, count());
    ranks.stream_error = stream_error();
    report_.parameters += parameters(weights);
    release_pages(model_.file(), replaced);
    release_pages(dense_.file(), layer_matrices(dense_.weights().layer[static_cast<std::size_t>(layer)]));
  }
  // Takes a finished layer out of memory.
  void put_away(int layer, SpillFile& file) {
    spill(model_, layer, layers_[static_cast<std::size_t>(layer)], file);
  }

  CompressionReport report_;
  std::vector<ShrunkLayer> layers_;
  std::vector<CompressedLayer> ranks_;

 private:
  std::int64_t passes() const { return options_.correct ? 5 : 4; }  // of each window through each layer

  // Of the dense model: while all layers are as they were.
  void measure_pairs(std::string_view text) {
    if (options_.portable) shared_pairs_ = shared_pair_importance(model_, text, options_);
  }

  void count_dense(int layer, const LayerWeights& weights) {
    report_.parameters_before += parameters(weights);
    report_.few_tokens |= walk_.tokens() < model_.spec().layer[static_cast<std::size_t>(layer)].d_inter;
  }

  void check_ranks(const std::vector<CompressedLayer>& ranks) const {
    const std::vector<LayerSpec>& layers = model_.spec().layer;
    if (ranks.size() != layers.size())
      fail("{}: ranks of {} layers, found {}", model_.path(), layers.size(), ranks.size());
    const auto check = [&](std::size_t layer, const char* what, int rank, int most, int step) {
      if (rank < 1 || rank > most || (rank % step && rank != most))
        fail("{}: layer {}: {} {}: expected 1 to {}{}", model_.path(), layer, what, rank, most, step > 1 ? ", even" : "");
    };
    for (std::size_t i = 0; i < layers.size(); ++i) {
      check(i, "d_qk", ranks[i].d_qk, layers[i].d_qk, 2);
      check(i, "d_vo", ranks[i].d_vo, layers[i].d_vo, 1);
      check(i, "d_inter", ranks[i].d_inter, layers[i].d_inter, 1);
    }
  }
  std::function<void()> count() {
    return [this] {
      if (options_.progress) options_.progress(++done_, total_);
    };
  }

  double stream_error() const {
    const std::int64_t d = model_.spec().d;
    double sum = 0;
    for (std::int64_t w = 0; w < walk_.windows(); ++w) {
      const std::span<const float> found = walk_.stream(w), wanted = dense_walk_.stream(w);
      const std::vector<float> scales = inverse_norms(wanted.data(), walk_.window_tokens(w), d);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const double e = (double{found[i]} - wanted[i]) * scales[i / static_cast<std::size_t>(d)];
        sum += e * e;
      }
    }
    return sum / static_cast<double>(walk_.tokens());
  }

  void shrink_attention(int layer, LayerWeights& w, CompressedLayer& ranks) {
    AttentionMoments moments(model_.spec().layer[static_cast<std::size_t>(layer)]);
    {
      const Wrapping<ObservedOutputs> qkv(
          w.qkv, [&](const float* y, std::int64_t rows) { moments.add_qkv(y, rows); });
      const Wrapping<ObservedSite> o(
          w.o,
          [&](const float* x, std::int64_t rows) {
            const std::span<const float> stream = dense_walk_.stream(walk_.current_window());
            moments.add_mixed(
                relative(x, rows, w.o->in(), inverse_norms(stream.data(), rows, model_.spec().d)).data(),
                rows);
          },
          false);
      const Wrapping<SilentSite> up(w.up), down(w.down);
      walk_.show_layer(layer, count());
    }
    const AttentionMaps maps =
        attention_maps(model_.spec(), model_.spec().layer[static_cast<std::size_t>(layer)], w);
    const AttentionReduction reduction(maps, moments, shared_pairs_);
    report_.raised += reduction.raised();
    ranks.qk_loss = share_lost(reduction.qk_loss(), ranks.d_qk);
    ranks.ov_loss = share_lost(reduction.ov_loss(), ranks.d_vo);
    AttentionMaps shrunk = reduction.shrink(ranks.d_qk, ranks.d_vo);
    if (options_.heads > 0) fold_score_scale(shrunk);
    set_attention(model_, layer, shrunk, options_.type, layers_[static_cast<std::size_t>(layer)]);
    walk_.spec_changed();
  }

  // W_o + Δ with Δ = E c mᵀ (E m mᵀ + ρ I)⁻¹: m the heads' outputs, c what the stream lacks after the
  // attention.
  void refit_output(int layer, LayerWeights& w) {
    const std::int64_t width = w.o->in(), d = w.o->out();
    LayerWeights& dense = dense_.weights().layer[static_cast<std::size_t>(layer)];
    std::vector<AlignedVector<float>> wanted;
    {
      const Wrapping<SilentSite> up(dense.up), down(dense.down);
      dense_walk_.show_layer(layer, [&] {
        const float* x = dense_walk_.current_stream();
        wanted.emplace_back(x, x + dense_walk_.window_tokens(dense_walk_.current_window()) * d);
      });
    }
    StreamMoment moment(d, width);
    {
      const Wrapping<ObservedSite> o(
          w.o, [&](const float* x, std::int64_t rows) { moment.add_inputs(x, rows); }, true);
      const Wrapping<SilentSite> up(w.up), down(w.down);
      walk_.show_layer(layer, [&] {
        const std::int64_t window = walk_.current_window();
        moment.add_streams(wanted[static_cast<std::size_t>(window)].data(), walk_.current_stream(),
                           walk_.window_tokens(window));
        count()();
      });
    }
    std::vector<double> change = moment.lack();
    ridge_solve(moment.inputs(), width, options_.output_ridge, change.data(), d);
    MapValues o = map_values(w.o->maps()[0]);
    for (std::size_t i = 0; i < change.size(); ++i) o.w[i] += change[i];
    set_output(model_, layer, o, options_.type, layers_[static_cast<std::size_t>(layer)]);
  }

  void shrink_feed_forward(int layer, LayerWeights& w, CompressedLayer& ranks) {
    const bool correct = options_.correct && options_.refit && !w.ffn_post_norm.present;
    const std::int64_t d_inter = w.down->in(), d = w.down->out();
    std::vector<double> r_hh, correction;
    {
      StreamMoment moment(d, d_inter);  // as large as what comes of it: gone before that is used
      const Wrapping<ObservedSite> down(
          w.down, [&](const float* x, std::int64_t rows) { moment.add_inputs(x, rows); }, correct);
      walk_.show_layer(layer, [&] {
        const std::int64_t window = walk_.current_window();
        const float* wanted = dense_walk_.stream(window).data();
        moment.add_streams(wanted, correct ? walk_.current_stream() : wanted, walk_.window_tokens(window));
        count()();
      });
      r_hh = moment.inputs();
      if (correct) correction = moment.lack();
    }
    const FeedForwardMaps maps = feed_forward_maps(w);
    const MlpReduction reduction(maps.down.w, d, d_inter, r_hh, options_.neurons, maps.up.back().w);
    MlpReduced reduced = reduction.shrink(ranks.d_inter, options_.refit, correction);
    ranks.mlp_loss = share_lost(reduction.loss_by_rank(), ranks.d_inter);
    const FeedForwardMaps shrunk = take_neurons(maps, std::move(reduced));
    set_feed_forward(model_, layer, shrunk, options_.type, layers_[static_cast<std::size_t>(layer)]);
  }

  LoadedModel &model_, &dense_;
  std::vector<double> shared_pairs_;
  const CompressOptions& options_;
  LayerWalk walk_, dense_walk_;
  std::int64_t done_ = 0, total_ = 0, mixed_ = 0;  // passes; those that choose ranks
};

}  // namespace

// A block that would be a large part of the neurons is left to what stores rows that it does not fill.
int neuron_step(int d_inter, DType type) {
  const int block = dtype_info(type).block_size;
  return block > 16 && block <= d_inter / 16 ? block : 16;
}

CompressedLayer uniform_ranks(int d_qk, int d_vo, int d_inter, const CompressOptions& o) {
  const auto rank = [](int size, double share, int step) {
    if (share == 0) return size;
    const int most = static_cast<int>(std::floor(size * (1 - share) + 1e-9));
    return std::max(most / step * step, std::min(step, size));
  };
  return {rank(d_qk, o.qk, 2),
          rank(d_vo, o.ov, 2),
          rank(d_inter, o.mlp, neuron_step(d_inter, o.type)),
          0,
          0,
          0,
          0};
}

CompressionReport compress(const std::string& in, std::string_view text, const CompressOptions& asked,
                           const std::string& out) {
  const auto start = std::chrono::steady_clock::now();
  check_options(asked);
  // Each layer is used for a while, then never again: neither model holds a copy of all of them.
  LoadedModel model(in, {.threads = std::max(asked.threads, 0), .repack = false});
  check_can_shrink(model);
  CompressOptions options = asked.portable ? portable_options(model, asked) : asked;
  options.correct &= !model.spec().post_block_norm;
  check_queries(model, options);
  LoadedModel dense(in, {.threads = std::max(options.threads, 0), .repack = false});
  const int layers = model.spec().layers;
  set_linear_algebra_threads(1);  // its last bits depend on the number
  std::optional<Checkpoint> checkpoint;
  if (options.resume) checkpoint.emplace(out + ".partial", run_settings(model, text, asked));
  int finished = 0;
  const auto kept = [&](int layer) {
    finished = layer;
    if (options.kept) options.kept(finished, layers);
  };

  Compressor compressor(model, dense, text, options);
  CompressionReport& report = compressor.report_;
  if (checkpoint && checkpoint->found()) {
    try {
      kept(static_cast<int>(checkpoint->layers().size()));
      compressor.restore(text, checkpoint->ranks(), checkpoint->layers());
    } catch (const Error& error) {
      fail("{}: {}; remove it to start anew", checkpoint->path(), error.what());
    }
  } else {
    compressor.choose_ranks(text);
    if (checkpoint) checkpoint->begin(compressor.ranks_);
    if (checkpoint) kept(0);
  }
  SpillFile spilled(out);
  for (int layer = 0; layer < finished; ++layer) compressor.put_away(layer, spilled);
  for (int layer = finished; layer < layers; ++layer) {
    const std::int64_t raised = report.raised;
    compressor.shrink(layer);
    const auto at = static_cast<std::size_t>(layer);
    try {
      if (checkpoint) checkpoint->add(compressor.layers_[at], compressor.ranks_[at], report.raised - raised);
    } catch (const Error& error) {
      fail("{}; {}", error.what(), goes_on(finished, layers));
    }
    if (checkpoint) kept(layer + 1);
    compressor.put_away(layer, spilled);
  }
  try {
    write_shrunk_model(model.file(), compressor.layers_, options.type, out,
                       options.portable ? portable_architecture(model.spec().architecture, compressor.ranks_) : "", &spilled);
  } catch (const Error& error) {
    if (!checkpoint) throw;
    fail("{}; {}", error.what(), goes_on(finished, layers));
  }
  if (checkpoint) checkpoint->remove();

  report.layers = compressor.ranks_;
  report.cache = static_cast<double>(cache_numbers(model.spec())) / static_cast<double>(cache_numbers(dense.spec()));
  finish(report, start, out);
  return report;
}

}  // namespace narrows
