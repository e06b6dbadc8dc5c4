// A3 of whole models: the file that comes out, and how it runs.
#include "lowrank/compress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "formats/temp_dir.h"
#include "lowrank/compress_linear.h"
#include "model/load.h"
#include "model/logits.h"
#include "model/model_file.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const char* const kModels[] = {"llama-gqa", "llama-bias", "qwen2", "gemma3", "llama-yarn", "llama3-tied"};

std::vector<float> logits(const std::string& path, std::size_t piece, KvType kv = KvType::F16) {
  const auto model = Model::load(path, {.threads = 1});
  const std::vector<TokenId> ids = model->tokenize(some_text(60));
  Session session(model, {.context = 1024, .kv_type = kv});
  return logits_in_pieces(session, ids, piece);
}

std::string bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

CompressOptions shares(double qk, double ov, double mlp, DType type = DType::F16) {
  CompressOptions options;
  options.allocation = RankAllocation::Uniform;
  options.qk = qk;
  options.ov = ov;
  options.mlp = mlp;
  options.type = type;
  options.window = 64;
  options.max_tokens = 1000;
  options.threads = 1;
  return options;
}

class Compress : public testing::Test {
 protected:
  std::string compressed(const std::string& in, const CompressOptions& options,
                         CompressionReport* report = nullptr) {
    const std::string path = dir_.file("out.gguf");
    CompressionReport result = compress(in, some_text(400), options, path);
    if (report) *report = std::move(result);
    return path;
  }
  TempDir dir_;
};

// An f16 cache would round values in their new basis differently.
double error_at_full_ranks(const std::string& in, const std::string& out) {
  return relative_difference(logits(out, 1000, KvType::F32), logits(in, 1000, KvType::F32));
}

TEST_F(Compress, FullRanksKeepTheLogits) {
  for (const char* name : kModels)
    for (const bool correct : {false, true}) {
      CompressOptions options = shares(0, 0, 0, DType::F32);
      options.correct = correct;
      EXPECT_LT(error_at_full_ranks(tiny(name), compressed(tiny(name), options)), correct ? 2e-3 : 5e-5)
          << name;
    }
}

TEST_F(Compress, OneTokenAtATimeGivesTheBitsOfAPrompt) {
  for (const char* name : kModels) {
    const std::string path = compressed(tiny(name), shares(0.3, 0.4, 0.35));
    for (const KvType kv : {KvType::F16, KvType::F32, KvType::Q8_0}) {
      const std::vector<float> whole = logits(path, 1000, kv);
      EXPECT_EQ(logits(path, 1, kv), whole) << name;
      EXPECT_EQ(logits(path, 7, kv), whole) << name;
    }
  }
}

TEST_F(Compress, SizesAndLoss) {
  for (const char* name : kModels) {
    CompressionReport report;
    const std::string path = compressed(tiny(name), shares(0.3, 0.3, 0.3), &report);
    const GgufFile before_file = GgufFile::open(tiny(name)), file = GgufFile::open(path);
    const ModelSpec before = load_spec(before_file), spec = load_spec(file);
    EXPECT_LE(report.parameters, 0.7 * static_cast<double>(report.parameters_before) + 200) << name;
    for (std::size_t i = 0; i < spec.layer.size(); ++i) {
      EXPECT_EQ(spec.layer[i].score_scale, before.layer[i].score_scale);
      EXPECT_LE(spec.layer[i].d_qk, 0.7 * before.layer[i].d_qk);
      EXPECT_LE(spec.layer[i].d_vo, 0.7 * before.layer[i].d_vo);
      EXPECT_LE(spec.layer[i].d_inter, 0.7 * before.layer[i].d_inter);
      EXPECT_EQ(spec.layer[i].window, before.layer[i].window);
      EXPECT_GT(report.layers[i].mlp_loss, 0);
      EXPECT_LT(report.layers[i].ov_loss, 1);
    }
    // Everything but the layers' maps is copied.
    for (const GgufTensor& t : before_file.tensors()) {
      if (t.name.starts_with("blk.") && !t.name.ends_with("norm.weight")) continue;
      if (t.name.find("_q_norm") != std::string::npos || t.name.find("_k_norm") != std::string::npos)
        continue;
      const GgufTensor& copy = file.tensor(t.name);
      EXPECT_EQ(copy.dtype, t.dtype);
      EXPECT_TRUE(std::equal(t.data, t.data + t.bytes, copy.data, copy.data + copy.bytes)) << t.name;
    }
    for (const auto& [key, entry] : before_file.metadata()) {
      const bool tokenizer = key.starts_with("tokenizer.");
      EXPECT_TRUE(!tokenizer || file.has(key)) << key;
    }
    EXPECT_LT(relative_difference(logits(path, 1000), logits(tiny(name), 1000)), 1.0) << name;
  }
}

// More left, less lost: what the closed forms keep is the right part.
TEST_F(Compress, ErrorsFallWithTheShare) {
  for (const char* name : {"llama-gqa", "gemma3"}) {
    const std::vector<float> dense = logits(tiny(name), 1000);
    double before = 10;
    for (const double share : {0.5, 0.25, 0.05}) {
      const double error =
          relative_difference(logits(compressed(tiny(name), shares(share, share, share)), 1000), dense);
      EXPECT_LT(error, before) << name << " " << share;
      before = error;
    }
  }
}

TEST_F(Compress, BytesDoNotDependOnThreads) {
  for (const RankAllocation allocation : {RankAllocation::Uniform, RankAllocation::Mixed}) {
    CompressOptions options = shares(0.3, 0.3, 0.3);
    options.allocation = allocation;
    const std::string one = bytes(compressed(tiny("llama-gqa"), options));
    options.threads = 2;
    EXPECT_EQ(bytes(compressed(tiny("llama-gqa"), options)), one);
  }
}

TEST_F(Compress, MixedRanks) {
  for (const char* name : kModels) {
    CompressOptions options = shares(0.3, 0.3, 0.3);
    CompressionReport uniform, mixed;
    compressed(tiny(name), options, &uniform);
    options.allocation = RankAllocation::Mixed;
    const std::string path = compressed(tiny(name), options, &mixed);
    EXPECT_LE(static_cast<double>(mixed.parameters), 0.7 * static_cast<double>(mixed.parameters_before) + 200)
        << name;
    EXPECT_EQ(logits(path, 1), logits(path, 1000)) << name;
    // What is not to be shrunk stays.
    options.qk = 0;
    CompressionReport report;
    compressed(tiny(name), options, &report);
    for (const CompressedLayer& layer : report.layers)
      EXPECT_EQ(layer.d_qk, load_spec(GgufFile::open(tiny(name))).layer[0].d_qk);
  }
}

// An earlier report's ranks give the same file.
TEST_F(Compress, RanksOfAReport) {
  CompressOptions options = shares(0.3, 0.3, 0.3);
  options.allocation = RankAllocation::Mixed;
  CompressionReport report;
  const std::string first = bytes(compressed(tiny("llama-gqa"), options, &report));
  CompressOptions again = shares(0, 0, 0);
  again.ranks = report.layers;
  EXPECT_EQ(bytes(compressed(tiny("llama-gqa"), again)), first);
  const auto refused = [&](const char* what) {
    EXPECT_THAT([&] { compress(tiny("llama-gqa"), some_text(50), again, dir_.file("none.gguf")); },
                ThrowsMessage<Error>(HasSubstr(what)));
  };
  again.ranks[0].d_qk = 3;
  refused("layer 0: d_qk 3");
  again.ranks[0].d_qk = 2;
  again.ranks[1].d_inter = 1 << 20;
  refused("layer 1: d_inter 1048576");
  again.ranks.pop_back();
  refused("ranks of");
}

// Nothing in the file but what llama.cpp knows.
TEST_F(Compress, Portable) {
  for (const char* name : kModels)
    for (const RankAllocation allocation : {RankAllocation::Uniform, RankAllocation::Mixed}) {
      CompressOptions options = shares(0.2, 0.2, 0.2);
      options.portable = true;
      options.allocation = allocation;
      CompressionReport report;
      const std::string path = compressed(tiny(name), options, &report);
      const GgufFile before_file = GgufFile::open(tiny(name)), file = GgufFile::open(path);
      const ModelSpec before = load_spec(before_file), spec = load_spec(file);
      const double most = before.layer[0].d_inter > 32 ? 0.8 : 0.9;  // neurons go in steps of 16
      EXPECT_LE(static_cast<double>(report.parameters), most * static_cast<double>(report.parameters_before) + 200) << name;
      EXPECT_FALSE(file.has(kPairsKey));
      EXPECT_EQ(file.metadata().size(), before_file.metadata().size() + !before_file.has("general.quantization_version"));
      bool equal = true;
      for (std::size_t i = 0; i < spec.layer.size(); ++i) {
        EXPECT_EQ(spec.layer[i].d_qk, before.layer[i].d_qk);
        EXPECT_EQ(spec.layer[i].d_vo, before.layer[i].d_vo);
        EXPECT_EQ(spec.layer[i].score_scale, before.layer[i].score_scale);
        equal &= spec.layer[i].d_inter == spec.layer[0].d_inter;
      }
      EXPECT_EQ(spec.architecture, equal ? before.architecture : "deci") << name;
      EXPECT_TRUE(equal || before.architecture == "llama") << name;
      EXPECT_EQ(logits(path, 1), logits(path, 1000)) << name;
    }
  // Smaller heads: the rotary frequencies are some of the model's own.
  for (const char* name : {"llama-gqa", "llama3-tied"}) {
    CompressOptions options = shares(0.3, 0.3, 0.3);
    options.portable = true;
    options.heads = 0.25;
    const std::string path = compressed(tiny(name), options);
    const GgufFile file = GgufFile::open(path);
    const ModelSpec before = load_spec(GgufFile::open(tiny(name))), spec = load_spec(file);
    EXPECT_FALSE(file.has(kPairsKey));
    ASSERT_EQ(spec.rotaries.size(), 1u);
    EXPECT_EQ(2 * spec.rotaries[0].pairs, spec.layer[0].d_qk);
    for (const LayerSpec& l : spec.layer) {
      EXPECT_EQ(l.d_qk, before.layer[0].d_qk * 3 / 4);
      EXPECT_EQ(l.d_vo, l.d_qk);
      EXPECT_FLOAT_EQ(l.score_scale, 1 / std::sqrt(static_cast<float>(l.d_qk)));  // folded into the queries
    }
    for (const float f : spec.rotaries[0].frequencies)
      EXPECT_TRUE(std::ranges::any_of(before.rotaries[0].frequencies, [&](float g) { return std::abs(f - g) <= 1e-6f * g; }));
    EXPECT_EQ(logits(path, 1), logits(path, 1000)) << name;
    options.heads = 0.02;  // nothing goes
    EXPECT_LT(relative_difference(logits(compressed(tiny(name), options), 1000), logits(tiny(name), 1000)), 1.0);
  }
  CompressOptions options = shares(0.2, 0.2, 0.2);
  options.portable = true;
  options.heads = 0.2;
  for (const char* name : {"gemma3", "qwen2", "llama-yarn"})
    EXPECT_THAT([&] { compress(tiny(name), some_text(50), options, dir_.file("none.gguf")); },
                ThrowsMessage<Error>(HasSubstr("have to stay as they are")));
  options = shares(0.9, 0.9, 0.9);
  options.portable = true;
  EXPECT_THAT([&] { compress(tiny("llama-gqa"), some_text(50), options, dir_.file("none.gguf")); },
              ThrowsMessage<Error>(HasSubstr("of the neurons would have to go")));
}

// Refits that aim at the dense model's stream end nearer to it.
TEST_F(Compress, Correction) {
  CompressOptions options = shares(0.3, 0.3, 0.3);
  CompressionReport corrected, plain;
  compressed(tiny("llama-gqa"), options, &corrected);
  options.correct = false;
  compressed(tiny("llama-gqa"), options, &plain);
  EXPECT_LT(corrected.layers.back().stream_error, 0.9 * plain.layers.back().stream_error);
}

TEST_F(Compress, AgainAndPartialRotary) {
  const std::string once = dir_.file("once.gguf");
  compress(tiny("llama-gqa"), some_text(400), shares(0.2, 0.2, 0.2), once);
  const std::string twice = compressed(once, shares(0.3, 0.3, 0.3));
  EXPECT_LT(load_spec(GgufFile::open(twice)).layer[0].d_qk, load_spec(GgufFile::open(once)).layer[0].d_qk);
  EXPECT_EQ(logits(twice, 1), logits(twice, 1000));
  // The same scale and the same pairs.
  CompressOptions full = shares(0, 0, 0, DType::F32);
  full.correct = false;
  EXPECT_LT(error_at_full_ranks(once, compressed(once, full)), 5e-5);

  const ModelFile partial = random_llama(
      ModelFile::read(tiny("llama-gqa")),
      {.layers = 2, .d = 64, .heads = 4, .kv_heads = 2, .head_dims = 16, .d_inter = 96, .rotary_dims = 8},
      DType::F32, 5);
  const std::string in = dir_.file("partial.gguf");
  partial.write(in);
  EXPECT_LT(error_at_full_ranks(in, compressed(in, full)), 5e-5);
  EXPECT_EQ(logits(compressed(in, shares(0.3, 0.3, 0.3)), 1),
            logits(compressed(in, shares(0.3, 0.3, 0.3)), 1000));
}

TEST_F(Compress, TypesAndRules) {
  for (const NeuronChoice neurons : {NeuronChoice::Down, NeuronChoice::Up, NeuronChoice::Elimination})
    for (const DType type : {DType::Q8_0, DType::Q4_1, DType::BF16}) {
      CompressOptions options = shares(0.2, 0.2, 0.2, type);
      options.neurons = neurons;
      if (neurons == NeuronChoice::Up) options.refit.reset();
      EXPECT_LT(relative_difference(logits(compressed(tiny("llama-bias"), options), 1000),
                                    logits(tiny("llama-bias"), 1000)),
                1.0);
    }
}

TEST_F(Compress, ThinMaps) {
  const std::string path = dir_.file("thin.gguf");
  std::vector<double> errors;
  for (const char* name : {"llama-bias", "gemma3"})
    for (const LinearMethod method : {LinearMethod::Svd, LinearMethod::Asvd, LinearMethod::SvdLlm}) {
      CompressionReport report =
          compress_linear(tiny(name), some_text(400), method, 0.4, shares(0, 0, 0, DType::F32), path);
      EXPECT_LE(static_cast<double>(report.parameters),
                0.6 * static_cast<double>(report.parameters_before) + 200);
      errors.push_back(relative_difference(logits(path, 1000), logits(tiny(name), 1000)));
      EXPECT_LT(errors.back(), 1.5) << name;
      EXPECT_EQ(load_spec(GgufFile::open(path)).layer[0].d_qk,
                load_spec(GgufFile::open(tiny(name))).layer[0].d_qk);
    }
  EXPECT_LT(errors[2], errors[0]);  // what weighs the input loses less than what does not
}

TEST_F(Compress, FewTokens) {
  CompressOptions options = shares(0.3, 0.3, 0.3);
  options.max_tokens = 5;
  CompressionReport report;
  const std::string path = compressed(tiny("llama-gqa"), options, &report);
  EXPECT_TRUE(report.few_tokens);
  EXPECT_GT(report.raised, 0);
  for (const float v : logits(path, 1000)) ASSERT_TRUE(std::isfinite(v));
}

TEST_F(Compress, BadInput) {
  const std::string out = dir_.file("none.gguf"), in = tiny("llama-gqa");
  const auto says = [&](const std::string& model, std::string_view text, const CompressOptions& options,
                        const char* what) {
    EXPECT_THAT([&] { compress(model, text, options, out); }, ThrowsMessage<Error>(HasSubstr(what)));
    EXPECT_FALSE(std::ifstream(out).good());
  };
  says(in, "", shares(0.2, 0.2, 0.2), "no tokens");
  says(in, "some text", shares(1, 0.2, 0.2), "found 1");
  says(in, "some text", shares(0.2, -0.1, 0.2), "found -0.1");
  says(in, "some text", shares(0.2, 0.2, std::numeric_limits<double>::quiet_NaN()), "found nan");
  says(in, "some text", shares(0.2, 0.2, 0.2, DType::IQ4_XS), "can encode");
  says(dir_.file("absent.gguf"), "some text", shares(0.2, 0.2, 0.2), "absent.gguf");
  for (const char* name :
       {"blk.0.attn_k.weight", "blk.1.attn_output.weight", "blk.0.ffn_up.weight", "blk.1.ffn_down.weight"}) {
    ModelFile file = ModelFile::read(in);
    ModelFile::Tensor& t = file.tensor(name);
    ASSERT_EQ(t.dtype, DType::F16);
    reinterpret_cast<std::uint16_t*>(t.data.data())[3] = f32_to_f16(std::numeric_limits<float>::quiet_NaN());
    const std::string broken = dir_.file("broken.gguf");
    file.write(broken);
    says(broken, some_text(50), shares(0.2, 0.2, 0.2), "broken.gguf: layer");
  }
}

}  // namespace
}  // namespace narrows
