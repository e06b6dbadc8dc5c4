#include "lowrank/report.h"

#include <limits>

#include "base/error.h"
#include "base/measure.h"
#include "formats/requantize.h"

namespace narrows {
namespace {

std::int64_t parameters_of(const LinearSite& site) {
  std::int64_t count = 0;
  for (const Linear& map : site.maps()) count += map.weight.rows * (map.weight.cols + (map.bias ? 1 : 0));
  return count;
}

}  // namespace

std::int64_t parameters(const LayerWeights& w) {
  return parameters_of(*w.qkv) + parameters_of(*w.o) + parameters_of(*w.up) + parameters_of(*w.down);
}

std::int64_t cache_numbers(const LayerSpec& layer) { return std::int64_t{layer.kv_heads} * (layer.d_qk + layer.d_vo); }

std::int64_t cache_numbers(const ModelSpec& spec) {
  std::int64_t count = 0;
  for (const LayerSpec& l : spec.layer) count += cache_numbers(l);
  return count;
}

CompressedLayer unmeasured(const LayerSpec& layer) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  return {layer.d_qk, layer.d_vo, layer.d_inter, kUnknown, kUnknown, kUnknown, kUnknown};
}

void check_type(DType type) { gguf_file_type(type); }

void check_share(double share) {
  if (!(share >= 0 && share < 1)) fail("share to remove: expected at least 0 and below 1, found {}", share);
}

double share_lost(std::span<const double> loss_by_rank, std::int64_t rank) {
  return loss_by_rank[0] > 0 ? loss_by_rank[static_cast<std::size_t>(rank)] / loss_by_rank[0] : 0;
}

void check_can_shrink(const LoadedModel& model) {
  if (model.spec().qkv_clamp > 0)
    fail("{}: queries, keys and values are cut off at {}: fewer dimensions cannot be found in closed form", model.path(),
         model.spec().qkv_clamp);
  for (const LayerSpec& layer : model.spec().layer)
    if (layer.experts > 0) fail("{}: mixtures of experts cannot be compressed", model.path());
  const float scale = model.spec().layer[0].score_scale;
  for (const LayerSpec& layer : model.spec().layer)
    if (layer.score_scale != scale)
      fail("{}: layers scale their scores by {} and {}: expected the same in all", model.path(), scale,
           layer.score_scale);
}

void finish(CompressionReport& report, std::chrono::steady_clock::time_point start, const std::string& out) {
  report.seconds = seconds_since(start);
  report.peak_bytes = peak_memory();
  report.file_bytes = GgufFile::open(out).file_bytes();
}

}  // namespace narrows
