// narrows info: what is in a model file.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/common.h"

namespace narrows::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  std::string path;
  bool json = false;
  std::int64_t context = 0;
};

std::string show(const std::string& key, const Json& value) {
  if (value.is_number_integer() && key.ends_with("bytes")) return human_bytes(value.get<double>());
  if (value.is_number_float()) return fmt::format("{:g}", value.get<double>());
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; ++lines)
    text.replace(at, 1, "\\n");
  constexpr std::size_t kWidth = 100;
  if (text.size() > kWidth) {
    std::size_t cut = kWidth;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;  // whole characters
    text = text.substr(0, cut) + " …";
  }
  return text;
}

// A line a value; the members of an object follow its name, indented.
void table(const Json& object, int depth, std::string& out) {
  for (const auto& [key, value] : object.items()) {
    std::string label = key;
    std::replace(label.begin(), label.end(), '_', ' ');
    if (value.is_object()) {
      out += fmt::format("{:{}}{}\n", "", depth * 2, label);
      table(value, depth + 1, out);
    } else {
      out += fmt::format("{:{}}{:<{}} {}\n", "", depth * 2, label, 30 - depth * 2, show(key, value));
    }
  }
}

void info(const InfoOptions& options) {
  const auto model = Model::load(options.path, {.threads = 1, .repack = false});
  const Json description = Json::parse(model->describe(options.context));
  if (options.json) return print(description.dump(2) + "\n");
  std::string text;
  table(description, 0, text);
  print(text);
}

}  // namespace

void add_info(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("info", "Describe a model: sizes, types, tokenizer, template, memory needed");
  const auto options = std::make_shared<InfoOptions>();
  command->add_option("model,-m,--model", options->path, "The model")->type_name("FILE")->required();
  command
      ->add_option("-c,--ctx-size", options->context,
                   "Tell the memory for N tokens of context (0: the trained one)")
      ->type_name("N")
      ->check(range(0, kUnbounded));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { info(*options); });
}

}  // namespace narrows::cli
