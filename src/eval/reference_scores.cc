#include "eval/reference_scores.h"

#include <cmath>

#include "base/aligned.h"
#include "base/error.h"
#include "eval/score_rows.h"
#include "generate/log_softmax.h"

namespace narrows {
namespace {

constexpr double kLeast = 1e-12;  // what rounding leaves of the rest's probability

// row(position, logits, next token) for every scored position, on several threads.
template <typename Row>
void for_each_row(const std::shared_ptr<Model>& model, const ReferenceScores::Windows& windows,
                  const ReferenceScores::OnTokens& on_tokens, Row&& row) {
  const auto vocab = static_cast<std::size_t>(model->vocab_size()), rows = logit_rows(vocab);
  std::size_t longest = 0, position = 0;
  for (const auto& window : windows) longest = std::max(longest, window.size());
  Session session(model, {.context = static_cast<std::int64_t>(longest)});
  ThreadPool pool(model->threads());
  AlignedVector<float> logits;
  for (const auto& window : windows) {
    session.truncate(0);
    for (std::size_t at = 0; at < window.size();) {
      const auto part = std::span(window).subspan(at, std::min(rows, window.size() - at));
      logits.resize(part.size() * vocab);
      session.step_all(part, logits);
      const std::size_t scored = std::min(part.size(), window.size() - at - 1);
      score_rows(pool, static_cast<std::int64_t>(scored), [&](std::size_t i) {
        row(position + i, std::span<const float>(logits).subspan(i * vocab, vocab), window[at + i + 1]);
      });
      position += scored;
      at += part.size();
      if (on_tokens) on_tokens(std::ssize(part));
    }
  }
}

double sum(std::span<const double> values) {
  double total = 0;
  for (const double v : values) total += v;  // in order: the same whatever the threads
  return total;
}

}  // namespace

ReferenceScores::ReferenceScores(const std::shared_ptr<Model>& model, Windows windows,
                                 const OnTokens& on_tokens)
    : windows_(std::move(windows)),
      vocab_(static_cast<std::size_t>(model->vocab_size())),
      width_(std::min(kKeptTokens, vocab_)) {
  std::size_t positions = 0;
  for (const auto& window : windows_) positions += window.size() - 1;
  log_likelihoods_.resize(positions);
  likeliest_.resize(positions);
  kept_.resize(positions * width_);
  for_each_row(model, windows_, on_tokens,
               [&](std::size_t position, std::span<const float> logits, TokenId next) {
                 const LogSoftmax softmax(logits);
                 log_likelihoods_[position] = softmax[static_cast<std::size_t>(next)];
                 likeliest_[position] = static_cast<TokenId>(top1(logits));
                 std::vector<float> sorted(logits.begin(), logits.end());
                 const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(width_ - 1);
                 std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
                 // Larger ones first, then of those that equal the last one as many as there is room for.
                 std::size_t filled = position * width_;
                 const std::size_t end = filled + width_;
                 const auto keep = [&](auto&& wanted) {
                   for (std::size_t id = 0; id < vocab_ && filled < end; ++id)
                     if (wanted(logits[id], *last))
                       kept_[filled++] = {static_cast<TokenId>(id), static_cast<float>(softmax[id])};
                 };
                 keep(std::greater<>());
                 keep(std::equal_to<>());
               });
}

Comparison ReferenceScores::compare(const std::shared_ptr<Model>& model, const OnTokens& on_tokens) const {
  if (static_cast<std::size_t>(model->vocab_size()) != vocab_)
    fail("{}: expected a vocabulary of {} tokens, found {}", model->path(), vocab_, model->vocab_size());
  std::vector<double> log_likelihoods(log_likelihoods_.size()), divergences(log_likelihoods_.size());
  std::vector<char> agreed(log_likelihoods_.size());
  for_each_row(
      model, windows_, on_tokens, [&](std::size_t position, std::span<const float> logits, TokenId next) {
        const LogSoftmax softmax(logits);
        log_likelihoods[position] = softmax[static_cast<std::size_t>(next)];
        agreed[position] = static_cast<TokenId>(top1(logits)) == likeliest_[position];
        double divergence = 0, p_rest = 1, q_rest = 1;
        for (const Kept& token : kept(position)) {
          const double log_p = token.log_probability, p = std::exp(log_p);
          const double log_q =
              static_cast<float>(softmax[static_cast<std::size_t>(token.id)]);  // rounded as log p is
          if (p > 0) divergence += p * (log_p - log_q);
          p_rest -= p;
          q_rest -= std::exp(log_q);
        }
        p_rest = std::max(p_rest, kLeast);
        q_rest = std::max(q_rest, kLeast);
        if (width_ < vocab_) divergence += p_rest * std::log(p_rest / q_rest);
        divergences[position] = divergence;
      });
  const auto n = static_cast<double>(scored());
  const double log_likelihood = sum(log_likelihoods);
  Comparison result;
  result.perplexity = std::exp(-log_likelihood / n);
  result.perplexity_ratio = std::exp((sum(log_likelihoods_) - log_likelihood) / n);
  result.top1_agreement = static_cast<double>(std::count(agreed.begin(), agreed.end(), 1)) / n;
  result.kl_at_least = std::max(sum(divergences) / n, 0.0);
  return result;
}

double ReferenceScores::perplexity() const {
  return std::exp(-sum(log_likelihoods_) / static_cast<double>(scored()));
}

std::int64_t ReferenceScores::computed() const {
  std::int64_t tokens = 0;
  for (const auto& window : windows_) tokens += std::ssize(window);
  return tokens;
}

}  // namespace narrows
