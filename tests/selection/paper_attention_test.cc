#include "selection/paper_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "generate/session_attention.h"
#include "kernels/on_targets.h"
#include "model/loaded_model.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Session sparse_session(const std::shared_ptr<Model>& model, float tau) {
  Session session(model, {.kv_type = KvType::F32});
  set_attention(session, [tau](const ModelSpec& spec) { return paper_attention(spec, tau); });
  return session;
}

std::vector<float> all_logits(Session& session, std::span<const TokenId> tokens) {
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(session.model()->vocab_size()));
  session.step_all(tokens, logits);
  return logits;
}

std::vector<TokenId> some_tokens(const Model& model, std::int64_t count) {
  std::vector<TokenId> tokens = model.tokenize(some_text(200), {});
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

class PaperAttention : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<Model> model_ = Model::load(tiny(GetParam()));
};
INSTANTIATE_TEST_SUITE_P(Models, PaperAttention, testing::Values("llama-bias", "gemma3", "qwen2"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::erase(name, '-');
                           return name;
                         });

// Every token its own representative: the dense bits, across pages and sliding windows.
TEST_P(PaperAttention, WithAllTokensIsDense) {
  std::vector<TokenId> tokens(150);
  std::iota(tokens.begin(), tokens.end(), 40);
  Session sparse = sparse_session(model_, 0.001f), dense(model_, {.kv_type = KvType::F32});
  EXPECT_TRUE(same_bits(all_logits(sparse, tokens), all_logits(dense, tokens)));
}

// Repeated tokens at the first layer, at least, are represented by others.
TEST_P(PaperAttention, DiffersFromDenseAndNotByChunksOrThreads) {
  const std::vector<TokenId> tokens = some_tokens(*model_, 170);
  Session dense(model_, {.kv_type = KvType::F32}), whole = sparse_session(model_, 0.5f),
                                                   parts = sparse_session(model_, 0.5f);
  const std::vector<float> expected = all_logits(whole, tokens);
  EXPECT_FALSE(same_bits(expected, all_logits(dense, tokens)));
  EXPECT_LT(whole.kv_bytes_read(), dense.kv_bytes_read());
  EXPECT_GT(whole.kv_bytes_read(), 0u);
  model_->set_threads(3);
  std::vector<float> found;
  for (std::size_t at = 0, size = 1; at < tokens.size(); at += size, size = size % 40 + 13) {
    size = std::min(size, tokens.size() - at);
    const std::vector<float> logits = all_logits(parts, std::span(tokens).subspan(at, size));
    found.insert(found.end(), logits.begin(), logits.end());
  }
  EXPECT_TRUE(same_bits(found, expected));
  // Back, and on.
  parts.truncate(60);
  const std::vector<float> again = all_logits(parts, std::span(tokens).subspan(60));
  EXPECT_TRUE(same_bits(again, {expected.begin() + 60 * model_->vocab_size(), expected.end()}));
}

TEST(PaperAttentionErrors, AreClear) {
  const auto model = Model::load(tiny("llama-bias"));
  Session a = sparse_session(model, 0.5f), b(model);
  const TokenId token = 5;
  const std::vector<BatchItem> both = {{&a, {&token, 1}}, {&b, {&token, 1}}};
  EXPECT_THAT([&] { step(both); }, ThrowsMessage<Error>(HasSubstr("stepped alone")));
  b.step(token);
  const auto factory = [](const ModelSpec& spec) { return paper_attention(spec, 0.5f); };
  EXPECT_THAT([&] { set_attention(b, factory); }, ThrowsMessage<Error>(HasSubstr("without tokens")));
  EXPECT_THAT([&] { sparse_session(model, 1.5f); }, ThrowsMessage<Error>(HasSubstr("tau")));
}

}  // namespace
}  // namespace narrows
