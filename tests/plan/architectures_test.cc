// The methods on every architecture: what each gives at the limits where it must be exact, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "formats/temp_dir.h"
#include "lowrank/compress.h"
#include "model/loaded_model.h"
#include "model/logits.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"
#include "subspace/apply_gsi.h"
#include "subspace/calibrate.h"

namespace narrows {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> folders() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(std::string(NARROWS_TEST_DATA) + "/hf"))
    if (entry.is_directory()) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

class Architecture : public testing::TestWithParam<std::string> {
 protected:
  static constexpr std::int64_t kContext = 64;  // positions that every tiny model has

  std::string path() const { return std::string(NARROWS_TEST_DATA) + "/hf/" + GetParam(); }
  std::shared_ptr<Model> load() const { return Model::load(path(), {.threads = 2}); }
  std::vector<TokenId> ids() const {
    std::vector<TokenId> ids = load()->tokenize(some_text(40));
    ids.resize(60);
    return ids;
  }
  static std::vector<float> logits(const std::shared_ptr<Model>& model, std::span<const TokenId> ids, std::size_t piece,
                                   std::optional<KvCompression> compression = {}) {
    Session session(model, {.context = kContext, .kv_type = KvType::F32, .compression = compression});
    return logits_in_pieces(session, ids, piece);
  }
  const ModelSpec& spec(const std::shared_ptr<Model>& model) const { return loaded(*model).spec(); }
  TempDir dir_;
};

TEST_P(Architecture, GatedSubspaceInference) {
  const auto dense = load();
  CalibrateOptions options;
  options.window = 64;
  options.max_tokens = 1280;  // an expert sees a part of them
  const std::string file = dir_.file("basis.gguf");
  calibrate(*load(), some_text(600), options, file);
  const std::vector<float> expected = logits(dense, ids(), 60);
  const auto with = [&](const GsiOptions& gsi) {
    auto model = load();
    apply_gsi(*model, gsi);
    return model;
  };
  EXPECT_EQ(logits(with({file, 0.0f, 0}), ids(), 60), expected) << "no gate opens: the dense bits";
  // Bases that span everything, stored as F16.
  EXPECT_LT(relative_difference(logits(with({file, 1.0f, 0}), ids(), 60), expected), 2e-2);
  const std::vector<float> half = logits(with({file, 0.3f, 12}), ids(), 60);
  for (const float v : half) ASSERT_TRUE(std::isfinite(v));
  EXPECT_EQ(logits(with({file, 0.3f, 12}), ids(), 1), half) << "the same bits one by one";
}

TEST_P(Architecture, CompressedCache) {
  const auto model = load();
  const KvCompression half{.budget = 0.75, .window = 16, .compress_at = 48};
  const auto& layers = spec(model).layer;
  const auto refuses = [&](const std::string& message) {
    EXPECT_THAT([&] { logits(model, ids(), 60, half); }, ThrowsMessage<Error>(HasSubstr(message)));
  };
  if (spec(model).positions == Positions::Alibi) return refuses("expected a model without ALiBi");
  if (std::ranges::all_of(layers, [](const LayerSpec& l) { return l.window > 0; }))
    return refuses("expected a layer without a sliding window");
  EXPECT_EQ(logits(model, ids(), 60, KvCompression{.budget = 1}), logits(model, ids(), 60)) << "everything kept: the dense bits";
  const std::vector<float> found = logits(model, ids(), 60, half);
  for (const float v : found) ASSERT_TRUE(std::isfinite(v));
  EXPECT_NE(found, logits(model, ids(), 60));
  EXPECT_EQ(logits(model, ids(), 1, half), found) << "the same bits one by one";
}

TEST_P(Architecture, AnalyticalLowRank) {
  const auto model = load();
  CompressOptions options;
  options.window = 64;
  options.max_tokens = 640;
  options.type = DType::F32;
  options.allocation = RankAllocation::Uniform;  // mixed ranks take many more passes, and are tested elsewhere
  const std::string file = dir_.file("small.gguf");
  const auto make = [&](double qk, double ov, double mlp) {
    options.qk = qk, options.ov = ov, options.mlp = mlp;
    return compress(path(), some_text(600), options, file);
  };
  if (spec(model).layer.back().experts > 0) {
    options.portable = true;
    EXPECT_THAT([&] { make(0.25, 0.25, 0.25); }, ThrowsMessage<Error>(HasSubstr("mixtures of experts cannot be compressed")));
    options.portable = false;
    EXPECT_THAT([&] { make(0.25, 0.25, 0.25); }, ThrowsMessage<Error>(HasSubstr("mixtures of experts cannot be compressed")));
    return;
  }
  if (spec(model).qkv_clamp > 0) {
    EXPECT_THAT([&] { make(0.25, 0.25, 0.25); }, ThrowsMessage<Error>(HasSubstr("are cut off at")));
    return;
  }
  const bool fixed = GetParam() == "olmo2" || GetParam() == "stablelm-parallel";
  if (fixed) {
    EXPECT_THAT([&] { make(0.25, 0.25, 0.25); }, ThrowsMessage<Error>(HasSubstr("(--qk 0)")));
  }
  if (spec(model).positions == Positions::Learned) {
    options.window = 512;
    EXPECT_THAT([&] { make(0.25, 0.25, 0.25); }, ThrowsMessage<Error>(HasSubstr("positions that the model has learned")));
    options.window = 64;
  }
  const std::vector<float> expected = logits(model, ids(), 60);
  options.refit.reset();
  options.correct = false;
  make(0, 0, 0);
  EXPECT_LT(relative_difference(logits(Model::load(file), ids(), 60), expected), 1e-3) << "full rank: the dense model";
  const CompressionReport report = [&] {
    options.refit = 1e-3;
    options.correct = true;
    return make(fixed ? 0 : 0.25, 0.25, 0.25);
  }();
  EXPECT_LT(report.parameters, report.parameters_before * 9 / 10);
  const auto small = Model::load(file);
  const std::vector<float> found = logits(small, ids(), 60);
  for (const float v : found) ASSERT_TRUE(std::isfinite(v));
  EXPECT_EQ(logits(small, ids(), 1), found) << "the same bits one by one";
  EXPECT_LT(small->weight_bytes_per_token(), Model::load(file)->weight_bytes_per_token() + 1);
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, Architecture, testing::ValuesIn(folders()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace narrows
