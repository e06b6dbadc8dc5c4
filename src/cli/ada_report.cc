// narrows ada-report: which tokens represent the others at each layer, and what choosing them costs.
#include "eval/ada_report.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "cli/common.h"
#include "selection/representatives.h"

namespace narrows::cli {
namespace {

struct AdaReportCommand {
  ModelOptions model;
  AdaReportOptions options;
  std::string file, json, html;
};

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string times(double ratio) { return fmt::format("{:.2f}x", ratio); }
std::string span(AdaSettingReport::Span s) { return fmt::format("{:.2f}-{:.2f}", s.least, s.most); }

std::string settings_table(const AdaReport& report) {
  std::string text =
      fmt::format("{:>5} {:>5} {:>7} | {:>5} {:>7} | {:>9} {:>9} | {:>6} {:>7} {:>7} {:>9} {:>7} | {}\n", "T",
                  "tau", "windows", "r/T", "cascade", "Jaccard", "churn", "saved", "ops", "time", "time/ops",
                  "ceiling", "superset");
  for (const AdaSettingReport& s : report.settings)
    text += fmt::format(
        "{:>5} {:>5} {:>7} | {:>5.3f} {:>7.3f} | {:>9} {:>9} | {:>6} {:>7} {:>7} {:>9.2f} {:>7} | {}\n",
        s.tokens, s.tau, s.windows, s.independent_share(), s.share(), span(s.deep(&AdaLayerReport::jaccard)),
        span(s.deep(&AdaLayerReport::churn)), percent(s.operations_saved()), times(s.operation_ratio()),
        times(s.time_ratio()), s.time_ratio() / s.operation_ratio(), times(s.ceiling()),
        s.holds_independent() ? "yes" : "NO");
  return text;
}

std::string layers_table(const AdaSettingReport& s) {
  const auto part = [&](double count) { return count / static_cast<double>(s.tokens); };
  std::string text = fmt::format(
      "T {}, tau {}\n{:>5} | {:>5} {:>7} | {:>7} {:>7} | {:>6} {:>7} {:>7} | {:>8} {:>8} | {:>8} "
      "{:>8} | {}\n",
      s.tokens, s.tau, "layer", "r/T", "cascade", "Jaccard", "cascade", "churn", "removed", "added", "ops",
      "cascade", "ms", "cascade", "superset");
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const AdaLayerReport& l = s.layers[i];
    const std::string changes =
        i == 0 ? fmt::format("{:>7} {:>7} | {:>6} {:>7} {:>7}", "-", "-", "-", "-", "-")
               : fmt::format("{:>7.3f} {:>7.3f} | {:>6} {:>7.1f} {:>7.1f}", l.independent_jaccard, l.jaccard,
                             percent(l.churn), l.removed, l.added);
    text += fmt::format("{:>5} | {:>5.3f} {:>7.3f} | {} | {:>8} {:>8} | {:>8.2f} {:>8.2f} | {}\n", i,
                        part(l.independent), part(l.representatives), changes,
                        human_count(static_cast<double>(l.independent_operations)),
                        human_count(static_cast<double>(l.operations)), 1e3 * l.independent_seconds,
                        1e3 * l.seconds, l.holds_independent ? "yes" : "NO");
  }
  return text;
}

std::string as_text(const AdaReport& report) {
  std::string text =
      fmt::format("{}, inputs of {} layers; times are medians of {} alternating rounds, {} threads\n\n",
                  report.model, report.layers, report.rounds, report.threads);
  text += settings_table(report);
  text +=
      "\nr/T: representatives chosen independently at every layer, then by cascade; mean over layers. "
      "Jaccard: index with "
      "the layer\nbefore, churn: (removed + added) / inherited; of the cascade, least and largest in the "
      "deeper half of "
      "the layers. saved, ops,\ntime: Gram operations saved, and independent / cascade of operations and of "
      "time, all layers. "
      "ceiling: L / (1 + (L-1) r/T).\nsuperset: the cascade's set holds the independent one at every layer. "
      "Below: means "
      "over windows, sums of operations and time.\n";
  for (const AdaSettingReport& setting : report.settings) text += '\n' + layers_table(setting);
  return text;
}

// What can be told before the model is loaded.
void check(const AdaReportCommand& o) {
  for (const float tau : o.options.tau) try {
      selection_threshold(tau);
    } catch (const Error& error) {
      throw UsageError(fmt::format("--tau: {}", error.what()));
    }
  if (!o.json.empty() && o.json != "-" && o.json == o.html)
    throw UsageError("--json and --html: expected two files, found one");
}

void report(AdaReportCommand& o) {
  check(o);
  const std::string text = read_text(o.file);
  for (const std::string* output : {&o.json, &o.html})
    if (!output->empty() && *output != "-") check_output(*output, {o.model.path, o.file});
  std::optional<OutputFile> json, page;  // before the work, which a path that cannot be written would waste
  if (!o.json.empty() && o.json != "-") json.emplace(o.json);
  if (!o.html.empty()) page.emplace(o.html);
  const auto model = o.model.load();
  std::optional<Progress> bar;
  constexpr std::int64_t kSteps = 1000;
  o.options.progress = [&](double share, const std::string& what) {
    if (!bar) bar.emplace("ada-report", kSteps);
    bar->update(static_cast<std::int64_t>(share * kSteps), what);
  };
  const AdaReport result = ada_report(model, text, o.options);
  bar.reset();
  const auto write = [](std::optional<OutputFile>& file, const std::string& content) {
    if (file) file->write(content.data(), content.size());
  };
  write(json, ada_report_json(result));
  write(page, ada_report_html(result));
  if (json) json->commit();
  if (page) page->commit();
  print(o.json == "-" ? ada_report_json(result) : as_text(result));
}

}  // namespace

void add_ada_report(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "ada-report", "Which tokens represent the others at each layer, and what choosing them costs");
  const auto o = std::make_shared<AdaReportCommand>();
  AdaReportOptions& options = o->options;
  add_model_options(*command, o->model);
  command->add_option("-f,--file", o->file, "The text (-: standard input)")->type_name("TEXT")->required();
  add_list(
      *command, "--tau", options.tau,
      "A representative's cosines with what precedes it are below 1 - tau^2: a list (default 0.2,0.3,0.5)")
      ->type_name("T,T");
  add_list(*command, "-T,--tokens", options.tokens, "Tokens a window, BOS included: a list (default 512)")
      ->type_name("N,N")
      ->check(range(2, kUnbounded));
  command->add_option("--windows", options.windows, "Windows of each length, at most (default 4)")
      ->type_name("N")
      ->check(range(1, kUnbounded));
  command->add_option("--rounds", options.rounds, "Rounds of timing, whose medians count (default 3)")
      ->type_name("N")
      ->check(range(1, 1000));
  command->add_option("--json", o->json, "Write JSON to FILE; -: print it instead of the tables")
      ->type_name("FILE");
  command->add_option("--html", o->html, "Write a page with tables and plots")->type_name("FILE");
  command->footer(R"(
Two ways to choose from each layer's input. Independent: cosines of all pairs, at every layer. Cascade: from the
representatives of the layer before, which are tested among themselves, then the others against them. The division by
norms, which both need, is not timed.)");
  command->callback([o] { report(*o); });
}

}  // namespace narrows::cli
