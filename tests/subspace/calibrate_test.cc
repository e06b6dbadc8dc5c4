// Calibration of whole models, the file it writes, and models that run with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "formats/temp_dir.h"
#include "model/logits.h"
#include "model/model_file.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"
#include "subspace/apply_gsi.h"
#include "subspace/calibrate.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

CalibrateOptions windows(std::int64_t window, std::int64_t max_tokens) {
  CalibrateOptions options;
  options.window = window;
  options.max_tokens = max_tokens;
  return options;
}

std::vector<float> logits(const std::shared_ptr<Model>& model, std::span<const TokenId> ids, std::size_t piece) {
  Session session(model, {.context = 256});
  return logits_in_pieces(session, ids, piece);
}

class Calibrate : public testing::Test {
 protected:
  std::string calibrated(const std::string& model, const CalibrateOptions& options, CalibrationReport* report = nullptr) {
    const std::string path = dir_.file("basis.gguf");
    const auto loaded = Model::load(model);
    CalibrationReport result = calibrate(*loaded, some_text(150), options, path);
    if (report) *report = std::move(result);
    return path;
  }
  std::shared_ptr<Model> with(const std::string& model, const GsiOptions& options) {
    auto loaded = Model::load(model);
    apply_gsi(*loaded, options);
    return loaded;
  }
  TempDir dir_;
};

TEST_F(Calibrate, EveryArchitectureAndMethod) {
  for (const std::string name : {"llama-gqa", "qwen2", "gemma3", "llama-bias"})
    for (const BasisMethod method : {BasisMethod::Svd, BasisMethod::Cascade}) {
      CalibrationReport report;
      CalibrateOptions options = windows(100, 300);
      options.method = method;
      const std::string path = calibrated(tiny(name), options, &report);
      const auto dense = Model::load(tiny(name));
      const auto ids = dense->tokenize(some_text(12));
      const std::vector<float> expected = logits(dense, ids, 1000);
      EXPECT_EQ(report.tokens, 300);
      // No gate opens: the dense bits.
      EXPECT_EQ(logits(with(tiny(name), {path, 0.0f, 0}), ids, 1000), expected) << name;
      // k = d: svd spans everything.
      if (method == BasisMethod::Svd) {
        const auto model = with(tiny(name), {path, 1.0f, 0});
        EXPECT_LT(relative_difference(logits(model, ids, 1000), expected), 5e-3) << name;
        for (const NamedGate& gate : gated_sites(*model)) {
          EXPECT_EQ(gate.site->k(), gate.site->in());
          EXPECT_EQ(gate.site->counts().fast_fraction(), 1) << gate.name;
        }
      }
      // The same bits whatever is computed together.
      const GsiOptions half{path, 0.3f, 24};
      const std::vector<float> whole = logits(with(tiny(name), half), ids, 1000);
      EXPECT_EQ(logits(with(tiny(name), half), ids, 1), whole) << name;
      EXPECT_EQ(logits(with(tiny(name), half), ids, 7), whole) << name;
    }
}

TEST_F(Calibrate, StaticProjectionIsWorseThanTheGate) {
  const std::string path = calibrated(tiny("llama-gqa"), windows(100, 300));
  const auto dense = Model::load(tiny("llama-gqa"));
  const auto ids = dense->tokenize(some_text(30));
  const std::vector<float> expected = logits(dense, ids, 1000);
  const auto error = [&](float epsilon) {
    return relative_difference(logits(with(tiny("llama-gqa"), {path, epsilon, 16}), ids, 1000), expected);
  };
  EXPECT_GT(error(std::numeric_limits<float>::infinity()), 0.5);
  EXPECT_LT(error(0.05f), 0.05);
}

TEST_F(Calibrate, TypesAndSites) {
  CalibrationReport report;
  CalibrateOptions options = windows(64, 128);
  options.sites = {"qkv", "blk.1.o"};
  options.type = DType::BF16;
  const std::string path = calibrated(tiny("llama-gqa"), options, &report);
  ASSERT_EQ(report.sites.size(), 3u);
  EXPECT_EQ(report.sites[0].name, "blk.0.qkv");
  EXPECT_FALSE(report.sites[0].similarity.has_value());
  EXPECT_TRUE(report.sites[1].similarity.has_value());
  EXPECT_EQ(gated_sites(*with(tiny("llama-gqa"), {path, {}, 0})).size(), 3u);
  options.type = DType::Q8_0;
  EXPECT_THAT([&] { calibrated(tiny("llama-gqa"), options); }, ThrowsMessage<Error>(HasSubstr("expected a multiple of 32")));
  options.sites = {"attn"};
  EXPECT_THAT([&] { calibrated(tiny("llama-gqa"), options); }, ThrowsMessage<Error>(HasSubstr("found attn")));
}

TEST_F(Calibrate, TooLittleText) {
  const auto model = Model::load(tiny("llama-gqa"));
  const std::string path = dir_.file("none.gguf");
  EXPECT_THAT([&] { calibrate(*model, "ab", {}, path); }, ThrowsMessage<Error>(HasSubstr("expected at least k, 48 for blk.0.qkv")));
  EXPECT_THAT([&] { calibrate(*model, "", {}, path); }, ThrowsMessage<Error>(HasSubstr("no tokens")));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Calibrate, ActivationsThatAreNotFinite) {
  ModelFile file = ModelFile::read(tiny("llama-gqa"));
  auto& norm = file.tensor("blk.1.attn_norm.weight");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(norm.data.data(), &nan, sizeof(nan));
  file.write(dir_.file("nan.gguf"));
  const std::string path = dir_.file("none.gguf");
  const auto model = Model::load(dir_.file("nan.gguf"));
  EXPECT_THAT([&] { calibrate(*model, some_text(150), windows(64, 0), path); }, ThrowsMessage<Error>(HasSubstr("blk.1.qkv: ")));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(gated_sites(*model).empty());
  EXPECT_EQ(logits(model, std::vector<TokenId>{5}, 1).size(), static_cast<std::size_t>(model->vocab_size()));  // sites are back
}

TEST_F(Calibrate, AnotherModelOrVersionIsRefused) {
  const std::string path = calibrated(tiny("llama-gqa"), windows(64, 128));
  EXPECT_THAT([&] { with(tiny("llama-bias"), {path, {}, 0}); }, ThrowsMessage<Error>(HasSubstr("made for llama-gqa.gguf")));
  EXPECT_THAT([&] { with(tiny("llama-gqa"), {tiny("llama-gqa"), {}, 0}); }, ThrowsMessage<Error>(HasSubstr("not a file of bases")));
  EXPECT_THAT([&] { with(tiny("llama-gqa"), {path, 0.1f, 1000}); }, ThrowsMessage<Error>(HasSubstr("directions of the file")));
  ModelFile file = ModelFile::read(path);
  file.metadata["narrows.gsi.version"] = {GgufType::U32, std::uint64_t{99}};
  file.write(dir_.file("version.gguf"));
  EXPECT_THAT([&] { with(tiny("llama-gqa"), {dir_.file("version.gguf"), {}, 0}); }, ThrowsMessage<Error>(HasSubstr("expected 1, found 99")));
  file = ModelFile::read(path);
  file.remove("blk.1.down.image.0");
  file.write(dir_.file("missing.gguf"));
  EXPECT_THAT([&] { with(tiny("llama-gqa"), {dir_.file("missing.gguf"), {}, 0}); }, ThrowsMessage<Error>(HasSubstr("blk.1.down")));
}

}  // namespace
}  // namespace narrows
