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
  if (scaling.type != "none" && scaling.type != "linear" && scaling.type != "yarn" && scaling.type != "longrope")
    fail("{}: {}: expected none, linear, yarn or longrope, found \"{}\"", keys.file().path(), keys.full("rope.scaling.type"),
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

// Divisors of the rotary frequencies (Llama 3.1 and later, longrope); none if the tensor is absent.
std::vector<float> read_rope_divisors(const GgufFile& file, std::string_view name, int pairs) {
  const GgufTensor* tensor = file.find_tensor(name);
  if (!tensor) return {};
  if (tensor->dtype != DType::F32 || tensor->elements() != pairs)
    fail("{}: {}: expected {} F32 elements, found {} of type {}", file.path(), name, pairs, tensor->elements(),
         dtype_info(tensor->dtype).name);
  std::vector<float> divisors(static_cast<std::size_t>(pairs));
  tensor->dequantize_to(divisors.data());
  for (const float v : divisors)
    if (!std::isfinite(v) || v <= 0) fail("{}: {}: expected numbers above 0, found {}", file.path(), name, v);
  return divisors;
}

Rotary read_rotary(const Keys& keys, RotaryLayout layout, int dims, ModelSpec& spec) {
  const GgufFile& file = keys.file();
  const double base = keys.positive_or("rope.freq_base", 10000);
  const RotaryScaling scaling = read_scaling(keys);
  if (scaling.type == "yarn" && base <= 1)  // its ramp divides by log(base)
    fail("{}: {}: expected a number above 1 with YaRN scaling, found {}", file.path(), keys.full("rope.freq_base"), base);
  const std::vector<float> longer = read_rope_divisors(file, "rope_factors_long.weight", dims / 2),
                           shorter = read_rope_divisors(file, "rope_factors_short.weight", dims / 2);
  if (longer.empty() != shorter.empty() || (scaling.type == "longrope" && longer.empty()))
    fail("{}: expected both rope_factors_long.weight and rope_factors_short.weight", file.path());
  if (longer.empty())
    return make_rotary(layout, dims, base, scaling, read_rope_divisors(file, "rope_freqs.weight", dims / 2));
  Rotary rotary = make_rotary(layout, dims, base, {}, shorter);
  rotary.long_frequencies = make_rotary(layout, dims, base, {}, longer).frequencies;
  rotary.magnitude = static_cast<float>(scaling.attention_factor);
  spec.original_context = static_cast<std::int64_t>(std::min(scaling.original_context, static_cast<double>(kMostContext)));
  return rotary;
}

// attention.sliding_window in the layers that attention.sliding_window_pattern names: one flag a layer, or every how many
// one that sees everything; `pattern` if the file does not say, 0: none.
void read_windows(const Keys& keys, ModelSpec& spec, int pattern, int default_window = 0) {
  int window = static_cast<int>(keys.integer_or("attention.sliding_window", default_window, 0, 1 << 30));
  // Phi-3 128k's is twice its context: none. (Gemma's, which have a pattern, choose the rotary base, too.)
  if (pattern == 0 && window >= spec.trained_context) window = 0;
  const GgufEntry* entry = keys.file().find(keys.full("attention.sliding_window_pattern"));
  const GgufArray* flags = entry ? std::get_if<GgufArray>(&entry->value) : nullptr;
  if (flags && std::ssize(flags->integers) != spec.layers)
    fail("{}: {}: expected {} flags, one a layer, found {} elements", keys.file().path(),
         keys.full("attention.sliding_window_pattern"), spec.layers, flags->size());
  if (entry && !flags) pattern = static_cast<int>(keys.integer("attention.sliding_window_pattern", 1, kMostLayers));
  for (int i = 0; i < spec.layers; ++i) {
    const bool slides = flags ? flags->integers[static_cast<std::size_t>(i)] != 0
                              : pattern == 0 || i % pattern != pattern - 1;
    if (slides) spec.layer[static_cast<std::size_t>(i)].window = window;
  }
}

void read_experts(const Keys& keys, ModelSpec& spec) {
  const int experts = static_cast<int>(keys.integer_or("expert_count", 0, 0, kMostLayers));
  if (experts == 0) return;
  const GgufFile& file = keys.file();
  spec.experts_used = static_cast<int>(keys.integer("expert_used_count", 1, experts));
  spec.expert_weights_norm = file.find_bool(keys.full("expert_weights_norm")).value_or(true);
  if (keys.integer_or("expert_shared_count", 0, 0, kMostLayers) > 0 || keys.has("expert_shared_feed_forward_length"))
    fail("{}: {}: shared experts are not supported", file.path(), keys.full("expert_shared_count"));
  if (keys.integer_or("expert_gating_func", 1, 0, 16) > 1)
    fail("{}: {}: expected 1, softmax", file.path(), keys.full("expert_gating_func"));
  for (int i = 0; i < spec.layers; ++i) {
    LayerSpec& layer = spec.layer[static_cast<std::size_t>(i)];
    if (!file.find_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", i))) continue;  // a layer without a mixture
    layer.experts = experts;
    layer.d_inter = static_cast<int>(keys.integer_or("expert_feed_forward_length", layer.d_inter, 1, kMostWidth));
  }
}

// What all architectures read the same way; without a layout positions are not rotary.
void read_common(const Keys& keys, ModelSpec& spec, std::optional<RotaryLayout> layout) {
  const GgufFile& file = keys.file();
  spec.layers = static_cast<int>(keys.integer("block_count", 1, kMostLayers));
  spec.d = spec.embedding_width = keys.integer("embedding_length", 1, kMostWidth);
  spec.trained_context = keys.integer("context_length", 1, kMostContext);
  spec.norm = keys.has("attention.layer_norm_epsilon") && !keys.has("attention.layer_norm_rms_epsilon") ? NormKind::Layer
                                                                                                     : NormKind::Rms;
  spec.norm_eps = static_cast<float>(keys.positive_or(
      spec.norm == NormKind::Layer ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5));
  spec.qkv_clamp = static_cast<float>(keys.number_or("attention.clamp_kqv", 0));
  spec.score_cap = static_cast<float>(keys.number_or("attn_logit_softcapping", 0));
  spec.logit_cap = static_cast<float>(keys.number_or("final_logit_softcapping", 0));

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
  const int dims = layout ? static_cast<int>(keys.integer_or("rope.dimension_count", d_qk[0], 2, kMostWidth)) : 0;
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
    layer.rotary = layout ? 0 : -1;
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
  if (layout) spec.rotaries.push_back(read_rotary(keys, *layout, dims, spec));
  read_experts(keys, spec);
}

// An activation that is not the one which llama.cpp computes for the architecture.
void read_activation(const Keys& keys, ModelSpec& spec) {
  const auto name = keys.file().find_string("narrows.activation");
  if (!name) return;
  if (*name != "gelu_erf") fail("{}: narrows.activation: expected gelu_erf, found \"{}\"", keys.file().path(), *name);
  spec.activation = Activation::GeluErf;
}

void read_llama(const Keys& keys, ModelSpec& spec) {
  read_common(keys, spec, RotaryLayout::Adjacent);
  read_windows(keys, spec, 0);
}

void read_half(const Keys& keys, ModelSpec& spec) {
  read_common(keys, spec, RotaryLayout::Half);
  read_windows(keys, spec, 0);
}

void read_smollm3(const Keys& keys, ModelSpec& spec) {
  read_llama(keys, spec);
  const GgufArray* rotated = keys.file().find_array("narrows.rope.layers");
  if (rotated && std::ssize(rotated->integers) != spec.layers)
    fail("{}: narrows.rope.layers: expected {} flags, one a layer, found {} elements", keys.file().path(), spec.layers,
         rotated->size());
  for (int i = 0; i < spec.layers; ++i)
    if (rotated ? rotated->integers[static_cast<std::size_t>(i)] == 0 : i % 4 == 3)
      spec.layer[static_cast<std::size_t>(i)].rotary = -1;
}

void read_olmo2(const Keys& keys, ModelSpec& spec) {
  read_half(keys, spec);
  spec.pre_norm = false;
}

void read_gemma(const Keys& keys, ModelSpec& spec) {
  read_common(keys, spec, RotaryLayout::Half);
  spec.activation = Activation::GeluTanh;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.d));
}

// Gemma's 27B models scale by their width over their heads; files do not say so, their number of layers does.
void scale_by_width(const Keys& keys, ModelSpec& spec, int layers) {
  if (spec.layers != layers || keys.has("attention.scale")) return;
  for (LayerSpec& layer : spec.layer)
    layer.score_scale = 1 / std::sqrt(static_cast<float>(spec.d) / static_cast<float>(layer.heads));
}

void read_gemma2(const Keys& keys, ModelSpec& spec) {
  read_gemma(keys, spec);
  read_windows(keys, spec, 2, 4096);
  scale_by_width(keys, spec, 46);
}

void read_gemma3(const Keys& keys, ModelSpec& spec) {
  read_gemma(keys, spec);
  // Five layers of six have a sliding window and a rotary base of their own, without scaling.
  read_windows(keys, spec, 6);
  spec.rotaries.push_back(make_rotary(RotaryLayout::Half, 2 * spec.rotaries[0].pairs,
                                      keys.positive_or("rope.freq_base_swa", 10000), {}, {}));
  for (LayerSpec& layer : spec.layer)
    if (layer.window > 0) layer.rotary = 1;
  scale_by_width(keys, spec, 62);
}

void read_plain(const Keys& keys, ModelSpec& spec, std::optional<RotaryLayout> layout) {
  read_common(keys, spec, layout);
  spec.gated = false;
  spec.activation = Activation::GeluTanh;
  read_activation(keys, spec);
}

void read_starcoder2(const Keys& keys, ModelSpec& spec) {
  read_plain(keys, spec, RotaryLayout::Half);
  read_windows(keys, spec, 0);
}

void read_phi2(const Keys& keys, ModelSpec& spec) {
  read_plain(keys, spec, RotaryLayout::Half);
  spec.parallel_block = true;
}

void read_parallel(const Keys& keys, ModelSpec& spec, bool otherwise) {
  spec.parallel_block = keys.file().find_bool(keys.full("use_parallel_residual")).value_or(otherwise);
}

void read_stablelm(const Keys& keys, ModelSpec& spec) {
  read_common(keys, spec, RotaryLayout::Half);
  // llama.cpp goes by the tensor: files say "parallel" where they are not.
  spec.parallel_block = !keys.file().find_tensor("blk.0.ffn_norm.weight");
}

void read_gptneox(const Keys& keys, ModelSpec& spec) {
  read_plain(keys, spec, RotaryLayout::Half);
  read_parallel(keys, spec, true);
}

void read_gptj(const Keys& keys, ModelSpec& spec) {
  read_plain(keys, spec, RotaryLayout::Adjacent);
  spec.parallel_block = true;
}

void read_alibi(const Keys& keys, ModelSpec& spec) {
  spec.positions = Positions::Alibi;
  spec.alibi_max_bias = static_cast<float>(keys.positive_or("attention.max_alibi_bias", 8));
}

void read_falcon(const Keys& keys, ModelSpec& spec) {
  const bool alibi = keys.has("attention.max_alibi_bias");
  read_plain(keys, spec, alibi ? std::nullopt : std::optional(RotaryLayout::Half));
  read_parallel(keys, spec, true);
  if (!alibi) return;
  read_alibi(keys, spec);
  spec.alibi_scaled = true;
}

void read_mpt(const Keys& keys, ModelSpec& spec) {
  read_plain(keys, spec, std::nullopt);
  if (keys.number_or("attention.max_alibi_bias", 0) > 0)
    read_alibi(keys, spec);
  else
    spec.positions = Positions::Learned;
}

void read_gpt2(const Keys& keys, ModelSpec& spec) {
  read_plain(keys, spec, std::nullopt);
  spec.positions = Positions::Learned;
}

void read_opt(const Keys& keys, ModelSpec& spec) {
  read_gpt2(keys, spec);
  spec.activation = Activation::Relu;
  spec.post_block_norm = keys.file().find_bool(keys.full("post_block_norm")).value_or(false);
  spec.embedding_width = keys.integer_or("word_embedding_length", spec.d, 1, kMostWidth);
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
    if (layer.rotary < 0) {
      if (counts.integers[static_cast<std::size_t>(i)] != 0)
        fail("{}: {}: expected 0 in layer {}, which is not rotated", file.path(), kPairCountKey, i);
      continue;
    }
    const Rotary& base = spec.rotaries[static_cast<std::size_t>(layer.rotary)];
    const std::int64_t most = std::min(base.pairs, layer.d_qk / 2), count = counts.integers[static_cast<std::size_t>(i)];
    if (count < 0 || count > most)
      fail("{}: {}: expected 0 to {} in layer {}, found {}", file.path(), kPairCountKey, most, i, count);
    Rotary rotary{base.layout, {}, {}, static_cast<int>(count), base.magnitude, layer.rotary, {}};
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
constexpr std::array<Architecture, 20> kArchitectures{{
    {"llama", read_llama},
    {"deci", read_llama},  // llama with sizes that differ by layer; layers without a block are refused
    {"qwen2", read_half},
    {"qwen3", read_half},
    {"qwen3moe", read_half},
    {"phi3", read_half},
    {"smollm3", read_smollm3},
    {"olmo2", read_olmo2},
    {"gemma", read_gemma},
    {"gemma2", read_gemma2},
    {"gemma3", read_gemma3},
    {"starcoder2", read_starcoder2},
    {"stablelm", read_stablelm},
    {"phi2", read_phi2},
    {"gptneox", read_gptneox},
    {"gptj", read_gptj},
    {"gpt2", read_gpt2},
    {"falcon", read_falcon},
    {"mpt", read_mpt},
    {"opt", read_opt},
}};

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
