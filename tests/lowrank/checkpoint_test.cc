// Interrupted runs go on and give the bytes of runs that were not; files that are not theirs are refused.
#include "lowrank/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "formats/temp_dir.h"
#include "model/model_file.h"
#include "model/tiny_models.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Interrupted {};

std::string bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

CompressOptions few_tokens() {
  CompressOptions options;
  options.qk = options.ov = options.mlp = 0.3;
  options.allocation = RankAllocation::Uniform;
  options.window = 64;
  options.max_tokens = 200;
  options.threads = 1;
  return options;
}

class Resume : public testing::Test {
 protected:
  CompressionReport run(const std::string& in, CompressOptions options, const std::string& out,
                        bool resume = true) {
    options.resume = resume;
    return compress(in, text_, options, out);
  }
  // Ends as soon as so many layers are kept.
  void interrupt(const std::string& in, CompressOptions options, int layers) {
    options.kept = [layers](int finished, int) {
      if (finished == layers) throw Interrupted();
    };
    EXPECT_THROW(run(in, options, out_), Interrupted);
    EXPECT_TRUE(std::filesystem::exists(partial_));
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  // Goes on, and returns after how many layers.
  int resumed(const std::string& in, CompressOptions options, CompressionReport* report = nullptr) {
    int found = -1;
    options.kept = [&](int finished, int) { found = found < 0 ? finished : found; };
    CompressionReport result = run(in, options, out_);
    if (report) *report = std::move(result);
    EXPECT_FALSE(std::filesystem::exists(partial_));
    return found;
  }

  TempDir dir_;
  std::string text_ = some_text(400), out_ = dir_.file("out.gguf"), partial_ = out_ + ".partial";
};

TEST_F(Resume, GivesTheBytesOfAnUninterruptedRun) {
  for (const char* name : {"llama-gqa", "llama-bias", "gemma3", "llama-yarn"})
    for (const bool mixed : {false, true}) {
      const DType type = mixed ? DType::Q8_0 : DType::F16;
      CompressOptions options = few_tokens();
      options.type = type;
      options.correct = std::string_view(name) != "llama-yarn";
      if (mixed) options.allocation = RankAllocation::Mixed;
      const std::string whole = dir_.file("whole.gguf");
      const CompressionReport expected = run(tiny(name), options, whole, false);
      const int layers = static_cast<int>(expected.layers.size());
      for (int finished = 0; finished <= layers; ++finished) {
        interrupt(tiny(name), options, finished);
        CompressionReport report;
        std::int64_t last = 0, total = 0;
        options.progress = [&](std::int64_t done, std::int64_t all) { last = done, total = all; };
        EXPECT_EQ(resumed(tiny(name), options, &report), finished);
        EXPECT_LE(last, total);
        EXPECT_GT(last, total / 2);
        options.progress = {};
        EXPECT_EQ(bytes(out_), bytes(whole)) << name << " " << finished;
        EXPECT_EQ(report.parameters_before, expected.parameters_before);
        EXPECT_EQ(report.parameters, expected.parameters);
        EXPECT_EQ(report.raised, expected.raised);
        EXPECT_EQ(report.few_tokens, expected.few_tokens);
        EXPECT_EQ(report.cache, expected.cache);
        for (int i = 0; i < layers; ++i) {
          const auto at = static_cast<std::size_t>(i);
          EXPECT_EQ(report.layers[at].d_inter, expected.layers[at].d_inter);
          EXPECT_EQ(report.layers[at].mlp_loss, expected.layers[at].mlp_loss);
          EXPECT_EQ(report.layers[at].stream_error, expected.layers[at].stream_error);
        }
        std::filesystem::remove(out_);
      }
    }
}

TEST_F(Resume, FromTheMiddleOfALayerAndWithOtherThreads) {
  const std::string in = tiny("llama-gqa"), whole = dir_.file("whole.gguf");
  CompressOptions options = few_tokens();
  run(in, options, whole, false);
  int calls = 0;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    if (done == total - 2) throw Interrupted();
    ++calls;
  };
  EXPECT_THROW(run(in, options, out_), Interrupted);
  EXPECT_GT(calls, 0);
  options.progress = {};
  options.threads = 2;
  EXPECT_GT(resumed(in, options), 0);
  EXPECT_EQ(bytes(out_), bytes(whole));
}

TEST_F(Resume, Portable) {
  const std::string in = tiny("llama-gqa"), whole = dir_.file("whole.gguf");
  CompressOptions options = few_tokens();
  options.portable = true;
  options.allocation = RankAllocation::Mixed;
  for (const double heads : {0.0, 0.25}) {
    options.heads = heads;
    run(in, options, whole, false);
    interrupt(in, options, 1);
    EXPECT_EQ(resumed(in, options), 1);
    EXPECT_EQ(bytes(out_), bytes(whole));
    std::filesystem::remove(out_);
  }
}

TEST_F(Resume, WithoutItNothingIsLeft) {
  CompressOptions options = few_tokens();
  options.progress = [](std::int64_t done, std::int64_t total) {
    if (done == total - 1) throw Interrupted();
  };
  EXPECT_THROW(run(tiny("llama-gqa"), options, out_, false), Interrupted);
  EXPECT_TRUE(dir_.empty());
}

TEST_F(Resume, DropsWhatIsIncompleteOrDamaged) {
  const std::string in = tiny("llama-gqa"), whole = dir_.file("whole.gguf");
  const CompressOptions options = few_tokens();
  run(in, options, whole, false);
  interrupt(in, options, 1);
  const std::string one = bytes(partial_);
  std::filesystem::remove(partial_);
  interrupt(in, options, 2);
  const std::string two = bytes(partial_);
  ASSERT_EQ(two.substr(0, one.size()), one);
  std::vector<std::string> damaged;
  for (const std::size_t size :
       {one.size() + 1, one.size() + 15, one.size() + 16, (one.size() + two.size()) / 2, two.size() - 1})
    damaged.push_back(two.substr(0, size));
  for (const std::size_t at : {one.size() + 3, one.size() + 9, one.size() + 40, two.size() - 1}) {
    damaged.push_back(two);
    damaged.back()[at] ^= 0x40;
  }
  for (const std::string& file : damaged) {
    dir_.write("out.gguf.partial", file);
    EXPECT_EQ(resumed(in, options), 1);
    EXPECT_EQ(bytes(out_), bytes(whole));
  }
  dir_.write("out.gguf.partial", two);
  EXPECT_EQ(resumed(in, options), 2);
}

TEST_F(Resume, RefusesWhatIsOfAnotherRun) {
  const std::string in = dir_.file("model.gguf");
  std::filesystem::copy_file(tiny("llama-gqa"), in);
  const CompressOptions options = few_tokens();
  interrupt(in, options, 1);
  const std::string before = bytes(partial_);
  const auto refused = [&](const std::string& model, const CompressOptions& other, const char* what) {
    EXPECT_THAT([&] { run(model, other, out_); },
                ThrowsMessage<Error>(testing::AllOf(HasSubstr("out.gguf.partial: "), HasSubstr(what))));
    EXPECT_EQ(bytes(partial_), before);
    EXPECT_FALSE(std::filesystem::exists(out_));
  };
  const auto change = [&](auto&& set) {
    CompressOptions other = options;
    set(other);
    return other;
  };
  refused(in, change([](CompressOptions& o) { o.qk = 0.25; }),
          "share of query and key dimensions: 0.3, now 0.25");
  refused(in, change([](CompressOptions& o) { o.ov = 0; }), "share of value dimensions: 0.3, now 0");
  refused(in, change([](CompressOptions& o) { o.mlp = 0.5; }), "share of neurons: 0.3, now 0.5");
  refused(in, change([](CompressOptions& o) { o.allocation = RankAllocation::Mixed; }),
          "--allocate: uniform, now mixed");
  refused(in, change([](CompressOptions& o) { o.type = DType::Q8_0; }), "--type: F16, now Q8_0");
  refused(in, change([](CompressOptions& o) { o.neurons = NeuronChoice::Up; }), "--neurons: down, now up");
  refused(in, change([](CompressOptions& o) { o.refit.reset(); }), "--refit: 0.001, now off");
  refused(in, change([](CompressOptions& o) { o.correct = false; }), "--no-correction: no, now yes");
  refused(in, change([](CompressOptions& o) { o.output_ridge = 1; }), "--output-ridge: 0.01, now 1");
  refused(in, change([](CompressOptions& o) { o.window = 32; }), "--ctx-size: 64, now 32");
  refused(in, change([](CompressOptions& o) { o.max_tokens = 0; }), "--max-tokens: 200, now 0");
  refused(in, change([](CompressOptions& o) {
            o.ranks = {{8, 8, 16, 0, 0, 0, 0}, {8, 8, 16, 0, 0, 0, 0}};
          }),
          "--ranks");
  refused(in, change([](CompressOptions& o) { o.portable = true; }), "--portable: no, now yes");
  refused(in, change([](CompressOptions& o) { o.heads = 0.5; }), "share of portable heads: 0, now 0.5");
  refused(tiny("llama-bias"), options, "another model");
  text_ += " more";
  refused(in, options, "another text");
  text_ = some_text(400);
  // Metadata decide what the weights do.
  ModelFile file = ModelFile::read(in);
  file.set("llama.rope.freq_base", 500.0);
  file.write(in);
  refused(in, options, "another model");
  std::filesystem::copy_file(tiny("llama-gqa"), in, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(resumed(in, options), 1);
}

TEST_F(Resume, RefusesOtherFiles) {
  const std::string in = tiny("llama-gqa");
  const CompressOptions options = few_tokens();
  interrupt(in, options, 1);
  std::string file = bytes(partial_);
  const auto refused = [&](const std::string& content, const char* what) {
    dir_.write("out.gguf.partial", content);
    EXPECT_THAT([&] { run(in, options, out_); },
                ThrowsMessage<Error>(testing::AllOf(HasSubstr("out.gguf.partial: "), HasSubstr(what))));
    EXPECT_EQ(bytes(partial_), content);
  };
  refused("", "empty");
  refused("x", "another file");
  refused(std::string(1000, 'x'), "another file");
  refused(bytes(in), "another file");
  std::string version = file;
  version[8] = 9;
  refused(version, "of version 9, expected 1");
  for (const std::size_t size : {12, 20, 28, 100}) refused(file.substr(0, size), "damaged at its beginning");
  file[60] ^= 1;
  refused(file, "damaged at its beginning");
}

TEST_F(Resume, OneRunAtATime) {
  const std::string in = tiny("llama-gqa");
  const CompressOptions options = few_tokens();
  interrupt(in, options, 1);
  {
    LoadedModel model(in, {.threads = 1});
    const Checkpoint held(partial_, run_settings(model, text_, options));
    ASSERT_TRUE(held.found());
    EXPECT_THAT([&] { run(in, options, out_); }, ThrowsMessage<Error>(HasSubstr("in use by another run")));
  }
  EXPECT_EQ(resumed(in, options), 1);
}

// Records whose checksums are right and whose contents are not.
TEST_F(Resume, HostileRecords) {
  for (const char* name : {"llama-bias", "gemma3"}) {
    const std::string in = tiny(name);
    const CompressOptions options = few_tokens();
    interrupt(in, options, 2);
    const std::string good = bytes(partial_);
    LoadedModel model(in, {.threads = 1});
    const RunSettings settings = run_settings(model, text_, options);
    std::vector<std::size_t> records;  // where they begin
    const auto size_at = [&](const std::string& file, std::size_t at) {
      std::uint64_t size = 0;
      std::memcpy(&size, &file[at], sizeof(size));
      return static_cast<std::size_t>(size);
    };
    for (std::size_t at = 12; at < good.size(); at += 16 + size_at(good, at)) records.push_back(at);
    ASSERT_EQ(records.size(), 3u);
    std::mt19937 random(1);
    int refused = 0;
    const int kTries = 600;
    for (int i = 0; i < kTries; ++i) {
      std::string file = good;
      const std::size_t record = records[random() % 3], size = size_at(file, record);
      // Mostly where sizes stand.
      const std::size_t at = record + 16 + random() % (i % 3 ? std::min<std::size_t>(size, 200) : size);
      static constexpr std::uint64_t kValues[] = {0,          1,          2,          ~0ull, 1ull << 31,
                                                  1ull << 40, 1ull << 62, 1ull << 63, 255};
      if (i % 2)
        file[at] = static_cast<char>(random());
      else
        std::memcpy(&file[at], &kValues[random() % std::size(kValues)],
                    std::min<std::size_t>(8, record + 16 + size - at));
      const std::uint64_t sum = XXH3_64bits(&file[record + 16], size);
      std::memcpy(&file[record + 8], &sum, sizeof(sum));
      dir_.write("hostile.partial", file);
      try {
        Checkpoint checkpoint(dir_.file("hostile.partial"), settings);
        const auto& layers = checkpoint.ranks();
        for (std::size_t l = 0; l < checkpoint.layers().size(); ++l)
          check_finished(model, static_cast<int>(l), layers.at(l), options.type, checkpoint.layers()[l]);
      } catch (const Error& error) {
        ++refused;
      } catch (const std::out_of_range&) {
        ADD_FAILURE() << "more layers than ranks";
      }
    }
    EXPECT_GT(refused, kTries / 3);
    // Ranks that the model cannot have.
    std::string file = good;
    const std::size_t first =
        records[0] + 16 + size_at(file, records[0]) - 12 * static_cast<std::size_t>(model.spec().layers);
    const std::int32_t huge = 1 << 30;
    std::memcpy(&file[first], &huge, sizeof(huge));
    const std::uint64_t sum = XXH3_64bits(&file[records[0] + 16], size_at(file, records[0]));
    std::memcpy(&file[records[0] + 8], &sum, sizeof(sum));
    dir_.write("out.gguf.partial", file);
    EXPECT_THAT([&] { run(in, options, out_); },
                ThrowsMessage<Error>(HasSubstr("d_qk 1073741824: expected 1 to")));
    std::filesystem::remove(partial_);
  }
}

}  // namespace
}  // namespace narrows
