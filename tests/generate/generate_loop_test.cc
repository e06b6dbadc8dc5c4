#include "generate/generate_loop.h"

#include <gtest/gtest.h>

namespace narrows {
namespace {

// Pieces: "Hi", one byte of a character each, text, an end token.
const std::vector<std::string> kPieces{"<s>", "Hi", "\xF0\x9F", "\x98\x80", " stop", "ping", "</s>", "<ctl>"};
constexpr TokenId kEnd = 6;

class FakeModel : public Model {
 public:
  const std::string& path() const override { return name_; }
  const std::string& architecture() const override { return name_; }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(kPieces.size()); }
  std::int64_t trained_context() const override { return 32; }
  std::size_t weight_bytes_per_token() const override { return 0; }
  void set_threads(int) override {}
  int threads() const override { return 1; }
  void set_profiling(bool) override {}
  std::vector<OperationCost> operation_costs() const override { return {}; }
  std::vector<TokenId> tokenize(std::string_view, const TokenizeOptions&) const override { return {}; }
  std::string detokenize(std::span<const TokenId>, bool) const override { return {}; }
  std::string piece(TokenId id, bool show_special) const override {
    const bool special = id == 0 || id >= kEnd;
    return special && !show_special ? "" : kPieces.at(static_cast<std::size_t>(id));
  }
  bool is_end_of_generation(TokenId id) const override { return id == kEnd; }
  TokenId bos() const override { return 0; }
  TokenId eos() const override { return kEnd; }
  bool adds_bos() const override { return true; }
  bool has_chat_template() const override { return false; }
  std::string format_chat(std::span<const ChatMessage>, bool) const override { return {}; }
  std::string describe(std::int64_t) const override { return {}; }

 private:
  std::string name_ = "fake";
};

// After n tokens the largest logit is that of script[n - 1], the second largest that of the token after it.
class Script : public TokenSource {
 public:
  Script(std::vector<TokenId> script, std::int64_t context) : script_(std::move(script)), context_(context) {}
  const Model& model() const override { return model_; }
  std::span<const float> step(std::span<const TokenId> tokens) override {
    EXPECT_FALSE(tokens.empty());
    steps.emplace_back(tokens.begin(), tokens.end());
    held_ += std::ssize(tokens);
    EXPECT_LE(held_, context_);
    logits_.assign(kPieces.size(), 0);
    const auto best = static_cast<std::size_t>(script_.at(static_cast<std::size_t>(held_ - 1)));
    logits_[(best + 1) % kPieces.size()] = 1;
    logits_[best] = 2;
    return logits_;
  }
  std::span<const float> logits() const override { return logits_; }
  std::int64_t room() const override { return context_ - held_; }
  std::int64_t chunk() const override { return 2; }

  std::vector<std::vector<TokenId>> steps;

 private:
  FakeModel model_;
  std::vector<TokenId> script_;
  std::int64_t context_, held_ = 0;
  std::vector<float> logits_;
};

const std::vector<TokenId> kPrompt{0, 1, 1};
// The first two entries follow parts of the prompt.
const std::vector<TokenId> kAnswer{0, 0, 1, 2, 3, 4, 5, kEnd, 1, 1, 1, 1};

struct Outcome {
  GenerateResult result;
  std::vector<std::string> pieces;
  std::vector<std::vector<TokenId>> steps;
};

Outcome generate_script(const GenerateOptions& options, std::int64_t context = 100, int refuse_at_call = -1) {
  Outcome run;
  Script source(kAnswer, context);
  Sampler sampler(SamplerOptions{.temperature = 0});
  int calls = 0;
  run.result = generate_from(source, kPrompt, sampler, options, [&](std::string_view text) {
    if (!text.empty()) run.pieces.emplace_back(text);
    return calls++ != refuse_at_call;
  });
  run.steps = source.steps;
  return run;
}

TEST(Generate, EndsAtTheEndToken) {
  const Outcome run = generate_script({});
  EXPECT_EQ(run.result.reason, StopReason::EndOfGeneration);
  EXPECT_EQ(run.result.tokens, (std::vector<TokenId>{1, 2, 3, 4, 5, kEnd}));
  EXPECT_EQ(run.result.text, "Hi😀 stopping");
  EXPECT_EQ(run.pieces, (std::vector<std::string>{"Hi", "😀", " stop", "ping"}));
  EXPECT_EQ(run.result.prompt_tokens, 3);
  // The prompt in chunks of two, then one token a step; the end token is not stepped.
  EXPECT_EQ(run.steps, (std::vector<std::vector<TokenId>>{{0, 1}, {1}, {1}, {2}, {3}, {4}, {5}}));
}

TEST(Generate, CountsTokens) {
  Outcome run = generate_script({.max_tokens = 2});
  EXPECT_EQ(run.result.reason, StopReason::MaxTokens);
  EXPECT_EQ(run.result.tokens.size(), 2u);
  EXPECT_EQ(run.result.text, "Hi\xF0\x9F");
  EXPECT_EQ(run.steps.size(), 3u);
  run = generate_script({.max_tokens = 0});
  EXPECT_TRUE(run.result.tokens.empty());
  EXPECT_EQ(run.steps.size(), 2u);
}

TEST(Generate, StopStrings) {
  const Outcome run = generate_script({.stop = {"stopping"}});
  EXPECT_EQ(run.result.reason, StopReason::StopString);
  EXPECT_EQ(run.result.text, "Hi😀 ");
}

TEST(Generate, IgnoreEndNeverChoosesAnEndToken) {
  const Outcome run = generate_script({.max_tokens = 8, .ignore_end = true});
  EXPECT_EQ(run.result.reason, StopReason::MaxTokens);
  EXPECT_EQ(run.result.tokens, (std::vector<TokenId>{1, 2, 3, 4, 5, 7, 1, 1}));
}

TEST(Generate, ShowSpecial) {
  const Outcome run = generate_script({.max_tokens = 6, .ignore_end = true, .show_special = true});
  EXPECT_EQ(run.result.text, "Hi😀 stopping<ctl>");
}

TEST(Generate, StopsWhenTheContextIsFull) {
  const Outcome run = generate_script({}, 5);
  EXPECT_EQ(run.result.reason, StopReason::ContextFull);
  EXPECT_EQ(run.result.tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(run.result.text, "Hi😀");
}

TEST(Generate, RefusesAPromptThatDoesNotFit) {
  EXPECT_THROW(generate_script({}, 2), Error);
  Script source(kAnswer, 10);
  Sampler sampler;
  EXPECT_THROW(generate_from(source, {}, sampler, {}, {}), Error);
}

TEST(Generate, TheCallbackStops) {
  Outcome run = generate_script({}, 100, 0);  // in the prompt
  EXPECT_EQ(run.result.reason, StopReason::Callback);
  EXPECT_TRUE(run.result.tokens.empty());
  EXPECT_EQ(run.steps.size(), 1u);
  run = generate_script({}, 100, 2);  // at the first text
  EXPECT_EQ(run.result.reason, StopReason::Callback);
  EXPECT_EQ(run.result.tokens.size(), 1u);
  EXPECT_EQ(run.result.text, "Hi");
}

TEST(Generate, GoesOnFromALogit) {
  Script source(kAnswer, 100);
  source.step(kPrompt);
  Sampler sampler(SamplerOptions{.temperature = 0});
  const auto result = generate_from(source, {}, sampler, {.max_tokens = 1}, {});
  EXPECT_EQ(result.tokens, (std::vector<TokenId>{1}));
}

}  // namespace
}  // namespace narrows
