// GPT-2 and its relatives: layer norms with biases, plain feed-forward blocks, positions of every kind.
#include <array>
#include <cmath>
#include <string>

#include "base/error.h"
#include "huggingface/architectures.h"

namespace narrows::hf {
namespace {

// As add_linear, of GPT-2's Conv1D, which stores [in][out].
void add_conv(Assembly& to, const std::string& from, const std::string& name, std::int64_t out, std::int64_t in) {
  to.add_matrix(name + ".weight", to.transposed(from + ".weight", out, in));
  to.add_vector(name + ".bias", to.vector(from + ".bias", out));
}

// Fused projections that keep a KV head's queries, its key and its value together: all queries first, then keys, then values.
void add_grouped_qkv(Assembly& to, const std::string& from, const std::string& name, const Sizes& s, bool bias) {
  const std::int64_t group = s.heads / s.kv_heads, part = (group + 2) * s.d_head;
  const Rows weight = to.matrix(from + ".weight", s.kv_heads * part, s.d);
  std::vector<std::int64_t> order;
  const auto take = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t kv = 0; kv < s.kv_heads; ++kv)
      for (std::int64_t i = 0; i < count * s.d_head; ++i) order.push_back(kv * part + first * s.d_head + i);
  };
  take(0, group);
  take(group, 1);
  take(group + 1, 1);
  to.add_matrix(name + ".weight", weight.pick(order));
  if (bias) to.add_vector(name + ".bias", to.vector(from + ".bias", s.kv_heads * part).pick(order));
}

void build_gpt2(const Config& config, Assembly& to) {
  const std::string name = "gpt2";
  expect_text(config, {"activation_function"}, {"gelu_new", "gelu_pytorch_tanh"});
  expect_flag(config, {"scale_attn_weights"}, true);
  expect_flag(config, {"scale_attn_by_inverse_layer_idx"}, false);
  expect_flag(config, {"add_cross_attention"}, false);
  to.choose_prefix({"transformer.", ""}, "wte.weight");
  const Sizes s = read_sizes(config);
  write_sizes(to, name, s);
  write_layer_eps(config, to, name);
  to.add_embedding(to.matrix("wte.weight", s.vocab, s.d));
  to.add_matrix_f32("position_embd.weight", to.matrix("wpe.weight", s.context, s.d));
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = "h." + std::to_string(i) + ".", into = block(i);
    add_norm(to, from + "ln_1", into + "attn_norm", s.d);
    add_conv(to, from + "attn.c_attn", into + "attn_qkv", 3 * s.d, s.d);
    add_conv(to, from + "attn.c_proj", into + "attn_output", s.d, s.d);
    add_norm(to, from + "ln_2", into + "ffn_norm", s.d);
    add_conv(to, from + "mlp.c_fc", into + "ffn_up", s.inter, s.d);
    add_conv(to, from + "mlp.c_proj", into + "ffn_down", s.d, s.inter);
  }
  add_norm(to, "ln_f", "output_norm", s.d);
  add_head(config, to, "lm_head", s, true);
}

void build_gptj(const Config& config, Assembly& to) {
  const std::string name = "gptj";
  expect_text(config, {"activation_function"}, {"gelu_new", "gelu_pytorch_tanh"});
  to.choose_prefix({"transformer.", ""}, "wte.weight");
  const Sizes s = read_sizes(config);
  write_sizes(to, name, s);
  write_layer_eps(config, to, name);
  const std::int64_t dims = config.integer_or({"rotary_dim"}, 64, 2, s.d_head);
  if (dims % 2 != 0) config.refuse({"rotary_dim"}, "an even number");
  to.set_count(name + ".rope.dimension_count", dims);
  to.add_embedding(to.matrix("wte.weight", s.vocab, s.d));
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = "h." + std::to_string(i) + ".", into = block(i);
    add_norm(to, from + "ln_1", into + "attn_norm", s.d);
    add_linear(to, from + "attn.q_proj", into + "attn_q", s.d, s.d, false);
    add_linear(to, from + "attn.k_proj", into + "attn_k", s.d, s.d, false);
    add_linear(to, from + "attn.v_proj", into + "attn_v", s.d, s.d, false);
    add_linear(to, from + "attn.out_proj", into + "attn_output", s.d, s.d, false);
    add_linear(to, from + "mlp.fc_in", into + "ffn_up", s.inter, s.d, true);
    add_linear(to, from + "mlp.fc_out", into + "ffn_down", s.d, s.inter, true);
  }
  add_norm(to, "ln_f", "output_norm", s.d);
  add_head(config, to, "lm_head", s, false, true);
}

// A layer norm, which may have no weights of its own: ones then.
void add_plain_norm(Assembly& to, const std::string& from, const std::string& name, std::int64_t d, bool weights) {
  if (weights)
    add_norm(to, from, name, d);
  else
    to.add_floats(name + ".weight", std::vector<float>(static_cast<std::size_t>(d), 1.0f));
}

// OPT. llama.cpp has no name for it; the keys beyond the usual ones are ours. The 350M model norms after its blocks and has an
// embedding narrower than its stream.
void build_opt(const Config& config, Assembly& to) {
  const std::string name = "opt";
  constexpr std::int64_t kOffset = 2;  // rows of the positions that are never read
  expect_text(config, {"activation_function"}, {"relu"});
  to.choose_prefix({"model.decoder.", "decoder.", ""}, "embed_tokens.weight");
  const Sizes s = read_sizes(config);
  write_sizes(to, name, s);
  write_layer_eps(config, to, name);
  const std::int64_t width = config.integer_or({"word_embed_proj_dim"}, s.d);
  const bool norm_first = config.flag_or({"do_layer_norm_before"}, true), bias = config.flag_or({"enable_bias"}, true),
             weights = config.flag_or({"layer_norm_elementwise_affine"}, true);
  to.set_flag(name + ".post_block_norm", !norm_first);
  to.add_embedding(to.matrix("embed_tokens.weight", s.vocab, width));
  if (width != s.d) {
    to.set_count(name + ".word_embedding_length", width);
    to.add_matrix("token_embd_in.weight", to.matrix("project_in.weight", s.d, width));
    to.add_matrix("output_proj.weight", to.matrix("project_out.weight", width, s.d));
  }
  to.add_matrix_f32("position_embd.weight",
                    to.matrix("embed_positions.weight", s.context + kOffset, s.d).slice(kOffset, s.context));
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = "layers." + std::to_string(i) + ".", into = block(i);
    add_plain_norm(to, from + "self_attn_layer_norm", into + "attn_norm", s.d, weights);
    add_linear(to, from + "self_attn.q_proj", into + "attn_q", s.d, s.d, bias);
    add_linear(to, from + "self_attn.k_proj", into + "attn_k", s.d, s.d, bias);
    add_linear(to, from + "self_attn.v_proj", into + "attn_v", s.d, s.d, bias);
    add_linear(to, from + "self_attn.out_proj", into + "attn_output", s.d, s.d, bias);
    add_plain_norm(to, from + "final_layer_norm", into + "ffn_norm", s.d, weights);
    add_linear(to, from + "fc1", into + "ffn_up", s.inter, s.d, bias);
    add_linear(to, from + "fc2", into + "ffn_down", s.d, s.inter, bias);
  }
  if (norm_first && !config.flag_or({"_remove_final_layer_norm"}, false))
    add_plain_norm(to, "final_layer_norm", "output_norm", s.d, weights);
  Sizes head = s;
  head.d = width;
  add_head(config, to, "lm_head", head, true);
}

// The activation, where it is not the one that llama.cpp computes for the architecture.
void write_gelu(const Config& config, Assembly& to, Config::Names names) {
  expect_text(config, names, {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"});
  if (config.text_or(names, "gelu") == "gelu") to.set_text("narrows.activation", "gelu_erf");
}

void build_gpt_neox(const Config& config, Assembly& to) {
  const std::string name = "gptneox";
  to.choose_prefix({"gpt_neox.", ""}, "embed_in.weight");
  const Sizes s = read_sizes(config);
  write_sizes(to, name, s);
  write_layer_eps(config, to, name);
  write_rope(config, to, name, s, {}, 0.25);
  write_gelu(config, to, {"hidden_act"});
  to.set_flag(name + ".use_parallel_residual", config.flag_or({"use_parallel_residual"}, true));
  const bool bias = config.flag_or({"attention_bias"}, true);
  to.add_embedding(to.matrix("embed_in.weight", s.vocab, s.d));
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = "layers." + std::to_string(i) + ".", into = block(i);
    add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    add_grouped_qkv(to, from + "attention.query_key_value", into + "attn_qkv", s, bias);
    add_linear(to, from + "attention.dense", into + "attn_output", s.d, s.d, bias);
    add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_linear(to, from + "mlp.dense_h_to_4h", into + "ffn_up", s.inter, s.d, true);
    add_linear(to, from + "mlp.dense_4h_to_h", into + "ffn_down", s.d, s.inter, true);
  }
  add_norm(to, "final_layer_norm", "output_norm", s.d);
  add_head(config, to, to.has("embed_out.weight") ? "embed_out" : "lm_head", s, false);
}

void build_mpt(const Config& config, Assembly& to) {
  const std::string name = "mpt";
  const Config attention = config.object_or_empty({"attn_config"});
  expect_text(attention, {"attn_type"}, {"multihead_attention"});
  expect_flag(attention, {"qk_ln"}, false);
  expect_flag(attention, {"prefix_lm"}, false);
  expect_flag(attention, {"alibi"}, true);
  if (config.number_or({"logit_scale"}, 1) != 1) config.refuse({"logit_scale"}, "none");
  to.choose_prefix({"transformer.", ""}, "wte.weight");
  Sizes s = read_sizes(config);
  s.inter = config.integer_or({"expansion_ratio"}, 4, 1, 64) * s.d;
  write_sizes(to, name, s);
  to.set_number(name + ".attention.layer_norm_epsilon", config.number_or({"layer_norm_epsilon"}, 1e-5));
  to.set_number(name + ".attention.max_alibi_bias", attention.number_or({"alibi_bias_max"}, 8));
  if (const auto clip = attention.find_number({"clip_qkv"})) to.set_number(name + ".attention.clamp_kqv", *clip);
  if (const auto scale = attention.find_number({"softmax_scale"})) to.set_number(name + ".attention.scale", *scale);
  to.set_text("narrows.activation", "gelu_erf");
  to.ignore("wpe.weight");
  to.add_embedding(to.matrix("wte.weight", s.vocab, s.d));
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = "blocks." + std::to_string(i) + ".", into = block(i);
    add_norm(to, from + "norm_1", into + "attn_norm", s.d);
    add_linear(to, from + "attn.Wqkv", into + "attn_qkv", 3 * s.d, s.d);
    add_linear(to, from + "attn.out_proj", into + "attn_output", s.d, s.d);
    add_norm(to, from + "norm_2", into + "ffn_norm", s.d);
    add_linear(to, from + "ffn.up_proj", into + "ffn_up", s.inter, s.d);
    add_linear(to, from + "ffn.down_proj", into + "ffn_down", s.d, s.inter);
  }
  add_norm(to, "norm_f", "output_norm", s.d);
  add_head(config, to, "lm_head", s, true);
}

void build_falcon(const Config& config, Assembly& to) {
  const std::string name = "falcon";
  to.choose_prefix({"transformer.", ""}, "word_embeddings.weight");
  Sizes s = read_sizes(config, 2048);  // the published files do not say
  const bool grouped = config.flag_or({"new_decoder_architecture"}, false), alibi = config.flag_or({"alibi"}, false),
             parallel = grouped || config.flag_or({"parallel_attn"}, true), bias = config.flag_or({"bias"}, false);
  if (grouped)
    s.kv_heads = config.integer_or({"num_kv_heads", "n_head_kv"}, s.heads, 1, s.heads);
  else
    s.kv_heads = config.flag_or({"multi_query"}, true) ? 1 : s.heads;
  if (s.heads % s.kv_heads != 0) config.refuse({"num_kv_heads", "n_head_kv"}, fmt::format("a divisor of the {} heads", s.heads));
  write_sizes(to, name, s);
  write_layer_eps(config, to, name);
  write_gelu(config, to, {"activation"});
  to.set_text(name + ".tensor_data_layout", "jploski");  // llama.cpp's word for queries, keys and values in that order
  to.set_flag(name + ".use_parallel_residual", parallel);
  if (alibi)
    to.set_number(name + ".attention.max_alibi_bias", 8);
  else
    write_rope(config, to, name, s);
  const bool two_norms = grouped && config.integer_or({"num_ln_in_parallel_attn"}, 2, 1, 2) == 2;
  to.add_embedding(to.matrix("word_embeddings.weight", s.vocab, s.d));
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string from = "h." + std::to_string(i) + ".", into = block(i);
    if (two_norms) {
      add_norm(to, from + "ln_mlp", into + "attn_norm", s.d);  // the names are llama.cpp's
      add_norm(to, from + "ln_attn", into + "attn_norm_2", s.d);
    } else {
      add_norm(to, from + "input_layernorm", into + "attn_norm", s.d);
    }
    if (!parallel) add_norm(to, from + "post_attention_layernorm", into + "ffn_norm", s.d);
    add_grouped_qkv(to, from + "self_attention.query_key_value", into + "attn_qkv", s, bias);
    add_linear(to, from + "self_attention.dense", into + "attn_output", s.d, s.d, bias);
    add_linear(to, from + "mlp.dense_h_to_4h", into + "ffn_up", s.inter, s.d, bias);
    add_linear(to, from + "mlp.dense_4h_to_h", into + "ffn_down", s.d, s.inter, bias);
  }
  add_norm(to, "ln_f", "output_norm", s.d);
  add_head(config, to, "lm_head", s, true);
}

constexpr std::array<Architecture, 8> kGpts{{{"gpt2", build_gpt2},
                                             {"gptj", build_gptj},
                                             {"opt", build_opt},
                                             {"gpt_neox", build_gpt_neox},
                                             {"mpt", build_mpt},
                                             {"falcon", build_falcon},
                                             {"RefinedWeb", build_falcon},
                                             {"RefinedWebModel", build_falcon}}};

}  // namespace

std::span<const Architecture> gpt_family() { return kGpts; }

}  // namespace narrows::hf
