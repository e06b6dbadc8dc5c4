#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/aligned.h"
#include "base/error.h"
#include "base/threads.h"
#include "eval/score_rows.h"
#include "generate/log_softmax.h"

namespace narrows {
namespace {

struct Sums {
  double log_likelihood = 0, reference_log_likelihood = 0, kl = 0;
  double squared_loss = 0;  // of differences between the two log-likelihoods
  std::int64_t tokens = 0, agreed = 0;
};

// One position's contribution; added up in order, so that the result does not depend on threads.
struct Score {
  double log_likelihood = 0, reference_log_likelihood = 0, kl = 0;
  bool agreed = false, likeliest = false;
};

Score score_row(std::span<const float> logits, std::span<const float> reference_logits, TokenId next) {
  const auto target = static_cast<std::size_t>(next);
  const LogSoftmax model(logits);
  Score score;
  score.log_likelihood = model[target];
  const std::size_t likeliest = top1(logits);
  score.likeliest = likeliest == target;
  if (!reference_logits.empty()) {
    const LogSoftmax reference(reference_logits);
    score.reference_log_likelihood = reference[target];
    score.kl = kl_divergence(reference, model);
    score.agreed = likeliest == top1(reference_logits);
  }
  return score;
}

class Evaluation {
 public:
  Evaluation(const std::shared_ptr<Model>& model, const std::shared_ptr<Model>& reference,
             const EvalOptions& options)
      : vocab_(static_cast<std::size_t>(model->vocab_size())),
        rows_(logit_rows(vocab_)),
        session_(model, {.context = options.context, .kv_type = options.kv_type, .compression = options.compression}),
        unscored_(static_cast<std::size_t>(options.score_from)),
        once_(options.compression && options.compression->compress_at > 0),
        on_token_(options.on_token),
        pool_(model->threads()) {
    if (options.attention) set_attention(session_, options.attention);
    if (reference) reference_.emplace(reference, SessionOptions{.context = options.context});
  }

  // Scores every token of the window but the first. Calls progress(tokens computed) between pieces.
  template <typename Progress>
  void run(std::span<const TokenId> window, Progress&& progress) {
    session_.truncate(0);
    if (reference_) reference_->truncate(0);
    // The last token is only predicted, but computing it keeps "tokens computed" what the caller asked for,
    // and the cache that of a full window.
    std::size_t at = std::min(unscored_, window.size());
    if (at > 0) {
      session_.step(window.first(at));
      if (reference_) reference_->step(window.first(at));
      if (once_) count_bytes();
      progress(static_cast<std::int64_t>(at));
    }
    while (at < window.size()) {
      const auto part = window.subspan(at, std::min(rows_, window.size() - at));
      compute(session_, part, logits_);
      if (reference_) compute(*reference_, part, reference_logits_);
      score(window.subspan(at + 1, std::min(part.size(), window.size() - at - 1)), static_cast<std::int64_t>(at) + 1);
      at += part.size();
      progress(std::ssize(part));
    }
    if (!once_) count_bytes();
    ++window_;
  }

  const Sums& sums() const { return sums_; }
  double kv_bytes_fraction() const {
    return static_cast<double>(kv_bytes_) / static_cast<double>(reference_kv_bytes_);
  }

 private:
  void count_bytes() {
    kv_bytes_ = std::max(kv_bytes_, session_.kv_bytes());
    if (reference_) reference_kv_bytes_ = std::max(reference_kv_bytes_, reference_->kv_bytes());
  }

  void compute(Session& session, std::span<const TokenId> part, AlignedVector<float>& logits) const {
    logits.resize(part.size() * vocab_);
    session.step_all(part, logits);
  }

  // targets[i] follows the logits of row i; the first is number `scored_from` of the window.
  void score(std::span<const TokenId> targets, std::int64_t scored_from) {
    scores_.assign(targets.size(), {});
    score_rows(pool_, std::ssize(targets), [&](std::size_t i) {
      scores_[i] = score_row(row(logits_, i),
                             reference_ ? row(reference_logits_, i) : std::span<const float>{}, targets[i]);
    });
    for (std::size_t i = 0; on_token_ && i < scores_.size(); ++i)
      on_token_({window_, scored_from + static_cast<std::int64_t>(i), targets[i], scores_[i].log_likelihood, scores_[i].likeliest});
    for (const Score& s : scores_) {
      sums_.log_likelihood += s.log_likelihood;
      sums_.reference_log_likelihood += s.reference_log_likelihood;
      const double loss = s.reference_log_likelihood - s.log_likelihood;
      sums_.squared_loss += loss * loss;
      sums_.kl += s.kl;
      sums_.agreed += s.agreed;
    }
    sums_.tokens += std::ssize(targets);
  }

  std::span<const float> row(const AlignedVector<float>& logits, std::size_t i) const {
    return std::span(logits).subspan(i * vocab_, vocab_);
  }

  std::size_t vocab_, rows_;
  Session session_;
  std::size_t unscored_;
  bool once_;
  const std::function<void(const TokenScore&)>& on_token_;
  std::int64_t window_ = 0;
  std::optional<Session> reference_;
  ThreadPool pool_;
  AlignedVector<float> logits_, reference_logits_;  // rows × vocabulary
  std::vector<Score> scores_;
  Sums sums_;
  std::size_t kv_bytes_ = 0, reference_kv_bytes_ = 0;
};

double perplexity(double log_likelihood, std::int64_t tokens) {
  return std::exp(-log_likelihood / static_cast<double>(tokens));
}

void check_same_vocabulary(const Model& model, const Model& reference) {
  if (model.vocab_size() != reference.vocab_size())
    fail("{}: expected the vocabulary of {}, {} tokens; found {}", reference.path(), model.path(),
         model.vocab_size(), reference.vocab_size());
}

}  // namespace

std::vector<Window> make_windows(std::size_t tokens, const EvalOptions& options, bool adds_bos) {
  const std::size_t bos = adds_bos ? 1 : 0, unscored = 1 - bos;
  const auto context = static_cast<std::size_t>(options.context);
  std::size_t left = options.max_tokens > 0 ? static_cast<std::size_t>(options.max_tokens) : SIZE_MAX;
  std::vector<Window> windows;
  for (std::size_t begin = 0; begin < tokens;) {
    const std::size_t size = std::min({context, left, tokens - begin + bos});  // BOS included
    if (size < bos + unscored + 1) break;
    windows.push_back({begin, begin + size - bos});
    begin += size - bos;
    left -= size;
  }
  return windows;
}

std::vector<std::vector<TokenId>> window_tokens(const Model& model, std::string_view text,
                                                const EvalOptions& options) {
  if (options.context < 2) fail("eval: context: expected 2 or more, found {}", options.context);
  if (options.max_tokens < 0) fail("eval: max tokens: expected 0 or more, found {}", options.max_tokens);
  const std::vector<TokenId> tokens = model.tokenize(text, {.add_special = false, .parse_special = false});
  const bool bos = model.adds_bos() && model.bos() != kNoToken;
  std::vector<std::vector<TokenId>> windows;
  for (const Window& w : make_windows(tokens.size(), options, bos)) {
    std::vector<TokenId>& window = windows.emplace_back();
    if (bos) window.push_back(model.bos());
    window.insert(window.end(), tokens.begin() + static_cast<std::ptrdiff_t>(w.begin),
                  tokens.begin() + static_cast<std::ptrdiff_t>(w.end));
  }
  if (windows.empty()) fail("eval: the text has {} tokens: expected enough to predict one", tokens.size());
  return windows;
}

EvalResult evaluate(const std::shared_ptr<Model>& model, std::string_view text, const EvalOptions& options,
                    const std::shared_ptr<Model>& reference) {
  if (reference) check_same_vocabulary(*model, *reference);
  auto windows = window_tokens(*model, text, options);
  constexpr TokenizeOptions kPlain{.add_special = false, .parse_special = false};
  if (reference && reference->tokenize(text, kPlain) != model->tokenize(text, kPlain))
    fail("{}: expected the tokens of {} for the same text", reference->path(), model->path());

  std::int64_t total = 0, done = 0;
  std::erase_if(windows, [&](const auto& window) { return std::ssize(window) <= options.score_from + 1; });
  for (const auto& window : windows) total += std::ssize(window);
  Evaluation evaluation(model, reference, options);
  const Sums& sums = evaluation.sums();
  for (const auto& window : windows)
    evaluation.run(window, [&](std::int64_t computed) {
      done += computed;
      if (options.progress && sums.tokens > 0)
        options.progress(done, total, perplexity(sums.log_likelihood, sums.tokens));
    });

  if (sums.tokens == 0) fail("eval: expected a window of more than {} tokens", options.score_from + 1);
  EvalResult result;
  result.log_likelihood = sums.log_likelihood;
  result.tokens = sums.tokens;
  result.windows = std::ssize(windows);
  result.perplexity = perplexity(sums.log_likelihood, sums.tokens);
  if (reference) {
    const auto n = static_cast<double>(sums.tokens);
    Agreement& a = result.agreement.emplace();
    a.reference_perplexity = perplexity(sums.reference_log_likelihood, sums.tokens);
    const double loss = (sums.reference_log_likelihood - sums.log_likelihood) / n;
    a.perplexity_ratio = std::exp(loss);
    if (sums.tokens > 1) a.log_ratio_error = std::sqrt(std::max(sums.squared_loss / n - loss * loss, 0.0) / (n - 1));
    a.top1_agreement = static_cast<double>(sums.agreed) / n;
    a.kl_mean = sums.kl / n;
    a.weight_bytes_fraction = static_cast<double>(model->weight_bytes_per_token()) /
                              static_cast<double>(reference->weight_bytes_per_token());
    a.kv_bytes_fraction = evaluation.kv_bytes_fraction();
  }
  return result;
}

}  // namespace narrows
