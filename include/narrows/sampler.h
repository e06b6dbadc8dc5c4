// Choosing the next token from logits.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "narrows/model.h"

namespace narrows {

// Applied in this order: repeat penalty, temperature 0 (greedy: the smallest id among the largest logits), top-k,
// top-p, min-p, temperature; then a draw. Defaults are llama.cpp's.
struct SamplerOptions {
  float temperature = 0.8f;     // 0: greedy
  int top_k = 40;               // 0: off
  float top_p = 0.95f;          // 1: off
  float min_p = 0.05f;          // 0: off
  float repeat_penalty = 1.0f;  // 1: off; divides positive and multiplies negative logits of recent tokens
  int repeat_last_n = 64;       // how many tokens are recent; 0: off, -1: all
  std::uint64_t seed = 0;       // the same seed, options and logits give the same tokens
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options = {});  // throws Error for values out of range
  // A logit that is not finite is never chosen; throws Error if none is finite.
  TokenId sample(std::span<const float> logits);
  void accept(TokenId token);  // records a token for the repeat penalty
  void reset();                // forgets tokens, restarts the random sequence

 private:
  struct Candidate {
    float logit;
    TokenId id;
    // Larger logits first, then smaller ids: a strict order, so that every selection is unique.
    bool operator<(const Candidate& other) const {
      return logit != other.logit ? logit > other.logit : id < other.id;
    }
  };
  std::span<const float> penalize(std::span<const float> logits);
  void select_top_k(std::span<const float> logits);
  void keep_top_p_and_min_p();
  TokenId draw();
  std::uint64_t next_random();

  SamplerOptions options_;
  std::array<std::uint64_t, 4> state_;
  std::vector<TokenId> recent_;
  std::vector<Candidate> candidates_;
  std::vector<float> penalized_;
};

}  // namespace narrows
