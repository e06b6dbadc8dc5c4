// The weights of a model by name: the flat structure that loaders fill and the forward pass reads.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "model/linear_site.h"
#include "model/spec.h"

namespace narrows {

// A norm over n elements; absent (weight and bias nullptr, present false) where the architecture has none.
struct Norm {
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n] or nullptr
  bool present = false;
};

// One feed-forward block of a mixture.
struct Expert {
  std::unique_ptr<LinearSite> up;    // as in LayerWeights
  std::unique_ptr<LinearSite> down;
};

struct LayerWeights {
  Norm attention_norm;       // [d]
  Norm q_norm, k_norm;       // [d_qk], each head by itself, or [heads · d_qk] / [kv_heads · d_qk]   (OLMo 2)
  bool qk_norm_whole = false;
  bool q_norm_by_head = false, k_norm_by_head = false;  // [heads][d_qk], [kv_heads][d_qk]   (A3)
  Norm attention_post_norm;  // [d], of the attention output before the residual sum
  Norm ffn_norm;             // [d]
  Norm ffn_post_norm;        // [d]

  std::unique_ptr<LinearSite> qkv;   // d → heads·d_qk + kv_heads·d_qk + kv_heads·d_vo
  std::unique_ptr<LinearSite> o;     // heads·d_vo → d
  std::unique_ptr<LinearSite> up;    // d → d_inter (gate) + d_inter (up), or d_inter alone; nullptr in a mixture
  std::unique_ptr<LinearSite> down;  // d_inter → d
  std::unique_ptr<LinearSite> router;  // d → experts, whose softmax is each expert's share
  std::vector<Expert> experts;         // [LayerSpec::experts]
};

// The five kinds of sites, in the order in which a token passes them.
enum class SiteKind { Qkv, Output, GateUp, Down, Head };
inline constexpr std::array<std::string_view, 5> kSiteKindNames = {"qkv", "o", "up", "down", "head"};

struct NamedSite {
  std::string name;  // "blk.3.qkv", "blk.3.o", "blk.3.up", "blk.3.down", "head"; of experts "blk.3.up.5", "blk.3.down.5"
  SiteKind kind;
  int layer;  // -1 for the head
  std::unique_ptr<LinearSite>* site;
};

struct Weights {
  WeightMatrix embedding;           // [vocab][embedding_width], read row by row as stored
  std::unique_ptr<LinearSite> embedding_map;  // embedding_width → d, where they differ
  WeightMatrix position_embedding;  // [positions][d], for Positions::Learned
  Norm embedding_norm;              // [d]
  std::vector<LayerWeights> layer;
  Norm output_norm;                 // [d]
  std::unique_ptr<LinearSite> output_map;  // d → embedding_width, where they differ
  std::unique_ptr<LinearSite> head; // embedding_width → vocab

  int experts_used = 0;             // of a mixture, by each token

  std::vector<NamedSite> sites();  // in the order in which a token passes them; layer by layer, then the head

  std::size_t bytes_per_token() const;  // weights that decoding one token reads, the embedding row included

  // What the pointers point into.
  std::vector<std::unique_ptr<AlignedVector<float>>> floats;
  std::vector<LargeBuffer> made;  // matrices that no file holds as they are
  LargeBuffer packed{0};
};

}  // namespace narrows
