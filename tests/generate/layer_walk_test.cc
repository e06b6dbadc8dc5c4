// The windows of a text that a walk takes.
#include "generate/layer_walk.h"

#include <gtest/gtest.h>

#include "model/tiny_models.h"

namespace narrows {
namespace {

// The embeddings of the windows' tokens, one window after another.
std::vector<std::vector<float>> embeddings(LoadedModel& model, const std::string& text, std::int64_t window,
                                           std::int64_t most, WindowChoice which) {
  LayerWalk walk(model, text, window, most, which);
  walk.pass_embedding();
  std::vector<std::vector<float>> found;
  for (std::int64_t w = 0; w < walk.windows(); ++w) found.emplace_back(walk.stream(w).begin(), walk.stream(w).end());
  return found;
}

TEST(LayerWalk, SpreadWindows) {
  for (const char* name : {"llama-gqa", "gemma3"}) {
    LoadedModel model(tiny(name), {.threads = 1, .repack = true});
    const std::string text = some_text(400);
    const auto all = embeddings(model, text, 16, 0, WindowChoice::First);
    const std::size_t whole = all.size() - (all.back().size() < all.front().size());
    ASSERT_GT(whole, 9u);
    const auto spread = embeddings(model, text, 16, 16 * 4 + 5, WindowChoice::Spread);
    ASSERT_EQ(spread.size(), 4u);
    for (std::size_t i = 0; i < spread.size(); ++i) EXPECT_EQ(spread[i], all[i * whole / 4]) << name;
    // Nothing to choose from.
    EXPECT_EQ(embeddings(model, text, 16, 0, WindowChoice::Spread), all);
    EXPECT_EQ(embeddings(model, text, 16, 1 << 20, WindowChoice::Spread), all);
    // Less than a window.
    EXPECT_EQ(embeddings(model, text, 16, 7, WindowChoice::Spread), embeddings(model, text, 16, 7, WindowChoice::First));
  }
}

// What finish() gives from any layer is what the whole model gives.
TEST(LayerWalk, Finish) {
  LoadedModel model(tiny("llama-gqa"), {.threads = 1, .repack = true});
  LayerWalk walk(model, some_text(60), 32, 64);
  walk.pass_embedding();
  const std::vector<std::int64_t> wanted{0, 5, 31};
  std::vector<float> first(wanted.size() * static_cast<std::size_t>(model.spec().vocab)), later = first;
  walk.finish(0, 1, wanted, first.data());
  for (int layer = 0; layer < model.spec().layers; ++layer) {
    walk.pass_layer(layer);
    walk.finish(layer + 1, 1, wanted, later.data());
    EXPECT_EQ(later, first) << layer;
  }
}

}  // namespace
}  // namespace narrows
