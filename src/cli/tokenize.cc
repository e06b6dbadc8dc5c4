// narrows tokenize: text to token ids and back.
#include <fmt/format.h>

#include "base/error.h"
#include "cli/common.h"

namespace narrows::cli {
namespace {

struct TokenizeCommand {
  std::string path, prompt, file = "-", detokenize;
  bool prompt_given = false, ids = false, special = false, parse_special = false, escape = false;
};

void tokenize(const TokenizeCommand& o) {
  const auto model = Model::load(o.path, {.threads = 1, .vocab_only = true});
  if (!o.detokenize.empty())
    return print(model->detokenize(parse_ids(o.detokenize, "--detokenize"), o.special));
  std::string text = o.prompt_given ? o.prompt : read_file(o.file);
  if (o.escape) text = unescape(text);
  const auto ids = model->tokenize(text, {.add_special = o.special, .parse_special = o.parse_special});
  if (o.ids) return print(join_ids(ids) + "\n");
  std::string lines;
  for (const TokenId id : ids) lines += fmt::format("{:6} -> '{}'\n", id, printable(model->piece(id, true)));
  print(lines);
}

}  // namespace

void add_tokenize(CLI::App& program) {
  CLI::App* command = program.add_subcommand("tokenize", "Text to token ids, or back");
  const auto o = std::make_shared<TokenizeCommand>();
  command->add_option("-m,--model", o->path, "The model (its weights are not read)")
      ->type_name("FILE")
      ->required();
  CLI::Option* prompt = command->add_option("-p,--prompt", o->prompt, "The text")->type_name("TEXT");
  CLI::Option* file =
      command->add_option("-f,--file", o->file, "Read the text from a file; standard input without -p and -f")
          ->type_name("FILE")
          ->excludes(prompt);
  CLI::Option* back =
      command->add_option("--detokenize", o->detokenize, "Print the exact bytes of these ids instead")
          ->type_name("1,2,3")
          ->excludes(prompt)
          ->excludes(file);
  command->add_flag("--ids", o->ids,
                    "Print the bare ids, 1,2,3; otherwise a line with id and piece for each");
  command->add_flag("--special", o->special,
                    "Add BOS and EOS where the model asks for them; with --detokenize: print control tokens");
  command->add_flag("--parse-special", o->parse_special,
                    "Control tokens spelled out in the text become their ids");
  command->add_flag("-e,--escape", o->escape, "Read \\n, \\t, \\xHH … in the text as in C");
  command->callback([o, prompt, back] {
    o->prompt_given = prompt->count() > 0;
    if (back->count() > 0 && o->detokenize.empty())
      throw UsageError("--detokenize: expected token ids like 1,2,3");
    tokenize(*o);
  });
}

}  // namespace narrows::cli
