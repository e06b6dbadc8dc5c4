// Generating text with a callback.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "narrows/sampler.h"
#include "narrows/session.h"

namespace narrows {

struct GenerateOptions {
  std::int64_t max_tokens = -1;   // -1: until the model ends or the context is full
  std::vector<std::string> stop = {};  // generation ends before the first of these strings; it is not delivered
  bool ignore_end = false;        // end-of-generation tokens are never chosen
  bool show_special = false;      // deliver control tokens as text
};

enum class StopReason { EndOfGeneration, StopString, MaxTokens, ContextFull, Callback };

struct GenerateResult {
  std::vector<TokenId> tokens;  // generated, an end token included; the session does not hold the last one yet
  std::string text;             // delivered to the callback
  StopReason reason = StopReason::MaxTokens;
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0;    // appending the prompt
  double generate_seconds = 0;  // everything after it: tokens.size() choices, tokens.size() - 1 steps
};

// Receives whole UTF-8 characters as they become certain (a character split over tokens and the beginning of a
// possible stop string are held back). Also called with empty text, once a token and between the chunks of a
// prompt, so that it can stop at any time: false stops.
using TextCallback = std::function<bool(std::string_view)>;

// Appends `prompt` to the session, then samples until a reason to stop. The prompt may be empty if the session has
// logits to go on from. Throws Error if the prompt does not fit the context.
GenerateResult generate(Session& session, std::span<const TokenId> prompt, Sampler& sampler,
                        const GenerateOptions& options = {}, const TextCallback& on_text = {});

}  // namespace narrows
