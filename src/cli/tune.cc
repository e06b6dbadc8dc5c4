// narrows tune: the plan that pays on this machine.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/progress.h"
#include "cli/common.h"
#include "plan/tuner.h"

namespace narrows::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TuneCommand {
  ModelOptions model;
  TuneOptions options;
  std::string file, output, ada, budget = "ppl=1.02";
  bool json = false;
};

TuneBudget parse_budget(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  TuneBudget budget;
  if (name == "ppl")
    budget.kind = TuneBudget::Kind::PerplexityRatio;
  else if (name == "kl")
    budget.kind = TuneBudget::Kind::Kl;
  else if (name == "bytes")
    budget.kind = TuneBudget::Kind::Bytes;
  else
    throw UsageError(fmt::format("--budget: expected ppl=RATIO, kl=NATS or bytes=FRACTION, found \"{}\"", text));
  if (equals == std::string::npos || !CLI::detail::lexical_cast(text.substr(equals + 1), budget.limit))
    throw UsageError(fmt::format("--budget: expected a number after {}=, found \"{}\"", name, text));
  return budget;
}

const char* mode_name(SiteMode mode) { return mode == SiteMode::Gated ? "gated" : "graded"; }

Json as_json(const TuneResult& r, const TuneCommand& o, bool written) {
  const PlanMeasurements& m = r.plan.measured;
  Json json{{"model", o.model.path},
            {"plan", written ? Json(o.output) : Json(nullptr)},
            {"budget", o.budget},
            {"faster", r.faster},
            {"within_budget", r.within_budget},
            {"threads", r.plan.threads},
            {"instructions", r.plan.instructions},
            {"calibration_tokens", r.calibration_tokens},
            {"validation_tokens", m.tokens},
            {"perplexity_ratio", m.perplexity_ratio},
            {"log_ratio_error", m.log_ratio_error},
            {"top1_agreement", m.top1_agreement},
            {"kl_mean", m.kl_mean},
            {"weight_bytes_fraction", m.weight_bytes_fraction},
            {"decode", {{"dense", m.dense_decode}, {"plan", m.plan_decode}, {"speedup", m.decode_speedup}}},
            {"prefill", {{"dense", m.dense_prefill}, {"plan", m.plan_prefill}, {"speedup", m.prefill_speedup}}},
            {"work",
             {{"prompt", o.options.prompt},
              {"generate", o.options.generate},
              {"dense_seconds", r.dense_work},
              {"plan_seconds", r.plan_work}}},
            {"price", r.price},
            {"cache", r.plan.cache.tau > 0 ? Json{{"tau", r.plan.cache.tau}, {"tokens", r.plan.cache.tokens},
                                                  {"perplexity_ratio", r.plan.cache.perplexity_ratio}, {"kl_mean", r.plan.cache.kl_mean},
                                                  {"bytes_fraction", r.plan.cache.bytes_fraction}}
                                           : Json(nullptr)},
            {"notes", r.notes}};
  Json& costs = json["costs"] = Json::array();
  for (const SiteCost& c : r.costs)
    costs.push_back({{"kind", c.kind},
                     {"mode", mode_name(c.mode)},
                     {"sites", c.sites},
                     {"dense_seconds", c.dense_seconds},
                     {"dense_bytes", c.dense_bytes},
                     {"graded_fixed_seconds", c.graded_fixed},
                     {"graded_seconds_per_byte", c.graded_per_byte},
                     {"planned_seconds", c.planned_seconds},
                     {"planned_bytes", c.planned_bytes},
                     {"dense_prompt_seconds", c.dense_prompt},
                     {"planned_prompt_seconds", c.planned_prompt},
                     {"pays", c.pays}});
  Json& sites = json["sensitivities"] = Json::array();
  for (const SiteSensitivity& s : r.sensitivities)
    sites.push_back({{"site", s.site}, {"rms", s.rms}, {"kl", s.kl}, {"sensitivity", s.sensitivity}});
  return json;
}

// An earlier plan could be taken for one that this run wrote.
std::string left_alone(const TuneCommand& o) {
  std::error_code absent;
  return std::filesystem::is_regular_file(o.output, absent) ? fmt::format("{} is left as it was.\n", o.output) : "";
}

std::string as_text(const TuneResult& r, const TuneCommand& o, bool written) {
  const PlanMeasurements& m = r.plan.measured;
  std::string text =
      "Time of one site for one token, and what decode reads of it, dense and so; the head's prompts: for a whole one\n";
  text += fmt::format("{:<6} {:<6} {:>5} {:>21} {:>21} {:>12} {:>12}\n", "kind", "mode", "sites", "decode, dense", "so", "prompt, dense",
                      "so");
  for (const SiteCost& c : r.costs)
    text += fmt::format("{:<6} {:<6} {:>5} {:>8.1f} µs {:>9} {:>8.1f} µs {:>9} {:>9.1f} µs {:>9.1f} µs  {}\n", c.kind, mode_name(c.mode), c.sites,
                        1e6 * c.dense_seconds, human_bytes(c.dense_bytes), 1e6 * c.planned_seconds,
                        human_bytes(c.planned_bytes), 1e6 * c.dense_prompt, 1e6 * c.planned_prompt, c.pays ? "pays" : "does not pay");
  for (const std::string& note : r.notes) text += note + '\n';
  if (r.plan.empty()) {
    text += "Nothing pays on this machine: dense is the fastest way to run this model. No plan is written.\n";
    return text + left_alone(o);
  }
  std::int64_t graded = 0, gated = 0;
  for (const SitePlan& s : r.plan.sites) (s.mode == SiteMode::Gated ? gated : graded) += 1;
  text += fmt::format(
      "\nPlan: {} graded and {} gated sites; reads {:.3f} of the dense weight bytes\n"
      "Quality of the sites on {} tokens kept apart: perplexity ratio {:.4f} ± {:.4f}, top-1 agreement {:.2f} %, KL {:.4f} nats\n"
      "Decode   dense {:>8.1f} tokens/s, plan {:>8.1f}: {:.2f} times as fast\n"
      "Prompts  dense {:>8.1f} tokens/s, plan {:>8.1f}: {:.2f} times as fast\n"
      "{} tokens of prompt and {} of answer: {:.3f} s dense, {:.3f} s with the plan\n",
      graded, gated, m.weight_bytes_fraction, m.tokens, m.perplexity_ratio, m.perplexity_ratio * m.log_ratio_error, 100 * m.top1_agreement, m.kl_mean, m.dense_decode,
      m.plan_decode, m.decode_speedup, m.dense_prefill, m.plan_prefill, m.prefill_speedup, o.options.prompt,
      o.options.generate, r.dense_work, r.plan_work);
  if (const CachePlan& c = r.plan.cache; c.tau > 0)
    text += fmt::format("Cache    tau {}: {:.3f} of the dense bytes at {} tokens; there, the plan's sites with it, perplexity ratio {:.4f}, KL {:.4f} nats\n",
                        c.tau, c.bytes_fraction, c.tokens, c.perplexity_ratio, c.kl_mean);
  if (!r.within_budget) text += fmt::format("The budget {} does not hold on the text kept apart.\n", o.budget);
  if (written)
    text += fmt::format("Written to {}: run, bench and eval take it with --plan.\n", o.output);
  else if (!r.faster)
    text += "Not faster than dense: nothing is written (--force writes it all the same).\n" + left_alone(o);
  else
    text += "Nothing is written (--force writes it all the same).\n" + left_alone(o);
  return text;
}

void run(TuneCommand& o) {
  o.options.budget = parse_budget(o.budget);
  o.options.cache = !o.ada.empty();
  if (!o.model.gsi.path.empty() || !o.model.plan.empty()) throw UsageError("tune: --plan: expected a dense model");
  check_output(o.output, {o.model.path, o.file, o.options.bases});
  const std::string text = read_text(o.file);
  if (!o.options.bases.empty()) o.options.bases = std::filesystem::absolute(o.options.bases).lexically_normal();  // for the plan
  const auto model = o.model.load(), reference = o.model.load();
  std::optional<Progress> bar;
  std::string shown;
  o.options.progress = [&](const char* stage, std::int64_t done, std::int64_t total) {
    if (shown != stage) {
      bar.reset();
      bar.emplace(fmt::format("tune: {}", stage), total);
      shown = stage;
    }
    bar->update(done);
  };
  const TuneResult result = tune(model, reference, text, o.options);
  bar.reset();
  const bool write = !result.plan.empty() && ((result.faster && result.within_budget) || o.options.force);
  if (write) write_plan(o.output, result.plan);
  print(o.json ? as_json(result, o, write).dump(2) + "\n" : as_text(result, o, write));
}

}  // namespace

void add_tune(CLI::App& program) {
  CLI::App* command = program.add_subcommand("tune", "Find what pays on this machine within a budget of quality; write a plan");
  const auto o = std::make_shared<TuneCommand>();
  TuneOptions& t = o->options;
  add_model_options(*command, o->model);
  command->add_option("-f,--file", o->file, "Calibration text; its last part only judges (-: standard input)")
      ->type_name("TEXT")
      ->required();
  command->add_option("-o,--output", o->output, "The plan to write")->type_name("PLAN.json")->required();
  command
      ->add_option("--budget", o->budget,
                   "ppl=RATIO of perplexities (default ppl=1.02), kl=NATS, or bytes=FRACTION of the dense weights to read")
      ->type_name("BUDGET");
  command->add_option("--gsi", t.bases, "Bases (narrows calibrate): consider gated sites, and graded ones in a rotated basis")->type_name("FILE");
  command->add_option("--ada", o->ada, "kv: consider a cache of representatives, too, for texts as long as -p and -n say; needs a budget of ppl or kl")
      ->type_name("kv")
      ->check(CLI::IsMember({"kv"}).description(""));
  command->add_option("--rescore", t.rescore, "Outputs of the head that are scored exactly (default 256); 0: none")
      ->type_name("N")
      ->check(range(0, 1 << 20));
  command->add_option("-c,--ctx,--ctx-size", t.context, "Tokens a window (default 512)")->type_name("N")->check(range(2, kUnbounded));
  command->add_option("--search-tokens", t.search_tokens, "Tokens that the price is searched on (default 1536)")
      ->type_name("N")
      ->check(range(16, kUnbounded));
  command->add_option("--validation-tokens", t.validation_tokens, "Tokens kept apart to judge (default 3072)")
      ->type_name("N")
      ->check(range(16, kUnbounded));
  command
      ->add_option("--sensitivity-tokens", t.sensitivity_tokens, "Tokens on which each site's noise is judged (default 256)")
      ->type_name("N")
      ->check(range(8, kUnbounded));
  command->add_option("-p,--n-prompt", t.prompt, "The work that must get faster: tokens of the prompt (default 128)")
      ->type_name("N")
      ->check(range(1, 1 << 20));
  command->add_option("-n,--n-gen", t.generate, "… and of the answer (default 128)")->type_name("N")->check(range(1, 1 << 20));
  command->add_option("-r,--repetitions", t.rounds, "Rounds of timing, dense and plan in turn (default 5)")
      ->type_name("N")
      ->check(range(1, 1000));
  command->add_flag("--force", t.force, "Grade every site that can be, pay or not, and write the plan even where it is slower than dense or beyond the budget");
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(R"(
A plan says for each site (the maps that share an input) whether it is read densely, graded (per token only the columns
that matter, and of those as many bits as matter) or gated (--gsi). It holds for this model on a machine like this one,
and is written only if the stated work takes less time than dense and the budget holds on text kept apart.)");
  command->callback([o] { run(*o); });
}

}  // namespace narrows::cli
