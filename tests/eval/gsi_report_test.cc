#include "eval/gsi_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "eval/page_checks.h"
#include "eval/perplexity.h"
#include "eval/reference_scores.h"
#include "formats/temp_dir.h"
#include "narrows/narrows.h"
#include "subspace/apply_gsi.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string tiny(const std::string& name) {
  return std::string(NARROWS_TEST_DATA) + "/models/" + name + ".gguf";
}

std::string some_text(int words, unsigned seed) {
  std::string text;
  std::mt19937 random(seed);
  for (int i = 0; i < words; ++i) {
    for (unsigned n = 1 + random() % 6; n > 0; --n) text += static_cast<char>('a' + random() % 26);
    text += ' ';
  }
  return text;
}

// Temporary files go to a directory of the test's own, which must be empty at its end.
class GsiReportTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    ::setenv("TMPDIR", temporary_.file("").c_str(), 1);
    options_.calibration = other_;
    options_.context = 100;
    options_.max_tokens = 220;
    options_.calibration_tokens = 300;
    options_.greedy = 12;
  }
  void TearDown() override {
    EXPECT_TRUE(temporary_.empty());
    EXPECT_TRUE(gated_sites(*model_).empty());
    before_ ? ::setenv("TMPDIR", before_->c_str(), 1) : ::unsetenv("TMPDIR");
  }
  GsiReport report() { return gsi_report(model_, text_, options_); }
  void expect_error(const std::string& what) {
    EXPECT_THAT([&] { report(); }, ThrowsMessage<Error>(HasSubstr(what)));
    EXPECT_TRUE(temporary_.empty());
    EXPECT_TRUE(gated_sites(*model_).empty());
  }

  std::optional<std::string> before_;
  TempDir temporary_, files_;
  std::shared_ptr<Model> model_ = Model::load(tiny("llama-bias"));
  std::string text_ = some_text(150, 1), other_ = some_text(150, 2);
  GsiReportOptions options_;
};

TEST_F(GsiReportTest, EndsOfTheScale) {
  options_.k = {32, 4096};
  options_.epsilon = {0, 1};
  const GsiReport result = report();
  for (const GsiProtocolReport& p : result.protocols) {
    ASSERT_EQ(p.settings.size(), 5u);
    // No gate opens: the dense bits, at the dense cost.
    for (const std::size_t i : {0u, 2u}) {
      const GsiSettingReport& s = p.settings[i];
      EXPECT_EQ(s.perplexity_ratio, 1);
      EXPECT_EQ(s.top1_agreement, 1);
      EXPECT_NEAR(s.kl_at_least, 0, 1e-12);
      EXPECT_EQ(s.greedy_equal, 12);
      EXPECT_EQ(s.fast_fraction, 0);
      EXPECT_EQ(s.plain_fast_fraction, 0);
      EXPECT_EQ(s.reads.bytes_fraction(), 1);
      EXPECT_EQ(s.reads.honest_speedup(), 1);
      EXPECT_EQ(s.reads.paper_speedup(), 1);
      EXPECT_EQ(s.reads.bytes, static_cast<double>(model_->weight_bytes_per_token()));
    }
    // Bases that span everything: the dense model but for rounding, and more to read than W.
    const GsiSettingReport& whole = p.settings[3];
    EXPECT_NEAR(whole.perplexity_ratio, 1, 2e-3);
    EXPECT_LT(whole.kl_at_least, 1e-3);
    EXPECT_EQ(whole.fast_fraction, 1);
    EXPECT_EQ(whole.plain_fast_fraction, 1);
    EXPECT_NEAR(whole.reads.paper_speedup(), 1, 1e-12);
    for (const GsiSiteReport& s : whole.sites) {
      EXPECT_EQ(s.k, s.d);
      EXPECT_LT(s.counts.quantile(0.95), 1e-2) << s.name;
      EXPECT_EQ(s.reads.elements, s.reads.dense_elements + static_cast<double>(s.d * s.d)) << s.name;
    }
    // No gate at all: worse, and everything on the fast path.
    const GsiSettingReport& none = p.settings[4];
    EXPECT_TRUE(none.is_static());
    EXPECT_EQ(none.k, loaded(*model_).spec().d / 4);
    EXPECT_EQ(none.fast_fraction, 1);
    EXPECT_GT(none.kl_at_least, 10 * whole.kl_at_least);
    EXPECT_LT(none.top1_agreement, 1);
  }
  EXPECT_EQ(result.protocols[0].evaluated_tokens, 100);
  EXPECT_EQ(result.protocols[0].calibration_tokens, 100);
  EXPECT_EQ(result.protocols[1].evaluated_tokens, 220);
  EXPECT_EQ(result.protocols[1].calibration_tokens, 300);
}

// What is counted, from each site's fast fraction by hand, and what `eval` says of the same setting.
TEST_F(GsiReportTest, Counting) {
  options_.k = {16, 32};
  options_.epsilon = {0.1f, 0.3f, 0.5f};
  CalibrateOptions calibration;
  calibration.window = 100;
  calibration.max_tokens = 300;
  calibration.type = DType::F32;
  const std::string path = files_.file("basis.gguf");
  calibrate(*model_, other_, calibration, path);
  options_.calibration = {};
  options_.gsi_path = path;
  const GsiReport result = report();
  EXPECT_EQ(result.site_setting, 4u);  // k 32, ε 0.3
  const auto& settings = result.protocols[1].settings;
  for (std::size_t i = 0; i + 1 < settings.size(); ++i) {
    const GsiSettingReport& s = settings[i];
    double dense = 0, read = 0, dense_parameters = 0, parameters = 0, bytes = 0, dense_bytes = 0, fast = 0,
           plain = 0;
    for (const GsiSiteReport& site : s.sites) {
      const double h = site.fast_fraction(), d = static_cast<double>(site.d),
                   out = static_cast<double>(site.d_out);
      const double k = std::min(static_cast<double>(s.k), d);
      EXPECT_EQ(static_cast<double>(site.k), k);
      EXPECT_EQ(site.counts.tokens(), 220);
      EXPECT_DOUBLE_EQ(site.reads.paper_speedup(), d * out / (h * k * out + (1 - h) * d * out));
      // F32 bases and images beside the file's own weights; biases in F32 on both paths.
      const double biases = site.reads.dense_elements - d * out;
      EXPECT_GE(biases, 0);
      EXPECT_NEAR(site.reads.bytes, 4 * k * d + h * 4 * (k * out + biases) + (1 - h) * site.reads.dense_bytes,
                  1);
      dense += d * out;
      read += h * k * out + (1 - h) * d * out;
      dense_parameters += site.reads.dense_elements;
      parameters += k * d + h * k * out + (1 - h) * d * out + biases;
      bytes += site.reads.bytes;
      dense_bytes += site.reads.dense_bytes;
      fast += h * site.reads.dense_bytes;
      plain += h;
    }
    const auto row = static_cast<double>(loaded(*model_).spec().d);  // of the embedding
    EXPECT_NEAR(s.reads.paper_speedup(), dense / read, 1e-12);
    EXPECT_NEAR(s.reads.dense_elements, dense_parameters + row, 1e-6);
    EXPECT_NEAR(s.reads.elements, parameters + row, 1e-6);
    EXPECT_NEAR(s.fast_fraction, fast / dense_bytes, 1e-12);
    EXPECT_NEAR(s.plain_fast_fraction, plain / static_cast<double>(s.sites.size()), 1e-12);
    EXPECT_GT(s.reads.bytes, bytes);

    const auto gated = Model::load(tiny("llama-bias"));
    apply_gsi(*gated, {path, s.epsilon, s.k});
    const EvalResult by_eval = evaluate(gated, text_, {.context = 100, .max_tokens = 220}, model_);
    EXPECT_EQ(s.perplexity, by_eval.perplexity);
    EXPECT_EQ(s.perplexity_ratio, by_eval.agreement->perplexity_ratio);
    EXPECT_EQ(s.top1_agreement, by_eval.agreement->top1_agreement);
    EXPECT_NEAR(s.reads.bytes_fraction(), by_eval.agreement->weight_bytes_fraction, 1e-12);
    EXPECT_LE(s.kl_at_least, by_eval.agreement->kl_mean + 1e-6);
    if (model_->vocab_size() <= static_cast<int>(ReferenceScores::kKeptTokens)) {
      EXPECT_NEAR(s.kl_at_least, by_eval.agreement->kl_mean, 1e-6);
    }
  }
  EXPECT_GT(settings[2].fast_fraction, 0);  // the widest gate lets some through
  EXPECT_GE(settings[2].fast_fraction, settings[0].fast_fraction);
}

TEST_F(GsiReportTest, Json) {
  options_.k = {16, 32};
  options_.epsilon = {0.1f, 0.5f};
  const auto json = nlohmann::json::parse(gsi_report_json(report()));
  EXPECT_EQ(json["model"], "llama-bias.gguf");
  EXPECT_EQ(json["site_k"], 32);
  EXPECT_EQ(json["site_epsilon"], 0.5);
  for (const char* name : {"paper", "held-out"}) {
    const auto& protocol = json["protocols"][name];
    for (const char* key :
         {"meaning", "calibration_tokens", "evaluated_tokens", "scored_tokens", "dense_perplexity"})
      EXPECT_TRUE(protocol.contains(key)) << key;
    ASSERT_EQ(protocol["settings"].size(), 5u);
    for (const auto& setting : protocol["settings"])
      for (const char* key :
           {"k", "epsilon", "static", "fast_fraction", "plain_fast_fraction", "paper_speedup",
            "honest_speedup", "bytes_fraction", "bytes", "effective_parameters", "perplexity_ratio",
            "top1_agreement", "kl_at_least", "greedy_equal_tokens", "greedy_same", "site_fast_fractions"})
        EXPECT_TRUE(setting.contains(key)) << key;
    EXPECT_EQ(protocol["settings"][0]["epsilon"], 0.1);
    EXPECT_TRUE(protocol["settings"][4]["epsilon"].is_null());
    EXPECT_EQ(protocol["settings"][4]["static"], true);
    for (const auto& site : protocol["sites"]) {
      for (const char* key : {"site", "kind", "layer", "k", "fast_fraction", "paper_speedup",
                              "honest_speedup", "bytes", "effective_parameters"})
        EXPECT_TRUE(site.contains(key)) << key;
      ASSERT_EQ(site["rho_quantiles"].size(), 5u);
      std::int64_t tokens = 0;
      for (const auto& bin : site["rho_histogram"]) tokens += bin["tokens"].get<std::int64_t>();
      EXPECT_EQ(tokens, protocol["evaluated_tokens"]);
    }
    EXPECT_EQ(protocol["sites"].back()["site"], "head");
  }
}

TEST_F(GsiReportTest, Page) {
  options_.k = {16};
  options_.epsilon = {0, 0.5f};
  expect_page(gsi_report_html(report()));
}

TEST_F(GsiReportTest, Refusals) {
  options_.k = {16};
  const std::string longer = other_ + text_;
  options_.calibration = longer;
  expect_error("holds the beginning of the held-out text");
  options_.calibration = {};
  expect_error("expected either a file of bases or a calibration text");
  options_.calibration = "short";
  expect_error("expected at least k, 16");
  options_.calibration = other_;
  options_.site_k = 32;
  expect_error("expected one of those evaluated, found 32");
  options_.site_k = 0;
  options_.k = {};
  options_.context = 40;
  expect_error("expected some");
  options_.k = {41};
  expect_error("expected at most the 40 tokens of a window");
  options_.k = {20};
  options_.type = DType::Q8_0;
  expect_error("expected a multiple of 32");
  options_.type = DType::F16;
  text_ = "a few words";
  expect_error("expected at least a window of 40");
  text_ = "";
  expect_error("the text has 0 tokens");
}

TEST_F(GsiReportTest, BasesOfTheTextItselfAreRefused) {
  CalibrateOptions calibration;
  calibration.window = 100;
  calibration.k.fill(16);
  options_.gsi_path = files_.file("basis.gguf");
  calibrate(*model_, text_, calibration, options_.gsi_path);
  options_.calibration = {};
  options_.k = {16};
  expect_error("made from the held-out text itself");
  calibrate(*model_, other_, calibration, options_.gsi_path);
  options_.k = {16, 24};
  expect_error("expected at most the 16 directions of the file, found 24");
}

TEST(ReferenceScores, BoundsTheDivergenceFromBelow) {
  const auto model = Model::load(tiny("llama-gqa")), other = Model::load(tiny("llama-gqa"));
  const std::string text = some_text(60, 4);
  TempDir dir;
  CalibrateOptions calibration;
  calibration.k.fill(16);
  calibrate(*other, some_text(150, 5), calibration, dir.file("basis.gguf"));
  apply_gsi(*other, {dir.file("basis.gguf"), std::numeric_limits<float>::infinity(), 0});
  const ReferenceScores reference(model, window_tokens(*model, text, {.context = 50}));
  const EvalResult expected = evaluate(other, text, {.context = 50}, model);
  const Comparison found = reference.compare(other);
  EXPECT_EQ(reference.scored(), expected.tokens);
  EXPECT_EQ(reference.perplexity(), expected.agreement->reference_perplexity);
  EXPECT_EQ(found.perplexity_ratio, expected.agreement->perplexity_ratio);
  EXPECT_EQ(found.top1_agreement, expected.agreement->top1_agreement);
  EXPECT_GT(found.kl_at_least, 0);
  EXPECT_LE(found.kl_at_least, expected.agreement->kl_mean * (1 + 1e-6));
  EXPECT_EQ(reference.compare(model).perplexity_ratio, 1);
  EXPECT_NEAR(reference.compare(model).kl_at_least, 0, 1e-12);
}

}  // namespace
}  // namespace narrows
