// What a session promises beside its bits: truncation, memory, context shift, refusals.
#include "narrows/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "model/model_file.h"

namespace narrows {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<Model> load(const std::string& name, const LoadOptions& options = {.threads = 1}) {
  return Model::load(std::string(NARROWS_TEST_DATA) + "/models/" + name + ".gguf", options);
}

std::vector<TokenId> some_tokens(std::size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % 263);
  return ids;
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

std::vector<float> fresh(const std::shared_ptr<Model>& model, std::span<const TokenId> ids) {
  Session session(model, {.context = 2048});
  return copy(session.step(ids));
}

template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Session, TruncateForgetsWhatFollows) {
  for (const char* name : {"llama-gqa", "gemma3"}) {
    const auto model = load(name);
    const auto ids = some_tokens(400), other = some_tokens(20, 2);
    for (const std::int64_t length : {0, 1, 127, 128, 129, 255, 256, 300, 395, 400}) {
      Session session(model, {.context = 2048});
      session.step(ids);
      const auto before = copy(session.logits());
      session.truncate(length);
      EXPECT_EQ(copy(session.logits()), before);
      EXPECT_EQ(static_cast<std::int64_t>(session.tokens().size()), length);
      auto expected = std::vector<TokenId>(ids.begin(), ids.begin() + length);
      expected.insert(expected.end(), other.begin(), other.end());
      EXPECT_EQ(copy(session.step(other)), fresh(model, expected)) << name << " " << length;
      EXPECT_EQ(session.tokens(), expected);
    }
  }
}

TEST(Session, TruncateTwiceThenStepAll) {
  const auto model = load("gemma3");
  const auto ids = some_tokens(300), other = some_tokens(3, 2);
  Session session(model, {.context = 512});
  session.step(ids);
  session.truncate(280);
  session.truncate(20);  // long gone from the windows
  std::vector<float> logits(3 * 263);
  session.step_all(other, logits);
  std::vector<TokenId> expected(ids.begin(), ids.begin() + 20);
  for (std::size_t i = 0; i < other.size(); ++i) {
    expected.push_back(other[i]);
    EXPECT_EQ(copy(std::span(logits).subspan(i * 263, 263)), fresh(model, expected));
  }
  EXPECT_EQ(copy(session.logits()), fresh(model, expected));
}

TEST(Session, TruncateRefusesWhatIsNotThere) {
  Session session(load("llama-gqa"));
  session.step(some_tokens(5));
  EXPECT_THAT(error_of([&] { session.truncate(6); }), HasSubstr("truncate: expected 0 to 5 tokens, found 6"));
  EXPECT_THAT(error_of([&] { session.truncate(-1); }), HasSubstr("found -1"));
  EXPECT_EQ(session.tokens().size(), 5u);
}

TEST(Session, CacheGrowsInPages) {
  Session session(load("llama-gqa"), {.context = 1024, .kv_type = KvType::F32});
  EXPECT_EQ(session.kv_bytes(), 0u);
  EXPECT_EQ(session.kv_bytes_read(), 0u);
  session.step(some_tokens(1));
  const std::size_t page = session.kv_bytes();
  EXPECT_GE(page, 2u * 128 * 2 * 16 * 4);  // layers, positions, keys and values, width, bytes
  session.step(some_tokens(127));
  EXPECT_EQ(session.kv_bytes(), page);
  const std::size_t read = session.kv_bytes_read();
  session.step(some_tokens(1));
  EXPECT_EQ(session.kv_bytes(), 2 * page);
  EXPECT_GT(session.kv_bytes_read(), read);
  session.truncate(128);
  EXPECT_EQ(session.kv_bytes(), page);
  session.truncate(0);
  EXPECT_EQ(session.kv_bytes(), 0u);
}

// Of gemma3's seven layers six have a window of 12, which touches at most two pages.
TEST(Session, SlidingWindowBoundsTheCache) {
  Session session(load("gemma3"), {.context = 2048});
  session.step(some_tokens(1));
  const std::size_t layer = session.kv_bytes() / 7;
  for (int i = 0; i < 8; ++i) {
    session.step(some_tokens(127));
    session.step(some_tokens(1));
    const std::size_t pages = (session.tokens().size() + 127) / 128;
    EXPECT_LE(session.kv_bytes(), layer * (pages + 6 * 2));
    EXPECT_GE(session.kv_bytes(), layer * (pages + 6));
  }
}

TEST(Model, ProfilesOperations) {
  const auto model = load("llama-gqa");
  const auto calls = [&](std::string_view name) {
    for (const OperationCost& cost : model->operation_costs())
      if (cost.name == name) return cost.calls;
    return std::int64_t{-1};
  };
  const auto ids = some_tokens(40);
  const std::vector<float> expected = fresh(model, ids);
  EXPECT_EQ(calls("head"), 0);
  model->set_profiling(true);
  EXPECT_EQ(fresh(model, ids), expected);
  fresh(model, ids);
  EXPECT_EQ(calls("head"), 2);
  EXPECT_GT(calls("attention"), 0);
  EXPECT_EQ(calls("down"), calls("attention"));
  for (const OperationCost& cost : model->operation_costs()) {
    EXPECT_GE(cost.seconds, 0) << cost.name;
    if (cost.name == "head" || cost.name == "gate, up") {
      EXPECT_GT(cost.bytes, 0) << cost.name;
    }
  }
  model->set_profiling(false);
  fresh(model, ids);
  EXPECT_EQ(calls("head"), 2);
  model->set_profiling(true);
  EXPECT_EQ(calls("head"), 0);
}

TEST(Session, KvTypesTakeTheirBytes) {
  const auto model = load("gemma3");
  const auto bytes = [&](KvType type) {
    Session session(model, {.kv_type = type});
    session.step(0);
    return session.kv_bytes();
  };
  EXPECT_EQ(bytes(KvType::F32), 2 * bytes(KvType::F16));
  EXPECT_LT(bytes(KvType::Q8_0), bytes(KvType::F16));
}

TEST(Session, ContextOverflow) {
  const auto model = load("llama-gqa");
  Session session(model, {.context = 10});
  EXPECT_EQ(session.context(), 10);
  session.step(some_tokens(8));
  const auto logits = copy(session.logits());
  EXPECT_THAT(error_of([&] { session.step(some_tokens(3)); }),
              HasSubstr("context of 10 tokens is full: 11 tokens do not fit"));
  EXPECT_EQ(session.tokens().size(), 8u);
  EXPECT_EQ(copy(session.logits()), logits);
  session.step(some_tokens(2));
  EXPECT_EQ(Session(model).context(), 256);
}

// The oldest half of what follows the kept tokens goes each time the context is full.
std::vector<TokenId> shifted(std::vector<TokenId> held, std::span<const TokenId> added, std::int64_t context,
                             std::int64_t keep) {
  for (const TokenId id : added) {
    if (static_cast<std::int64_t>(held.size()) == context) {
      const std::int64_t dropped = std::max<std::int64_t>((context - keep) / 2, 1);
      held.erase(held.begin() + keep, held.begin() + keep + dropped);
    }
    held.push_back(id);
  }
  return held;
}

TEST(Session, ContextShift) {
  for (const char* name : {"llama-gqa", "gemma3"}) {
    const auto model = load(name);
    for (const std::int64_t keep : {0, 4, 29}) {
      Session session(model, {.context = 30, .context_shift = true, .keep = keep});
      std::vector<TokenId> held;
      const auto ids = some_tokens(300, 3);
      std::span<const TokenId> rest = ids;
      for (const std::size_t n : {20, 10, 1, 1, 14, 1, 100, 30, 31, 1}) {  // some longer than the context
        const auto part = rest.first(n);
        rest = rest.subspan(n);
        held = shifted(held, part, 30, keep);
        EXPECT_EQ(copy(session.step(part)), fresh(model, held))
            << name << " keep " << keep << " step of " << n;
        ASSERT_EQ(session.tokens(), held);
      }
      EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + keep, session.tokens().begin()));
    }
  }
}

TEST(Session, ContextShiftInABatch) {
  const auto model = load("llama-gqa");
  const SessionOptions options{.context = 30, .context_shift = true, .keep = 2};
  Session a(model, options), b(model, options);
  const auto long_ids = some_tokens(45, 4), short_ids = some_tokens(7, 5);
  const BatchItem items[] = {{&a, long_ids}, {&b, short_ids}};
  step(items);
  EXPECT_EQ(copy(a.logits()), fresh(model, shifted({}, long_ids, 30, 2)));
  EXPECT_EQ(copy(b.logits()), fresh(model, short_ids));
}

TEST(Session, StepAllDoesNotShift) {
  Session session(load("llama-gqa"), {.context = 4, .context_shift = true});
  std::vector<float> logits(5 * 263);
  EXPECT_THAT(error_of([&] { session.step_all(some_tokens(5), logits); }),
              HasSubstr("5 tokens do not fit into the context of 4"));
  EXPECT_TRUE(session.tokens().empty());
}

TEST(Session, RefusesTokens) {
  Session session(load("llama-gqa"));
  const std::vector<TokenId> good{1, 2};
  session.step(good);
  EXPECT_THAT(error_of([&] { session.step(263); }), HasSubstr("token id 263: expected 0 to 262"));
  EXPECT_THAT(error_of([&] { session.step(-1); }), HasSubstr("token id -1: expected 0 to 262"));
  EXPECT_THAT(error_of([&] { session.step(std::vector<TokenId>{}); }), HasSubstr("at least one token"));
  std::vector<float> logits(2 * 263 - 1);
  EXPECT_THAT(error_of([&] { session.step_all(good, logits); }), HasSubstr("room for 526 logits, found 525"));
  EXPECT_EQ(session.tokens(), good);
}

TEST(Session, RefusesOptions) {
  const auto model = load("llama-gqa");
  const auto error = [&](const SessionOptions& options) {
    return error_of([&] { Session session(model, options); });
  };
  EXPECT_THAT(error({.context = -1}), HasSubstr("context: expected at least 1 token, found -1"));
  EXPECT_THAT(error({.chunk = 0}), HasSubstr("chunk: expected at least 1 token, found 0"));
  EXPECT_THAT(error({.keep = -1}), HasSubstr("keep: expected 0 to 255 tokens, found -1"));
  EXPECT_THAT(error({.context = 8, .context_shift = true, .keep = 8}),
              HasSubstr("keep: expected 0 to 7 tokens, found 8"));
  EXPECT_EQ(error({.context = 1, .chunk = std::int64_t{1} << 60}), "no error");
}

TEST(Session, RefusesAModelWithoutWeights) {
  const auto model = load("llama-gqa", {.threads = 1, .repack = true, .vocab_only = true});
  EXPECT_THAT(error_of([&] { Session session(model); }),
              HasSubstr("expected a model loaded with its weights"));
  EXPECT_THAT(error_of([&] { Session session(nullptr); }), HasSubstr("expected a model"));
}

TEST(Session, RefusesBatches) {
  const auto model = load("llama-gqa");
  Session a(model), b(model, {.kv_type = KvType::F32}), c(load("qwen2"));
  const std::vector<TokenId> ids{1, 2};
  const auto error = [&](std::vector<BatchItem> items) { return error_of([&] { step(items); }); };
  EXPECT_THAT(error({{&a, ids}, {&c, ids}}), HasSubstr("sessions of one model"));
  EXPECT_THAT(error({{&a, ids}, {&b, ids}}), HasSubstr("one type of key/value cache"));
  EXPECT_THAT(error({{&a, ids}, {&a, ids}}), HasSubstr("given twice"));
  EXPECT_THAT(error({{&a, ids}, {&b, {}}}), HasSubstr("at least one token"));
  EXPECT_EQ(error({}), "no error");
  for (const Session* session : {&a, &b, &c}) EXPECT_TRUE(session->tokens().empty());
}

TEST(Session, Moves) {
  const auto model = load("llama-gqa");
  const auto ids = some_tokens(10);
  Session first(model);
  first.step(std::span(ids).first(6));
  Session second(std::move(first));
  Session third(model);
  third = std::move(second);
  EXPECT_EQ(copy(third.step(std::span(ids).subspan(6))), fresh(model, ids));
  EXPECT_EQ(third.model(), model);
}

// A step may be given the very tokens that the session holds.
TEST(Session, StepsItsOwnTokens) {
  const auto model = load("llama-gqa");
  auto ids = some_tokens(33);
  Session session(model);
  session.step(ids);
  session.step(session.tokens());
  auto twice = ids;
  twice.insert(twice.end(), ids.begin(), ids.end());
  EXPECT_EQ(session.tokens(), twice);
  EXPECT_EQ(copy(session.logits()), fresh(model, twice));
}

}  // namespace
}  // namespace narrows
