// narrows eval: perplexity on a text, and agreement with a reference model.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/output_file.h"
#include "base/progress.h"
#include "cli/common.h"
#include "eval/perplexity.h"
#include "selection/paper_attention.h"
#include "selection/representatives.h"

namespace narrows::cli {
namespace {

struct EvalCommand {
  ModelOptions model;
  CacheOptions cache;
  CompressionOptions compression;
  std::string file, reference, tokens;
  std::int64_t max_tokens = 0, score_from = 0;
  bool json = false;
};

std::string as_json(const EvalResult& result) {
  nlohmann::ordered_json json{{"perplexity", result.perplexity},
                              {"tokens", result.tokens},
                              {"log_likelihood", result.log_likelihood},
                              {"windows", result.windows}};
  if (const auto& a = result.agreement) {
    json["reference_perplexity"] = a->reference_perplexity;
    json["perplexity_ratio"] = a->perplexity_ratio;
    json["log_ratio_error"] = a->log_ratio_error;
    json["top1_agreement"] = a->top1_agreement;
    json["kl_mean"] = a->kl_mean;
    json["weight_bytes_fraction"] = a->weight_bytes_fraction;
    json["kv_bytes_fraction"] = a->kv_bytes_fraction;
  }
  return json.dump(2) + "\n";
}

std::string as_text(const EvalResult& result) {
  std::string text = fmt::format("perplexity            {:.4f}\nscored tokens         {} in {} windows\n",
                                 result.perplexity, result.tokens, result.windows);
  if (const auto& a = result.agreement) {
    text += fmt::format(
        "reference perplexity  {:.4f}\nperplexity ratio      {:.5f} (standard error {:.5f})\ntop-1 agreement       {:.2f} %\n"
        "mean KL divergence    {:.3e} nats\nweight bytes          {:.4f} of the reference's\n"
        "cache bytes           {:.4f} of the reference's\n",
        a->reference_perplexity, a->perplexity_ratio, a->perplexity_ratio * a->log_ratio_error, a->top1_agreement * 100, a->kl_mean,
        a->weight_bytes_fraction, a->kv_bytes_fraction);
  }
  return text;
}

void eval(const EvalCommand& o) {
  EvalOptions options{.context = o.cache.context, .max_tokens = o.max_tokens, .kv_type = o.cache.kv_type()};
  options.compression = o.compression.compression(o.model);
  if (options.compression && o.compression.ada == "paper") throw UsageError("--ada paper and --kv-policy exclude each other");
  options.score_from = o.score_from > 0 ? o.score_from : o.compression.compress_at;
  if (options.score_from + 1 >= options.context)
    throw UsageError(fmt::format("{}: expected less than the {} tokens of a window, by 2 at least, found {}",
                                 o.score_from > 0 ? "--score-from" : "--compress-at", options.context, options.score_from));
  const auto tau = static_cast<float>(o.compression.tau.value_or(0.3));
  if (o.compression.ada == "paper" && tau != 0) {
    if (!o.cache.kv_type_k.empty() || !o.cache.kv_type_v.empty())
      throw UsageError("--ada paper and --kv-type exclude each other: its keys and values are f32");
    try {
      selection_threshold(tau);
    } catch (const Error& error) {
      throw UsageError(fmt::format("--tau: {}", error.what()));
    }
    options.attention = [tau](const ModelSpec& spec) { return paper_attention(spec, tau); };
  }
  if (!o.tokens.empty()) {
    std::vector<std::string> inputs = o.model.inputs();
    inputs.insert(inputs.end(), {o.file, o.reference});
    check_output(o.tokens, inputs);
  }
  const std::string text = read_text(o.file);
  const auto model = o.model.load();
  warn_uncompressed(model, options.kv_type, options.compression, options.context);
  std::optional<OutputFile> tokens;
  if (!o.tokens.empty()) {
    tokens.emplace(o.tokens);
    options.on_token = [&](const TokenScore& s) {
      const std::string line = fmt::format(
          "{{\"window\": {}, \"position\": {}, \"id\": {}, \"bytes\": {}, \"log_likelihood\": {:.6g}, \"likeliest\": {}}}\n", s.window,
          s.position, s.token, model->piece(s.token, true).size(), s.log_likelihood, s.likeliest);
      tokens->write(line.data(), line.size());
    };
  }
  o.cache.warn_beyond_training(*model);
  const auto reference = o.reference.empty() ? nullptr : Model::load(o.reference, o.model.load_options());
  std::optional<Progress> bar;
  options.progress = [&](std::int64_t done, std::int64_t total, double perplexity) {
    if (!bar) bar.emplace("eval", total);
    bar->update(done, fmt::format("perplexity {:.3f}", perplexity));
  };
  const EvalResult result = evaluate(model, text, options, reference);
  bar.reset();
  if (tokens) tokens->commit();
  print(o.json ? as_json(result) : as_text(result));
}

}  // namespace

void add_eval(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("eval", "Perplexity on a text; agreement with a reference model");
  const auto o = std::make_shared<EvalCommand>();
  o->cache.context = 512;
  add_model_options(*command, o->model);
  add_method_options(*command, o->model);
  command->add_option("-f,--file", o->file, "The text (-: standard input)")->type_name("TEXT")->required();
  command->add_option("-c,--ctx,--ctx-size", o->cache.context, "Tokens a window, BOS included (default 512)")
      ->type_name("N")
      ->check(range(2, kUnbounded));
  command
      ->add_option("--max-tokens", o->max_tokens,
                   "Compute at most N tokens, BOS included; 0: the whole text (default)")
      ->type_name("N")
      ->check(range(0, kUnbounded));
  command->add_option("--reference", o->reference, "Compare with this model, position by position")
      ->type_name("FILE");
  add_kv_type(*command, o->cache);
  add_compression_options(*command, o->compression, true);
  command
      ->add_option("--compress-at", o->compression.compress_at,
                   "Compress the cache once, after the first N tokens of each window, and score what follows")
      ->type_name("N")
      ->check(range(1, kUnbounded));
  command->add_option("--score-from", o->score_from, "Score what follows the first N tokens of each window only")
      ->type_name("N")
      ->check(range(1, kUnbounded));
  command->add_option("--tokens", o->tokens, "Write a line of JSON for each scored token: its log-likelihood, its id and length in bytes")
      ->type_name("FILE");
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(R"(
The text is tokenized whole and cut into windows, each computed on its own, with BOS first if the model adds one. Every
token of a window but its first is scored given those before it. With --reference: the ratio of the perplexities, the
share of positions where both models hold the same token likeliest, and the mean Kullback-Leibler divergence of the
model from the reference, which has an f16 cache whatever --kv-type says.)");
  command->callback([o] { eval(*o); });
}

}  // namespace narrows::cli
