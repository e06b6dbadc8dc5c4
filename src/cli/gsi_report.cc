// narrows gsi-report: what gated subspace inference gives, on text its bases have seen and on text they have
// not.
#include "eval/gsi_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "cli/common.h"

namespace narrows::cli {
namespace {

struct GsiReportCommand {
  ModelOptions model;
  GsiReportOptions options;
  std::string file, gsi, calibration, html, method = "svd", type = "f16";
  bool json = false;
};

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string times(double ratio) { return fmt::format("{:.2f}x", ratio); }

// "1.0423", "12.5", "8.1e+04"
std::string ratio(double value) {
  return value < 10    ? fmt::format("{:.4f}", value)
         : value < 1e4 ? fmt::format("{:.1f}", value)
                       : fmt::format("{:.1e}", value);
}

// A line of both protocols' columns.
std::string line(const std::string& left, const std::string& paper, const std::string& held_out) {
  std::string text = fmt::format("{} | {} | {}", left, paper, held_out);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + '\n';
}

std::string setting_columns(const GsiSettingReport& s, std::int64_t greedy) {
  std::string text = fmt::format("{:>6} {:>7} {:>7} {:>8} {:>8} {:>6} {:>8.1e}", percent(s.fast_fraction),
                                 times(s.reads.paper_speedup()), times(s.reads.honest_speedup()),
                                 human_count(s.reads.elements), ratio(s.perplexity_ratio),
                                 percent(s.top1_agreement), s.kl_at_least);
  if (greedy > 0)
    text += fmt::format(" {:>6}", s.greedy_equal == greedy ? "same" : fmt::format("{}", s.greedy_equal));
  return text;
}

std::string settings_table(const GsiReport& report) {
  const auto& [paper, held_out] = report.protocols;
  std::string columns = fmt::format("{:>6} {:>7} {:>7} {:>8} {:>8} {:>6} {:>8}", "fast", "paper", "honest",
                                    "params", "ppl", "top-1", "KL >=");
  if (report.greedy > 0) columns += fmt::format(" {:>6}", "greedy");
  const std::size_t width = columns.size();
  const auto title = [&](const GsiProtocolReport& p) {
    return fmt::format("{:<{}}", fmt::format("{} (dense perplexity {:.3f})", p.name, p.dense_perplexity),
                       width);
  };
  std::string text = line(fmt::format("{:11}", ""), title(paper), title(held_out));
  text += line(fmt::format("{:>4} {:>6}", "k", "eps"), columns, columns);
  for (std::size_t i = 0; i < paper.settings.size(); ++i) {
    const GsiSettingReport& s = paper.settings[i];
    text += line(fmt::format("{:>4} {:>6}", s.k, s.is_static() ? "static" : fmt::format("{}", s.epsilon)),
                 setting_columns(s, report.greedy), setting_columns(held_out.settings[i], report.greedy));
  }
  return text;
}

std::string site_columns(const GsiSiteReport& s) {
  std::string text = fmt::format("{:>5}", s.k > 0 ? fmt::format("{}", s.k) : "-");
  for (const double q : kReportQuantiles)
    text +=
        s.counts.tokens() > 0 ? fmt::format(" {:>6.4f}", s.counts.quantile(q)) : fmt::format(" {:>6}", "-");
  return text + fmt::format(" {:>6} {:>8} {:>7} {:>7} {:>7}", percent(s.fast_fraction()),
                            human_bytes(s.reads.bytes), human_count(s.reads.elements),
                            times(s.reads.paper_speedup()), times(s.reads.honest_speedup()));
}

std::string sites_table(const GsiReport& report) {
  const GsiSettingReport& paper = report.protocols[0].settings[report.site_setting];
  const GsiSettingReport& held_out = report.protocols[1].settings[report.site_setting];
  std::string columns = fmt::format("{:>5}", "k");
  for (const double q : kReportQuantiles) columns += fmt::format(" {:>6}", fmt::format("{:.0f}%", 100 * q));
  columns += fmt::format(" {:>6} {:>8} {:>7} {:>7} {:>7}", "fast", "bytes", "params", "paper", "honest");
  std::string text = fmt::format("sites at k {}, eps {}; distance from the subspace, rho, in quantiles\n",
                                 paper.k, paper.epsilon);
  const std::size_t width = columns.size();
  text += line(fmt::format("{:11}", ""), fmt::format("{:<{}}", report.protocols[0].name, width),
               report.protocols[1].name);
  text += line(fmt::format("{:11}", "site"), columns, columns);
  for (std::size_t i = 0; i < paper.sites.size(); ++i)
    text += line(fmt::format("{:11}", paper.sites[i].name), site_columns(paper.sites[i]),
                 site_columns(held_out.sites[i]));
  return text;
}

std::string as_text(const GsiReport& report) {
  std::string text = fmt::format("{}, windows of {} tokens\n\n", report.model, report.context);
  for (const GsiProtocolReport& p : report.protocols) text += fmt::format("{:<9} {}\n", p.name, p.meaning);
  text += "\n" + settings_table(report);
  text += fmt::format(
      "\nfast: share of tokens on the fast path, by the weight bytes of sites. paper: the paper's speed-up, "
      "V not counted.\n"
      "honest: dense weight bytes / bytes really read, below 1 where it reads more. params: elements read a "
      "token,\n"
      "dense {}. ppl: perplexity / the dense model's. KL >=: lower bound, nats.{}\n\n",
      human_count(report.protocols[0].settings[0].reads.dense_elements),
      report.greedy > 0
          ? fmt::format(
                " greedy: of {} tokens, how many\nequal the dense model's before the first that does not.",
                report.greedy)
          : "");
  return text + sites_table(report);
}

// What can be told before the model is loaded.
void check(const GsiReportCommand& o) {
  const GsiReportOptions& options = o.options;
  if (o.gsi.empty() == o.calibration.empty())
    throw UsageError("expected either --gsi or --calibration: the bases that have not seen the text");
  if (o.file == "-" && o.calibration == "-")
    throw UsageError("-f and --calibration cannot both be standard input");
  if (options.k.empty() && options.context < kReportK[0])
    throw UsageError(
        fmt::format("-c {}: expected at least {} unless --k is given", options.context, kReportK[0]));
  for (const std::int64_t k : options.k) {
    if (k > options.context)
      throw UsageError(
          fmt::format("--k {} needs -c {} or more: the paper's bases come from one window", k, k));
    if (o.type == "q8_0" && k % 32 != 0)
      throw UsageError(fmt::format("--k: expected a multiple of 32 for q8_0, found {}", k));
  }
  const auto known = [](const auto& values, auto wanted) {
    return std::find(values.begin(), values.end(), wanted) != values.end();
  };
  if (options.site_k > 0 &&
      (options.k.empty() ? !known(kReportK, options.site_k) : !known(options.k, options.site_k)))
    throw UsageError(fmt::format("--site-k {}: expected one of --k", options.site_k));
  if (options.site_epsilon >= 0 && !known(options.epsilon, options.site_epsilon))
    throw UsageError(fmt::format("--site-eps {}: expected one of --eps", options.site_epsilon));
}

void report(GsiReportCommand& o) {
  check(o);
  const std::string text = read_text(o.file),
                    calibration = o.calibration.empty() ? "" : read_text(o.calibration);
  if (!o.calibration.empty() && calibration.empty())
    fail("{}: expected a text, found nothing", o.calibration);
  std::optional<OutputFile> page;
  if (!o.html.empty()) {  // before the work, which a path that cannot be written would waste
    check_output(o.html, {o.model.path, o.file, o.gsi, o.calibration});
    page.emplace(o.html);
  }
  const auto model = o.model.load();
  o.options.calibration = calibration;
  o.options.gsi_path = o.gsi;
  o.options.method = o.method == "cascade" ? BasisMethod::Cascade : BasisMethod::Svd;
  o.options.type = *dtype_by_name(o.type);
  std::optional<Progress> bar;
  o.options.progress = [&](std::int64_t done, std::int64_t total, const std::string& what) {
    if (!bar) bar.emplace("gsi-report", total);
    bar->update(done, what);
  };
  const GsiReport result = gsi_report(model, text, o.options);
  bar.reset();
  if (page) {
    const std::string html = gsi_report_html(result);
    page->write(html.data(), html.size());
    page->commit();
  }
  print(o.json ? gsi_report_json(result) : as_text(result));
}

}  // namespace

void add_gsi_report(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "gsi-report", "What gated subspace inference saves and costs, on seen and on unseen text");
  const auto o = std::make_shared<GsiReportCommand>();
  GsiReportOptions& options = o->options;
  add_model_options(*command, o->model);
  command->add_option("-f,--file", o->file, "The held-out text (-: standard input)")
      ->type_name("TEXT")
      ->required();
  command->add_option("--gsi", o->gsi, "The held-out bases: a file of narrows calibrate, or")
      ->type_name("FILE");
  command
      ->add_option("--calibration", o->calibration,
                   "the text to make them from, another than the held-out one")
      ->type_name("TEXT");
  command
      ->add_option("--calibration-tokens", options.calibration_tokens,
                   "Use at most N tokens of that text (default 8192); 0: all of it")
      ->type_name("N")
      ->check(range(0, kUnbounded));
  add_list(*command, "-k,--k", options.k,
           "Directions a site, at most its width: a list (default 64,128,256,512)")
      ->type_name("K,K")
      ->check(range(1, 1 << 20));
  add_list(*command, "--eps", options.epsilon, "Thresholds of the gate: a list (default 0.02,0.05,0.1,0.2)")
      ->type_name("E,E")
      ->check(range(0, 1e9));
  command
      ->add_option("--site-k", options.site_k,
                   "The setting whose sites are reported, one of --k (default: the middle one)")
      ->type_name("K")
      ->check(range(1, 1 << 20));
  command
      ->add_option("--site-eps", options.site_epsilon,
                   "Its threshold, one of --eps (default: the middle one)")
      ->type_name("E")
      ->check(range(0, 1e9));
  command->add_option("-c,--ctx,--ctx-size", options.context, "Tokens a window, BOS included (default 512)")
      ->type_name("N")
      ->check(range(2, kUnbounded));
  command
      ->add_option("--max-tokens", options.max_tokens,
                   "Evaluate the held-out bases on at most N tokens (default 4096); 0: the whole text")
      ->type_name("N")
      ->check(range(0, kUnbounded));
  command->add_option("--method", o->method, "How bases are made: svd (default) or cascade")
      ->type_name("METHOD")
      ->check(CLI::IsMember({"svd", "cascade"}).description(""));
  command->add_option("--type", o->type, "Type of the bases made: f16 (default), bf16, q8_0 or f32")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"f16", "bf16", "q8_0", "f32"}).description(""));
  command
      ->add_option("--greedy", options.greedy,
                   "Compare N greedy tokens after the text's first 64 (default 50); 0: none")
      ->type_name("N")
      ->check(range(0, 1 << 20));
  command->add_flag("--json", o->json, "Print JSON");
  command->add_option("--html", o->html, "Also write a page with tables and plots")->type_name("OUT.html");
  command->footer(R"(
Two protocols, always side by side. paper: the bases are made from the text's first window, and evaluated on that same
window. held-out: the bases come from another text. The last row, static, has no gate: every token takes the fast path.
Bases made here are kept in the directory for temporary files (TMPDIR) until the report is done.)");
  command->callback([o] { report(*o); });
}

}  // namespace narrows::cli
