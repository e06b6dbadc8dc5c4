// Choosing the next token from logits.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "narrows/model.h"

namespace narrows {

// Applied in this order: repeat penalty, temperature 0 (greedy: the smallest id among the largest logits), top-k,
// top-p, min-p, temperature; then a draw. Defaults are llama.cpp's.
struct SamplerOptions {
  float temperature = 0.8f;       // 0: greedy
  int top_k = 40;                 // 0: off
  float top_p = 0.95f;            // 1: off
  float min_p = 0.05f;            // 0: off
  float repeat_penalty = 1.0f;    // 1: off; divides positive and multiplies negative logits of recent tokens
  int repeat_last_n = 64;         // how many tokens are recent; 0: off, -1: all
  std::uint64_t seed = 0;         // the same seed, options and logits give the same tokens
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options = {});  // throws Error for values out of range
  TokenId sample(std::span<const float> logits);         // throws Error if no logit is finite
  void accept(TokenId token);                            // records a token for the repeat penalty
  void reset();                                          // forgets tokens, restarts the random sequence

 private:
  SamplerOptions options_;
  std::uint64_t state_[4];
  std::vector<TokenId> recent_;
};

}  // namespace narrows
