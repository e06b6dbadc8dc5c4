// Perplexity of a model on a text, and its agreement with a reference model.
//
// Protocol: the text is tokenized whole, without special tokens, and cut into windows that hold `context`
// tokens each, BOS first in every window if the model adds one. Each window is computed on its own; every
// token but its first is scored given those before it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "generate/session_attention.h"

namespace narrows {

struct TokenScore {
  std::int64_t window, position;  // counted from 0; of the token in its window, BOS included
  TokenId token;
  double log_likelihood;  // nats
  bool likeliest;         // whether greedy decoding would have written it
};

struct EvalOptions {
  std::int64_t context = 512;    // tokens a window, at least 2 (3 if the model adds BOS)
  std::int64_t max_tokens = 0;   // tokens computed, BOS included: the text is cut there; 0: the whole text
  KvType kv_type = KvType::F16;  // of the model; the reference's is F16
  AttentionFactory attention = {};  // of the model; empty: dense
  std::optional<KvCompression> compression = std::nullopt;  // of the model's cache; the reference's is dense
  std::int64_t score_from = 0;  // the first tokens of a window, after which scoring begins
  // Called after each piece of work with the tokens computed, those of the whole run, and the perplexity so
  // far.
  std::function<void(std::int64_t done, std::int64_t total, double perplexity)> progress = {};
  std::function<void(const TokenScore&)> on_token = {};  // each scored token, in order
};

// Means over the scored positions; the reference is the distribution that KL is measured from.
struct Agreement {
  double reference_perplexity = 0;
  double perplexity_ratio = 0;       // model / reference
  // Standard error of its logarithm, from the differences of the tokens' log-likelihoods taken as independent; 0 for one token.
  double log_ratio_error = 0;
  double top1_agreement = 0;         // share of positions with the same most likely token
  double kl_mean = 0;                // nats
  double weight_bytes_fraction = 0;  // weight bytes a decode step reads, model / reference
  // Cache bytes, model / reference: of a full window, or, with compress_at, of what precedes scoring.
  double kv_bytes_fraction = 0;
};

struct EvalResult {
  double perplexity = 0;
  double log_likelihood = 0;  // nats, summed over the scored tokens
  std::int64_t tokens = 0;    // scored
  std::int64_t windows = 0;
  std::optional<Agreement> agreement;
};

// The windows' tokens, BOS not included: [begin, end) of the text's tokens. Every window holds at least one
// scored token.
struct Window {
  std::size_t begin, end;
};
std::vector<Window> make_windows(std::size_t tokens, const EvalOptions& options, bool adds_bos);

// The windows of a text as they are computed, BOS included. Throws Error for options out of range or a text
// too short to score.
std::vector<std::vector<TokenId>> window_tokens(const Model& model, std::string_view text,
                                                const EvalOptions& options);

// Scores `text`; with a reference also compares position by position, which needs the same vocabulary. Memory
// is bounded: logits of a few positions at a time. Throws Error for a text too short to score.
EvalResult evaluate(const std::shared_ptr<Model>& model, std::string_view text,
                    const EvalOptions& options = {}, const std::shared_ptr<Model>& reference = nullptr);

}  // namespace narrows
