// Logits depend on the tokens before them alone: not on chunks, steps, threads, batches or repacking, on
// every instruction set.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "formats/requantize.h"
#include "formats/temp_dir.h"
#include "kernels/dispatch.h"
#include "model/model_file.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

std::string tiny(const std::string& name) {
  return std::string(NARROWS_TEST_DATA) + "/models/" + name + ".gguf";
}

std::vector<TokenId> some_tokens(std::size_t n, std::int32_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(vocab));
  return ids;
}

using Logits = std::vector<float>;

// The first row that differs in any bit, or -1.
std::int64_t first_difference(const Logits& a, const Logits& b, std::size_t vocab) {
  if (a.size() != b.size()) return 0;
  for (std::size_t row = 0; row * vocab < a.size(); ++row)
    if (std::memcmp(a.data() + row * vocab, b.data() + row * vocab, vocab * sizeof(float)) != 0)
      return static_cast<std::int64_t>(row);
  return -1;
}

class Runner {
 public:
  Runner(std::shared_ptr<Model> model, KvType kv_type, std::int64_t context)
      : model_(std::move(model)), kv_type_(kv_type), context_(context), vocab_(static_cast<std::size_t>(model_->vocab_size())) {}

  Session session(std::int64_t chunk = 512) const {
    return Session(model_, {.context = context_, .kv_type = kv_type_, .chunk = chunk});
  }
  // All logits, the tokens after the first `head` given to step_all() `piece` at a time.
  Logits all(std::span<const TokenId> ids, std::int64_t chunk, std::size_t piece,
             std::size_t head = 0) const {
    Session s = session(chunk);
    Logits logits(ids.size() * vocab_);
    for (std::size_t at = 0, size; at < ids.size(); at += size) {
      size = std::min(at < head ? head - at : piece, ids.size() - at);
      const auto part = ids.subspan(at, size);
      s.step_all(part, std::span(logits).subspan(at * vocab_, part.size() * vocab_));
    }
    return logits;
  }
  // Three sequences of different lengths in one step, then each `decode` tokens further, again together. The
  // logits after the last prompt token and after each further one, sequence by sequence.
  Logits batched(std::span<const std::vector<TokenId>> prompts, std::size_t decode, bool together) const {
    std::vector<Session> sessions;
    for (std::size_t i = 0; i < prompts.size(); ++i) sessions.push_back(session());
    std::vector<Logits> logits(prompts.size());
    for (std::size_t t = 0; t <= decode; ++t) {
      std::vector<BatchItem> items;
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        const std::span<const TokenId> ids(prompts[i]);
        const std::size_t held = ids.size() - decode;
        items.push_back({&sessions[i], t == 0 ? ids.first(held) : ids.subspan(held + t - 1, 1)});
      }
      if (together)
        step(items);
      else
        for (const BatchItem& item : items) item.session->step(item.tokens);
      for (std::size_t i = 0; i < prompts.size(); ++i)
        logits[i].insert(logits[i].end(), sessions[i].logits().begin(), sessions[i].logits().end());
    }
    Logits joined;
    for (const Logits& part : logits) joined.insert(joined.end(), part.begin(), part.end());
    return joined;
  }

 private:
  std::shared_ptr<Model> model_;
  KvType kv_type_;
  std::int64_t context_;
  std::size_t vocab_;
};

// Runs `path` in every way and compares with the whole prompt at once on one thread.
void expect_same_bits(const std::string& path, std::size_t length, std::span<const KvType> kv_types,
                      std::int64_t context = 1024) {
  const auto model = Model::load(path, {.threads = 1});
  const auto unpacked = Model::load(path, {.threads = 2, .repack = false});
  const std::size_t vocab = static_cast<std::size_t>(model->vocab_size());
  const std::vector<TokenId> ids = some_tokens(length, model->vocab_size(), 7);
  std::vector<std::vector<TokenId>> prompts;
  for (const std::size_t n : {std::size_t{5}, length / 2, length})
    prompts.push_back(some_tokens(n, model->vocab_size(), static_cast<unsigned>(n)));
  for (const std::string& target : dispatch_targets()) {
    set_dispatch_target(target);
    for (const KvType kv_type : kv_types) {
      SCOPED_TRACE(path + ", " + target + ", cache type " + std::to_string(static_cast<int>(kv_type)));
      const Runner runner(model, kv_type, context), bare(unpacked, kv_type, context);
      model->set_threads(1);
      const Logits expected = runner.all(ids, 512, length);
      for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
      const Logits alone = runner.batched(prompts, 3, false);
      const auto same = [&](const Logits& found) { return first_difference(expected, found, vocab); };
      EXPECT_EQ(same(bare.all(ids, 512, length)), -1) << "not repacked, prompt";
      EXPECT_EQ(same(bare.all(ids, 512, 1, length - 8)), -1) << "not repacked, decode";
      EXPECT_EQ(first_difference(alone, bare.batched(prompts, 3, true), vocab), -1) << "not repacked, batch";
      for (const std::int64_t chunk : {1, 3, 64})
        EXPECT_EQ(same(runner.all(ids, chunk, length)), -1) << chunk;
      EXPECT_EQ(same(runner.all(ids, 512, 1)), -1) << "token by token";
      for (const int threads : {2, 3, 5}) {
        model->set_threads(threads);
        EXPECT_EQ(same(runner.all(ids, 512, length)), -1) << threads << " threads, prompt";
        EXPECT_EQ(same(runner.all(ids, 512, 50)), -1) << threads << " threads, 50 tokens a step";
        EXPECT_EQ(same(runner.all(ids, 512, 1, length - 8)), -1) << threads << " threads, decode";
        EXPECT_EQ(first_difference(alone, runner.batched(prompts, 3, true), vocab), -1)
            << threads << " threads, batch";
      }
    }
  }
  set_dispatch_target("");
}

constexpr KvType kAllTypes[] = {KvType::F16, KvType::F32, KvType::Q8_0};

class TinyModel : public testing::TestWithParam<const char*> {};

TEST_P(TinyModel, PromptBeyondAPage) { expect_same_bits(tiny(GetParam()), 129, kAllTypes); }

INSTANTIATE_TEST_SUITE_P(SameBits, TinyModel, testing::Values("gemma3", "llama-gqa", "llama3-tied", "qwen2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SameBits, PromptOfThreePagesWithSlidingWindow) {
  constexpr KvType types[] = {KvType::F16};
  expect_same_bits(tiny("gemma3"), 300, types);
}

// Every architecture, on a prompt beyond the windows; 60 tokens are within the positions that the tiny models have learned.
TEST(SameBits, HuggingFaceFolders) {
  constexpr KvType types[] = {KvType::F16};
#ifdef __SANITIZE_ADDRESS__
  constexpr std::size_t kTokens = 24;  // some twenty times slower
#else
  constexpr std::size_t kTokens = 60;
#endif
  for (const auto& entry : std::filesystem::directory_iterator(std::string(NARROWS_TEST_DATA) + "/hf"))
    if (entry.is_directory()) expect_same_bits(entry.path(), kTokens, types, 64);
}

class QuantizedModel : public testing::TestWithParam<const char*> {};

// Widths of one and of several blocks, heads that divide neither the vocabulary nor the tiles of 16 rows.
TEST_P(QuantizedModel, Llama) {
  const DType dtype = *dtype_by_name(GetParam());
  TempDir dir;
  LlamaSizes sizes;
  sizes.layers = 1;
  if (dtype_info(dtype).block_size == 32) {
    sizes = {
        .layers = 1, .d = 64, .heads = 4, .kv_heads = 2, .head_dims = 24, .d_inter = 160, .rotary_dims = 16};
  }
  const std::string path = dir.file("model.gguf");
  random_llama(ModelFile::read(tiny("llama-gqa")), sizes, DType::F32, 3).write(dir.file("f32.gguf"));
  RequantizeOptions options;
  options.pure = true;
  requantize(GgufFile::open(dir.file("f32.gguf")), dtype, path, options);
  ASSERT_EQ(GgufFile::open(path).tensor("blk.0.attn_q.weight").dtype, dtype);
  constexpr KvType types[] = {KvType::F16, KvType::Q8_0};
  expect_same_bits(path, 40, types);
}

INSTANTIATE_TEST_SUITE_P(SameBits, QuantizedModel,
                         testing::Values("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "BF16"),
                         [](const auto& info) { return std::string(info.param); });

// A window in every layer, smaller than a page, and pages that fall out of it.
TEST(SameBits, QuantizedWithSlidingWindow) {
  TempDir dir;
  random_llama(ModelFile::read(tiny("llama-gqa")),
               {.layers = 2,
                .d = 64,
                .heads = 4,
                .kv_heads = 1,
                .head_dims = 32,
                .d_inter = 64,
                .window = 40,
                .rotary_dims = 32,
                .tied = true},
               DType::Q8_0, 5)
      .write(dir.file("model.gguf"));
  constexpr KvType types[] = {KvType::Q8_0};
  expect_same_bits(dir.file("model.gguf"), 300, types);
}

class RealModel : public testing::TestWithParam<const char*> {};

TEST_P(RealModel, PromptDecodeThreadsAndBatch) {
  const std::string path = std::string(NARROWS_MODELS) + "/" + GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto model = Model::load(path, {.threads = 2});
  const std::size_t vocab = static_cast<std::size_t>(model->vocab_size());
  const Runner runner(model, KvType::F16, 1024);
#ifdef __SANITIZE_ADDRESS__
  constexpr std::size_t kTokens = 56;  // some ten times slower
#else
  constexpr std::size_t kTokens = 200;
#endif
  const std::vector<TokenId> ids = some_tokens(kTokens, model->vocab_size(), 11);
  constexpr std::size_t kPrompt = kTokens - 32;  // the rest is decoded
  const auto run = [&] {
    Session s = runner.session();
    s.step(std::span(ids).first(kPrompt));
    Logits logits(s.logits().begin(), s.logits().end());
    for (std::size_t t = kPrompt; t < ids.size(); ++t) {
      const auto row = s.step(ids[t]);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  };
  const Logits all = runner.all(ids, 512, ids.size());
  const Logits expected(all.begin() + static_cast<std::ptrdiff_t>((kPrompt - 1) * vocab), all.end());
  EXPECT_EQ(first_difference(expected, run(), vocab), -1) << "prompt and decode";
  const std::vector<std::vector<TokenId>> prompts{some_tokens(9, 1000, 1), some_tokens(30, 1000, 2), ids};
  const Logits alone = runner.batched(prompts, 2, false);
  EXPECT_EQ(first_difference(alone, runner.batched(prompts, 2, true), vocab), -1) << "batch";
  model->set_threads(1);
  EXPECT_EQ(first_difference(all, runner.all(ids, 512, ids.size()), vocab), -1) << "one thread";
}

INSTANTIATE_TEST_SUITE_P(SameBits, RealModel,
                         testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-Q4_K_M.gguf"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, 5) == "gemma" ? "gemma" : "SmolLM2";
                         });

}  // namespace
}  // namespace narrows
