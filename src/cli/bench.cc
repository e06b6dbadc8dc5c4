// narrows bench: tokens per second of prompts and of generation.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/bandwidth.h"
#include "base/error.h"
#include "base/measure.h"
#include "base/progress.h"
#include "cli/common.h"

namespace narrows::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct BenchOptions {
  ModelOptions model;
  CacheOptions cache;
  CompressionOptions compression;
  std::vector<std::int64_t> prompts{512}, depths{0}, parallel{1};
  std::int64_t generate = 128;
  int repetitions = 5;
  bool profile = false;
  std::string file, output = "md";
};

// One row of the result.
struct Test {
  std::int64_t prompt = 0, generate = 0, depth = 0, parallel = 1;
  double kv_bytes = 0;         // memory of the caches at the end
  double bytes_per_token = 0;  // weights and cache that a step reads, over its tokens
  std::vector<double> seconds;
  std::vector<OperationCost> costs;  // of all repetitions, with --profile

  std::int64_t tokens() const { return prompt + generate * parallel; }
  // Forward passes of all repetitions.
  double steps() const {
    return (generate > 0 ? static_cast<double>(generate) : 1) * static_cast<double>(seconds.size());
  }
  double mean(auto&& value) const {
    double sum = 0;
    for (const double s : seconds) sum += value(s);
    return sum / static_cast<double>(seconds.size());
  }
  double deviation(auto&& value) const {
    if (seconds.size() < 2) return 0;
    const double m = mean(value);
    return std::sqrt(mean([&](double s) { return (value(s) - m) * (value(s) - m); }) *
                     static_cast<double>(seconds.size()) / static_cast<double>(seconds.size() - 1));
  }
  double rate(double s) const { return static_cast<double>(tokens()) / s; }
  double mean_rate() const {
    return mean([&](double s) { return rate(s); });
  }
  std::string name() const {
    std::string what = generate > 0 ? fmt::format("tg{}", generate) : fmt::format("pp{}", prompt);
    if (parallel > 1) what += fmt::format(" × {}", parallel);
    return depth > 0 ? fmt::format("{} @ d{}", what, depth) : what;
  }
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : o_(options),
        kv_type_(o_.cache.kv_type()),
        compression_(o_.compression.compression(o_.model)),
        model_(o_.model.load()) {
    needed_ = std::max(*std::ranges::max_element(o_.prompts), *std::ranges::max_element(o_.depths) + o_.generate + 1);
    warn_uncompressed(model_, kv_type_, compression_, needed_);
    if (o_.file.empty()) {
      // Any ids will do where the time does not depend on them; these are the same on every machine.
      const std::int64_t range = std::min<std::int64_t>(model_->vocab_size(), 30000);
      for (std::int64_t i = 0; i < needed_; ++i)
        text_.push_back(static_cast<TokenId>((i * 7919 + 13) % range));
    } else {
      text_ = model_->tokenize(read_file(o_.file), {.add_special = true, .parse_special = false});
      if (std::ssize(text_) < needed_)
        fail("{}: {} tokens, expected at least {}", o_.file, text_.size(), needed_);
    }
  }

  std::vector<Test> run() {
    const std::int64_t tests =
        std::ranges::count_if(o_.prompts, [](std::int64_t n) { return n > 0; }) +
        (o_.generate > 0 ? std::ssize(o_.depths) * std::ssize(o_.parallel) : 0);
    Progress progress("bench", tests * o_.repetitions);
    add_sessions(1);
    sessions_[0].step(part(0, std::min<std::int64_t>(std::ssize(text_), 16)));  // pages in, threads up
    std::int64_t done = 0;
    std::vector<Test> results;
    const auto repeat = [&](Test& test, auto&& prepare, auto&& work) {
      for (int r = 0; r < o_.repetitions; ++r, progress.update(++done)) {
        prepare();
        test.seconds.push_back(time([&] { work(); }));
      }
      if (!o_.profile) return;  // in runs of its own: it costs a little time
      for (int r = 0; r < o_.repetitions; ++r) {
        prepare();
        model_->set_profiling(true);
        work();
        const auto costs = model_->operation_costs();
        model_->set_profiling(false);
        if (test.costs.empty())
          test.costs = costs;
        else
          for (std::size_t i = 0; i < costs.size(); ++i) {
            test.costs[i].calls += costs[i].calls;
            test.costs[i].seconds += costs[i].seconds;
            test.costs[i].bytes += costs[i].bytes;
          }
      }
    };
    for (const std::int64_t prompt : o_.prompts) {
      if (prompt == 0) continue;
      Test& test = results.emplace_back();
      test.prompt = prompt;
      repeat(
          test, [&] { sessions_[0].truncate(0); }, [&] { sessions_[0].step(part(0, prompt)); });
    }
    for (const std::int64_t depth : o_.depths) {
      if (o_.generate == 0) break;
      for (const std::int64_t parallel : o_.parallel) {
        Test& test = results.emplace_back();
        test.generate = o_.generate;
        test.depth = depth;
        test.parallel = parallel;
        add_sessions(parallel);
        for (std::int64_t i = 0; i < parallel; ++i) {
          sessions_[static_cast<std::size_t>(i)].truncate(0);
          if (depth > 0) sessions_[static_cast<std::size_t>(i)].step(part(0, depth));
        }
        double before = 0, after = 0;
        repeat(
            test,
            [&] {
              for (std::int64_t i = 0; i < parallel; ++i) {
                sessions_[static_cast<std::size_t>(i)].truncate(depth);
                // gives the first logits; not timed, as a prompt would give them
                sessions_[static_cast<std::size_t>(i)].step(part(depth, 1));
              }
              before = cache_bytes(parallel);
            },
            [&] { decode(parallel, depth + 1); });
        after = cache_bytes(parallel);
        for (std::int64_t i = 0; i < parallel; ++i)
          test.kv_bytes += static_cast<double>(sessions_[static_cast<std::size_t>(i)].kv_bytes());
        test.bytes_per_token =
            (static_cast<double>(model_->weight_bytes_per_token()) + (before + after) / 2) /
            static_cast<double>(parallel);
      }
    }
    return results;
  }

  const Model& model() const { return *model_; }

 private:
  void add_sessions(std::int64_t count) {
    while (std::ssize(sessions_) < count)
      sessions_.emplace_back(
          model_, SessionOptions{.context = needed_,
                                 .kv_type = kv_type_,
                                 .chunk = o_.cache.chunk(),
                                 .compression = compression_});
  }
  double cache_bytes(std::int64_t sessions) const {
    double bytes = 0;
    for (std::int64_t i = 0; i < sessions; ++i)
      bytes += static_cast<double>(sessions_[static_cast<std::size_t>(i)].kv_bytes_read());
    return bytes;
  }
  // Steps one token after another, without choosing any: as llama-bench does.
  void decode(std::int64_t parallel, std::int64_t at) {
    std::vector<BatchItem> batch(static_cast<std::size_t>(parallel));
    for (std::int64_t n = 0; n < o_.generate; ++n) {
      for (std::size_t i = 0; i < batch.size(); ++i) batch[i] = {&sessions_[i], part(at + n, 1)};
      step(batch);
    }
  }
  std::span<const TokenId> part(std::int64_t begin, std::int64_t size) const {
    return std::span(text_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  }
  template <typename Work>
  static double time(Work&& work) {
    const auto start = Clock::now();
    work();
    return seconds_since(start);
  }

  const BenchOptions& o_;
  KvType kv_type_;
  std::optional<KvCompression> compression_;
  std::shared_ptr<Model> model_;
  std::vector<Session> sessions_;
  std::int64_t needed_ = 0;
  std::vector<TokenId> text_;
};

// "Gemma 3 270m Q4_K_M".
std::string model_type(const Json& description) {
  const std::string name = description.value("name", ""), type = description.value("file_type", "");
  return fmt::format("{}{}{}", name.empty() ? description.value("architecture", "") : name,
                     type.empty() ? "" : " ", type);
}

// llama-bench's fields, and ours.
Json as_json(const Test& test, const BenchOptions& o, const Model& model, const Json& description,
             double bandwidth) {
  const auto ns = [](double s) { return std::llround(s * 1e9); };
  const auto rate = [&](double s) { return test.rate(s); };
  const auto kv_type = kv_type_name(o.cache.kv_type());
  Json samples_ns = Json::array(), samples_ts = Json::array();
  for (const double s : test.seconds) {
    samples_ns.push_back(ns(s));
    samples_ts.push_back(rate(s));
  }
  Json json{{"build_version", NARROWS_VERSION},
            {"model_filename", o.model.path},
            {"model_type", model_type(description)},
            {"model_size", description.at("weight_bytes")},
            {"model_n_params", description.at("parameters")},
            {"n_batch", o.cache.batch},
            {"n_ubatch", o.cache.chunk()},
            {"n_threads", model.threads()},
            {"type_k", kv_type},
            {"type_v", kv_type},
            {"n_prompt", test.prompt},
            {"n_gen", test.generate},
            {"n_depth", test.depth},
            {"n_parallel", test.parallel},
            {"test_time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
            {"avg_ns", ns(test.mean([](double s) { return s; }))},
            {"stddev_ns", ns(test.deviation([](double s) { return s; }))},
            {"avg_ts", test.mean_rate()},
            {"stddev_ts", test.deviation(rate)},
            {"samples_ns", samples_ns},
            {"samples_ts", samples_ts},
            {"kv_bytes", nullptr},
            {"bytes_per_token", nullptr},
            {"bandwidth_fraction", nullptr},
            {"bandwidth", bandwidth}};
  if (test.generate > 0) {
    json["kv_bytes"] = std::llround(test.kv_bytes);
    json["bytes_per_token"] = std::llround(test.bytes_per_token);
    json["bandwidth_fraction"] = test.bytes_per_token * test.mean_rate() / bandwidth;
  }
  if (!test.costs.empty()) {
    Json& operations = json["operations"] = Json::array();
    const double steps = test.steps();
    for (const OperationCost& cost : test.costs)
      operations.push_back({{"operation", cost.name},
                            {"calls_per_step", static_cast<double>(cost.calls) / steps},
                            {"seconds_per_step", cost.seconds / steps},
                            {"bytes_per_step", cost.bytes / steps}});
  }
  return json;
}

std::string csv_cell(const Json& value) {
  std::string cell = "\"";
  for (const char c : value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump()) {
    if (c == '"') cell += '"';
    cell += c;
  }
  cell += '"';
  return cell;
}

// The fields that are no lists, names in the first line.
std::string as_csv(const Json& rows) {
  std::vector<std::string> names;
  std::string text;
  for (const auto& [name, value] : rows.front().items())
    if (!value.is_array()) names.push_back(name);
  text += fmt::format("{}\n", fmt::join(names, ","));
  for (const Json& row : rows) {
    std::vector<std::string> cells;
    for (const std::string& name : names) cells.push_back(csv_cell(row.at(name)));
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

std::string as_markdown(const std::vector<Test>& tests, const Json& rows) {
  std::string text =
      "| model | size | params | threads | test | t/s | kv bytes | bytes/token | of read bandwidth |\n"
      "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |\n";
  for (std::size_t i = 0; i < tests.size(); ++i) {
    const Json& row = rows[i];
    const bool generation = !row["bytes_per_token"].is_null();
    text +=
        fmt::format("| {} | {} | {:.1f} M | {} | {} | {:.2f} ± {:.2f} | {} | {} | {} |\n",
                    row["model_type"].get<std::string>(), human_bytes(row["model_size"].get<double>()),
                    row["model_n_params"].get<double>() / 1e6, row["n_threads"].get<int>(), tests[i].name(),
                    row["avg_ts"].get<double>(), row["stddev_ts"].get<double>(),
                    generation ? human_bytes(row["kv_bytes"].get<double>()) : "",
                    generation ? human_bytes(row["bytes_per_token"].get<double>()) : "",
                    generation ? fmt::format("{:.0f} %", row["bandwidth_fraction"].get<double>() * 100) : "");
  }
  return text;
}

// Where the time of a step goes: a table for each test.
std::string profile_tables(const std::vector<Test>& tests) {
  std::string text;
  for (const Test& test : tests) {
    if (test.costs.empty()) continue;
    const double steps = test.steps();
    double total = 0;
    for (const OperationCost& cost : test.costs) total += cost.seconds;
    text += fmt::format(
        "\n| {}: operation | calls | µs | share | bytes read | GB/s |\n| --- | ---: | ---: | ---: | ---: | "
        "---: |\n",
        test.name());
    for (const OperationCost& cost : test.costs)
      if (cost.calls > 0)
        text += fmt::format("| {} | {:.0f} | {:.1f} | {:.1f} % | {} | {} |\n", cost.name,
                            static_cast<double>(cost.calls) / steps, cost.seconds / steps * 1e6,
                            cost.seconds / total * 100, cost.bytes > 0 ? human_bytes(cost.bytes / steps) : "",
                            cost.bytes > 0 ? fmt::format("{:.1f}", cost.bytes / cost.seconds / 1e9) : "");
    text += fmt::format("| together | | {:.1f} | | | |\n", total / steps * 1e6);
  }
  return text;
}

void bench(const BenchOptions& o) {
  Bench bench(o);
  const std::vector<Test> tests = bench.run();
  const double bandwidth = measure_read_bandwidth(bench.model().threads());
  const Json description = Json::parse(bench.model().describe());
  Json rows = Json::array();
  for (const Test& test : tests) rows.push_back(as_json(test, o, bench.model(), description, bandwidth));
  print(o.output == "json"  ? rows.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
        : o.output == "csv" ? as_csv(rows)
                            : as_markdown(tests, rows) + profile_tables(tests));
}

}  // namespace

void add_bench(CLI::App& program) {
  CLI::App* command = program.add_subcommand("bench", "Tokens per second of prompts and of generation");
  const auto o = std::make_shared<BenchOptions>();
  add_model_options(*command, o->model);
  add_method_options(*command, o->model);
  const auto count = range(0, 1 << 24);
  add_list(*command, "-p,--n-prompt", o->prompts, "Tokens of the prompt (default 512); 0: no such test; a list: a test each")
      ->type_name("N,N")
      ->check(count);
  command->add_option("-n,--n-gen", o->generate, "Tokens generated (default 128); 0: no such test")
      ->type_name("N")
      ->check(count);
  add_list(*command, "-d,--n-depth", o->depths, "Tokens in the cache before generation (default 0); a list: a test each")
      ->type_name("N,N")
      ->check(count);
  add_list(*command, "--np,--parallel", o->parallel, "Sequences that generate together (default 1); a list: a test each")
      ->type_name("N,N")
      ->check(range(1, 4096));
  command->add_flag("--profile", o->profile,
                    "Run each test again and tell what each operation of a step takes (md and json)");
  command->add_option("-r,--repetitions", o->repetitions, "Repetitions of each test (default 5)")
      ->type_name("N")
      ->check(range(1, 100000));
  command->add_option("-f,--file", o->file, "Use the tokens of this text, in the prompt and in generation")
      ->type_name("TEXT");
  add_kv_type(*command, o->cache);
  add_compression_options(*command, o->compression);
  add_chunk_size(*command, o->cache);
  command->add_option("-o,--output", o->output, "md (default), json or csv")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"md", "json", "csv"}).description(""));
  command->footer(R"(
Without -f, prompt and generation step made-up ids, the same on every machine; no token is sampled. bytes_per_token: the
weights and the cache that a generated token reads; bandwidth_fraction: those times tokens/s, in parts of the read bandwidth of this
machine's memory, measured with the same threads (weights that fit the caches can exceed 1). JSON fields are llama-bench's.)");
  command->callback([o] {
    if (o->generate == 0 && std::ranges::all_of(o->prompts, [](std::int64_t n) { return n == 0; }))
      throw UsageError("--n-prompt and --n-gen are both 0: nothing to measure");
    bench(*o);
  });
}

}  // namespace narrows::cli
