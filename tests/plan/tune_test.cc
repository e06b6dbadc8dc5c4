// Plans: found, written, read, applied, refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "eval/perplexity.h"
#include "formats/requantize.h"
#include "formats/temp_dir.h"
#include "model/logits.h"
#include "model/model_file.h"
#include "model/tiny_models.h"
#include "narrows/narrows.h"
#include "plan/tuner.h"
#include "subspace/calibrate.h"
#include "subspace/graded_site.h"
#include "subspace/gsi_file.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TuneOptions quick() {
  TuneOptions o;
  o.sensitivity_tokens = 32;
  o.search_tokens = 64;
  o.validation_tokens = 64;
  o.prompt = o.generate = 8;
  o.rounds = 1;
  o.force = true;
  o.rescore = 4;
  return o;
}

class Tune : public testing::Test {
 protected:
  Tune() {
    model_ = dir_.file("q8.gguf");
    LlamaSizes sizes;
    sizes = {.layers = 2, .d = 64, .heads = 4, .kv_heads = 2, .head_dims = 24, .d_inter = 160, .rotary_dims = 16};
    random_llama(ModelFile::read(tiny("llama-gqa")), sizes, DType::F32, 3).write(dir_.file("f32.gguf"));
    RequantizeOptions options;
    options.pure = true;
    requantize(GgufFile::open(dir_.file("f32.gguf")), DType::Q8_0, model_, options);
  }
  TuneResult tuned(const TuneOptions& options) {
    const auto model = Model::load(model_, {.threads = 2}), reference = Model::load(model_, {.threads = 2});
    return tune(model, reference, some_text(150), options);
  }
  TempDir dir_;
  std::string model_;
};

TEST_F(Tune, PlanIsFoundWrittenAndApplied) {
  const TuneResult result = tuned(quick());
  ASSERT_FALSE(result.plan.sites.empty());
  EXPECT_LT(result.plan.measured.weight_bytes_fraction, 1.1);
  for (const SiteSensitivity& s : result.sensitivities) {
    EXPECT_GT(s.rms, 0) << s.site;
    EXPECT_GT(s.sensitivity, 0) << s.site;
  }
  const std::string path = dir_.file("plan.json");
  write_plan(path, result.plan);
  const Plan read = read_plan(path);
  ASSERT_EQ(read.sites.size(), result.plan.sites.size());
  for (std::size_t i = 0; i < read.sites.size(); ++i) {
    EXPECT_EQ(read.sites[i].site, result.plan.sites[i].site);
    EXPECT_EQ(read.sites[i].threshold, result.plan.sites[i].threshold);
    EXPECT_EQ(read.sites[i].rescore, result.plan.sites[i].rescore);
  }

  // The same bits whatever is computed together.
  const auto logits = [&](std::size_t piece) {
    const auto model = Model::load(model_);
    apply_plan(*model, path);
    const auto ids = model->tokenize(some_text(12));
    Session session(model, {.context = 256});
    return logits_in_pieces(session, ids, piece);
  };
  const auto whole = logits(1000);
  EXPECT_EQ(logits(1), whole);
  EXPECT_EQ(logits(7), whole);
}

TEST_F(Tune, CacheIsFoundWrittenAndRead) {
  TuneOptions o = quick();
  o.cache = true;
  o.budget = {TuneBudget::Kind::Kl, 0.5};
  o.prompt = 400;
  o.generate = 80;
  o.search_tokens = o.validation_tokens = 480;
  const auto model = Model::load(model_, {.threads = 2}), reference = Model::load(model_, {.threads = 2});
  const TuneResult result = tune(model, reference, some_text(2000), o);
  ASSERT_GT(result.plan.cache.tau, 0);
  EXPECT_EQ(result.plan.cache.tokens, 480);
  EXPECT_GT(result.plan.cache.bytes_fraction, 0);
  write_plan(dir_.file("plan.json"), result.plan);
  EXPECT_EQ(read_plan(dir_.file("plan.json")).cache.tau, result.plan.cache.tau);
  const auto found = plan_compression(dir_.file("plan.json"));
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, KvCompression{.tau = result.plan.cache.tau});
  o.search_tokens = o.validation_tokens = 100;  // a window at least
  EXPECT_EQ(tune(model, reference, some_text(2000), o).calibration_tokens, 32 + 480);
  const auto unpacked = Model::load(dir_.file("f32.gguf"), {.threads = 2});
  EXPECT_GT(tune(unpacked, unpacked, some_text(2000), o).plan.cache.tau, 0);  // no site can be graded
  o.budget = {TuneBudget::Kind::Bytes, 0.5};
  EXPECT_THAT([&] { tune(model, reference, some_text(2000), o); }, ThrowsMessage<Error>(HasSubstr("expected ppl or kl")));
}

TEST_F(Tune, ModelIsDenseAgain) {
  const auto model = Model::load(model_), reference = Model::load(model_);
  const auto ids = model->tokenize("abc def");
  const auto logits = [&](const std::shared_ptr<Model>& m) {
    Session session(m, {.context = 64});
    const auto row = session.step(ids);
    return std::vector<float>(row.begin(), row.end());
  };
  tune(model, reference, some_text(150), quick());
  EXPECT_EQ(logits(model), logits(reference));
}

TEST_F(Tune, GatesAreConsidered) {
  CalibrateOptions calibration;
  calibration.window = 64;
  calibration.max_tokens = 256;
  const std::string bases = dir_.file("bases.gguf");
  calibrate(*Model::load(model_), some_text(150), calibration, bases);
  TuneOptions options = quick();
  options.bases = bases;
  const TuneResult result = tuned(options);  // on random weights gates may or may not pay: the plan must hold either way
  write_plan(dir_.file("plan.json"), result.plan);
  const auto model = Model::load(model_);
  if (!result.plan.sites.empty()) apply_plan(*model, dir_.file("plan.json"));
}

TEST_F(Tune, HeadIsRotatedWhereBasesAllowIt) {
  CalibrateOptions calibration;
  calibration.window = 64;
  calibration.sites = {"head"};
  calibration.k.fill(64);
  calibration.type = DType::Q8_0;
  const std::string bases = dir_.file("head.gguf");
  calibrate(*Model::load(model_), some_text(150), calibration, bases);
  Plan plan;
  {
    const auto model = Model::load(model_);
    plan.model = GsiFile::open(bases).settings().model;
    plan.bases = bases;
    plan.sites = {{.site = "head", .mode = SiteMode::Graded, .threshold = 1e-9, .rotated = true, .rescore = 4}};
    write_plan(dir_.file("plan.json"), plan);
  }
  const Plan read = read_plan(dir_.file("plan.json"));
  EXPECT_TRUE(read.sites.front().rotated);
  const auto model = Model::load(model_), reference = Model::load(model_);
  apply_plan(*model, dir_.file("plan.json"));
  const Agreement agreement = *evaluate(model, some_text(40), {.context = 64}, reference).agreement;
  EXPECT_LT(agreement.kl_mean, 1e-2);
  // A basis with too few directions.
  calibration.k.fill(32);
  calibrate(*Model::load(model_), some_text(150), calibration, bases);
  EXPECT_THAT([&] { apply_plan(*Model::load(model_), dir_.file("plan.json")); }, ThrowsMessage<Error>(HasSubstr("all 64 directions")));
}

TEST_F(Tune, Errors) {
  TuneOptions options = quick();
  options.budget.limit = 0.9;
  EXPECT_THAT([&] { tuned(options); }, ThrowsMessage<Error>(HasSubstr("above 1")));
  options = quick();
  options.search_tokens = 100000;
  EXPECT_THAT([&] { tuned(options); }, ThrowsMessage<Error>(HasSubstr("expected at least")));
  const auto floats = Model::load(tiny("gemma3"));
  EXPECT_THAT([&] { tune(floats, floats, some_text(150), quick()); }, ThrowsMessage<Error>(HasSubstr("quantize it first")));
}

TEST_F(Tune, PlansThatAreRefused) {
  const auto text = [&](const std::string& json) {
    const std::string path = dir_.file("bad.json");
    std::ofstream(path) << json;
    return path;
  };
  const auto model = Model::load(model_);
  EXPECT_THAT([&] { read_plan(dir_.file("none.json")); }, ThrowsMessage<Error>(HasSubstr("cannot open")));
  EXPECT_THAT([&] { read_plan(text("{")); }, ThrowsMessage<Error>(HasSubstr("not a plan")));
  EXPECT_THAT([&] { read_plan(text("{}")); }, ThrowsMessage<Error>(HasSubstr("not a plan")));
  EXPECT_THAT([&] { read_plan(text("[1]")); }, ThrowsMessage<Error>(HasSubstr("not a plan")));
  EXPECT_THAT([&] { read_plan(text(R"({"narrows_plan": 7})")); }, ThrowsMessage<Error>(HasSubstr("found 7")));
  const std::string head = R"({"narrows_plan": 1, "model": "x", "model_name": "other.gguf", "sites": )";
  EXPECT_THAT([&] { read_plan(text(head + R"({"head": {"mode": "fast"}}})")); }, ThrowsMessage<Error>(HasSubstr("found fast")));
  EXPECT_THAT([&] { read_plan(text(head + R"({"head": {"mode": "graded", "threshold": -1}}})")); }, ThrowsMessage<Error>(HasSubstr("head")));
  for (const char* sites : {"[]}", "7}", R"({"head": []}})", R"({"head": {"mode": "graded"}}})", R"({"head": {"mode": 3}}})",
                            R"({"head": {"mode": "graded", "threshold": "low"}}})",
                            R"({"head": {"mode": "gated", "k": 1.5, "epsilon": 0.1}}})",
                            R"({"head": {"mode": "graded", "threshold": 1, "rescored": 4}}})",
                            R"({}, "measured": 1})", R"({}, "cache": {"tau": 3}})", R"({}, "cache": []})", R"({}, "site": {}})"})
    EXPECT_THAT([&] { read_plan(text(head + sites)); },
                ThrowsMessage<Error>(AllOf(HasSubstr("bad.json: "), Not(HasSubstr("json.exception"))))) << sites;
  EXPECT_THAT([&] { read_plan(dir_.file("")); }, ThrowsMessage<Error>(HasSubstr("found a directory")));
  EXPECT_THAT([&] { apply_plan(*model, text(head + "{}}")); }, ThrowsMessage<Error>(HasSubstr("made for other.gguf")));
}

}  // namespace
}  // namespace narrows
