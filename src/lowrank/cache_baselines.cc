#include "lowrank/cache_baselines.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "lowrank/attention_reduction.h"
#include "lowrank/covariance.h"
#include "lowrank/linear.h"
#include "lowrank/replace_layers.h"
#include "lowrank/report.h"
#include "subspace/linear_algebra.h"
#include "subspace/observed_site.h"
#include "subspace/second_moment.h"

namespace narrows {
namespace {

struct Decomposed {
  std::int64_t ranks = 0, parameters = 0;  // of all groups; of their thin maps
};

// Puts products of thin maps in the place of the rows of each group of heads.
Decomposed decompose(MapValues& map, std::int64_t d_head, int kv_heads, const std::vector<double>& r,
                     double share) {
  Decomposed all;
  std::int64_t first = 0;
  for (const int heads : palu_groups(kv_heads)) {
    const std::int64_t rows = heads * d_head, columns = map.columns;
    const auto affordable =
        static_cast<std::int64_t>(std::floor((1 - share) * static_cast<double>(rows) + 1e-9));
    const std::int64_t rank = std::clamp<std::int64_t>(affordable, 1, std::min(rows, columns));
    const auto at = map.w.begin() + first * columns;
    const LinearFactors f = whitened_svd({at, at + rows * columns}, rows, columns, r, rank);
    const std::vector<double> whole = product(f.a.data(), rows, rank, f.b.data(), columns);
    std::copy(whole.begin(), whole.end(), at);
    all.ranks += rank;
    all.parameters += rank * (rows + columns);
    first += rows;
  }
  return all;
}

// What the maps make of inputs whose second moment is the identity, up to a factor that no choice depends on.
AttentionMoments white_moments(const AttentionMaps& maps) {
  const LayerSpec& sizes = maps.sizes;
  const std::int64_t columns = maps.q.columns, group = sizes.heads / sizes.kv_heads;
  const bool biased = !maps.q.bias.empty() || !maps.k.bias.empty() || !maps.v.bias.empty();
  AttentionMoments moments(sizes);
  std::vector<float> qkv, mixed;
  for (std::int64_t j = 0; j < columns + biased; ++j) {  // the unit vectors; the constant 1
    qkv.clear();
    for (const MapValues* map : {&maps.q, &maps.k, &maps.v})
      for (std::int64_t i = 0; i < map->rows; ++i) {
        const auto row = static_cast<std::size_t>(i);
        const double y = j < columns         ? map->w[static_cast<std::size_t>(i * columns + j)]
                         : map->bias.empty() ? 0
                                             : map->bias[row];
        qkv.push_back(static_cast<float>(y));
      }
    const float* v = qkv.data() + maps.q.rows + maps.k.rows;
    mixed.clear();
    for (std::int64_t h = 0; h < sizes.heads; ++h)
      mixed.insert(mixed.end(), v + h / group * sizes.d_vo, v + (h / group + 1) * sizes.d_vo);
    moments.add_qkv(qkv.data(), 1);
    moments.add_mixed(mixed.data(), 1);
  }
  return moments;
}

}  // namespace

std::vector<int> palu_groups(int kv_heads) {
  const int count = (kv_heads + kPaluHeads - 1) / kPaluHeads;
  std::vector<int> groups;
  for (int i = 0; i < count; ++i) groups.push_back(kv_heads / count + (i < kv_heads % count));
  return groups;
}

CompressionReport compress_palu(const std::string& in, std::string_view text, double share,
                                const CompressOptions& options, const std::string& out) {
  std::int64_t cache = 0, cache_before = 0;
  CompressionReport report = replace_layers(in, text, share, options, out, [&](const LayerToReplace& layer) {
    LayerWeights& w = layer.weights;
    const LayerSpec& sizes = layer.sizes;
    layer.report.few_tokens |= layer.walk.tokens() < w.qkv->in();
    SecondMoment inputs(w.qkv->in());
    {
      const Wrapping<ObservedSite> qkv(
          w.qkv, [&](const float* x, std::int64_t rows) { inputs.add(x, rows, inputs.width()); }, true);
      const Wrapping<SilentSite> up(w.up), down(w.down);
      layer.walk.show_layer(layer.number, layer.passed);
    }
    const std::vector<double> r = inputs.mean();
    AttentionMaps maps = attention_maps(layer.model.spec(), sizes, w);
    const Decomposed k = decompose(maps.k, sizes.d_qk, sizes.kv_heads, r, share),
                     v = decompose(maps.v, sizes.d_vo, sizes.kv_heads, r, share);
    cache += k.ranks + v.ranks;
    cache_before += cache_numbers(sizes);
    layer.report.parameters +=
        parameters(w) - std::ssize(maps.k.w) - std::ssize(maps.v.w) + k.parameters + v.parameters;
    set_attention(layer.model, layer.number, maps, options.type, layer.to);
  });
  report.cache = static_cast<double>(cache) / static_cast<double>(cache_before);
  return report;
}

CompressionReport compress_clover(const std::string& in, double share, const CompressOptions& options,
                                  const std::string& out) {
  const auto start = std::chrono::steady_clock::now();
  check_type(options.type);
  check_share(share);
  LoadedModel model(in, {.threads = std::max(options.threads, 0), .repack = false});
  check_can_shrink(model);
  const std::int64_t cache_before = cache_numbers(model.spec());
  set_linear_algebra_threads(1);  // its last bits depend on the number
  CompressOptions shares = options;
  shares.qk = shares.ov = share;
  shares.mlp = 0;
  CompressionReport report;
  const int count = model.spec().layers;
  std::vector<ShrunkLayer> layers(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    LayerWeights& w = model.weights().layer[static_cast<std::size_t>(i)];
    const LayerSpec sizes = model.spec().layer[static_cast<std::size_t>(i)];
    report.parameters_before += parameters(w);
    CompressedLayer ranks = uniform_ranks(sizes.d_qk, sizes.d_vo, sizes.d_inter, shares);
    try {
      const AttentionMaps maps = attention_maps(model.spec(), sizes, w);
      const AttentionReduction reduction(maps, white_moments(maps));
      ranks.qk_loss = share_lost(reduction.qk_loss(), ranks.d_qk);
      ranks.ov_loss = share_lost(reduction.ov_loss(), ranks.d_vo);
      ranks.stream_error = unmeasured(sizes).stream_error;
      report.raised += reduction.raised();
      set_attention(model, i, reduction.shrink(ranks.d_qk, ranks.d_vo), options.type,
                    layers[static_cast<std::size_t>(i)]);
    } catch (const Error& error) {
      fail("{}: layer {}: {}", model.path(), i, error.what());
    }
    report.layers.push_back(ranks);
    report.parameters += parameters(w);
    if (options.progress) options.progress(i + 1, count);
  }
  write_shrunk_model(model.file(), layers, options.type, out);
  report.cache = static_cast<double>(cache_numbers(model.spec())) / static_cast<double>(cache_before);
  finish(report, start, out);
  return report;
}

}  // namespace narrows
