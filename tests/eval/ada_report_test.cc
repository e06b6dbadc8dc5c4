#include "eval/ada_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eval/page_checks.h"
#include "generate/layer_walk.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"
#include "selection/representatives.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class AdaReportTest : public testing::Test {
 protected:
  AdaReportTest() {
    options_.tau = {0.3f, 0.6f};
    options_.tokens = {50, 90};
    options_.windows = 2;
    options_.rounds = 2;
  }
  AdaReport report() { return ada_report(model_, text_, options_); }
  void expect_error(const std::string& what) {
    EXPECT_THAT([&] { report(); }, ThrowsMessage<Error>(HasSubstr(what)));
  }

  std::shared_ptr<Model> model_ = Model::load(tiny("llama-bias"));
  std::string text_ = some_text(150);
  AdaReportOptions options_;
};

TEST_F(AdaReportTest, IsWhatSelectionGives) {
  const AdaReport result = report();
  ASSERT_EQ(result.settings.size(), 4u);
  EXPECT_EQ(result.model, "llama-bias.gguf");
  LoadedModel model(tiny("llama-bias"), {});
  for (const AdaSettingReport& s : result.settings) {
    EXPECT_EQ(s.windows, 2);
    EXPECT_TRUE(s.holds_independent());
    ASSERT_EQ(s.layers.size(), static_cast<std::size_t>(model.spec().layers));
    LayerWalk walk(model, text_, s.tokens, 2 * s.tokens);
    walk.pass_embedding();
    std::vector<TokenRow> inherited[2];
    for (int layer = 0; layer < model.spec().layers; ++layer) {
      double independent = 0, representatives = 0, removed = 0, added = 0;
      std::int64_t operations = 0;
      for (int window = 0; window < 2; ++window) {
        UnitRows x;
        x.assign(walk.stream(window).data(), s.tokens, model.spec().d, model.pool(), "x");
        const Selection all = select_independently(x, selection_threshold(s.tau), model.pool());
        const Selection chosen =
            layer == 0 ? all
                       : select_by_cascade(x, selection_threshold(s.tau), inherited[window], model.pool());
        inherited[window] = chosen.representatives;
        independent += 0.5 * static_cast<double>(all.representatives.size());
        representatives += 0.5 * static_cast<double>(chosen.representatives.size());
        removed += 0.5 * static_cast<double>(chosen.removed);
        added += 0.5 * static_cast<double>(chosen.added);
        operations += chosen.cosines * model.spec().d;
      }
      const AdaLayerReport& l = s.layers[static_cast<std::size_t>(layer)];
      EXPECT_EQ(l.independent, independent);
      EXPECT_EQ(l.representatives, representatives);
      EXPECT_EQ(l.removed, removed);
      EXPECT_EQ(l.added, added);
      EXPECT_EQ(l.operations, operations);
      EXPECT_GE(l.representatives, l.independent);
      if (layer > 0) {
        EXPECT_GT(l.jaccard, 0);
        EXPECT_LE(l.jaccard, 1);
      }
      EXPECT_GT(l.seconds, 0);
      walk.pass_layer(layer);
    }
  }
  // By hand, from the layers.
  const AdaSettingReport& s = result.settings[3];
  double share = 0, all = 0, cascade = 0;
  for (const AdaLayerReport& l : s.layers) {
    share += l.representatives / 90 / static_cast<double>(s.layers.size());
    all += static_cast<double>(l.independent_operations);
    cascade += static_cast<double>(l.operations);
  }
  EXPECT_NEAR(s.share(), share, 1e-12);
  EXPECT_NEAR(s.operation_ratio(), all / cascade, 1e-12);
  EXPECT_NEAR(s.operations_saved(), 1 - cascade / all, 1e-12);
  const auto count = static_cast<double>(s.layers.size());
  EXPECT_NEAR(s.ceiling(), count / (1 + (count - 1) * share), 1e-12);
}

TEST_F(AdaReportTest, IncompleteWindowsAreLeftOut) {
  const auto tokens = static_cast<std::int64_t>(model_->tokenize(text_, {.add_special = false}).size());
  options_.windows = 1000;
  options_.tokens = {50};
  const AdaReport result = report();
  const std::int64_t room = 50 - (model_->adds_bos() ? 1 : 0);
  EXPECT_EQ(result.settings[0].windows, tokens / room);
}

TEST_F(AdaReportTest, Json) {
  const auto json = nlohmann::json::parse(ada_report_json(report()));
  EXPECT_EQ(json["settings"].size(), 4u);
  EXPECT_EQ(json["settings"][1]["tau"], 0.6);
  for (const auto& setting : json["settings"]) {
    for (const char* key : {"tokens", "windows", "independent_share", "share", "operation_ratio",
                            "operations_saved", "time_ratio", "ceiling", "holds_independent"})
      EXPECT_TRUE(setting.contains(key)) << key;
    EXPECT_FALSE(setting["layers"][0].contains("jaccard"));
    EXPECT_TRUE(setting["layers"][1].contains("jaccard"));
  }
}

TEST_F(AdaReportTest, Page) { expect_page(ada_report_html(report())); }

TEST_F(AdaReportTest, Refusals) {
  options_.tau = {0.3f, 0};
  expect_error("0 means that nothing is selected");
  options_.tau = {};
  expect_error("expected some");
  options_.tau = {0.3f};
  options_.tokens = {1};
  expect_error("T: expected at least 2");
  options_.tokens = {100000};
  expect_error("the context it was trained on, found 100000");
  options_.tokens = {100};
  text_ = "few";
  expect_error("expected at least T, 100");
  text_ = "";
  expect_error("no tokens");
}

}  // namespace
}  // namespace narrows
