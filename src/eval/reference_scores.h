// Many settings compared with one reference, whose logits are computed once.
//
// Kept of every scored position: the log-likelihood of the token that follows and the kKeptTokens likeliest
// tokens with their probabilities; 2 kB a position whatever the vocabulary.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "narrows/session.h"

namespace narrows {

struct Comparison {
  double perplexity = 0;
  double perplexity_ratio = 0;  // to the reference
  double top1_agreement = 0;    // share of positions with the same likeliest token
  // Mean KL divergence from the reference, in nats, with the reference's likeliest tokens each by itself and
  // all others taken together: at most the divergence over the whole vocabulary, and the same for one of
  // kKeptTokens or fewer.
  double kl_at_least = 0;
};

class ReferenceScores {
 public:
  static constexpr std::size_t kKeptTokens = 256;
  using Windows = std::vector<std::vector<TokenId>>;  // as window_tokens() gives them
  using OnTokens =
      std::function<void(std::int64_t tokens)>;  // called with the tokens computed since the last call

  // The model as it is now is the reference. Throws Error for logits that are not finite.
  ReferenceScores(const std::shared_ptr<Model>& model, Windows windows, const OnTokens& on_tokens = {});

  // The same windows with a model of the same vocabulary, or the same model in another setting.
  Comparison compare(const std::shared_ptr<Model>& model, const OnTokens& on_tokens = {}) const;

  double perplexity() const;
  std::int64_t scored() const { return static_cast<std::int64_t>(log_likelihoods_.size()); }
  std::int64_t computed() const;  // tokens of the windows

 private:
  struct Kept {
    TokenId id;
    float log_probability;
  };
  std::span<const Kept> kept(std::size_t position) const {
    return std::span(kept_).subspan(position * width_, width_);
  }

  Windows windows_;
  std::size_t vocab_, width_;
  std::vector<double> log_likelihoods_;
  std::vector<TokenId> likeliest_;
  std::vector<Kept> kept_;  // [positions][width_]
};

}  // namespace narrows
