// Propositions 3 and 4 on random activations and on a model's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <string>

#include "generate/layer_walk.h"
#include "model/tiny_models.h"
#include "selection/activations.h"

namespace narrows {
namespace {

constexpr double kRounding = 1e-5;

// |Δcos(s, t)| ≤ 2 (η_s + η_t), η = ‖Δx‖ / ‖x‖, for all pairs. Returns the largest share of the bound used.
double expect_coherence(std::span<const float> before, std::span<const float> after, std::int64_t d,
                        ThreadPool& pool) {
  const std::int64_t tokens = std::ssize(before) / d;
  UnitRows rows[2];
  rows[0].assign(before.data(), tokens, d, pool, "before");
  rows[1].assign(after.data(), tokens, d, pool, "after");
  std::vector<double> eta(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) {
    double change = 0, whole = 0;
    for (std::size_t i = static_cast<std::size_t>(t * d); i < static_cast<std::size_t>((t + 1) * d); ++i) {
      change += std::pow(static_cast<double>(after[i]) - before[i], 2);
      whole += std::pow(static_cast<double>(before[i]), 2);
    }
    eta[static_cast<std::size_t>(t)] = std::sqrt(change / whole);
  }
  double largest = 0;
  for (std::int64_t s = 0; s < tokens; ++s)
    for (std::int64_t t = 0; t < s; ++t) {
      double cosine[2] = {};
      for (int i = 0; i < 2; ++i)
        for (std::int64_t k = 0; k < d; ++k)
          cosine[i] += static_cast<double>(rows[i].data()[s * rows[i].stride() + k]) *
                       rows[i].data()[t * rows[i].stride() + k];
      const double bound = 2 * (eta[static_cast<std::size_t>(s)] + eta[static_cast<std::size_t>(t)]);
      const double change = std::fabs(cosine[1] - cosine[0]);
      EXPECT_LE(change, bound + kRounding) << s << ", " << t;
      if (bound > 1e-3) largest = std::max(largest, change / bound);
    }
  return largest;
}

TEST(Coherence, OfRandomActivations) {
  ThreadPool pool(2);
  for (const float by : {0.001f, 0.05f, 0.3f, 2.0f}) {
    DriftingTokens made(60, 24, 10, 17);
    const std::vector<float> before = made.x();
    made.drift(by);
    EXPECT_GT(expect_coherence(before, made.x(), 24, pool), 0);
  }
}

std::string some_prose() {
  std::string text;
  for (int i = 0; i < 12; ++i)
    text +=
        "The city lies on the river, and its harbour has been in use since the ninth century. In winter the "
        "ice closes "
        "it for weeks, and goods come by rail from the south; chapter " +
        std::to_string(i * i + 1900) + " tells of " + std::to_string(7 * i) +
        " ships, of their cargo, and of a fire that nobody could explain. ";
  return text;
}

class RealActivations : public testing::TestWithParam<std::string> {};

// Both, layer after layer.
TEST_P(RealActivations, AreCoherentAndMissNoRepresentative) {
  const std::string path =
      std::filesystem::exists(GetParam()) ? GetParam() : std::string(NARROWS_MODELS) + "/" + GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent: run tools/fetch_models.py";
  LoadedModel model(path, {});
  ThreadPool& pool = model.pool();
  const std::int64_t d = model.spec().d, window = 300;
  LayerWalk walk(model, path == GetParam() ? some_text(300) : some_prose(), window, window);
  ASSERT_EQ(walk.window_tokens(0), window);
  walk.pass_embedding();
  std::vector<float> before;
  std::vector<std::vector<TokenRow>> inherited(3);
  for (int layer = 0; layer < model.spec().layers; ++layer) {
    const std::span<const float> x = walk.stream(0);
    if (layer > 0) {
      const auto few = static_cast<std::size_t>(64 * d);
      expect_coherence(std::span(before).first(few), x.first(few), d, pool);
    }
    UnitRows rows;
    rows.assign(x.data(), window, d, pool, "x");
    const PrecedingMaxima maxima = preceding_maxima(rows, pool);
    for (std::size_t i = 0; i < inherited.size(); ++i) {
      const float threshold = selection_threshold(std::array{0.2f, 0.3f, 0.5f}[i]);
      const auto independent = maxima.below(threshold).representatives;
      inherited[i] =
          layer == 0 ? independent : select_by_cascade(rows, threshold, inherited[i], pool).representatives;
      EXPECT_TRUE(
          std::includes(inherited[i].begin(), inherited[i].end(), independent.begin(), independent.end()))
          << "layer " << layer;
    }
    before.assign(x.begin(), x.end());
    walk.pass_layer(layer);
  }
}
std::string name_of(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, RealActivations,
                         testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-Q4_K_M.gguf",
                                         tiny("llama-bias"), tiny("gemma3")),
                         name_of);

}  // namespace
}  // namespace narrows
