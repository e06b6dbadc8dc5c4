#include "generate/generate_loop.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "generate/text_stream.h"

namespace narrows {
namespace {

class Stopwatch {
 public:
  // Seconds since the last call, or since construction.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Replaces the logits of end-of-generation tokens, for GenerateOptions::ignore_end.
class EndMask {
 public:
  EndMask(const Model& model, bool active) {
    for (TokenId id = 0; active && id < model.vocab_size(); ++id)
      if (model.is_end_of_generation(id)) ends_.push_back(static_cast<std::size_t>(id));
  }
  std::span<const float> apply(std::span<const float> logits) {
    if (ends_.empty()) return logits;
    masked_.assign(logits.begin(), logits.end());
    for (const std::size_t id : ends_) masked_[id] = -std::numeric_limits<float>::infinity();
    return masked_;
  }

 private:
  std::vector<std::size_t> ends_;
  std::vector<float> masked_;
};

// Steps the prompt, a chunk at a time. False if the callback wants to stop.
bool feed(TokenSource& source, std::span<const TokenId> prompt, Sampler& sampler,
          const TextCallback& on_text) {
  if (prompt.empty() && source.logits().empty())
    fail("generate: the prompt is empty: expected at least one token");
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(source.room(), 0));
  if (prompt.size() > room)
    fail("generate: the prompt has {} tokens, the context has room for {}", prompt.size(), room);
  const auto chunk = static_cast<std::size_t>(std::max<std::int64_t>(source.chunk(), 1));
  while (!prompt.empty()) {
    const auto part = prompt.first(std::min(chunk, prompt.size()));
    source.step(part);
    for (const TokenId id : part) sampler.accept(id);
    prompt = prompt.subspan(part.size());
    if (on_text && !on_text({})) return false;
  }
  return true;
}

}  // namespace

GenerateResult generate_from(TokenSource& source, std::span<const TokenId> prompt, Sampler& sampler,
                             const GenerateOptions& options, const TextCallback& on_text) {
  const Model& model = source.model();
  TextStream stream(options.stop, on_text);
  EndMask mask(model, options.ignore_end);
  GenerateResult result;
  Stopwatch watch;

  const bool go_on = feed(source, prompt, sampler, on_text);
  result.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  result.prompt_seconds = watch.lap();

  const auto next = [&]() -> std::optional<StopReason> {
    if (options.max_tokens >= 0 && std::ssize(result.tokens) >= options.max_tokens)
      return StopReason::MaxTokens;
    if (!result.tokens.empty()) {
      if (source.room() < 1) return StopReason::ContextFull;
      source.step(std::span(&result.tokens.back(), 1));
    }
    const TokenId id = sampler.sample(mask.apply(source.logits()));
    sampler.accept(id);
    result.tokens.push_back(id);
    if (!options.ignore_end && model.is_end_of_generation(id)) return StopReason::EndOfGeneration;
    switch (stream.push(model.piece(id, options.show_special))) {
      case TextStream::State::StopString:
        return StopReason::StopString;
      case TextStream::State::Refused:
        return StopReason::Callback;
      case TextStream::State::Open:
        break;
    }
    if (on_text && !on_text({})) return StopReason::Callback;
    return std::nullopt;
  };
  std::optional<StopReason> reason;
  if (!go_on) reason = StopReason::Callback;
  while (!reason) reason = next();
  stream.finish();
  result.reason = *reason;
  result.text = stream.text();
  result.generate_seconds = watch.lap();
  return result;
}

}  // namespace narrows
