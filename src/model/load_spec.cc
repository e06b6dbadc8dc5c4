#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "model/load.h"
#include "model/rotary.h"

namespace narrows {
namespace {

constexpr std::int64_t kMostLayers = 4096, kMostWidth = 1 << 20, kMostContext = std::int64_t{1} << 40;

// Reads the keys "<architecture>.…" of a file.
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}

  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most) const {
    return checked(key, file_.get_int(full(key)), least, most);
  }
  std::int64_t integer_or(std::string_view key, std::int64_t otherwise, std::int64_t least, std::int64_t most) const {
    const auto found = file_.find_int(full(key));
    return found ? checked(key, *found, least, most) : otherwise;
  }
  double number_or(std::string_view key, double otherwise) const {
    const double value = file_.find_float(full(key)).value_or(otherwise);
    if (!std::isfinite(value)) fail("{}: {}: expected a finite number, found {}", file_.path(), full(key), value);
    return value;
  }
  double positive_or(std::string_view key, double otherwise) const {
    const double value = number_or(key, otherwise);
    if (value <= 0) fail("{}: {}: expected a number above 0, found {}", file_.path(), full(key), value);
    return value;
  }
  std::string text_or(std::string_view key, std::string otherwise) const {
    return file_.find_string(full(key)).value_or(std::move(otherwise));
  }
  // One value a layer: an integer for all of them, or an array.
  std::vector<int> per_layer(std::string_view key, std::int64_t layers, std::optional<std::int64_t> otherwise) const {
    const GgufEntry* entry = file_.find(full(key));
    if (!entry && !otherwise) fail("{}: {} is missing", file_.path(), full(key));
    if (entry && entry->type == GgufType::Array) {
      const GgufArray& array = file_.get_array(full(key));
      if (static_cast<std::int64_t>(array.integers.size()) != layers)
        fail("{}: {}: expected {} integers, one a layer, found {} elements", file_.path(), full(key), layers,
             array.size());
      std::vector<int> values;
      for (const std::int64_t v : array.integers) values.push_back(static_cast<int>(checked(key, v, 1, kMostWidth)));
      return values;
    }
    const std::int64_t value = entry ? integer(key, 1, kMostWidth) : *otherwise;
    return std::vector<int>(static_cast<std::size_t>(layers), static_cast<int>(value));
  }
  bool has(std::string_view key) const { return file_.has(full(key)); }
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  const GgufFile& file() const { return file_; }

 private:
  std::int64_t checked(std::string_view key, std::int64_t value, std::int64_t least, std::int64_t most) const {
    if (value < least || value > most)
      fail("{}: {}: expected {} to {}, found {}", file_.path(), full(key), least, most, value);
    return value;
  }
  const GgufFile& file_;
  std::string prefix_;
};

RotaryScaling read_scaling(const Keys& keys) {
  RotaryScaling scaling;
  scaling.type = keys.text_or("rope.scaling.type", keys.has("rope.scale_linear") ? "linear" : "none");
  if (scaling.type != "none" && scaling.type != "linear" && scaling.type != "yarn")
    fail("{}: {}: expected none, linear or yarn, found \"{}\"", keys.file().path(), keys.full("rope.scaling.type"),
         scaling.type);
  scaling.factor = keys.positive_or("rope.scaling.factor", keys.positive_or("rope.scale_linear", 1));
  scaling.original_context = keys.positive_or("rope.scaling.original_context_length",
                                              keys.positive_or("context_length", 1));
  scaling.attention_factor = keys.positive_or("rope.scaling.attn_factor",
                                              keys.positive_or("rope.scaling.yarn_attn_factor", 1));
  scaling.beta_fast = keys.positive_or("rope.scaling.yarn_beta_fast", 32);
  scaling.beta_slow = keys.positive_or("rope.scaling.yarn_beta_slow", 1);
  scaling.extrapolation = keys.number_or("rope.scaling.yarn_ext_factor", 1);
  return scaling;
}

// Divisors of the rotary frequencies (Llama 3.1 and later).
std::vector<float> read_rope_divisors(const GgufFile& file, int pairs) {
  const GgufTensor* tensor = file.find_tensor("rope_freqs.weight");
  if (!tensor) return {};
  if (tensor->dtype != DType::F32 || tensor->elements() != pairs)
    fail("{}: rope_freqs.weight: expected {} F32 elements, found {} of type {}", file.path(), pairs,
         tensor->elements(), dtype_info(tensor->dtype).name);
  std::vector<float> divisors(static_cast<std::size_t>(pairs));
  dequantize(DType::F32, tensor->data, divisors.data(), pairs);
  for (const float v : divisors)
    if (!std::isfinite(v) || v <= 0) fail("{}: rope_freqs.weight: expected numbers above 0, found {}", file.path(), v);
  return divisors;
}

// What every architecture so far reads the same way.
void read_common(const Keys& keys, ModelSpec& spec, RotaryLayout layout) {
  const GgufFile& file = keys.file();
  spec.layers = static_cast<int>(keys.integer("block_count", 1, kMostLayers));
  spec.d = keys.integer("embedding_length", 1, kMostWidth);
  spec.trained_context = keys.integer("context_length", 1, kMostContext);
  spec.norm_eps = static_cast<float>(keys.positive_or("attention.layer_norm_rms_epsilon", 1e-5));
  if (keys.integer_or("expert_count", 0, 0, kMostWidth) > 0)
    fail("{}: {}: mixtures of experts are not supported", file.path(), keys.full("expert_count"));

  const std::vector<int> heads = keys.per_layer("attention.head_count", spec.layers, std::nullopt);
  const std::vector<int> inter = keys.per_layer("feed_forward_length", spec.layers, std::nullopt);
  std::vector<int> kv_heads = heads;
  if (keys.has("attention.head_count_kv"))
    kv_heads = keys.per_layer("attention.head_count_kv", spec.layers, std::nullopt);
  if (!keys.has("attention.key_length") && spec.d % heads[0] != 0)
    fail("{}: {}: expected a divisor of {} ({}), found {}", file.path(), keys.full("attention.head_count"),
         keys.full("embedding_length"), spec.d, heads[0]);
  const std::vector<int> d_qk = keys.per_layer("attention.key_length", spec.layers, spec.d / heads[0]);
  const std::vector<int> d_vo = keys.per_layer("attention.value_length", spec.layers, spec.d / heads[0]);
  const int dims = static_cast<int>(keys.integer_or("rope.dimension_count", d_qk[0], 2, kMostWidth));
  const double score_scale = keys.number_or("attention.scale", 0);
  if (score_scale < 0)
    fail("{}: {}: expected a number above 0, found {}", file.path(), keys.full("attention.scale"), score_scale);
  for (std::size_t i = 0; i < static_cast<std::size_t>(spec.layers); ++i) {
    LayerSpec layer;
    layer.heads = heads[i];
    layer.kv_heads = kv_heads[i];
    layer.d_qk = d_qk[i];
    layer.d_vo = d_vo[i];
    layer.d_inter = inter[i];
    layer.rotary = 0;
    layer.score_scale =
        static_cast<float>(score_scale > 0 ? score_scale : 1 / std::sqrt(static_cast<double>(layer.d_qk)));
    if (layer.heads % layer.kv_heads != 0)
      fail("{}: {}: expected a divisor of the {} heads, found {}", file.path(), keys.full("attention.head_count_kv"),
           layer.heads, layer.kv_heads);
    if ((dims > layer.d_qk && !file.has(kPairCountKey)) || dims % 2 != 0)
      fail("{}: {}: expected an even number up to the head's {} dimensions, found {}", file.path(),
           keys.full("rope.dimension_count"), layer.d_qk, dims);
    spec.layer.push_back(layer);
  }
  const double base = keys.positive_or("rope.freq_base", 10000);
  const RotaryScaling scaling = read_scaling(keys);
  if (scaling.type == "yarn" && base <= 1)  // its ramp divides by log(base)
    fail("{}: {}: expected a number above 1 with YaRN scaling, found {}", file.path(), keys.full("rope.freq_base"), base);
  spec.rotaries.push_back(make_rotary(layout, dims, base, scaling, read_rope_divisors(file, dims / 2)));
}

void read_llama(const Keys& keys, ModelSpec& spec) {
  read_common(keys, spec, RotaryLayout::Adjacent);
  const int window = static_cast<int>(keys.integer_or("attention.sliding_window", 0, 0, 1 << 30));
  for (LayerSpec& layer : spec.layer) layer.window = window;
}

void read_qwen2(const Keys& keys, ModelSpec& spec) { read_common(keys, spec, RotaryLayout::Half); }

void read_gemma3(const Keys& keys, ModelSpec& spec) {
  read_common(keys, spec, RotaryLayout::Half);
  spec.activation = Activation::GeluTanh;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.d));
  spec.logit_cap = static_cast<float>(keys.number_or("final_logit_softcapping", 0));
  spec.score_cap = static_cast<float>(keys.number_or("attn_logit_softcapping", 0));
  // Five layers of six have a sliding window and a rotary base of their own, without scaling.
  const int window = static_cast<int>(keys.integer_or("attention.sliding_window", 0, 0, 1 << 30));
  const int pattern = static_cast<int>(keys.integer_or("attention.sliding_window_pattern", 6, 1, kMostLayers));
  spec.rotaries.push_back(make_rotary(RotaryLayout::Half, 2 * spec.rotaries[0].pairs,
                                      keys.positive_or("rope.freq_base_swa", 10000), {}, {}));
  for (int i = 0; i < spec.layers; ++i) {
    LayerSpec& layer = spec.layer[static_cast<std::size_t>(i)];
    if (window > 0 && i % pattern != pattern - 1) {
      layer.window = window;
      layer.rotary = 1;
    }
    // Gemma 3 27B scales by its width over its heads; files do not say so, its 62 layers do.
    if (spec.layers == 62 && !keys.has("attention.scale"))
      layer.score_scale = 1 / std::sqrt(static_cast<float>(spec.d) / static_cast<float>(layer.heads));
  }
}

// Gives each layer a rotary of the pairs that A3 kept.
void read_kept_pairs(const GgufFile& file, ModelSpec& spec) {
  if (!file.has(kPairCountKey)) return;
  const GgufArray &counts = file.get_array(kPairCountKey), &pairs = file.get_array(kPairsKey);
  if (std::ssize(counts.integers) != spec.layers)
    fail("{}: {}: expected {} integers, one a layer, found {} elements", file.path(), kPairCountKey, spec.layers,
         counts.size());
  std::size_t at = 0;
  for (int i = 0; i < spec.layers; ++i) {
    LayerSpec& layer = spec.layer[static_cast<std::size_t>(i)];
    const Rotary& base = spec.rotaries[static_cast<std::size_t>(layer.rotary)];
    const std::int64_t most = std::min(base.pairs, layer.d_qk / 2), count = counts.integers[static_cast<std::size_t>(i)];
    if (count < 0 || count > most)
      fail("{}: {}: expected 0 to {} in layer {}, found {}", file.path(), kPairCountKey, most, i, count);
    Rotary rotary{base.layout, {}, static_cast<int>(count), base.magnitude, layer.rotary, {}};
    const std::size_t end = at + static_cast<std::size_t>(layer.kv_heads * count);
    if (end > pairs.integers.size())
      fail("{}: {}: expected at least {} integers, found {} elements", file.path(), kPairsKey, end, pairs.size());
    for (std::int64_t number = 0; at < end; ++at, ++number) {
      const std::int64_t pair = pairs.integers[at], least = number % count ? rotary.kept.back() + 1 : 0;
      if (pair < least || pair >= base.pairs)
        fail("{}: {}: expected {} to {} in layer {}, ascending in each head, found {}", file.path(), kPairsKey, least,
             base.pairs - 1, i, pair);
      rotary.kept.push_back(static_cast<int>(pair));
      rotary.frequencies.push_back(base.frequencies[static_cast<std::size_t>(pair)]);
    }
    layer.rotary = count > 0 ? static_cast<int>(spec.rotaries.size()) : -1;
    if (count > 0) spec.rotaries.push_back(std::move(rotary));
  }
  if (at != pairs.size())
    fail("{}: {}: expected {} integers, found {} elements", file.path(), kPairsKey, at, pairs.size());
}

struct Architecture {
  std::string_view name;
  void (*read)(const Keys&, ModelSpec&);
};
// "deci" is llama with sizes that differ by layer; its layers without attention or feed-forward block are refused.
constexpr std::array<Architecture, 4> kArchitectures{
    {{"llama", read_llama}, {"deci", read_llama}, {"qwen2", read_qwen2}, {"gemma3", read_gemma3}}};

}  // namespace

ModelSpec load_spec(const GgufFile& file) {
  ModelSpec spec;
  spec.architecture = file.get_string("general.architecture");
  spec.name = file.find_string("general.name").value_or("");
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name != spec.architecture) continue;
    architecture.read(Keys(file, spec.architecture), spec);
    read_kept_pairs(file, spec);
    return spec;
  }
  std::string known;
  for (const Architecture& architecture : kArchitectures) known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  fail("{}: general.architecture: expected one of {}, found \"{}\"", file.path(), known, spec.architecture);
}

}  // namespace narrows
