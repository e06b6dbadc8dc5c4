#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "generate/log_softmax.h"

namespace narrows {
namespace {

using Bounds = std::vector<std::pair<std::size_t, std::size_t>>;

Bounds windows(std::size_t tokens, std::int64_t context, std::int64_t max_tokens, bool bos) {
  Bounds result;
  for (const Window& w : make_windows(tokens, {.context = context, .max_tokens = max_tokens}, bos))
    result.emplace_back(w.begin, w.end);
  return result;
}

TEST(Windows, WithoutBos) {
  EXPECT_EQ(windows(10, 4, 0, false), (Bounds{{0, 4}, {4, 8}, {8, 10}}));
  EXPECT_EQ(windows(9, 4, 0, false), (Bounds{{0, 4}, {4, 8}}));  // one token predicts nothing
  EXPECT_EQ(windows(1, 4, 0, false), Bounds{});
  EXPECT_EQ(windows(0, 4, 0, false), Bounds{});
  EXPECT_EQ(windows(100, 4, 8, false), (Bounds{{0, 4}, {4, 8}}));
  EXPECT_EQ(windows(100, 4, 7, false), (Bounds{{0, 4}, {4, 7}}));
}

TEST(Windows, BosTakesOnePlaceInEach) {
  EXPECT_EQ(windows(10, 4, 0, true), (Bounds{{0, 3}, {3, 6}, {6, 9}, {9, 10}}));
  EXPECT_EQ(windows(1, 4, 0, true), (Bounds{{0, 1}}));
  EXPECT_EQ(windows(100, 4, 8, true), (Bounds{{0, 3}, {3, 6}}));
}

std::string smollm2() { return std::string(NARROWS_MODELS) + "/SmolLM2-135M-Instruct.Q4_1.gguf"; }

const std::string kText =
    "The city lies on the river, and its harbour has been in use since the ninth century. In winter the ice "
    "closes "
    "it for weeks, and goods come by rail from the south.";

class Perplexity : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(smollm2()))
      GTEST_SKIP() << smollm2() << " is absent: run tools/fetch_models.py";
    model_ = Model::load(smollm2());
  }
  std::shared_ptr<Model> model_;
};

TEST_F(Perplexity, IsWhatASessionGives) {
  const EvalResult result = evaluate(model_, kText, {.context = 16});
  const auto tokens = model_->tokenize(kText, {.add_special = false});
  double log_likelihood = 0;
  std::int64_t scored = 0;
  for (const Window& w : make_windows(tokens.size(), {.context = 16}, model_->adds_bos())) {
    std::vector<TokenId> ids(tokens.begin() + static_cast<std::ptrdiff_t>(w.begin),
                             tokens.begin() + static_cast<std::ptrdiff_t>(w.end));
    if (model_->adds_bos()) ids.insert(ids.begin(), model_->bos());
    Session session(model_, {.context = 16});
    for (std::size_t i = 0; i + 1 < ids.size(); ++i, ++scored) {
      const auto logits = session.step(ids[i]);
      log_likelihood += LogSoftmax(logits)[static_cast<std::size_t>(ids[i + 1])];
    }
  }
  EXPECT_EQ(result.tokens, scored);
  EXPECT_NEAR(result.log_likelihood, log_likelihood, 1e-9 * std::abs(log_likelihood));
  EXPECT_NEAR(result.perplexity, std::exp(-log_likelihood / static_cast<double>(scored)), 1e-9);
  // In float32, with transformers on the dequantized weights: 138.99. Short windows without BOS make it high.
  EXPECT_NEAR(result.perplexity, 138.99, 0.02 * 138.99);
}

TEST_F(Perplexity, AgreesWithItself) {
  const EvalResult result = evaluate(model_, kText, {.context = 16}, model_);
  ASSERT_TRUE(result.agreement);
  EXPECT_EQ(result.agreement->perplexity_ratio, 1);
  EXPECT_EQ(result.agreement->top1_agreement, 1);
  EXPECT_EQ(result.agreement->kl_mean, 0);
  EXPECT_EQ(result.agreement->weight_bytes_fraction, 1);
  EXPECT_EQ(result.agreement->kv_bytes_fraction, 1);
}

TEST_F(Perplexity, RefusesATextTooShort) {
  EXPECT_THROW(evaluate(model_, ""), Error);
  EXPECT_THROW(evaluate(model_, kText, {.context = 1}), Error);
  EXPECT_THROW(evaluate(model_, kText, {.max_tokens = 1}), Error);
}

}  // namespace
}  // namespace narrows
