// Sessions whose cache is compressed: the same bits whatever the chunks, threads and company; bytes within the budget.
#include "selection/compressed_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "kernels/on_targets.h"
#include "model/loaded_model.h"
#include "model/logits.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr KvPolicy kPolicies[] = {KvPolicy::Representatives, KvPolicy::Streaming, KvPolicy::H2o, KvPolicy::SnapKv,
                                  KvPolicy::SnapKvMerge};

#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t kChunks[] = {7, 512};  // the others cost minutes, and show no other code
#else
constexpr std::int64_t kChunks[] = {1, 7, 64, 512};
#endif

std::vector<TokenId> some_tokens(std::size_t n, const Model& model, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(model.vocab_size()));
  return ids;
}

Session compressed(const std::shared_ptr<Model>& model, const KvCompression& how, KvType type = KvType::F16,
                   std::int64_t chunk = 512) {
  return Session(model, {.context = 2048, .kv_type = type, .chunk = chunk, .compression = how});
}

// Logits after every token from `from` on, stepped `piece` at a time.
std::vector<float> logits_of(Session& session, std::span<const TokenId> ids, std::size_t piece, std::size_t from) {
  const std::size_t vocab = static_cast<std::size_t>(session.model()->vocab_size());
  const std::vector<float> all = logits_in_pieces(session, ids, piece);
  return {all.begin() + static_cast<std::ptrdiff_t>(from * vocab), all.end()};
}

class Compressed : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<Model> model_ = Model::load(tiny(GetParam()), {.threads = 1});
};
INSTANTIATE_TEST_SUITE_P(Models, Compressed, testing::Values("llama-gqa", "gemma3", "qwen2", "llama-yarn"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(Compressed, SameBitsWhateverChunksThreadsAndCompany) {
  const auto ids = some_tokens(800, *model_), other = some_tokens(700, *model_, 2);
  for (const KvPolicy policy : kPolicies)
    for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8_0}) {
      if (type != KvType::F16 && policy != KvPolicy::Representatives && policy != KvPolicy::SnapKvMerge) continue;
      SCOPED_TRACE(static_cast<int>(policy));
      KvCompression how{.policy = policy, .budget = 0.5};
      model_->set_threads(1);
      Session whole = compressed(model_, how, type);
      const std::vector<float> expected = logits_of(whole, ids, ids.size(), 0);
      for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
      const std::size_t bytes = whole.kv_bytes();
      for (const int threads : {1, 2}) {
        model_->set_threads(threads);
        for (const std::int64_t chunk : kChunks) {
          Session session = compressed(model_, how, type, chunk);
          EXPECT_TRUE(same_bits(logits_of(session, ids, ids.size(), 0), expected)) << chunk << ", " << threads;
          EXPECT_EQ(session.kv_bytes(), bytes);
        }
        Session piecewise = compressed(model_, how, type);
        EXPECT_TRUE(same_bits(logits_of(piecewise, ids, 50, 0), expected)) << threads;
      }
      Session a = compressed(model_, how, type), b = compressed(model_, how, type), alone = compressed(model_, how, type);
      for (std::size_t at = 0; at < 700; at += 35)
        step({{&a, std::span(ids).subspan(at, 35)}, {&b, std::span(other).subspan(at, 35)}});
      EXPECT_TRUE(same_bits({b.logits().begin(), b.logits().end()},
                            logits_of(alone, other, other.size(), other.size() - 1)));
      const std::size_t vocab = static_cast<std::size_t>(model_->vocab_size());
      EXPECT_TRUE(same_bits({a.logits().begin(), a.logits().end()},
                            {expected.begin() + static_cast<std::ptrdiff_t>(699 * vocab),
                             expected.begin() + static_cast<std::ptrdiff_t>(700 * vocab)}));
    }
}

TEST_P(Compressed, ShortTextsAndWholeBudgetsAreDense) {
  const auto ids = some_tokens(600, *model_);
  Session dense(model_, {.context = 2048}), whole = compressed(model_, {.budget = 1});
  const std::vector<float> expected = logits_of(dense, ids, ids.size(), 0);
  EXPECT_TRUE(same_bits(logits_of(whole, ids, ids.size(), 0), expected));
  EXPECT_EQ(whole.kv_bytes(), dense.kv_bytes());
  for (const KvPolicy policy : kPolicies) {
    Session session = compressed(model_, {.policy = policy, .budget = 0.5});
    const auto logits = logits_of(session, ids, ids.size(), 0);
    const std::size_t exact = 128 * static_cast<std::size_t>(model_->vocab_size());
    EXPECT_TRUE(same_bits({logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(exact)},
                          {expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(exact)}));
    EXPECT_FALSE(same_bits(logits, expected));
  }
}

TEST_P(Compressed, TruncateIsAsIfNeverStepped) {
  const auto ids = some_tokens(700, *model_), other = some_tokens(40, *model_, 3);
  for (const KvPolicy policy : kPolicies)
    for (const std::int64_t length : {0, 1, 100, 500, 512, 640, 690, 700}) {
      const KvCompression how{.policy = policy, .budget = 0.5};
      Session session = compressed(model_, how), fresh = compressed(model_, how);
      session.step(ids);
      session.truncate(length);
      session.step(other);
      std::vector<TokenId> expected(ids.begin(), ids.begin() + length);
      expected.insert(expected.end(), other.begin(), other.end());
      fresh.step(expected);
      EXPECT_TRUE(same_bits({session.logits().begin(), session.logits().end()},
                            {fresh.logits().begin(), fresh.logits().end()}))
          << static_cast<int>(policy) << ", " << length;
      EXPECT_EQ(session.kv_bytes(), fresh.kv_bytes());
      session.truncate(0);
      EXPECT_EQ(session.kv_bytes(), 0u);
    }
}

TEST(CompressedBytes, StayWithinTheBudget) {
  const auto model = Model::load(tiny("llama-gqa"), {.threads = 1});
  const auto ids = some_tokens(2000, *model);
  for (const KvPolicy policy : kPolicies)
    for (const KvType type : {KvType::F16, KvType::Q8_0})
      for (const double budget : {0.5, 0.25}) {
        Session session = compressed(model, {.policy = policy, .budget = budget}, type),
                dense(model, {.context = 2048, .kv_type = type});
        // Whole pages tell what a position takes.
        dense.step(std::span(ids).first(128));
        const double position = static_cast<double>(dense.kv_bytes()) / 128;
        std::size_t within = 0;
        for (std::size_t n = 0; n < ids.size(); ++n) {
          session.step(ids[n]);
          const bool fits = static_cast<double>(session.kv_bytes()) <= budget * position * static_cast<double>(n + 1);
          if (fits) ++within;
          if (n > 1600) {
            ASSERT_TRUE(fits) << static_cast<int>(policy) << ", budget " << budget << ", " << n;
          }
        }
        EXPECT_GT(within, 500u);
        EXPECT_LE(session.kv_bytes_read(), session.kv_bytes());
      }
}

TEST(CompressedBytes, OnceAtAPosition) {
  const auto model = Model::load(tiny("llama-gqa"), {.threads = 1});
  const auto ids = some_tokens(1200, *model);
  for (const KvPolicy policy : kPolicies) {
    const KvCompression how{.policy = policy, .budget = 0.25, .compress_at = 1024};
    Session session = compressed(model, how), dense(model, {.context = 2048});
    dense.step(std::span(ids).first(1023));
    session.step(std::span(ids).first(1023));
    EXPECT_GE(session.kv_bytes(), dense.kv_bytes());
    EXPECT_TRUE(same_bits({session.logits().begin(), session.logits().end()},
                          {dense.logits().begin(), dense.logits().end()}));
    session.step(ids[1023]);
    dense.step(ids[1023]);
    EXPECT_LE(session.kv_bytes(), dense.kv_bytes() / 4);
    EXPECT_GE(session.kv_bytes(), dense.kv_bytes() / 5);
    EXPECT_TRUE(same_bits({session.logits().begin(), session.logits().end()},
                          {dense.logits().begin(), dense.logits().end()}));
    Session piecewise = compressed(model, how, KvType::F16, 7);
    session.step(std::span(ids).subspan(1024));
    piecewise.step(ids);
    EXPECT_TRUE(same_bits({session.logits().begin(), session.logits().end()},
                          {piecewise.logits().begin(), piecewise.logits().end()}));
  }
}

TEST(CompressedTau, MakesTheCacheAsLargeAsNeeded) {
  const auto model = Model::load(tiny("llama-gqa"), {.threads = 1});
  const auto ids = some_tokens(1500, *model);
  Session dense(model, {.context = 2048});
  dense.step(ids);
  std::size_t before = dense.kv_bytes() * 3 / 2;  // probes count
  for (const double tau : {0.001, 0.1, 0.5}) {
    Session whole = compressed(model, {.tau = tau}), piecewise = compressed(model, {.tau = tau}, KvType::F16, 7);
    whole.step(ids);
    model->set_threads(2);
    piecewise.step(ids);
    model->set_threads(1);
    EXPECT_TRUE(same_bits({whole.logits().begin(), whole.logits().end()},
                          {piecewise.logits().begin(), piecewise.logits().end()}));
    EXPECT_LT(whole.kv_bytes(), before) << tau;
    before = whole.kv_bytes();
  }
  EXPECT_LT(before, dense.kv_bytes() * 2 / 3);
}

TEST(CompressedAttention, RefusesWhatCannotBe) {
  const auto model = Model::load(tiny("llama-gqa"), {.threads = 1});
  const auto refuses = [&](const KvCompression& how, const char* words) {
    EXPECT_THAT([&] { compressed(model, how); }, ThrowsMessage<Error>(HasSubstr(words)));
  };
  refuses({.budget = 0}, "cache budget: expected more than 0 and at most 1, found 0");
  refuses({.budget = 1.5}, "found 1.5");
  refuses({.window = 50}, "cache window: expected a multiple of 16");
  refuses({.window = 0}, "cache window");
  refuses({.compress_at = -1}, "compress at");
  refuses({.budget = 0.1, .compress_at = 256}, "cache budget: expected at least 0.313 at 256 tokens");
  refuses({.tau = 2}, "cache tau: expected 0 to 1, found 2");
  refuses({.policy = KvPolicy::H2o, .tau = 0.1}, "policy of representatives");
  Session a = compressed(model, {.budget = 0.5}), b = compressed(model, {.budget = 0.25});
  const TokenId id = 5;
  EXPECT_THAT([&] { step({{&a, std::span(&id, 1)}, {&b, std::span(&id, 1)}}); },
              ThrowsMessage<Error>(HasSubstr("one compression")));
}

TEST(CompressedRealModel, SameBits) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "minutes under the sanitizers, which see the same code on tiny models";
#else
  const std::string path = std::string(NARROWS_MODELS) + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto model = Model::load(path, {.threads = 2});
  const auto ids = some_tokens(700, *model);
  for (const KvPolicy policy : {KvPolicy::Representatives, KvPolicy::SnapKvMerge}) {
    Session whole = compressed(model, {.policy = policy, .budget = 0.5}), decoded = compressed(model, {.policy = policy, .budget = 0.5}, KvType::F16, 100);
    model->set_threads(2);
    whole.step(ids);
    model->set_threads(1);
    decoded.step(std::span(ids).first(630));
    for (std::size_t t = 630; t < ids.size(); ++t) decoded.step(ids[t]);
    EXPECT_TRUE(same_bits({whole.logits().begin(), whole.logits().end()},
                          {decoded.logits().begin(), decoded.logits().end()}));
  }
#endif
}

}  // namespace
}  // namespace narrows
