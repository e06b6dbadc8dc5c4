// narrows compress: a model with fewer inner dimensions (A3).
#include "lowrank/compress.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "cli/common.h"
#include "lowrank/cache_baselines.h"
#include "lowrank/checkpoint.h"
#include "lowrank/compress_linear.h"

namespace narrows::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CompressCommand {
  std::string in, text, out, type = "F16", neurons, refit, allocate, ranks, method = "a3";
  std::optional<double> ratio, qk, ov, mlp;
  CompressOptions options;
  bool json = false;
};

constexpr const char* kLinearMethods[] = {"svd", "asvd", "svd-llm"};

Json as_json(const CompressionReport& report, const CompressCommand& o) {
  Json json{
      {"model", o.in},
      {"file", o.out},
      {"type", o.type},
      {"tokens", report.tokens},
      {"seconds", report.seconds},
      {"peak_bytes", report.peak_bytes},
      {"file_bytes", report.file_bytes},
      {"parameters_before", report.parameters_before},
      {"parameters", report.parameters},
      {"removed", 1 - static_cast<double>(report.parameters) / static_cast<double>(report.parameters_before)},
      {"cache", report.cache},
      {"raised_eigenvalues", report.raised}};
  Json& layers = json["layers"] = Json::array();
  for (const CompressedLayer& l : report.layers)
    layers.push_back({{"d_qk", l.d_qk},
                      {"d_vo", l.d_vo},
                      {"d_inter", l.d_inter},
                      {"qk_loss", l.qk_loss},
                      {"ov_loss", l.ov_loss},
                      {"mlp_loss", l.mlp_loss},
                      {"stream_error", l.stream_error}});
  return json;
}

std::string percent(double share) { return std::isnan(share) ? "-" : fmt::format("{:.3f}%", 100 * share); }

std::string as_table(const CompressionReport& report, const CompressCommand& o) {
  std::string text = fmt::format("{:>5} {:>5} {:>5} {:>8}   lost of {:>8} {:>8} {:>8} {:>8}\n", "layer",
                                 "d_qk", "d_vo", "d_inter", "scores", "values", "outputs", "stream");
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    const CompressedLayer& l = report.layers[i];
    text += fmt::format("{:>5} {:>5} {:>5} {:>8}           {:>8} {:>8} {:>8} {:>8}\n", i, l.d_qk, l.d_vo,
                        l.d_inter, percent(l.qk_loss), percent(l.ov_loss), percent(l.mlp_loss),
                        percent(l.stream_error));
  }
  text += fmt::format(
      "\n{} tokens in {:.1f} s, peak memory {}\n{}: {} of {} weights of the layers' maps, {:.1f} % removed; "
      "{:.1f} % of the key/value cache left; {}\n",
      report.tokens, report.seconds, human_bytes(static_cast<double>(report.peak_bytes)), o.out,
      human_count(static_cast<double>(report.parameters)),
      human_count(static_cast<double>(report.parameters_before)),
      100 - 100 * static_cast<double>(report.parameters) / static_cast<double>(report.parameters_before),
      100 * report.cache, human_bytes(static_cast<double>(report.file_bytes)));
  return text;
}

// Nothing leaves the default, "off" none.
void read_ridge(const char* flag, const std::string& text, std::optional<double>& ridge) {
  double value = -1;
  if (text == "off")
    ridge.reset();
  else if (!text.empty() && (!CLI::detail::lexical_cast(text, value) || !(value >= 0)))
    throw UsageError(fmt::format("{}: expected a number of 0 or more, or off, found {}", flag, text));
  else if (!text.empty())
    ridge = value;
}

// Of the report that --json prints.
std::vector<CompressedLayer> read_ranks(const std::string& path) {
  std::vector<CompressedLayer> ranks;
  try {
    const Json report = Json::parse(read_text(path));
    for (const Json& layer : report.at("layers")) {
      CompressedLayer& r = ranks.emplace_back();
      layer.at("d_qk").get_to(r.d_qk);
      layer.at("d_vo").get_to(r.d_vo);
      layer.at("d_inter").get_to(r.d_inter);
    }
  } catch (const Json::exception& error) {
    fail("{}: no report of narrows compress --json: {}", path, error.what());
  }
  if (ranks.empty()) fail("{}: a report without layers", path);
  return ranks;
}

// What an interruption leaves is said by the line that it ends with.
void keep_interruptions(CompressCommand& o) {
  const auto say = [](const std::string& what) {
    set_interrupt_note(fmt::format("{}narrows: interrupted: {}\n", ::isatty(STDERR_FILENO) ? "\r\033[K" : "", what));
  };
  say("no layer is finished, the same command starts anew");
  o.options.kept = [say, &o, first = true](int finished, int layers) mutable {
    if (first && finished > 0) note(fmt::format("{}.partial: layers 0 to {} are finished", o.out, finished - 1));
    first = false;
    say(goes_on(finished, layers));
  };
}

CompressionReport compress_by_method(const CompressCommand& o, const std::string& text) {
  if (o.method == "palu") return compress_palu(o.in, text, *o.ratio, o.options, o.out);
  if (o.method == "clover") return compress_clover(o.in, *o.ratio, o.options, o.out);
  const auto* linear = std::find(std::begin(kLinearMethods), std::end(kLinearMethods), o.method);
  if (linear == std::end(kLinearMethods)) return compress(o.in, text, o.options, o.out);
  return compress_linear(o.in, text, static_cast<LinearMethod>(linear - kLinearMethods), *o.ratio, o.options, o.out);
}

void read_shares(CompressCommand& o) {
  if (!o.ratio && !(o.qk && o.ov && o.mlp))
    throw UsageError("--ratio is required, or each of --qk, --ov and --mlp, or --ranks");
  if (o.ratio && !(*o.ratio > 0 && *o.ratio < 1))
    throw UsageError(fmt::format("--ratio: expected a number above 0 and below 1, found {}", *o.ratio));
  const auto share = [&](const std::optional<double>& own, const char* flag) {
    if (own && !(*own >= 0 && *own < 1))
      throw UsageError(fmt::format("{}: expected a number of at least 0 and below 1, found {}", flag, *own));
    return own ? *own : *o.ratio;
  };
  o.options.qk = share(o.qk, "--qk");
  o.options.ov = share(o.ov, "--ov");
  o.options.mlp = share(o.mlp, "--mlp");
  if (o.options.portable) {
    if (!o.ratio || o.mlp || o.qk != o.ov)
      throw UsageError("--portable takes --ratio, and --qk and --ov of one value for smaller heads: the neurons lose the rest");
    o.options.heads = o.qk.value_or(0);
    o.options.qk = o.options.ov = *o.ratio;
  }
}

void run(CompressCommand& o) {
  if (o.ranks.empty()) {
    read_shares(o);
  } else {
    if (o.ratio || o.qk || o.ov || o.mlp || !o.allocate.empty() || o.method != "a3" || o.options.portable)
      throw UsageError("--ranks says what to keep: --ratio, --qk, --ov, --mlp, --allocate, --portable and --method go without it");
    o.options.ranks = read_ranks(o.ranks);
  }
  const auto type = dtype_by_name(o.type);
  if (!type || !can_quantize(*type))
    throw UsageError(fmt::format(
        "--type: expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K or Q6_K, found {}", o.type));
  o.options.type = *type;
  if (!o.allocate.empty())
    o.options.allocation = o.allocate == "mixed" ? RankAllocation::Mixed : RankAllocation::Uniform;
  if (!o.neurons.empty())
    o.options.neurons =
        static_cast<NeuronChoice>(std::find(std::begin(kNeuronChoices), std::end(kNeuronChoices), o.neurons) - kNeuronChoices);
  read_ridge("--refit", o.refit, o.options.refit);
  if (o.method != "a3" && (!o.ratio || o.qk || o.ov || o.mlp || !o.neurons.empty() || !o.refit.empty() ||
                           !o.allocate.empty() || o.options.portable))
    throw UsageError(fmt::format("--method {} takes --ratio alone", o.method));
  if (o.options.resume && o.method != "a3")
    throw UsageError(fmt::format("--resume goes with --method a3, not with {}", o.method));
  const bool reads_text = o.method != "clover";
  if (reads_text && o.text.empty()) throw UsageError("--file is required");
  check_output(o.out, {o.in, o.text, o.ranks});
  if (o.options.resume) {
    std::error_code absent;
    if (std::filesystem::exists(o.out, absent) && !std::filesystem::is_regular_file(o.out, absent))
      throw UsageError(fmt::format("--resume: expected a file to write, found the device or pipe {}", o.out));
    check_output(o.out + ".partial", {o.in, o.text, o.ranks});
    keep_interruptions(o);
  }
  const std::string text = reads_text ? read_text(o.text) : "";
  std::optional<Progress> bar;
  o.options.progress = [&](std::int64_t done, std::int64_t total) {
    if (!bar) bar.emplace("compress", total);
    bar->update(done);
  };
  const CompressionReport report = compress_by_method(o, text);
  bar.reset();
  set_interrupt_note("");
  if (o.method != "a3" && o.method != "clover")
    note(fmt::format("{} holds the products of the thin maps in full: it is no smaller", o.out));
  if (report.few_tokens)
    note(fmt::format("the text has {} tokens, fewer than a layer has {}", report.tokens,
                     o.method == "palu" ? "inputs" : "neurons: what it leaves open stays as it was"));
  print(o.json ? as_json(report, o).dump(2) + "\n" : as_table(report, o));
}

}  // namespace

void add_compress(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "compress", "Write a model with fewer inner dimensions (A3): fewer weights, a smaller cache");
  const auto o = std::make_shared<CompressCommand>();
  command->add_option("-m,--model", o->in, "The model")->type_name("IN.gguf")->required();
  command->add_option("-f,--file", o->text, "The calibration text (-: standard input); clover reads none")
      ->type_name("TEXT");
  command->add_option("-o,--output", o->out, "The file to write; it appears whole or not at all")
      ->type_name("OUT.gguf")
      ->required();
  command
      ->add_option("--ratio", o->ratio,
                   "The share of the layers' weights to remove, above 0 and below 1; with palu and clover of the "
                   "key/value cache")
      ->type_name("R");
  command->add_option("--qk", o->qk, "Another share for query and key dimensions; 0: none")->type_name("R");
  command->add_option("--ov", o->ov, "Another share for value dimensions")->type_name("R");
  command->add_option("--mlp", o->mlp, "Another share for neurons")->type_name("R");
  command
      ->add_option(
          "--method", o->method,
          "a3 (default). For comparison: each map as the product of two thin ones, svd, asvd or svd-llm; a smaller "
          "key/value cache of latent vectors, palu, or of fewer dimensions chosen without a text, clover")
      ->type_name("METHOD")
      ->check(CLI::IsMember({"a3", "svd", "asvd", "svd-llm", "palu", "clover"}).description(""));
  command
      ->add_option("--allocate", o->allocate,
                   "mixed: more where it serves the model (default); uniform: the same share everywhere")
      ->type_name("WAY")
      ->check(CLI::IsMember({"uniform", "mixed"}).description(""));
  command->add_option("--ranks", o->ranks, "What every layer keeps: the --json report of an earlier run")->type_name("REPORT");
  command->add_flag("--portable", o->options.portable,
                    "A file that llama.cpp can run: all heads keep one size (with --qk and --ov a smaller one), the neurons lose the rest");
  command
      ->add_option("--type", o->type,
                   "Type of the layers' matrices (default F16); F16 where its blocks do not fill a row")
      ->type_name("TYPE");
  command
      ->add_option("--neurons", o->neurons,
                   "How neurons are chosen: by their columns of the down projection, down, by their rows of "
                   "the up projection, up, or one by one with the others refitted, elimination")
      ->type_name("RULE")
      ->check(CLI::IsMember({"down", "up", "elimination"}).description(""));
  command
      ->add_option("--refit", o->refit,
                   "Ridge of the down projection's refit to the neurons kept; off: no refit")
      ->type_name("RIDGE");
  command->add_flag("!--no-correction", o->options.correct,
                    "Refit to each layer's own outputs, not to the dense model's stream");
  command->add_option("--output-ridge", o->options.output_ridge, "Ridge of the output projection's refit")
      ->type_name("RIDGE")
      ->check(range(0, 1e9));
  command->add_option("-c,--ctx,--ctx-size", o->options.window, "Tokens a window (default 512)")
      ->type_name("N")
      ->check(range(2, kUnbounded));
  command
      ->add_option("--max-tokens", o->options.max_tokens,
                   "Use at most N tokens (default 8192); 0: the whole text")
      ->type_name("N")
      ->check(range(0, kUnbounded));
  command
      ->add_option("-t,--threads", o->options.threads,
                   "Threads; 0: every core (default). The file does not depend on them")
      ->type_name("N")
      ->check(range(0, 1024));
  command->add_flag("--resume", o->options.resume,
                    "Keep finished layers in OUT.gguf.partial until OUT.gguf is written, and go on from those there");
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(R"(
One pass over the text, layer by layer, each on what the new layers before it make of the text. Heads keep whole rotary
pairs and an even number of value dimensions, layers keep neurons in steps of 16 or of a block of the type; rounding removes
more, never less. OUT.gguf is a model like any other for every command here: judge it on another text than this one
(narrows eval -m OUT.gguf --reference IN.gguf -f OTHER). With --resume, a run that was interrupted goes on when the same
command is given again, and gives the same file.)");
  command->callback([o] { run(*o); });
}

}  // namespace narrows::cli
