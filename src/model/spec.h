// What distinguishes one architecture from another, as data. Loaders fill it; the forward pass reads it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace narrows {

enum class NormKind { Rms, Layer };

enum class Positions {
  Rotary,   // queries and keys are rotated
  Learned,  // a vector for each position is added to the embedding   (GPT-2, OPT)
  Alibi,    // scores fall linearly with distance                     (MPT)
};

enum class RotaryLayout {
  Adjacent,  // pairs (2i, 2i + 1)     (llama as GGUF stores it, GPT-J)
  Half,      // pairs (i, i + dims/2)  (NeoX, Qwen, Gemma, Phi)
};

// Rotation by position · frequency. Scalings (linear, Llama 3, YaRN, longrope) are resolved into the frequencies and
// the magnitude when the model is loaded.
struct Rotary {
  RotaryLayout layout = RotaryLayout::Half;
  // frequencies[head][pair] in radians per position, for each KV head (A3 keeps other pairs in each head), or one row
  // for all of them. pairs = dims / 2; dimensions beyond are not rotated.
  std::vector<float> frequencies;
  std::vector<float> long_frequencies;  // of sequences made for more than ModelSpec::original_context   (longrope), or empty
  int pairs = 0;
  float magnitude = 1;  // multiplies cosines and sines   (YaRN, longrope)
  // A3: frequencies[i] is that of pair kept[i] of the rotary `base`, which stands before this one. Otherwise -1, empty.
  int base = -1;
  std::vector<int> kept;
};

struct LayerSpec {
  int heads = 0, kv_heads = 0;  // kv_heads divides heads
  int d_qk = 0, d_vo = 0;       // of one head; equal but for A3 models
  int d_inter = 0;              // of the feed-forward block, or of one expert
  int experts = 0;              // of a mixture; 0: one feed-forward block for all tokens
  int window = 0;               // a token sees itself and window - 1 before it; 0: all
  int rotary = -1;              // index into ModelSpec::rotaries; -1: none
  float score_scale = 0;        // scores are scale · q·k
};

struct ModelSpec {
  std::string architecture, name;
  int layers = 0;
  std::int64_t d = 0;  // width of the residual stream
  std::int64_t vocab = 0;
  std::int64_t embedding_width = 0;  // of a token's embedding: d, or what a map takes to d   (OPT-350M)
  std::int64_t trained_context = 0;
  std::int64_t original_context = 0;  // longrope: sequences made for more positions have other frequencies; 0: none have

  NormKind norm = NormKind::Rms;
  float norm_eps = 1e-5f;

  Positions positions = Positions::Rotary;
  std::vector<Rotary> rotaries;
  float alibi_max_bias = 0;     // of 2^n heads slopes are 2^(-max_bias · (head + 1) / 2^n)
  bool alibi_scaled = false;    // slopes are scaled as scores are   (Falcon)

  bool parallel_block = false;  // attention and feed-forward read the same input   (GPT-J, NeoX, Phi-2)
  bool pre_norm = true;         // norms open the blocks; otherwise what blocks give is normed   (OLMo 2)
  bool post_block_norm = false; // norms follow the residual sum instead of opening the block   (OPT-350M)
  Activation activation = Activation::Silu;
  bool gated = true;            // activation(gate) · up; otherwise activation(up)

  int experts_used = 0;              // of each token, those with the largest shares
  bool expert_weights_norm = true;   // whose shares are made to sum to 1

  float embedding_scale = 1;  // multiplies the embedding   (Gemma: √d)
  float qkv_clamp = 0;        // > 0: queries, keys and values are cut off at ±   (MPT)
  float score_cap = 0;        // soft cap of attention scores   (Gemma 2)
  float logit_cap = 0;        // soft cap of logits             (Gemma 2)
  float logit_scale = 1;
  bool tied_head = false;     // the head is the embedding matrix

  std::vector<LayerSpec> layer;  // [layers]

  // Whether a sequence made for so many tokens has the long frequencies.
  bool is_long(std::int64_t tokens) const { return original_context > 0 && tokens > original_context; }
};

}  // namespace narrows
