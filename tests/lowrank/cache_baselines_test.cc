// Palu and CLOVER against what their papers say that they are.
#include "lowrank/cache_baselines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/temp_dir.h"
#include "lowrank/samples.h"
#include "model/load.h"
#include "model/logits.h"
#include "model/model_file.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const char* const kModels[] = {"llama-gqa", "llama-bias", "qwen2", "gemma3", "llama-yarn"};

CompressOptions options_of(DType type) {
  CompressOptions options;
  options.type = type;
  options.window = 64;
  options.max_tokens = 1000;
  options.threads = 1;
  return options;
}

std::vector<float> logits(const std::string& path, std::size_t piece = 1000) {
  const auto model = Model::load(path, {.threads = 1});
  const std::vector<TokenId> ids = model->tokenize(some_text(60));
  Session session(model, {.context = 1024, .kv_type = KvType::F32});
  return logits_in_pieces(session, ids, piece);
}

std::vector<double> weights(const GgufFile& file, const std::string& name) {
  const GgufTensor& t = file.tensor(name);
  std::vector<float> values(static_cast<std::size_t>(t.shape[0] * t.shape[1]));
  dequantize(t.dtype, t.data, values.data(), std::ssize(values));
  return {values.begin(), values.end()};
}

// Energies of the singular values, falling.
std::vector<double> energies(const std::vector<double>& a, std::int64_t rows) {
  const std::int64_t columns = std::ssize(a) / rows;
  std::vector<double> products(static_cast<std::size_t>(rows * rows));
  symmetric_rank_k(Transpose::No, rows, columns, 1.0, a.data(), columns, 0.0, products.data(), rows);
  return symmetric_eigen(products.data(), rows).values;
}

class CacheBaselines : public testing::Test {
 protected:
  std::string out() const { return dir_.file("out.gguf"); }
  CompressionReport palu(const std::string& in, double share, DType type = DType::F32) {
    return compress_palu(in, some_text(400), share, options_of(type), out());
  }
  CompressionReport clover(const std::string& in, double share, DType type = DType::F32) {
    return compress_clover(in, share, options_of(type), out());
  }
  void expect_copied(const std::string& in, const std::string& part) {
    const GgufFile before = GgufFile::open(in), after = GgufFile::open(out());
    int found = 0;
    for (const GgufTensor& t : before.tensors())
      if (t.name.find(part) != std::string::npos) {
        const GgufTensor& copy = after.tensor(t.name);
        EXPECT_EQ(copy.dtype, t.dtype);
        EXPECT_TRUE(std::equal(t.data, t.data + t.bytes, copy.data, copy.data + copy.bytes)) << t.name;
        ++found;
      }
    EXPECT_GT(found, 0);
  }
  TempDir dir_;
};

TEST(Palu, Groups) {
  EXPECT_THAT(palu_groups(1), ElementsAre(1));
  EXPECT_THAT(palu_groups(3), ElementsAre(3));
  EXPECT_THAT(palu_groups(4), ElementsAre(4));
  EXPECT_THAT(palu_groups(5), ElementsAre(3, 2));
  EXPECT_THAT(palu_groups(8), ElementsAre(4, 4));
  EXPECT_THAT(palu_groups(9), ElementsAre(3, 3, 3));
}

TEST_F(CacheBaselines, NothingRemovedNothingLost) {
  for (const char* name : kModels) {
    const std::vector<float> dense = logits(tiny(name));
    EXPECT_EQ(palu(tiny(name), 0).cache, 1);
    EXPECT_LT(relative_difference(logits(out()), dense), 5e-5) << name;
    EXPECT_EQ(clover(tiny(name), 0).cache, 1);
    EXPECT_LT(relative_difference(logits(out()), dense), 5e-5) << name;
  }
}

TEST_F(CacheBaselines, PaluRanks) {
  for (const char* name : kModels) {
    const CompressionReport report = palu(tiny(name), 0.4);
    const GgufFile file = GgufFile::open(out());
    const LayerSpec layer = load_spec(GgufFile::open(tiny(name))).layer[0];
    EXPECT_LE(report.cache, 0.6);
    EXPECT_GE(report.cache, 0.5);  // of 8 rows 4
    for (const char* map : {"blk.0.attn_k.weight", "blk.1.attn_v.weight"}) {
      const std::vector<double> w = weights(file, map);
      const std::int64_t rows = file.tensor(map).shape[1];
      ASSERT_LE(layer.kv_heads, kPaluHeads);  // one group
      const std::vector<double> energy = energies(w, rows);
      const auto rank = static_cast<std::int64_t>(0.6 * static_cast<double>(rows) + 1e-9);
      EXPECT_GT(energy[static_cast<std::size_t>(rank - 1)], 1e-6 * energy[0]) << name;
      EXPECT_LT(energy[static_cast<std::size_t>(rank)], 1e-9 * energy[0]) << name;
    }
    expect_copied(tiny(name), "ffn_");
    EXPECT_EQ(load_spec(file).layer[0].d_qk, layer.d_qk);
    EXPECT_TRUE(std::isnan(report.layers[0].qk_loss));
  }
}

// Two groups do not mix.
TEST_F(CacheBaselines, PaluOfManyHeads) {
  const ModelFile many = random_llama(
      ModelFile::read(tiny("llama-gqa")),
      {.layers = 2, .d = 64, .heads = 8, .kv_heads = 8, .head_dims = 8, .d_inter = 96, .rotary_dims = 8},
      DType::F32, 7);
  const std::string in = dir_.file("many.gguf");
  many.write(in);
  EXPECT_NEAR(palu(in, 0.5).cache, 0.5, 1e-9);
  const std::vector<double> w = weights(GgufFile::open(out()), "blk.0.attn_k.weight");
  for (const std::size_t half : {0, 1}) {
    const std::size_t size = w.size() / 2;
    const std::vector<double> energy = energies({w.begin() + half * size, w.begin() + (half + 1) * size}, 32);
    EXPECT_GT(energy[15], 1e-6 * energy[0]);
    EXPECT_LT(energy[16], 1e-9 * energy[0]);
  }
}

TEST_F(CacheBaselines, ErrorsFallWithTheShare) {
  for (const char* name : {"llama-gqa", "gemma3"}) {
    const std::vector<float> dense = logits(tiny(name));
    double palu_before = 10, clover_before = 10;
    for (const double share : {0.5, 0.25, 0.1}) {
      palu(tiny(name), share);
      const double of_palu = relative_difference(logits(out()), dense);
      EXPECT_LT(of_palu, palu_before) << name << " " << share;
      palu_before = of_palu;
      const CompressionReport report = clover(tiny(name), share);
      const double of_clover = relative_difference(logits(out()), dense);
      EXPECT_LE(of_clover, clover_before) << name << " " << share;
      clover_before = of_clover;
      EXPECT_LE(report.cache, 1 - share);
    }
  }
}

TEST_F(CacheBaselines, CloverFiles) {
  for (const char* name : kModels) {
    const CompressionReport report = clover(tiny(name), 0.3, DType::F16);
    const ModelSpec before = load_spec(GgufFile::open(tiny(name))), after = load_spec(GgufFile::open(out()));
    for (std::size_t i = 0; i < after.layer.size(); ++i) {
      EXPECT_LE(after.layer[i].d_qk, 0.7 * before.layer[i].d_qk);
      EXPECT_LE(after.layer[i].d_vo, 0.7 * before.layer[i].d_vo);
      EXPECT_EQ(after.layer[i].d_inter, before.layer[i].d_inter);
      EXPECT_EQ(after.layer[i].score_scale, before.layer[i].score_scale);
      EXPECT_GT(report.layers[i].qk_loss, 0);
      EXPECT_EQ(report.layers[i].mlp_loss, 0);
    }
    EXPECT_LT(report.parameters, report.parameters_before);
    EXPECT_LT(report.file_bytes, GgufFile::open(tiny(name)).file_bytes() + 4096);
    expect_copied(tiny(name), "ffn_");
    EXPECT_EQ(logits(out(), 1), logits(out())) << name;
  }
}

// Each head's W_o W_v becomes its best approximation of that rank.
TEST_F(CacheBaselines, CloverIsTheSvdOfMergedMaps) {
  constexpr std::int64_t kD = 64, kHeads = 4, kOld = 16;
  const ModelFile heads = random_llama(ModelFile::read(tiny("llama-gqa")),
                                       {.layers = 2,
                                        .d = kD,
                                        .heads = kHeads,
                                        .kv_heads = kHeads,
                                        .head_dims = kOld,
                                        .d_inter = 96,
                                        .rotary_dims = kOld},
                                       DType::F32, 9);
  const std::string in = dir_.file("heads.gguf");
  heads.write(in);
  const CompressionReport report = clover(in, 0.5);
  const GgufFile before = GgufFile::open(in), after = GgufFile::open(out());
  const auto merged = [&](const GgufFile& file, std::int64_t head, std::int64_t dims) {
    const std::vector<double> v = weights(file, "blk.0.attn_v.weight"),
                              o = weights(file, "blk.0.attn_output.weight");
    std::vector<double> product(kD * kD);
    gemm(Transpose::No, Transpose::No, kD, kD, dims, 1.0, &o[head * dims], kHeads * dims,
         &v[head * dims * kD], kD, 0.0, product.data(), kD);
    return product;
  };
  double whole = 0, lost = 0;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const std::vector<double> old = merged(before, h, kOld), now = merged(after, h, kOld / 2),
                              energy = energies(old, kD);
    double error = 0, tail = 0;
    for (std::size_t i = 0; i < old.size(); ++i) error += (old[i] - now[i]) * (old[i] - now[i]);
    for (std::size_t i = 0; i < energy.size(); ++i) {
      whole += energy[i];
      if (i >= kOld / 2) tail += energy[i];
    }
    EXPECT_NEAR(error, tail, 1e-4 * tail);
    lost += tail;
  }
  EXPECT_NEAR(report.layers[0].ov_loss, lost / whole, 1e-5);
}

// The pairs with the largest products of their rows' norms.
TEST_F(CacheBaselines, CloverKeepsTheLargestPairs) {
  ModelFile file = ModelFile::read(tiny("llama-gqa"));
  const LayerSpec layer = load_spec(GgufFile::open(tiny("llama-gqa"))).layer[0];
  ModelFile::Tensor& k = file.tensor("blk.0.attn_k.weight");
  ASSERT_EQ(k.dtype, DType::F16);
  // llama's pairs are adjacent rows: pair 1 of KV head 0 is next to nothing.
  auto* rows = reinterpret_cast<std::uint16_t*>(k.data.data());
  const std::int64_t columns = k.shape[0];
  for (std::int64_t i = 2 * columns; i < 4 * columns; ++i) rows[i] = f32_to_f16(f16_to_f32(rows[i]) * 1e-3f);
  const std::string in = dir_.file("in.gguf");
  file.write(in);
  clover(in, 1.0 / (layer.d_qk / 2));
  const GgufArray pairs = GgufFile::open(out()).get_array("narrows.rope.pairs");
  for (int i = 0; i < layer.d_qk / 2 - 1; ++i)
    EXPECT_EQ(pairs.integers[static_cast<std::size_t>(i)], i < 1 ? i : i + 1);
}

TEST_F(CacheBaselines, BadInput) {
  for (const double share : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THAT([&] { palu(tiny("llama-gqa"), share); }, ThrowsMessage<Error>(HasSubstr("share to remove")));
    EXPECT_THAT([&] { clover(tiny("llama-gqa"), share); },
                ThrowsMessage<Error>(HasSubstr("share to remove")));
  }
  EXPECT_THAT([&] { clover(tiny("llama-gqa"), 0.2, DType::IQ4_XS); },
              ThrowsMessage<Error>(HasSubstr("can encode")));
  EXPECT_THAT([&] { compress_palu(tiny("llama-gqa"), "", 0.2, options_of(DType::F16), out()); },
              ThrowsMessage<Error>(HasSubstr("no tokens")));
  ModelFile file = ModelFile::read(tiny("llama-gqa"));
  ModelFile::Tensor& k = file.tensor("blk.1.attn_k.weight");
  reinterpret_cast<std::uint16_t*>(k.data.data())[3] = f32_to_f16(INFINITY);
  const std::string in = dir_.file("broken.gguf");
  file.write(in);
  EXPECT_THAT([&] { palu(in, 0.2); }, ThrowsMessage<Error>(HasSubstr("broken.gguf: layer 1")));
  EXPECT_THAT([&] { clover(in, 0.2); }, ThrowsMessage<Error>(HasSubstr("broken.gguf: layer 1")));
  EXPECT_FALSE(std::ifstream(out()).good());
}

}  // namespace
}  // namespace narrows
