// Models that are broken in one place each are refused with the file and the item named; odd but valid ones
// run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "formats/temp_dir.h"
#include "model/model_file.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ModelFile tiny(const std::string& name) {
  return ModelFile::read(std::string(NARROWS_TEST_DATA) + "/models/" + name + ".gguf");
}

class Load : public testing::Test {
 protected:
  // What loading `file` says, or "no error".
  std::string error(const ModelFile& file) {
    file.write(path_);
    try {
      Model::load(path_, {.threads = 1});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  std::string error_after(const std::function<void(ModelFile&)>& change, const char* name = "llama-gqa") {
    ModelFile file = tiny(name);
    change(file);
    return error(file);
  }
  void expect_error(const std::function<void(ModelFile&)>& change, const std::string& item,
                    const std::string& what) {
    EXPECT_THAT(error_after(change),
                AllOf(HasSubstr(path_ + ": "), HasSubstr(item), HasSubstr(what), Not(HasSubstr("\n"))));
  }
  std::shared_ptr<Model> load(const ModelFile& file) {
    file.write(path_);
    return Model::load(path_, {.threads = 1});
  }
  std::vector<float> logits(const ModelFile& file) {
    Session session(load(file));
    const std::vector<TokenId> ids{5, 100, 7, 260, 31};
    std::vector<float> all(ids.size() * static_cast<std::size_t>(session.model()->vocab_size()));
    session.step_all(ids, all);
    return all;
  }

  TempDir dir_;
  const std::string path_ = dir_.file("model.gguf");
};

TEST_F(Load, RewrittenFileGivesTheSameLogits) {
  Session session(Model::load(std::string(NARROWS_TEST_DATA) + "/models/llama-gqa.gguf"));
  const std::vector<TokenId> ids{5, 100, 7, 260, 31};
  std::vector<float> all(ids.size() * 263);
  session.step_all(ids, all);
  EXPECT_EQ(logits(tiny("llama-gqa")), all);
}

TEST_F(Load, MissingTensors) {
  for (const char* name :
       {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_q.weight",
        "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.1.attn_output.weight", "blk.0.ffn_norm.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.1.ffn_down.weight"})
    EXPECT_THAT(error_after([&](ModelFile& f) { f.remove(name); }),
                AllOf(HasSubstr(path_), HasSubstr(name), HasSubstr("missing")));
}

TEST_F(Load, WrongShapes) {
  std::mt19937 random(1);
  const auto with = [&](const char* name, std::vector<std::int64_t> shape) {
    return [&random, name, shape](ModelFile& f) { f.set_random(name, DType::F32, shape, 0, 1, random); };
  };
  expect_error(with("blk.0.attn_q.weight", {48, 47}), "blk.0.attn_q.weight",
               "expected 48 × 48, found 48 × 47");
  expect_error(with("blk.0.attn_k.weight", {16, 48}), "blk.0.attn_k.weight",
               "expected 48 × 16, found 16 × 48");
  expect_error(with("blk.1.ffn_down.weight", {72}), "blk.1.ffn_down.weight",
               "expected 72 × 48, found 72 × 1");
  expect_error(with("blk.1.ffn_up.weight", {48, 72, 2}), "blk.1.ffn_up.weight", "expected 48 × 72");
  expect_error(with("token_embd.weight", {47, 263}), "token_embd.weight",
               "expected 48 × 263, found 47 × 263");
  expect_error(with("output.weight", {48, 262}), "output.weight", "expected 48 × 263, found 48 × 262");
  expect_error(with("output_norm.weight", {49}), "output_norm.weight", "expected 48 elements");
  expect_error(with("blk.0.attn_norm.weight", {48, 2}), "blk.0.attn_norm.weight", "expected 48 elements");
  expect_error(with("blk.0.attn_q.bias", {47}), "blk.0.attn_q.bias", "expected 48 elements");
  expect_error(with("blk.0.attn_q_norm.weight", {9}), "blk.0.attn_q_norm.weight", "expected 8 elements");
  expect_error(with("rope_freqs.weight", {3}), "rope_freqs.weight", "expected 4 F32 elements");
}

TEST_F(Load, WrongTypes) {
  const auto integers = [](const char* name) {
    return [name](ModelFile& f) {
      ModelFile::Tensor& t = f.tensor(name);
      t.dtype = DType::I32;
      std::int64_t n = 4;
      for (const std::int64_t size : t.shape) n *= size;
      t.data.assign(static_cast<std::size_t>(n), std::byte{1});
    };
  };
  expect_error(integers("blk.0.ffn_gate.weight"), "blk.0.ffn_gate.weight", "found I32");
  expect_error(integers("token_embd.weight"), "token_embd.weight", "found I32");
  expect_error(integers("blk.0.ffn_norm.weight"), "blk.0.ffn_norm.weight", "found I32");
}

TEST_F(Load, KeptPairs) {
  const auto kept = [](std::vector<std::int64_t> counts, std::vector<std::int64_t> pairs) {
    return [counts, pairs](ModelFile& f) {
      f.set("llama.rope.dimension_count", std::int64_t{8});
      f.set("narrows.rope.pair_count", counts);
      f.set("narrows.rope.pairs", pairs);
    };
  };
  const std::vector<std::int64_t> all{0, 1, 2, 3, 0, 1, 2, 3};  // of two KV heads
  const auto both = [&](std::vector<std::int64_t> first) {
    first.insert(first.end(), all.begin(), all.end());
    return first;
  };
  ModelFile file = tiny("llama-gqa");
  kept({4, 4}, both(all))(file);
  EXPECT_EQ(logits(file), logits(tiny("llama-gqa")));
  kept({0, 2}, {0, 2, 1, 3})(file);  // the rest is not rotated
  EXPECT_EQ(error(file), "no error");
  expect_error(kept({4}, all), "narrows.rope.pair_count", "expected 2 integers, one a layer, found 1");
  expect_error(kept({4, 5}, both(all)), "narrows.rope.pair_count", "expected 0 to 4 in layer 1, found 5");
  expect_error(kept({-1, 4}, both(all)), "narrows.rope.pair_count", "found -1");
  expect_error(kept({4, 4}, all), "narrows.rope.pairs", "expected at least 16 integers, found 8");
  expect_error(kept({4, 0}, both(all)), "narrows.rope.pairs", "expected 8 integers, found 16");
  expect_error(kept({2, 4}, both({0, 4, 1, 2})), "narrows.rope.pairs", "expected 1 to 3 in layer 0, ascending in each head, found 4");
  expect_error(kept({2, 4}, both({1, 1, 1, 2})), "narrows.rope.pairs", "expected 2 to 3 in layer 0");
  expect_error(kept({2, 4}, both({0, 1, -1, 2})), "narrows.rope.pairs", "found -1");
  expect_error([](ModelFile& f) { f.set("narrows.rope.pair_count", std::vector<std::int64_t>{4, 4}); }, "narrows.rope.pairs", "missing");
  expect_error(
      [&](ModelFile& f) {
        kept({4, 4}, both(all))(f);
        f.set("narrows.rope.pairs", std::string("0,1"));
      },
      "narrows.rope.pairs", "");
}

TEST_F(Load, HeadNorms) {
  std::mt19937 random(1);
  const auto with = [&](std::vector<std::int64_t> shape) {
    return [&random, shape](ModelFile& f) { f.set_random("blk.0.attn_q_norm.weight", DType::F32, shape, 1, 0.1f, random); };
  };
  EXPECT_EQ(error_after(with({8, 6})), "no error");
  expect_error(with({8, 5}), "blk.0.attn_q_norm.weight", "expected 8 × 6 elements");
}

TEST_F(Load, RopeDivisorsOutOfRange) {
  for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_THAT(error_after(
                    [&](ModelFile& f) {
                      std::memcpy(f.tensor("rope_freqs.weight").data.data(), &value, sizeof value);
                    },
                    "llama3-tied"),
                AllOf(HasSubstr(path_), HasSubstr("rope_freqs.weight"), HasSubstr("above 0")));
}

TEST_F(Load, Architecture) {
  expect_error([](ModelFile& f) { f.set("general.architecture", std::string("mamba")); },
               "general.architecture", "falcon, mpt, opt, found \"mamba\"");
  expect_error([](ModelFile& f) { f.metadata.erase("general.architecture"); }, "general.architecture",
               "missing");
  expect_error([](ModelFile& f) { f.set("llama.expert_count", std::int64_t{8}); }, "llama.expert_used_count",
               "is missing");
}

TEST_F(Load, MissingKeys) {
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.context_length",
                          "llama.feed_forward_length", "llama.attention.head_count"})
    EXPECT_THAT(error_after([&](ModelFile& f) { f.metadata.erase(key); }),
                AllOf(HasSubstr(path_), HasSubstr(key), HasSubstr("missing")));
}

TEST_F(Load, AbsurdIntegers) {
  struct Case {
    const char *key, *what;
    std::int64_t value;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"block_count", "expected 1 to", 0},
           {"block_count", "expected 1 to", std::int64_t{1} << 40},
           {"block_count", "expected 1 to", -1},
           {"embedding_length", "expected 1 to", 0},
           {"embedding_length", "expected 1 to", std::int64_t{1} << 40},
           {"context_length", "expected 1 to", 0},
           {"context_length", "expected 1 to", std::numeric_limits<std::int64_t>::max()},
           {"feed_forward_length", "expected 1 to", 0},
           {"attention.head_count", "expected 1 to", 0},
           {"attention.head_count", "expected a divisor of llama.embedding_length (48), found 5", 5},
           {"attention.head_count_kv", "expected 1 to", 0},
           {"attention.head_count_kv", "expected a divisor of the 6 heads", 4},
           {"attention.head_count_kv", "expected a divisor of the 6 heads", 12},
           {"attention.key_length", "expected 1 to", -8},
           {"attention.sliding_window", "expected 0 to", -1},
           {"rope.dimension_count", "expected an even number up to the head's 8 dimensions, found 7", 7},
           {"rope.dimension_count", "expected an even number up to the head's 8 dimensions, found 10", 10},
           {"rope.dimension_count", "expected 2 to", 0}})
    expect_error([&](ModelFile& f) { f.set(std::string("llama.") + c.key, c.value); },
                 std::string("llama.") + c.key, c.what);
  // One layer more than there are tensors of.
  expect_error([](ModelFile& f) { f.set("llama.block_count", std::int64_t{3}); }, "blk.2.", "missing");
  expect_error([](ModelFile& f) { f.set("llama.attention.key_length", std::int64_t{1} << 20); },
               "blk.0.attn_q.weight", "expected 48 × 6291456");
}

TEST_F(Load, AbsurdNumbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, double>>{
           {"llama.attention.layer_norm_rms_epsilon", nan},
           {"llama.attention.layer_norm_rms_epsilon", infinity},
           {"llama.attention.layer_norm_rms_epsilon", -1},
           {"llama.rope.freq_base", nan},
           {"llama.rope.freq_base", 0},
           {"llama.rope.freq_base", -1},
           {"llama.attention.scale", -1},
           {"llama.rope.scaling.factor", 0},
           {"llama.rope.scaling.factor", infinity},
           {"llama.rope.scaling.yarn_beta_fast", -1},
           {"llama.attention.scale", nan}})
    expect_error([&](ModelFile& f) { f.set(key, value); }, key, "expected a");
  expect_error(
      [](ModelFile& f) {
        f.set("llama.rope.scaling.type", std::string("yarn"));
        f.set("llama.rope.freq_base", 1.0);
      },
      "llama.rope.freq_base", "above 1 with YaRN");
  expect_error([](ModelFile& f) { f.set("llama.rope.scaling.type", std::string("ntk")); },
               "llama.rope.scaling.type", "expected none, linear, yarn or longrope, found \"ntk\"");
  expect_error([](ModelFile& f) { f.set("llama.block_count", std::string("two")); }, "llama.block_count", "");
}

TEST_F(Load, ArraysOfAnotherLength) {
  for (const char* key :
       {"llama.attention.head_count", "llama.attention.head_count_kv", "llama.feed_forward_length"}) {
    expect_error(
        [&](ModelFile& f) {
          f.set(key, std::vector<std::int64_t>{6, 6, 6});
        },
        key, "expected 2 integers, one a layer, found 3");
    expect_error([&](ModelFile& f) { f.set(key, std::vector<std::int64_t>{}); }, key, "found 0");
    expect_error([&](ModelFile& f) { f.set(key, std::vector<std::int64_t>{6, 0}); }, key, "expected 1 to");
  }
}

TEST_F(Load, TokenizerLargerThanTheEmbedding) {
  std::mt19937 random(1);
  expect_error(
      [&](ModelFile& f) {
        f.set_random("token_embd.weight", DType::F32, {48, 262}, 0, 1, random);
        f.set_random("output.weight", DType::F32, {48, 262}, 0, 1, random);
      },
      "token_embd.weight", "a row for each of the tokenizer's 263 tokens, found 262");
}

// Models pad their embeddings to a round number of rows.
TEST_F(Load, EmbeddingLargerThanTheTokenizer) {
  ModelFile file = tiny("llama-gqa");
  for (const char* name : {"token_embd.weight", "output.weight"}) {
    ModelFile::Tensor& t = file.tensor(name);
    t.shape[1] = 270;
    t.data.resize(row_bytes(t.dtype, 48) * 270);
  }
  const auto model = load(file);
  EXPECT_EQ(model->vocab_size(), 270);
  EXPECT_EQ(model->piece(269), "");
  EXPECT_FALSE(model->is_end_of_generation(269));
  Session session(model);
  const auto logits = session.step(269);
  ASSERT_EQ(logits.size(), 270u);
  EXPECT_TRUE(std::isfinite(logits[0]));
  EXPECT_EQ(logits[269], 0);
}

TEST_F(Load, PartialRotary) {
  ModelFile file = tiny("llama-gqa");
  const auto whole = logits(file);
  file.set("llama.rope.dimension_count", std::int64_t{4});
  const auto partial = logits(file);
  EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + 263, partial.begin()));  // position 0 is not rotated
  EXPECT_NE(whole, partial);
}

// Layers of different sizes, given as arrays: zero rows and columns of a smaller layer add nothing, so a
// model padded to one size for all layers must agree.
TEST_F(Load, SizesByLayer) {
  const ModelFile tokenizer = tiny("llama-gqa");
  ModelFile narrow = random_llama(
      tokenizer,
      {.layers = 2, .d = 32, .heads = 4, .kv_heads = 2, .head_dims = 16, .d_inter = 48, .rotary_dims = 16},
      DType::F32, 9);
  const ModelFile wide = random_llama(
      tokenizer,
      {.layers = 2, .d = 32, .heads = 2, .kv_heads = 1, .head_dims = 16, .d_inter = 80, .rotary_dims = 16},
      DType::F32, 10);
  for (const ModelFile::Tensor& t : wide.tensors)
    if (t.name.starts_with("blk.1.")) narrow.tensor(t.name) = t;
  EXPECT_NE(error(narrow), "no error");
  narrow.set("llama.attention.head_count", std::vector<std::int64_t>{4, 2});
  narrow.set("llama.attention.head_count_kv", std::vector<std::int64_t>{2, 1});
  narrow.set("llama.feed_forward_length", std::vector<std::int64_t>{48, 80});
  const auto found = logits(narrow);
  for (const float v : found) ASSERT_TRUE(std::isfinite(v));

  ModelFile padded = narrow;
  padded.set("llama.feed_forward_length", std::int64_t{80});
  for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}) {
    ModelFile::Tensor& t = padded.tensor(name);
    t.shape[1] = 80;
    t.data.resize(80 * 32 * 4);
  }
  ModelFile::Tensor& down = padded.tensor("blk.0.ffn_down.weight");
  std::vector<std::byte> rows(32 * 80 * 4);
  for (std::size_t row = 0; row < 32; ++row)
    std::copy_n(down.data.begin() + static_cast<std::ptrdiff_t>(row * 48 * 4), 48 * 4,
                rows.begin() + static_cast<std::ptrdiff_t>(row * 80 * 4));
  down.shape[0] = 80;
  down.data = rows;
  const auto expected = logits(padded);
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4);
}

TEST_F(Load, MissingAndForeignFiles) {
  EXPECT_THROW(Model::load(dir_.file("absent.gguf")), Error);
  EXPECT_THROW(Model::load(dir_.write("text.gguf", "once upon a time")), Error);
  EXPECT_THROW(Model::load(dir_.write("empty.gguf", "")), Error);
}

}  // namespace
}  // namespace narrows
