#include "lowrank/layer_maps.h"

#include <algorithm>

#include "base/error.h"
#include "lowrank/covariance.h"

namespace narrows {
namespace {

std::vector<double> norm_weights(const Norm& norm, bool by_head, std::int64_t heads, std::int64_t d) {
  std::vector<double> weights;
  if (!norm.present) return weights;
  for (std::int64_t h = 0; h < heads; ++h) {
    const float* row = norm.weight + (by_head ? h * d : 0);
    weights.insert(weights.end(), row, row + d);
  }
  return weights;
}

}  // namespace

MapValues map_values(const Linear& map) {
  const WeightMatrix& w = map.weight;
  MapValues values{w.rows, w.cols, std::vector<double>(static_cast<std::size_t>(w.rows * w.cols)), {}};
  std::vector<float> row(static_cast<std::size_t>(w.cols));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    dequantize(w.dtype, w.data + static_cast<std::size_t>(r) * row_bytes(w.dtype, w.cols), row.data(),
               w.cols);
    std::copy(row.begin(), row.end(), values.w.begin() + r * w.cols);
  }
  if (map.bias) values.bias.assign(map.bias, map.bias + w.rows);
  return values;
}

Linear StoredMap::linear() const {
  return {{type, rows, columns, w.data(), nullptr}, bias.empty() ? nullptr : bias.data()};
}

void StoredMap::spill(SpillFile& file) {
  if (rows == 0 || spilled_at >= 0) return;
  spilled_at = file.add(w);
  w = {};
}

StoredMap store(const MapValues& map, DType type, const std::string& what) {
  if (map.columns % dtype_info(type).block_size != 0) type = DType::F16;
  const std::size_t stride = row_bytes(type, map.columns);
  StoredMap stored{type, map.rows, map.columns,
                   AlignedVector<std::byte>(static_cast<std::size_t>(map.rows) * stride),
                   AlignedVector<float>(map.bias.begin(), map.bias.end()), -1};
  std::vector<float> row(static_cast<std::size_t>(map.columns));
  try {
    for (std::int64_t r = 0; r < map.rows; ++r) {
      for (std::int64_t j = 0; j < map.columns; ++j)
        row[static_cast<std::size_t>(j)] =
            static_cast<float>(map.w[static_cast<std::size_t>(r * map.columns + j)]);
      quantize(type, row.data(), stored.w.data() + static_cast<std::size_t>(r) * stride, map.columns);
    }
  } catch (const Error& error) {
    fail("{}: {}", what, error.what());
  }
  return stored;
}

bool has_fixed_queries(const ModelSpec& spec, const LayerWeights& weights) {
  return (weights.q_norm.present || weights.k_norm.present) &&
         (weights.qk_norm_whole || spec.norm == NormKind::Layer || weights.q_norm.bias || weights.k_norm.bias);
}

AttentionMaps attention_maps(const ModelSpec& spec, const LayerSpec& layer, const LayerWeights& weights) {
  AttentionMaps maps;
  maps.sizes = layer;
  if (layer.rotary >= 0) {
    const Rotary& rotary = spec.rotaries[static_cast<std::size_t>(layer.rotary)];
    maps.layout = rotary.layout;
    maps.pairs = rotary.kept;
    if (rotary.base < 0)
      for (int h = 0; h < layer.kv_heads; ++h)
        for (int p = 0; p < rotary.pairs; ++p) maps.pairs.push_back(p);
  }
  const std::vector<Linear>& qkv = weights.qkv->maps();
  maps.q = map_values(qkv[0]);
  maps.k = map_values(qkv[1]);
  maps.v = map_values(qkv[2]);
  maps.o = map_values(weights.o->maps()[0]);
  maps.queries_fixed = has_fixed_queries(spec, weights);
  if (maps.queries_fixed) return maps;
  maps.q_norm = norm_weights(weights.q_norm, weights.q_norm_by_head, layer.heads, layer.d_qk);
  maps.k_norm = norm_weights(weights.k_norm, weights.k_norm_by_head, layer.kv_heads, layer.d_qk);
  return maps;
}

FeedForwardMaps feed_forward_maps(const LayerWeights& weights) {
  FeedForwardMaps maps;
  for (const Linear& map : weights.up->maps()) maps.up.push_back(map_values(map));
  maps.down = map_values(weights.down->maps()[0]);
  return maps;
}

FeedForwardMaps take_neurons(const FeedForwardMaps& maps, MlpReduced reduced) {
  const std::int64_t count = std::ssize(reduced.kept);
  FeedForwardMaps to;
  for (const MapValues& map : maps.up)
    to.up.push_back({count, map.columns, take_rows(map.w, map.columns, reduced.kept),
                     map.bias.empty() ? std::vector<double>() : take_rows(map.bias, 1, reduced.kept)});
  to.down = {maps.down.rows, count, std::move(reduced.down), maps.down.bias};
  return to;
}

}  // namespace narrows
