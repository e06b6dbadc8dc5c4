// Each model_type of config.json: its metadata and tensors as GGUF has them.
#pragma once
#include <span>
#include <string_view>

#include "huggingface/assembly.h"
#include "huggingface/config.h"

namespace narrows::hf {

struct Architecture {
  std::string_view model_type;
  void (*build)(const Config&, Assembly&);
};
std::span<const Architecture> decoder_family();  // Llama and those built like it   (decoders.cc)
std::span<const Architecture> gpt_family();      // GPT-2 and its relatives         (gpts.cc)

// What all of them say alike: sizes under the keys of GGUF.
struct Sizes {
  std::int64_t layers, d, vocab, heads, kv_heads, d_head, inter, context;
};
// The common names of config.json; kv_heads and d_head have defaults.
Sizes read_sizes(const Config& config, std::optional<std::int64_t> default_context = {});
void write_sizes(Assembly& to, std::string_view architecture, const Sizes& sizes);

// attention.layer_norm_epsilon, of those whose norms are layer norms.
void write_layer_eps(const Config& config, Assembly& to, const std::string& architecture);

// Rotary positions: base, scaling and the share of a head that is rotated, spelled as transformers 4 (rope_theta,
// rope_scaling, partial_rotary_factor) or 5 (rope_parameters) does.
struct Rope {
  double base = 10000;
  std::int64_t dims = 0;
};
// Writes rope.* and, where the scaling needs them, the tensors of factors. `kind` chooses one of rope_parameters that are
// given by kind of attention ("full_attention"). Throws Error for scalings that narrows does not know.
Rope write_rope(const Config& config, Assembly& to, const std::string& architecture, const Sizes& sizes,
                std::string_view kind = {}, double default_share = 1);
// The base that rope_parameters gives for another kind of attention, if it does.
std::optional<double> rope_base_of(const Config& config, std::string_view kind);

// Rows of a projection whose heads keep pairs half a head apart, as GGUF's llama wants them: neighbours.
Rows neighbouring_pairs(const Rows& rows, std::int64_t heads);

// weight and, if it is there, bias of a norm or a linear map. With `bias` set, whether there must be one.
void add_norm(Assembly& to, const std::string& from, const std::string& name, std::int64_t n, float plus = 0);
void add_linear(Assembly& to, const std::string& from, const std::string& name, std::int64_t out, std::int64_t in,
                std::optional<bool> bias = {});
// lm_head, or whatever it is called, unless it is the embedding.
void add_head(const Config& config, Assembly& to, const std::string& from, const Sizes& sizes, bool tied_by_default,
              std::optional<bool> bias = false);

// sliding_window, and which layers have it where not all do: layer_types if config.json has them, else `slides`.
void write_windows(const Config& config, Assembly& to, const std::string& architecture, const Sizes& sizes,
                   bool (*slides)(std::int64_t layer, const Config& config));

// A setting that GGUF has no key for: throws Error unless it is one of `expected`, or absent.
void expect_text(const Config& config, Config::Names names, std::initializer_list<std::string_view> expected);
void expect_flag(const Config& config, Config::Names names, bool expected);

// "blk.3."
std::string block(std::int64_t layer);

}  // namespace narrows::hf
