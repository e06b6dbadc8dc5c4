#include "selection/paper_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "generate/session_attention.h"
#include "kernels/on_targets.h"
#include "model/loaded_model.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"
#include "selection/representatives.h"

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

// The same from its definition, one whole sequence at a time, in double.
class SlowPaperAttention final : public AttentionPolicy {
 public:
  struct Cache final : SequenceCache {
    std::int64_t length() const override { return held; }
    void truncate(std::int64_t length) override { held = length; }
    std::size_t bytes() const override { return 0; }
    std::size_t bytes_read() const override { return 0; }
    std::int64_t held = 0;
  };
  SlowPaperAttention(const ModelSpec& spec, float tau) : spec_(spec), threshold_(selection_threshold(tau)) {}
  std::unique_ptr<SequenceCache> new_sequence() const override { return std::make_unique<Cache>(); }
  void begin(const Batch&) override {}
  void end(ThreadPool&, const Batch& batch) override { static_cast<Cache*>(batch.runs[0].cache)->held = batch.rows; }
  void observe(int index, ThreadPool& pool, const Batch& batch, const float* x) override {
    rows_.assign(x, batch.rows, spec_.d, pool, "x");
    chosen_ = index == 0 ? select_independently(rows_, threshold_, pool).representatives
                         : select_by_cascade(rows_, threshold_, chosen_, pool).representatives;
    nearest_ = nearest_representatives(rows_, chosen_, pool);
    shared_ += batch.rows - std::ssize(chosen_);
  }
  void attend(int index, ThreadPool&, const Batch& batch, const float* qkv, float* out) override {
    const LayerSpec& l = spec_.layer[static_cast<std::size_t>(index)];
    const std::int64_t k_at = l.heads * l.d_qk, v_at = k_at + l.kv_heads * l.d_qk,
                       width = v_at + l.kv_heads * l.d_vo;
    for (std::int64_t row = 0; row < batch.rows; ++row)
      for (int head = 0; head < l.heads; ++head) {
        const std::int64_t t = nearest_[static_cast<std::size_t>(row)], kv = head / (l.heads / l.kv_heads);
        std::vector<double> mixed(static_cast<std::size_t>(l.d_vo));
        double total = 0;
        for (const TokenRow s : chosen_) {
          if (s > t || (l.window > 0 && s <= t - l.window)) continue;
          double score = 0;
          for (int i = 0; i < l.d_qk; ++i)
            score += static_cast<double>(qkv[t * width + head * l.d_qk + i]) *
                     qkv[s * width + k_at + kv * l.d_qk + i];
          const double weight = std::exp(l.score_scale * score);
          total += weight;
          for (int i = 0; i < l.d_vo; ++i)
            mixed[static_cast<std::size_t>(i)] += weight * qkv[s * width + v_at + kv * l.d_vo + i];
        }
        for (int i = 0; i < l.d_vo; ++i)
          out[row * l.heads * l.d_vo + head * l.d_vo + i] =
              static_cast<float>(mixed[static_cast<std::size_t>(i)] / total);
      }
  }
  static inline std::int64_t shared_ = 0;

 private:
  const ModelSpec& spec_;
  float threshold_;
  UnitRows rows_;
  std::vector<TokenRow> chosen_, nearest_;
};

TEST_P(PaperAttention, FollowsItsDefinition) {
  const std::vector<TokenId> tokens = some_tokens(*model_, 160);
  for (const float tau : {0.3f, 0.7f}) {
    Session found = sparse_session(model_, tau), expected(model_);
    SlowPaperAttention::shared_ = 0;
    set_attention(expected,
                  [tau](const ModelSpec& spec) { return std::make_unique<SlowPaperAttention>(spec, tau); });
    const std::vector<float> a = all_logits(found, tokens), b = all_logits(expected, tokens);
    EXPECT_GT(SlowPaperAttention::shared_, 0);
    double worst = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      worst = std::max<double>(worst, std::fabs(a[i] - b[i]));
      size = std::max<double>(size, std::fabs(b[i]));
    }
    EXPECT_LT(worst, 1e-3 * size);
  }
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
