// narrows run: text from a prompt, or a conversation.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "cli/common.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"

namespace narrows::cli {
namespace {

constexpr const char* kFooter = R"(
A model with a chat template is run as a conversation unless -no-cnv is given: -p is the user's first message, and the
answer is printed. On a terminal the conversation goes on from there (not with -st); Ctrl-C stops an answer, Ctrl-C or
Ctrl-D at the prompt ends, /help lists what else there is. Where standard input is no terminal, -p is answered and the
program ends; without -p every line of input is a message.
Without a conversation the prompt is continued as it stands.

The same seed, prompt and flags give the same text, whatever the threads (not after a --context-shift).
Statistics go to standard error.)";

struct RunOptions {
  ModelOptions model;
  CacheOptions cache;
  CompressionOptions compression;
  SamplerOptions sampler;
  std::string prompt, file, prompt_ids, system;
  std::vector<std::string> stop;
  std::int64_t predict = -1, keep = 0, seed = 0;
  bool conversation = false, no_conversation = false, single_turn = false, no_escape = false,
       no_display_prompt = false, ignore_eos = false, context_shift = false, output_ids = false,
       special = false, verbose_prompt = false, no_perf = false;
};

void add_options(CLI::App& c, RunOptions& o) {
  add_model_options(c, o.model);
  add_method_options(c, o.model);
  c.add_option("-p,--prompt", o.prompt, "The prompt, or the first message of a conversation")
      ->type_name("TEXT");
  c.add_option("-f,--file", o.file, "Read the prompt from a file (-: standard input)")->type_name("FILE");
  c.add_option("--prompt-ids", o.prompt_ids, "Use these token ids as the prompt, as they are")
      ->type_name("1,2,3");
  c.add_option("-n,--predict,--n-predict", o.predict,
               "Generate at most N tokens an answer; -1: until the model ends (default)")
      ->type_name("N")
      ->check(range(-2, kUnbounded));
  c.add_option("-c,--ctx-size", o.cache.context,
               "Tokens of context; 0: what the model was trained on (default)")
      ->type_name("N")
      ->check(range(0, kUnbounded));
  add_kv_type(c, o.cache);
  add_compression_options(c, o.compression);
  add_chunk_size(c, o.cache);
  c.add_flag("--context-shift,!--no-context-shift", o.context_shift,
             "When the context is full, drop its older half and go on, instead of ending");
  c.add_option("--keep", o.keep, "Tokens at the start that --context-shift keeps")
      ->type_name("N")
      ->check(range(0, kUnbounded));

  const std::string sampling = "Sampling";
  c.add_option("--temp,--temperature", o.sampler.temperature,
               "Temperature (default 0.8); 0: always the likeliest token")
      ->type_name("T")
      ->check(range(0.0, 1e6))
      ->group(sampling);
  c.add_option("--top-k", o.sampler.top_k, "Choose among the K likeliest tokens (default 40); 0: off")
      ->type_name("K")
      ->check(range(0, kUnbounded))
      ->group(sampling);
  c.add_option("--top-p", o.sampler.top_p,
               "… among the likeliest that together reach P (default 0.95); 1: off")
      ->type_name("P")
      ->check(range(0.0, 1.0))
      ->group(sampling);
  c.add_option("--min-p", o.sampler.min_p,
               "… among those at least P times as likely as the likeliest (default 0.05); 0: off")
      ->type_name("P")
      ->check(range(0.0, 1.0))
      ->group(sampling);
  c.add_option("--repeat-penalty", o.sampler.repeat_penalty, "Penalty of recent tokens (default 1: off)")
      ->type_name("X")
      ->check(range(1e-6, 1e6))
      ->group(sampling);
  c.add_option("--repeat-last-n", o.sampler.repeat_last_n, "How many tokens are recent (default 64); -1: all")
      ->type_name("N")
      ->check(range(-1, kUnbounded))
      ->group(sampling);
  c.add_option("-s,--seed", o.seed, "Seed of the random choices (default 0); -1: another one each time")
      ->type_name("N")
      ->group(sampling);
  c.add_flag("--ignore-eos", o.ignore_eos, "Never choose an end token")->group(sampling);

  const std::string chat = "Conversation";
  c.add_flag("--conversation,--cnv", o.conversation, "Converse; an error if the model has no chat template")
      ->group(chat);
  c.add_flag("--no-conversation,--no-cnv", o.no_conversation, "Continue the prompt as it stands")
      ->group(chat);
  c.add_option("--system-prompt,--sys", o.system, "The system message")->type_name("TEXT")->group(chat);
  c.add_flag("--single-turn,--st", o.single_turn, "End after the first answer")->group(chat);
  c.add_option("-r,--reverse-prompt", o.stop, "End an answer before this text; may be given several times")
      ->type_name("TEXT")
      ->expected(1)
      ->take_all()
      ->group(chat);

  const std::string output = "Input and output";
  c.add_flag(
       "-e,--escape,!--no-escape", [&o](std::int64_t on) { o.no_escape = on < 0; },
       "Read \\n, \\t, \\xHH … in -p, -sys and -r as in C (default; --no-escape: as they stand)")
      ->group(output);
  c.add_flag("--no-display-prompt", o.no_display_prompt, "Without a conversation: do not repeat the prompt")
      ->group(output);
  c.add_flag("--special", o.special, "Print control tokens too")->group(output);
  c.add_flag("--output-ids", o.output_ids, "Print the generated token ids, 1,2,3, instead of text")
      ->group(output);
  c.add_flag("--verbose-prompt", o.verbose_prompt, "Print the prompt's tokens on standard error")
      ->group(output);
  c.add_flag("--no-perf,!--perf", o.no_perf, "Print no statistics")->group(output);
  c.footer(kFooter);
}

class Runner {
 public:
  explicit Runner(const RunOptions& options)
      : o_(options),
        session_options_{.context = o_.cache.context,
                         .kv_type = o_.cache.kv_type(),
                         .chunk = o_.cache.chunk(),
                         .context_shift = o_.context_shift,
                         .keep = o_.keep,
                         .compression = o_.compression.compression(o_.model)},
        model_(options.model.load()),
        session_(model_, session_options_),
        sampler_(o_.sampler) {
    generate_.max_tokens = std::max<std::int64_t>(o_.predict, -1);
    generate_.stop = o_.stop;
    generate_.ignore_end = o_.ignore_eos;
    generate_.show_special = o_.special;
    o_.cache.warn_beyond_training(*model_);
    warn_uncompressed(model_, session_options_.kv_type, session_options_.compression, session_.context());
  }

  int run() {
    InterruptScope scope;
    const bool converse =
        o_.conversation || (!o_.no_conversation && o_.prompt_ids.empty() && model_->has_chat_template());
    if (converse) return run_conversation();
    if (!o_.system.empty())
      throw UsageError("--system-prompt needs a conversation: a model with a chat template, without -no-cnv");
    return run_completion();
  }

 private:
  int run_completion() {
    std::vector<TokenId> ids;
    if (o_.prompt_ids.empty()) {
      if (o_.prompt.empty()) throw UsageError("expected a prompt that is not empty: -p, -f or --prompt-ids");
      ids = model_->tokenize(o_.prompt, {.add_special = true, .parse_special = true});
    } else {
      ids = parse_ids(o_.prompt_ids, "--prompt-ids");
    }
    show_tokens(ids);
    if (!o_.output_ids && !o_.no_display_prompt)
      print(o_.prompt_ids.empty() ? o_.prompt : model_->detokenize(ids, o_.special));
    return finish(generate(session_, ids, sampler_, generate_, writer()));
  }

  int run_conversation() {
    Chat chat(session_, o_.system);
    if (!o_.prompt.empty()) {
      const int status = answer(chat, o_.prompt);
      if (o_.single_turn || !::isatty(STDIN_FILENO)) return status;
    }
    LineReader reader;
    if (reader.terminal()) note(fmt::format("{}: /help for help, Ctrl-D to end", model_->path()));
    for (;;) {
      const auto line = reader.read();
      if (!line) break;
      if (reader.terminal() && line->starts_with('/')) {
        if (!run_word(chat, *line)) break;
      } else if (line->find_first_not_of(" \t\r\n") != std::string::npos) {
        try {
          answer(chat, *line);
        } catch (const Error& error) {
          if (!reader.terminal()) throw;
          note(error.what());
        }
        if (o_.single_turn) break;
      }
    }
    if (reader.terminal()) print("\n");
    return 0;
  }

  // A word of the user to the program. False ends the conversation.
  bool run_word(Chat& chat, const std::string& line) {
    if (line == "/exit" || line == "/quit") return false;
    if (line == "/clear") {
      chat.clear();
      sampler_.reset();
    } else {
      print_error(
          "/clear  forget the conversation\n/exit   end, as Ctrl-D\n/help   this text\n"
          "A backslash at the end of a line continues it on the next. Ctrl-C stops an answer.\n");
    }
    return true;
  }

  int answer(Chat& chat, const std::string& text) {
    if (o_.verbose_prompt) {
      auto messages = chat.messages();
      messages.push_back({"user", text});
      show_tokens(tokenize_chat(*model_, messages));
    }
    return finish(chat.answer(text, sampler_, generate_, writer()));
  }

  TextCallback writer() const {
    return [this](std::string_view text) {
      if (!o_.output_ids && !text.empty()) print(text);
      return !interrupted();
    };
  }

  // Ends the output of one answer. The exit status: 130 after Ctrl-C, as a shell reports it.
  int finish(const GenerateResult& result) const {
    if (o_.output_ids)
      print(join_ids(result.tokens) + "\n");
    else
      print("\n");
    if (result.reason == StopReason::ContextFull)
      note(fmt::format(
          "the context of {} tokens is full: -c N sets another, --context-shift goes on by forgetting",
          session_.context()));
    if (!o_.no_perf) {
      const auto rate = [](std::int64_t tokens, double seconds) {
        return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
      };
      const std::int64_t generated = std::ssize(result.tokens);
      note(fmt::format("prompt {} tokens, {:.1f} tokens/s; generated {} tokens, {:.1f} tokens/s",
                       result.prompt_tokens, rate(result.prompt_tokens, result.prompt_seconds), generated,
                       rate(std::max<std::int64_t>(generated - 1, 0), result.generate_seconds)));
    }
    return take_interrupt() ? 130 : 0;
  }

  void show_tokens(std::span<const TokenId> ids) const {
    if (!o_.verbose_prompt) return;
    for (const TokenId id : ids)
      print_error(fmt::format("{:6} -> '{}'\n", id, printable(model_->piece(id, true))));
  }

  const RunOptions& o_;
  SessionOptions session_options_;  // before the model: wrong flags are told before it is loaded
  std::shared_ptr<Model> model_;
  Session session_;
  Sampler sampler_;
  GenerateOptions generate_;
};

void prepare(RunOptions& o) {
  if (o.conversation && o.no_conversation)
    throw UsageError("--conversation and --no-conversation exclude each other");
  if (o.conversation && !o.prompt_ids.empty())
    throw UsageError("--conversation and --prompt-ids exclude each other");
  if (!o.no_escape) {
    for (std::string* text : {&o.prompt, &o.system}) *text = unescape(*text);
    for (std::string& text : o.stop) text = unescape(text);
  }
  for (const std::string& text : o.stop)
    if (text.empty()) throw UsageError("--reverse-prompt: expected text, found an empty string");
  if (!o.file.empty()) {
    if (!o.prompt.empty()) throw UsageError("--prompt and --file exclude each other");
    o.prompt = read_file(o.file);
    if (o.prompt.ends_with('\n')) o.prompt.pop_back();
    if (o.prompt.empty()) fail("{}: the prompt is empty", o.file);
  }
  if (o.seed < -1) throw UsageError(fmt::format("--seed: expected -1 or more, found {}", o.seed));
  if (o.seed == -1) {
    o.seed = std::random_device()();
    note(fmt::format("seed {}", o.seed));
  }
  o.sampler.seed = static_cast<std::uint64_t>(o.seed);
}

}  // namespace

void add_run(CLI::App& program) {
  CLI::App* command = program.add_subcommand("run", "Continue a prompt, or converse");
  const auto options = std::make_shared<RunOptions>();
  add_options(*command, *options);
  command->callback([options] {
    prepare(*options);
    const int status = Runner(*options).run();
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace narrows::cli
