// The tiny models of tests/data/models, GGUF files, and of tests/data/hf, Hugging Face folders, against the logits and the
// greedy tokens of another implementation (see the READMEs there).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "kernels/dispatch.h"
#include "model/npy.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name;
  fs::path model, golden, logits;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const fs::path data = NARROWS_TEST_DATA;
  for (const auto& entry : fs::directory_iterator(data / "models"))
    if (entry.path().extension() == ".gguf") {
      const std::string stem = entry.path().stem();
      all.push_back({stem, entry.path(), data / "models" / (stem + ".json"), data / "models" / (stem + ".logits.npy")});
    }
  for (const auto& entry : fs::directory_iterator(data / "hf"))
    if (entry.is_directory())
      all.push_back({"hf-" + entry.path().filename().string(), entry.path(), entry.path() / "golden.json",
                     entry.path() / "logits.npy"});
  std::ranges::sort(all, {}, &Case::name);
  return all;
}

// Mean over rows of KL(softmax(expected) ‖ softmax(found)), in nats.
double mean_kl(std::span<const float> expected, std::span<const float> found, std::size_t cols) {
  double total = 0;
  for (std::size_t row = 0; row < expected.size(); row += cols) {
    const auto log_sum = [&](std::span<const float> logits) {
      double sum = 0, largest = *std::max_element(logits.begin(), logits.end());
      for (const float v : logits) sum += std::exp(v - largest);
      return largest + std::log(sum);
    };
    const double log_p = log_sum(expected.subspan(row, cols)), log_q = log_sum(found.subspan(row, cols));
    for (std::size_t i = row; i < row + cols; ++i)
      total += std::exp(expected[i] - log_p) * ((expected[i] - log_p) - (found[i] - log_q));
  }
  return total / (static_cast<double>(expected.size()) / static_cast<double>(cols));
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  Golden() {
    model_ = Model::load(GetParam().model);
    std::ifstream in(GetParam().golden);
    golden_ = nlohmann::json::parse(in);
    ids_ = golden_.at("ids").get<std::vector<TokenId>>();
    greedy_ = golden_.at("greedy").get<std::vector<TokenId>>();
  }
  bool is_deep() const { return GetParam().name == "gemma3-27b"; }
  std::shared_ptr<Model> model_;
  nlohmann::json golden_;
  std::vector<TokenId> ids_, greedy_;
};

// The golden logits are off by up to 5e-5 themselves; the model of 62 layers amplifies every rounding error,
// and gets more room everywhere.
TEST_P(Golden, Logits) {
  const bool deep = is_deep();
  const NpyMatrix golden = read_npy(GetParam().logits);
  ASSERT_EQ(golden.rows, static_cast<std::int64_t>(ids_.size()));
  ASSERT_EQ(golden.cols, model_->vocab_size());
  for (const std::string& target : dispatch_targets()) {
    set_dispatch_target(target);
    Session session(model_, {.kv_type = KvType::F32});
    std::vector<float> logits(golden.values.size());
    session.step_all(ids_, logits);
    double largest = 0;
    for (std::size_t i = 0; i < logits.size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(logits[i]) - golden.values[i]));
    const double kl = mean_kl(golden.values, logits, static_cast<std::size_t>(golden.cols));
    RecordProperty("largest_difference_" + target, fmt::format("{:.2g}", largest));
    RecordProperty("mean_kl_" + target, fmt::format("{:.2g}", kl));
    EXPECT_LE(largest, deep ? 1e-3 : 2e-4) << target;
    EXPECT_LE(std::abs(kl), 1e-9) << target;
  }
  set_dispatch_target("");
}

TEST_P(Golden, LogitsWithSmallCaches) {
  const bool deep = is_deep();
  const NpyMatrix golden = read_npy(GetParam().logits);
  std::vector<float> logits(golden.values.size());
  const auto kl_with = [&](KvType type, const char* property) {
    Session session(model_, {.kv_type = type});
    session.step_all(ids_, logits);
    const double kl = mean_kl(golden.values, logits, static_cast<std::size_t>(golden.cols));
    RecordProperty(property, fmt::format("{:.2g}", kl));
    return kl;
  };
  EXPECT_LE(kl_with(KvType::F16, "mean_kl_f16"), deep ? 1e-3 : 1e-4);
  // A mixture's router is a step function: what is nearly the same may pass another expert.
  const bool mixture = GetParam().name == "hf-mixtral" || GetParam().name.starts_with("hf-qwen3-moe");
  EXPECT_LE(kl_with(KvType::Q8_0, "mean_kl_q8_0"), mixture ? 0.5 : deep ? 1e-1 : 1e-2);
}

TEST_P(Golden, GreedyTokens) {
  Session session(model_, {.kv_type = KvType::F32});
  Sampler sampler({.temperature = 0});
  const GenerateResult result =
      generate(session, ids_, sampler, {.max_tokens = static_cast<std::int64_t>(greedy_.size())});
  EXPECT_EQ(result.tokens, greedy_);
}

// Of a model whose frequencies depend on the context that a session is made for.
TEST_P(Golden, LogitsOfAShortContext) {
  if (!golden_.contains("short_ids")) return;
  const auto ids = golden_.at("short_ids").get<std::vector<TokenId>>();
  const NpyMatrix golden = read_npy(GetParam().model / "short_logits.npy");
  Session session(model_, {.context = 32, .kv_type = KvType::F32});
  std::vector<float> logits(golden.values.size());
  session.step_all(ids, logits);
  for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], golden.values[i], 2e-4) << i;
}

INSTANTIATE_TEST_SUITE_P(TinyModels, Golden, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace narrows
