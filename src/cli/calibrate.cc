// narrows calibrate: bases for gated subspace inference.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/progress.h"
#include "cli/common.h"
#include "subspace/calibrate.h"

namespace narrows::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CalibrateCommand {
  ModelOptions model;
  CalibrateOptions options;
  std::string file, output, method = "svd", type = "f16", k = "256";
  bool json = false, no_compare = false;
};

// "256", or "qkv=64,down=128" (other kinds keep 256), or both: "128,head=0".
std::array<std::int64_t, kSiteKindNames.size()> parse_k(const std::string& text) {
  std::array<std::int64_t, kSiteKindNames.size()> k;
  k.fill(256);
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const std::size_t equals = item.find('=');
    const std::string number = equals == std::string::npos ? item : item.substr(equals + 1);
    std::int64_t value = -1;
    if (!CLI::detail::lexical_cast(number, value) || value < 0 || value > 1 << 20)
      throw UsageError(fmt::format("-k: expected K or KIND=K, found \"{}\"", item));
    if (equals == std::string::npos) {
      k.fill(value);
    } else {
      const auto kind = std::find(kSiteKindNames.begin(), kSiteKindNames.end(), item.substr(0, equals));
      if (kind == kSiteKindNames.end())
        throw UsageError(fmt::format("-k: expected qkv, o, up, down or head, found \"{}\"", item.substr(0, equals)));
      k[static_cast<std::size_t>(kind - kSiteKindNames.begin())] = value;
    }
    at = end + 1;
  }
  return k;
}

struct Totals {
  double seconds = 0, svd_seconds = 0, flops = 0, svd_flops = 0, similarity = 0, deep = 0;
  std::int64_t pairs = 0, deep_pairs = 0;
  bool compared = false;
  explicit Totals(const CalibrationReport& report) {
    int layers = 0;
    for (const SiteCalibration& s : report.sites) layers = std::max(layers, s.layer + 1);
    for (const SiteCalibration& s : report.sites) {
      seconds += s.seconds;
      flops += s.flops;
      compared |= s.svd_seconds.has_value();
      svd_seconds += s.svd_seconds.value_or(0);
      svd_flops += s.svd_flops.value_or(0);
      if (!s.similarity) continue;
      similarity += *s.similarity;
      ++pairs;
      if (2 * s.layer < layers) continue;
      deep += *s.similarity;
      ++deep_pairs;
    }
  }
};

Json as_json(const CalibrationReport& report, const CalibrateCommand& o) {
  const Totals totals(report);
  Json json{{"model", o.model.path},
            {"file", o.output},
            {"method", o.method},
            {"type", o.type},
            {"tokens", report.tokens},
            {"seconds", report.seconds},
            {"basis_seconds", report.basis_seconds},
            {"image_seconds", report.image_seconds},
            {"basis_flops", totals.flops},
            {"peak_bytes", report.peak_bytes},
            {"bytes", report.file_bytes},
            {"skipped", report.skipped},
            {"storage_overhead", static_cast<double>(report.file_bytes) / static_cast<double>(report.model_bytes)}};
  if (totals.compared) {
    json["svd_seconds"] = totals.svd_seconds;
    json["svd_flops"] = totals.svd_flops;
  }
  if (totals.pairs > 0) json["similarity"] = totals.similarity / static_cast<double>(totals.pairs);
  if (totals.deep_pairs > 0) json["similarity_deep_half"] = totals.deep / static_cast<double>(totals.deep_pairs);
  Json& sites = json["sites"] = Json::array();
  for (const SiteCalibration& s : report.sites) {
    Json& site = sites.emplace_back(Json{{"site", s.name},
                                         {"d", s.d},
                                         {"k", s.k},
                                         {"energy_kept", s.energy_kept},
                                         {"seconds", s.seconds},
                                         {"flops", s.flops},
                                         {"bytes", s.bytes}});
    if (s.similarity) site["similarity"] = *s.similarity;
    if (o.options.method != BasisMethod::Cascade) continue;
    site["inherited"] = s.inherited;
    site["appended"] = s.appended;
    site["dropped"] = s.dropped;
    if (s.svd_seconds) {
      site["svd_seconds"] = *s.svd_seconds;
      site["svd_flops"] = *s.svd_flops;
      site["svd_energy_kept"] = *s.svd_energy_kept;
    }
  }
  return json;
}

std::string as_table(const CalibrationReport& report, const CalibrateCommand& o) {
  const bool cascade = o.options.method == BasisMethod::Cascade;
  const Totals totals(report);
  std::string text = fmt::format("{:<12} {:>6} {:>5} {:>8} {:>8} {:>10} {:>9}", "site", "d", "k", "energy", "seconds",
                                 "similarity", "bytes");
  if (cascade) text += fmt::format(" {:>9} {:>9}", "appended", "dropped");
  if (totals.compared) text += fmt::format(" {:>9} {:>11}", "svd s", "svd energy");
  text += '\n';
  for (const SiteCalibration& s : report.sites) {
    text += fmt::format("{:<12} {:>6} {:>5} {:>7.2f}% {:>8.3f} {:>10} {:>9}", s.name, s.d, s.k, 100 * s.energy_kept,
                        s.seconds, s.similarity ? fmt::format("{:.3f}", *s.similarity) : "",
                        human_bytes(static_cast<double>(s.bytes)));
    if (cascade) text += fmt::format(" {:>9} {:>9}", s.appended, s.dropped);
    if (s.svd_seconds) text += fmt::format(" {:>9.3f} {:>10.2f}%", *s.svd_seconds, 100 * s.svd_energy_kept.value_or(0));
    text += '\n';
  }
  text += fmt::format(
      "\n{} tokens in {:.1f} s: bases {:.2f} s, images {:.2f} s; peak memory {}\n{}: {}, {:.1f} % of the model's weights\n",
      report.tokens, report.seconds, report.basis_seconds, report.image_seconds,
      human_bytes(static_cast<double>(report.peak_bytes)), o.output, human_bytes(static_cast<double>(report.file_bytes)),
      100 * static_cast<double>(report.file_bytes) / static_cast<double>(report.model_bytes));
  if (totals.pairs > 0)
    text += fmt::format("similarity of successive layers' subspaces: {:.3f}, in the deeper half {:.3f}\n",
                        totals.similarity / static_cast<double>(totals.pairs),
                        totals.deep_pairs > 0 ? totals.deep / static_cast<double>(totals.deep_pairs) : 0);
  if (totals.compared)
    text += fmt::format(
        "against svd a layer: {:.2f} s instead of {:.2f} s ({:+.0f} %), multiply-adds {:+.0f} % of a full SVD's\n",
        totals.seconds, totals.svd_seconds, 100 * (totals.seconds / totals.svd_seconds - 1),
        100 * (totals.flops / totals.svd_flops - 1));
  return text;
}

void run(CalibrateCommand& o) {
  o.options.k = parse_k(o.k);
  o.options.method = o.method == "cascade" ? BasisMethod::Cascade : BasisMethod::Svd;
  o.options.type = *dtype_by_name(o.type);
  o.options.compare = !o.no_compare;
  check_output(o.output, {o.model.path, o.file});
  const std::string text = read_text(o.file);
  o.model.no_repack = true;  // each layer is used once: memory for a copy of them all would be wasted
  const auto model = o.model.load();
  std::optional<Progress> bar;
  o.options.progress = [&](std::int64_t done, std::int64_t total) {
    if (!bar) bar.emplace("calibrate", total);
    bar->update(done);
  };
  const CalibrationReport report = calibrate(*model, text, o.options, o.output);
  bar.reset();
  if (!report.skipped.empty())
    note(fmt::format("{} sites of experts saw fewer tokens than directions and stay dense, {} first: more text serves them",
                     report.skipped.size(), report.skipped.front()));
  print(o.json ? as_json(report, o).dump(2) + "\n" : as_table(report, o));
}

}  // namespace

void add_calibrate(CLI::App& program) {
  CLI::App* command = program.add_subcommand("calibrate", "Bases for gated subspace inference (run, bench, eval --gsi)");
  const auto o = std::make_shared<CalibrateCommand>();
  add_model_options(*command, o->model);
  command->add_option("-f,--file", o->file, "The calibration text (-: standard input)")->type_name("TEXT")->required();
  command->add_option("-o,--output", o->output, "The file of bases to write")->type_name("OUT.gguf")->required();
  command->add_option("--method", o->method, "svd: leading directions of each site (default); cascade: each layer starts from the one before")
      ->type_name("METHOD")
      ->check(CLI::IsMember({"svd", "cascade"}).description(""));
  command->add_option("-k,--k", o->k, "Directions a site, at most its width (default 256); also by kind: 256,down=512,head=0")
      ->type_name("K");
  command
      ->add_option("--tolerance", o->options.tolerance,
                   "svd: leave out directions once the rest of the energy is below T²; cascade: append what leaves more than T (default 0.1)")
      ->type_name("T")
      ->check(range(0, 0.999));
  add_list(*command, "--sites", o->options.sites, "Only these: kinds (qkv, o, up, down, head) or names (blk.3.down); a list")
      ->type_name("S,S");
  command->add_option("--type", o->type, "Type of bases and images: f16 (default), bf16, q8_0 or f32")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"f16", "bf16", "q8_0", "f32"}).description(""));
  command->add_option("--eps", o->options.epsilon, "The gate's threshold to write into the file (default 0.1)")
      ->type_name("E")
      ->check(range(0, 1e9));
  command->add_option("-c,--ctx,--ctx-size", o->options.window, "Tokens a window (default 512)")
      ->type_name("N")
      ->check(range(2, kUnbounded));
  command->add_option("--max-tokens", o->options.max_tokens, "Use at most N tokens (default 8192); 0: the whole text")
      ->type_name("N")
      ->check(range(0, kUnbounded));
  command->add_flag("--no-compare", o->no_compare, "cascade: do not compute what svd would have cost and given");
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(R"(
One pass over the text, layer by layer. Bases fit the text they were made on better than any other: judge them on
other text (narrows gsi-report). The file holds a fingerprint of the model and is refused by any other.)");
  command->callback([o] { run(*o); });
}

}  // namespace narrows::cli
