#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "base/error.h"
#include "huggingface/architectures.h"

namespace narrows::hf {
namespace {

constexpr std::int64_t kMostContext = std::int64_t{1} << 40;

// The object that holds the rotary settings, and where the rest is looked up.
struct RopeSettings {
  Config settings, config;
  std::string type;
  std::optional<double> find(std::string_view name) const {
    const auto own = settings.find_number({name});
    return own ? own : config.find_number({name});
  }
};

RopeSettings rope_settings(const Config& config, std::string_view kind) {
  Config settings = config.object_or_empty({"rope_parameters", "rope_scaling"});
  if (!kind.empty() && settings.find({kind})) settings = settings.object_or_empty({kind});
  std::string type = settings.text_or({"rope_type", "type"}, "default");
  return {std::move(settings), config, std::move(type)};
}

// Llama 3.1: long waves are stretched, short ones kept, those between blended. What each frequency is divided by.
std::vector<float> llama3_divisors(const RopeSettings& rope, double base, std::int64_t dims) {
  const double factor = rope.settings.number({"factor"}), low = rope.settings.number({"low_freq_factor"}),
               high = rope.settings.number({"high_freq_factor"}),
               original = rope.settings.number({"original_max_position_embeddings"});
  if (factor <= 0 || low <= 0 || high <= low || original <= 0)
    fail("{}: expected factor and original_max_position_embeddings above 0, low_freq_factor above 0 and below "
         "high_freq_factor", rope.settings.path());
  std::vector<float> divisors;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(base, 2.0 * static_cast<double>(i) / static_cast<double>(dims));
    if (wave < original / high) {
      divisors.push_back(1);
    } else if (wave > original / low) {
      divisors.push_back(static_cast<float>(factor));
    } else {
      const double smooth = (original / wave - low) / (high - low);
      divisors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
    }
  }
  return divisors;
}

std::vector<float> factors(const RopeSettings& rope, std::string_view name, std::int64_t pairs) {
  const Json* list = rope.settings.find({name});
  if (!list || !list->is_array() || std::ssize(*list) != pairs)
    fail("{}: {}: expected {} numbers, one a rotary pair", rope.settings.path(), name, pairs);
  std::vector<float> values;
  for (const Json& value : *list) {
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<float>()))
      fail("{}: {}: expected numbers above 0, found {}", rope.settings.path(), name, json_excerpt(value));
    values.push_back(value.get<float>());
  }
  return values;
}

void write_yarn(const RopeSettings& rope, Assembly& to, const std::string& prefix, const Sizes& sizes) {
  if (rope.settings.find({"mscale", "mscale_all_dim"}))
    rope.settings.refuse({"mscale", "mscale_all_dim"}, "no such setting: narrows does not implement it");
  if (!rope.settings.flag_or({"truncate"}, true)) rope.settings.refuse({"truncate"}, "true");
  const double original = rope.find("original_max_position_embeddings").value_or(static_cast<double>(sizes.context));
  const double factor = rope.settings.number_or({"factor"}, static_cast<double>(sizes.context) / original);
  if (factor <= 0 || original < 1) fail("{}: expected a factor above 0", rope.settings.path());
  to.set_text(prefix + "rope.scaling.type", "yarn");
  to.set_number(prefix + "rope.scaling.factor", factor);
  to.set_count(prefix + "rope.scaling.original_context_length", static_cast<std::int64_t>(original));
  if (const auto fast = rope.settings.find_number({"beta_fast"})) to.set_number(prefix + "rope.scaling.yarn_beta_fast", *fast);
  if (const auto slow = rope.settings.find_number({"beta_slow"})) to.set_number(prefix + "rope.scaling.yarn_beta_slow", *slow);
  // GGUF's multiplies YaRN's own magnitude, Hugging Face's replaces it.
  if (const auto attention = rope.settings.find_number({"attention_factor"}))
    to.set_number(prefix + "rope.scaling.yarn_attn_factor", *attention / (1 + 0.1 * std::log(std::max(factor, 1.0))));
}

void write_longrope(const RopeSettings& rope, Assembly& to, const std::string& prefix, const Sizes& sizes,
                    std::int64_t dims) {
  const double original = rope.find("original_max_position_embeddings").value_or(static_cast<double>(sizes.context));
  if (original < 2) fail("{}: expected original_max_position_embeddings of at least 2", rope.settings.path());
  const double factor = static_cast<double>(sizes.context) / original;
  const double magnitude = rope.settings.number_or(
      {"attention_factor"}, factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original)));
  to.set_text(prefix + "rope.scaling.type", "longrope");
  to.set_count(prefix + "rope.scaling.original_context_length", static_cast<std::int64_t>(original));
  to.set_number(prefix + "rope.scaling.attn_factor", magnitude);
  to.add_floats("rope_factors_long.weight", factors(rope, "long_factor", dims / 2));
  to.add_floats("rope_factors_short.weight", factors(rope, "short_factor", dims / 2));
}

}  // namespace

Sizes read_sizes(const Config& config, std::optional<std::int64_t> default_context) {
  Sizes s{};
  s.layers = config.integer({"num_hidden_layers", "n_layer", "n_layers"}, 1, 4096);
  s.d = config.integer({"hidden_size", "n_embd", "d_model"});
  s.vocab = config.integer({"vocab_size"}, 1, std::int64_t{1} << 31);
  s.heads = config.integer({"num_attention_heads", "n_head", "n_heads"});
  s.kv_heads = config.integer_or({"num_key_value_heads"}, s.heads);
  if (s.heads % s.kv_heads != 0) config.refuse({"num_key_value_heads"}, fmt::format("a divisor of the {} heads", s.heads));
  const auto d_head = config.find_integer({"head_dim"});
  if (!d_head && s.d % s.heads != 0)
    config.refuse({"num_attention_heads", "n_head", "n_heads"}, fmt::format("a divisor of the width {}", s.d));
  s.d_head = d_head.value_or(s.d / s.heads);
  if (s.heads * s.d_head > (1 << 24)) config.refuse({"head_dim"}, "smaller heads");
  s.inter = config.integer_or({"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"}, 4 * s.d);
  const auto context =
      config.find_integer({"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"}, 1, kMostContext);
  if (!context && !default_context) config.refuse({"max_position_embeddings"}, "a whole number");
  s.context = context ? *context : *default_context;
  return s;
}

void write_sizes(Assembly& to, std::string_view architecture, const Sizes& s) {
  const std::string prefix = std::string(architecture) + ".";
  to.set_text("general.architecture", std::string(architecture));
  to.set_count(prefix + "block_count", s.layers);
  to.set(prefix + "context_length", GgufType::U64, static_cast<std::uint64_t>(s.context));
  if (s.context <= std::int64_t{0xFFFFFFFF}) to.set_count(prefix + "context_length", s.context);
  to.set_count(prefix + "embedding_length", s.d);
  to.set_count(prefix + "feed_forward_length", s.inter);
  to.set_count(prefix + "attention.head_count", s.heads);
  to.set_count(prefix + "attention.head_count_kv", s.kv_heads);
  to.set_count(prefix + "vocab_size", s.vocab);
  if (s.d_head * s.heads != s.d || s.d % s.heads != 0) {
    to.set_count(prefix + "attention.key_length", s.d_head);
    to.set_count(prefix + "attention.value_length", s.d_head);
  }
}

void write_layer_eps(const Config& config, Assembly& to, const std::string& architecture) {
  to.set_number(architecture + ".attention.layer_norm_epsilon",
                config.number_or({"layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"}, 1e-5));
}

Rope write_rope(const Config& config, Assembly& to, const std::string& architecture, const Sizes& sizes,
                std::string_view kind, double default_share) {
  const std::string prefix = architecture + ".";
  const RopeSettings rope = rope_settings(config, kind);
  Rope out;
  out.base = rope.find("rope_theta").value_or(config.number_or({"rotary_emb_base"}, 10000));
  double share = default_share;
  for (const char* name : {"partial_rotary_factor", "rotary_pct", "rope_pct"}) share = rope.find(name).value_or(share);
  if (!(out.base > 0)) fail("{}: rope_theta: expected a number above 0, found {}", config.path(), out.base);
  if (!(share > 0) || share > 1) fail("{}: partial_rotary_factor: expected a number above 0 up to 1, found {}", config.path(), share);
  out.dims = static_cast<std::int64_t>(share * static_cast<double>(sizes.d_head));
  if (out.dims < 2 || out.dims % 2 != 0)
    fail("{}: expected an even number of rotary dimensions of at least 2, found {}", config.path(), out.dims);
  to.set_count(prefix + "rope.dimension_count", out.dims);
  to.set_number(prefix + "rope.freq_base", out.base);
  if (rope.type == "default" || rope.type == "none") return out;
  if (rope.type == "linear") {
    const double factor = rope.settings.number({"factor"});
    if (!(factor > 0)) rope.settings.refuse({"factor"}, "a number above 0");
    to.set_text(prefix + "rope.scaling.type", "linear");
    to.set_number(prefix + "rope.scaling.factor", factor);
  } else if (rope.type == "llama3") {
    to.add_floats("rope_freqs.weight", llama3_divisors(rope, out.base, out.dims));
  } else if (rope.type == "yarn") {
    write_yarn(rope, to, prefix, sizes);
  } else if (rope.type == "longrope" || rope.type == "su") {
    write_longrope(rope, to, prefix, sizes, out.dims);
  } else {
    rope.settings.refuse({"rope_type", "type"}, "default, linear, llama3, yarn or longrope");
  }
  return out;
}

std::optional<double> rope_base_of(const Config& config, std::string_view kind) {
  const Config settings = config.object_or_empty({"rope_parameters"});
  if (!settings.find({kind})) return std::nullopt;
  return settings.object_or_empty({kind}).find_number({"rope_theta"});
}

Rows neighbouring_pairs(const Rows& rows, std::int64_t heads) {
  const std::int64_t d = rows.rows() / heads, half = d / 2;
  std::vector<std::int64_t> order;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t i = 0; i < half; ++i) {
      order.push_back(h * d + i);
      order.push_back(h * d + half + i);
    }
  return rows.pick(order);
}

void add_norm(Assembly& to, const std::string& from, const std::string& name, std::int64_t n, float plus) {
  to.add_vector(name + ".weight", to.vector(from + ".weight", n), plus);
  if (to.has(from + ".bias")) to.add_vector(name + ".bias", to.vector(from + ".bias", n));
}

void add_linear(Assembly& to, const std::string& from, const std::string& name, std::int64_t out, std::int64_t in,
                std::optional<bool> bias) {
  to.add_matrix(name + ".weight", to.matrix(from + ".weight", out, in));
  if (bias.value_or(to.has(from + ".bias"))) to.add_vector(name + ".bias", to.vector(from + ".bias", out));
}

void add_head(const Config& config, Assembly& to, const std::string& from, const Sizes& sizes, bool tied_by_default,
              std::optional<bool> bias) {
  const std::string weight = from + ".weight";
  bool tied = config.flag_or({"tie_word_embeddings"}, tied_by_default);
  // A head that is stored beside its embedding counts if it is another: so transformers has it.
  if (tied && to.has(weight)) tied = to.matrix(weight, sizes.vocab, sizes.d).equals(to.embedding());
  if (tied) return;
  if (!to.has(weight)) fail("{}: tensor {} is missing", to.folder(), weight);
  add_linear(to, from, "output", sizes.vocab, sizes.d, bias);
}

void write_windows(const Config& config, Assembly& to, const std::string& architecture, const Sizes& sizes,
                   bool (*slides)(std::int64_t layer, const Config& config)) {
  const auto window = config.find_integer({"sliding_window"}, 1, 1 << 30);
  if (!window) return;
  std::vector<bool> sliding;
  if (const Json* types = config.find({"layer_types"})) {
    if (!types->is_array() || std::ssize(*types) != sizes.layers)
      config.refuse({"layer_types"}, fmt::format("{} of them, one a layer", sizes.layers));
    for (const Json& type : *types) {
      if (type != "sliding_attention" && type != "full_attention")
        config.refuse({"layer_types"}, "sliding_attention or full_attention");
      sliding.push_back(type == "sliding_attention");
    }
  } else {
    for (std::int64_t i = 0; i < sizes.layers; ++i) sliding.push_back(slides(i, config));
  }
  if (std::ranges::none_of(sliding, std::identity())) return;
  to.set_count(architecture + ".attention.sliding_window", *window);
  if (!std::ranges::all_of(sliding, std::identity()))
    to.set_flags(architecture + ".attention.sliding_window_pattern", sliding);
}

void expect_text(const Config& config, Config::Names names, std::initializer_list<std::string_view> expected) {
  const std::string found = config.text_or(names, std::string(*expected.begin()));
  if (std::ranges::find(expected, found) != expected.end()) return;
  std::string list;
  for (const std::string_view text : expected) list += (list.empty() ? "" : " or ") + std::string(text);
  config.refuse(names, list);
}

void expect_flag(const Config& config, Config::Names names, bool expected) {
  if (config.flag_or(names, expected) != expected) config.refuse(names, expected ? "true" : "false");
}

std::string block(std::int64_t layer) { return "blk." + std::to_string(layer) + "."; }

}  // namespace narrows::hf
