// Llama and the decoders built like it: norms, grouped queries, mostly gated feed-forward blocks, rotary positions.
#include <array>
#include <cmath>
#include <string>

#include "base/error.h"
#include "huggingface/architectures.h"

namespace narrows::hf {
namespace {

bool every_layer(std::int64_t, const Config&) { return true; }

std::string layer_name(std::int64_t layer) { return "layers." + std::to_string(layer) + "."; }

void add_top(const Config& config, Assembly& to, const Sizes& s, bool tied, const std::string& last_norm = "norm",
             float plus = 0) {
  to.add_embedding(to.matrix("embed_tokens.weight", s.vocab, s.d));
  add_norm(to, last_norm, "output_norm", s.d, plus);
  add_head(config, to, "lm_head", s, tied, {});
}

struct Biases {
  std::optional<bool> qkv, output;
};

// q, k, v and output projections. `neighbours`: GGUF keeps the two rotated dimensions of this architecture side by side.
void add_attention(Assembly& to, const std::string& from, const std::string& block, const Sizes& s, bool neighbours,
                   const Biases& biases, const std::string& output = "o_proj") {
  for (const bool query : {true, false}) {
    const std::string name = from + (query ? "q_proj" : "k_proj"), into = block + (query ? "attn_q" : "attn_k");
    const std::int64_t heads = query ? s.heads : s.kv_heads;
    if (!neighbours) {
      add_linear(to, name, into, heads * s.d_head, s.d, biases.qkv);
      continue;
    }
    to.add_matrix(into + ".weight", neighbouring_pairs(to.matrix(name + ".weight", heads * s.d_head, s.d), heads));
    if (biases.qkv.value_or(to.has(name + ".bias")))
      to.add_vector(into + ".bias", neighbouring_pairs(to.vector(name + ".bias", heads * s.d_head), heads));
  }
  add_linear(to, from + "v_proj", block + "attn_v", s.kv_heads * s.d_head, s.d, biases.qkv);
  add_linear(to, from + output, block + "attn_output", s.d, s.heads * s.d_head, biases.output);
}

void add_gated(Assembly& to, const std::string& from, const std::string& block, std::int64_t d, std::int64_t inter,
               std::optional<bool> bias) {
  add_linear(to, from + "gate_proj", block + "ffn_gate", inter, d, bias);
  add_linear(to, from + "up_proj", block + "ffn_up", inter, d, bias);
  add_linear(to, from + "down_proj", block + "ffn_down", d, inter, bias);
}

// What Llama and all that GGUF stores like it share.
Sizes begin(const Config& config, Assembly& to, const std::string& architecture, double default_rotary_share = 1) {
  to.choose_prefix({"model.", ""}, "embed_tokens.weight");
  const Sizes s = read_sizes(config);
  write_sizes(to, architecture, s);
  write_rope(config, to, architecture, s, {}, default_rotary_share);
  return s;
}

void write_rms_eps(const Config& config, Assembly& to, const std::string& architecture) {
  const double eps = config.number_or({"rms_norm_eps"}, 1e-6);
  if (!(eps > 0)) config.refuse({"rms_norm_eps"}, "a number above 0");
  to.set_number(architecture + ".attention.layer_norm_rms_epsilon", eps);
}

// The same of those whose norms are RMS and whose neurons are gated by SiLU.
Sizes begin_rms(const Config& config, Assembly& to, const std::string& architecture) {
  expect_text(config, {"hidden_act"}, {"silu"});
  const Sizes s = begin(config, to, architecture);
  write_rms_eps(config, to, architecture);
  return s;
}

void build_llama_like(const Config& config, Assembly& to, bool windows) {
  const std::string name = "llama";
  const Sizes s = begin_rms(config, to, name);
  if (windows) write_windows(config, to, name, s, every_layer);
  const bool attention_bias = config.flag_or({"attention_bias"}, false), mlp_bias = config.flag_or({"mlp_bias"}, false);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_attention(to, from + "self_attn.", into, s, true, {attention_bias, attention_bias});
    add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_gated(to, from + "mlp.", into, s.d, s.inter, mlp_bias);
  }
  add_top(config, to, s, false);
}

void build_llama(const Config& config, Assembly& to) { build_llama_like(config, to, false); }
void build_mistral(const Config& config, Assembly& to) { build_llama_like(config, to, true); }

// SmolLM 3: every fourth layer, or those that no_rope_layers says with 0, has no rotary positions.
void build_smollm3(const Config& config, Assembly& to) {
  const std::string name = "smollm3";
  const Sizes s = begin_rms(config, to, name);
  if (config.flag_or({"use_sliding_window"}, false)) write_windows(config, to, name, s, every_layer);
  const std::int64_t interval = config.integer_or({"no_rope_layer_interval"}, 4, 1, 4096);
  const Json* listed = config.find({"no_rope_layers"});
  if (listed && (!listed->is_array() || std::ssize(*listed) != s.layers))
    config.refuse({"no_rope_layers"}, fmt::format("{} numbers, one a layer", s.layers));
  std::vector<bool> rotated;
  bool usual = true;
  for (std::int64_t i = 0; i < s.layers; ++i) {
    rotated.push_back(listed ? (*listed)[static_cast<std::size_t>(i)] != 0 : (i + 1) % interval != 0);
    usual &= rotated.back() == ((i + 1) % 4 != 0);
  }
  if (!usual) to.set_flags("narrows.rope.layers", rotated);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_attention(to, from + "self_attn.", into, s, true, {});
    add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_gated(to, from + "mlp.", into, s.d, s.inter, {});
  }
  add_top(config, to, s, true);
}

void write_experts(const Config& config, Assembly& to, const std::string& name, std::int64_t count, std::int64_t inter) {
  to.set_count(name + ".expert_count", count);
  to.set_count(name + ".expert_used_count", config.integer({"num_experts_per_tok"}, 1, count));
  to.set_count(name + ".expert_feed_forward_length", inter);
}

// Experts as transformers 5 stacks them under `from`, or one by one as gate, up and down.
void add_experts(Assembly& to, const std::string& from, const std::string& block, std::int64_t count, std::int64_t d,
                 std::int64_t inter, const std::array<std::string, 3>& names) {
  std::array<std::vector<Rows>, 3> maps;
  if (to.has(from + "gate_up_proj")) {
    for (const Rows& both : to.stack(from + "gate_up_proj", count, 2 * inter, d)) {
      maps[0].push_back(both.slice(0, inter));
      maps[1].push_back(both.slice(inter, inter));
    }
    maps[2] = to.stack(from + "down_proj", count, d, inter);
  } else {
    for (std::int64_t e = 0; e < count; ++e) {
      const std::string expert = from + std::to_string(e) + ".";
      maps[0].push_back(to.matrix(expert + names[0] + ".weight", inter, d));
      maps[1].push_back(to.matrix(expert + names[1] + ".weight", inter, d));
      maps[2].push_back(to.matrix(expert + names[2] + ".weight", d, inter));
    }
  }
  to.add_experts(block + "ffn_gate_exps.weight", maps[0]);
  to.add_experts(block + "ffn_up_exps.weight", maps[1]);
  to.add_experts(block + "ffn_down_exps.weight", maps[2]);
}

void build_mixtral(const Config& config, Assembly& to) {
  const std::string name = "llama";  // as GGUF has it, with experts
  const Sizes s = begin_rms(config, to, name);
  write_windows(config, to, name, s, every_layer);
  const std::int64_t experts = config.integer({"num_local_experts", "num_experts"}, 1, 4096);
  write_experts(config, to, name, experts, s.inter);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_attention(to, from + "self_attn.", into, s, true, {false, false});
    add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    const std::string moe = from + (to.has(from + "mlp.gate.weight") ? "mlp." : "block_sparse_moe.");
    to.add_matrix_f32(into + "ffn_gate_inp.weight", to.matrix(moe + "gate.weight", experts, s.d));
    add_experts(to, moe + "experts.", into, experts, s.d, s.inter, {"w1", "w3", "w2"});
  }
  add_top(config, to, s, false);
}

// Qwen 2 slides from max_window_layers on, and only where use_sliding_window says so.
bool from_max_window_layers(std::int64_t layer, const Config& config) {
  return layer >= config.integer_or({"max_window_layers"}, 28, 0, 1 << 20);
}

void build_qwen2(const Config& config, Assembly& to) {
  const std::string name = "qwen2";
  const Sizes s = begin_rms(config, to, name);
  if (config.flag_or({"use_sliding_window"}, false)) write_windows(config, to, name, s, from_max_window_layers);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_attention(to, from + "self_attn.", into, s, false, {true, false});
    add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_gated(to, from + "mlp.", into, s.d, s.inter, false);
  }
  add_top(config, to, s, false);
}

void add_qwen3_attention(const Config& config, Assembly& to, const std::string& from, const std::string& into,
                         const Sizes& s) {
  const bool bias = config.flag_or({"attention_bias"}, false);
  add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
  add_attention(to, from + "self_attn.", into, s, false, {bias, bias});
  add_norm(to, from + "self_attn.q_norm", into + "attn_q_norm", s.d_head);
  add_norm(to, from + "self_attn.k_norm", into + "attn_k_norm", s.d_head);
  add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
}

void build_qwen3(const Config& config, Assembly& to) {
  const std::string name = "qwen3";
  const Sizes s = begin_rms(config, to, name);
  if (config.flag_or({"use_sliding_window"}, false)) write_windows(config, to, name, s, from_max_window_layers);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    add_qwen3_attention(config, to, layer_name(i), block(i), s);
    add_gated(to, layer_name(i) + "mlp.", block(i), s.d, s.inter, false);
  }
  add_top(config, to, s, false);
}

void build_qwen3_moe(const Config& config, Assembly& to) {
  const std::string name = "qwen3moe";
  const Sizes s = begin_rms(config, to, name);
  if (config.flag_or({"use_sliding_window"}, false)) write_windows(config, to, name, s, every_layer);
  const std::int64_t experts = config.integer({"num_experts", "num_local_experts"}, 1, 4096);
  const std::int64_t inter = config.integer({"moe_intermediate_size"});
  write_experts(config, to, name, experts, inter);
  to.set_flag(name + ".expert_weights_norm", config.flag_or({"norm_topk_prob"}, false));
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i) + "mlp.", into = block(i);
    add_qwen3_attention(config, to, layer_name(i), into, s);
    if (!to.has(from + "gate.weight")) {  // mlp_only_layers, decoder_sparse_step
      add_gated(to, from, into, s.d, s.inter, false);
      continue;
    }
    to.add_matrix_f32(into + "ffn_gate_inp.weight", to.matrix(from + "gate.weight", experts, s.d));
    add_experts(to, from + "experts.", into, experts, s.d, inter, {"gate_proj", "up_proj", "down_proj"});
  }
  add_top(config, to, s, false);
}

// OLMo 2 norms what a block gives, not what it gets, and queries and keys as whole rows.
void build_olmo2(const Config& config, Assembly& to) {
  const std::string name = "olmo2";
  const Sizes s = begin_rms(config, to, name);
  const bool bias = config.flag_or({"attention_bias"}, false);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_attention(to, from + "self_attn.", into, s, false, {bias, bias});
    add_norm(to, from + "self_attn.q_norm", into + "attn_q_norm", s.heads * s.d_head);
    add_norm(to, from + "self_attn.k_norm", into + "attn_k_norm", s.kv_heads * s.d_head);
    add_norm(to, from + "post_attention_layernorm", into + "post_attention_norm", s.d);
    add_gated(to, from + "mlp.", into, s.d, s.inter, false);
    add_norm(to, from + "post_feedforward_layernorm", into + "post_ffw_norm", s.d);
  }
  add_top(config, to, s, false);
}

void build_phi3(const Config& config, Assembly& to) {
  const std::string name = "phi3";
  const Sizes s = begin_rms(config, to, name);
  write_windows(config, to, name, s, every_layer);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_linear(to, from + "self_attn.qkv_proj", into + "attn_qkv", (s.heads + 2 * s.kv_heads) * s.d_head, s.d, false);
    add_linear(to, from + "self_attn.o_proj", into + "attn_output", s.d, s.heads * s.d_head, false);
    add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_linear(to, from + "mlp.gate_up_proj", into + "ffn_up", 2 * s.inter, s.d, false);
    add_linear(to, from + "mlp.down_proj", into + "ffn_down", s.d, s.inter, false);
  }
  add_top(config, to, s, false);
}

void build_phi2(const Config& config, Assembly& to) {
  const std::string name = "phi2";
  expect_text(config, {"hidden_act"}, {"gelu_new", "gelu_pytorch_tanh"});
  const Sizes s = begin(config, to, name, 0.5);
  write_layer_eps(config, to, name);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_attention(to, from + "self_attn.", into, s, false, {true, true}, "dense");
    if (config.flag_or({"qk_layernorm"}, false)) {
      add_norm(to, from + "self_attn.q_layernorm", into + "attn_q_norm", s.d_head);
      add_norm(to, from + "self_attn.k_layernorm", into + "attn_k_norm", s.d_head);
    }
    add_linear(to, from + "mlp.fc1", into + "ffn_up", s.inter, s.d, true);
    add_linear(to, from + "mlp.fc2", into + "ffn_down", s.d, s.inter, true);
  }
  add_top(config, to, s, false, "final_layernorm");
}

// The norms of single heads, stacked: [heads][d_head].
void add_head_norms(Assembly& to, const std::string& from, const std::string& name, std::int64_t heads, std::int64_t d) {
  std::vector<Rows> norms;
  for (std::int64_t h = 0; h < heads; ++h) norms.push_back(to.vector(from + std::to_string(h) + ".weight", d));
  to.add_vectors(name + ".weight", norms);
}

void build_stablelm(const Config& config, Assembly& to) {
  const std::string name = "stablelm";
  expect_text(config, {"hidden_act"}, {"silu"});
  const Sizes s = begin(config, to, name, 0.25);
  write_layer_eps(config, to, name);
  const bool parallel = config.flag_or({"use_parallel_residual"}, false), bias = config.flag_or({"use_qkv_bias"}, false);
  to.set_flag(name + ".use_parallel_residual", parallel);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_attention(to, from + "self_attn.", into, s, false, {bias, false});
    if (config.flag_or({"qk_layernorm"}, false)) {
      add_head_norms(to, from + "self_attn.q_layernorm.norms.", into + "attn_q_norm", s.heads, s.d_head);
      add_head_norms(to, from + "self_attn.k_layernorm.norms.", into + "attn_k_norm", s.kv_heads, s.d_head);
    }
    if (!parallel) add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_gated(to, from + "mlp.", into, s.d, s.inter, false);
  }
  add_top(config, to, s, false);
}

void build_starcoder2(const Config& config, Assembly& to) {
  const std::string name = "starcoder2";
  expect_text(config, {"hidden_act"}, {"gelu_pytorch_tanh", "gelu_new"});
  expect_text(config, {"norm_type"}, {"layer_norm"});
  expect_text(config, {"mlp_type"}, {"default"});
  const Sizes s = begin(config, to, name);
  write_layer_eps(config, to, name);
  write_windows(config, to, name, s, every_layer);
  const bool bias = config.flag_or({"use_bias"}, true);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_attention(to, from + "self_attn.", into, s, false, {bias, bias});
    add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_linear(to, from + "mlp.c_fc", into + "ffn_up", s.inter, s.d, bias);
    add_linear(to, from + "mlp.c_proj", into + "ffn_down", s.d, s.inter, bias);
  }
  add_top(config, to, s, true);
}

// The three Gemmas. Norms multiply by 1 + w, where GGUF stores the sum.
Sizes begin_gemma(const Config& config, Assembly& to, const std::string& name, bool any_gelu = false) {
  // Gemma 1 was published with "gelu" and has always meant its approximation.
  if (any_gelu && !config.find({"hidden_activation"}))
    expect_text(config, {"hidden_act"}, {"gelu_pytorch_tanh", "gelu"});
  else
    expect_text(config, {"hidden_activation", "hidden_act"}, {"gelu_pytorch_tanh"});
  to.choose_prefix({"model.", "language_model.model.", "model.language_model.", ""}, "embed_tokens.weight");
  Sizes s = read_sizes(config);
  s.d_head = config.integer_or({"head_dim"}, 256);
  write_sizes(to, name, s);
  to.set_count(name + ".attention.key_length", s.d_head);
  to.set_count(name + ".attention.value_length", s.d_head);
  write_rms_eps(config, to, name);
  return s;
}

void add_gemma_layers(const Config& config, Assembly& to, const Sizes& s, bool post_norms, bool qk_norms) {
  const bool bias = config.flag_or({"attention_bias"}, false);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = layer_name(i), into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d, 1);
    add_attention(to, from + "self_attn.", into, s, false, {bias, bias});
    if (qk_norms) {
      add_norm(to, from + "self_attn.q_norm", into + "attn_q_norm", s.d_head, 1);
      add_norm(to, from + "self_attn.k_norm", into + "attn_k_norm", s.d_head, 1);
    }
    if (post_norms) {
      add_norm(to, from + "post_attention_layernorm", into + "post_attention_norm", s.d, 1);
      add_norm(to, from + "pre_feedforward_layernorm", into + "ffn_norm", s.d, 1);
      add_norm(to, from + "post_feedforward_layernorm", into + "post_ffw_norm", s.d, 1);
    } else {
      add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d, 1);
    }
    add_gated(to, from + "mlp.", into, s.d, s.inter, false);
  }
  add_top(config, to, s, true, "norm", 1);
}

void write_gemma_scale(const Config& config, Assembly& to, const std::string& name, const Sizes& s) {
  const double scalar = config.number_or({"query_pre_attn_scalar"}, 256);
  if (!(scalar > 0)) config.refuse({"query_pre_attn_scalar"}, "a number above 0");
  if (scalar != static_cast<double>(s.d_head)) to.set_number(name + ".attention.scale", 1 / std::sqrt(scalar));
}

void build_gemma(const Config& config, Assembly& to) {
  const Sizes s = begin_gemma(config, to, "gemma", true);
  write_rope(config, to, "gemma", s);
  add_gemma_layers(config, to, s, false, false);
}

void build_gemma2(const Config& config, Assembly& to) {
  const std::string name = "gemma2";
  const Sizes s = begin_gemma(config, to, name);
  write_rope(config, to, name, s);
  write_gemma_scale(config, to, name, s);
  to.set_number(name + ".attn_logit_softcapping", config.number_or({"attn_logit_softcapping"}, 0));
  to.set_number(name + ".final_logit_softcapping", config.number_or({"final_logit_softcapping"}, 0));
  write_windows(config, to, name, s, [](std::int64_t layer, const Config&) { return layer % 2 == 0; });
  add_gemma_layers(config, to, s, true, false);
}

void build_gemma3_text(const Config& config, Assembly& to) {
  const std::string name = "gemma3";
  const Sizes s = begin_gemma(config, to, name);
  write_rope(config, to, name, s, "full_attention");
  if (!config.find({"rope_parameters"}) && !config.find({"rope_theta"})) to.set_number(name + ".rope.freq_base", 1e6);
  const double local = rope_base_of(config, "sliding_attention").value_or(config.number_or({"rope_local_base_freq"}, 10000));
  to.set_number(name + ".rope.freq_base_swa", local);
  write_gemma_scale(config, to, name, s);
  if (const auto cap = config.find_number({"final_logit_softcapping"})) to.set_number(name + ".final_logit_softcapping", *cap);
  if (const auto cap = config.find_number({"attn_logit_softcapping"})) to.set_number(name + ".attn_logit_softcapping", *cap);
  write_windows(config, to, name, s, [](std::int64_t layer, const Config& c) {
    return (layer + 1) % c.integer_or({"sliding_window_pattern"}, 6, 1, 4096) != 0;
  });
  add_gemma_layers(config, to, s, true, true);
}

// The multimodal Gemma 3: its language model alone.
void build_gemma3(const Config& config, Assembly& to) {
  if (!config.find({"text_config"})) return build_gemma3_text(config, to);
  for (const char* part : {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."})
    to.ignore_under(part);
  build_gemma3_text(config.object_or_empty({"text_config"}), to);
}

constexpr std::array<Architecture, 16> kDecoders{{{"llama", build_llama},
                                                  {"mistral", build_mistral},
                                                  {"mixtral", build_mixtral},
                                                  {"smollm3", build_smollm3},
                                                  {"qwen2", build_qwen2},
                                                  {"qwen3", build_qwen3},
                                                  {"qwen3_moe", build_qwen3_moe},
                                                  {"olmo2", build_olmo2},
                                                  {"phi", build_phi2},
                                                  {"phi3", build_phi3},
                                                  {"stablelm", build_stablelm},
                                                  {"starcoder2", build_starcoder2},
                                                  {"gemma", build_gemma},
                                                  {"gemma2", build_gemma2},
                                                  {"gemma3_text", build_gemma3_text},
                                                  {"gemma3", build_gemma3}}};

}  // namespace

std::span<const Architecture> decoder_family() { return kDecoders; }

}  // namespace narrows::hf
