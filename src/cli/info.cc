// narrows info: what is in a model file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "formats/gguf.h"
#include "huggingface/folder.h"

namespace narrows::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  std::string path;
  bool json = false;
  std::int64_t context = 0;
};

// Lines of a name and a value.
class Table {
 public:
  void add(std::string_view name, std::string_view value) {
    text_ += fmt::format("{:<18} {}\n", name, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string bytes(const Json& value) { return human_bytes(value.get<double>()); }

// One number, or "512 to 1024, by layer".
std::string by_layer(const Json& value) {
  if (!value.is_array()) return value.dump();
  const auto [least, most] = std::minmax_element(value.begin(), value.end());
  return fmt::format("{} to {} (by layer)", least->dump(), most->dump());
}

// "512 tokens in 15 of 18 layers"; empty if every layer sees everything.
std::string windows(const Json& value, const Json& layers) {
  std::map<std::int64_t, std::int64_t> count;
  if (value.is_array())
    for (const Json& window : value) ++count[window.get<std::int64_t>()];
  else
    count[value.get<std::int64_t>()] = layers.get<std::int64_t>();
  std::vector<std::string> parts;
  for (const auto& [window, n] : count)
    if (window > 0) parts.push_back(fmt::format("{} tokens in {} of {} layers", window, n, layers.dump()));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string token(const Json& value) {
  if (value.is_null()) return "none";
  return fmt::format("{} '{}'", value["id"].get<int>(), printable(value["text"].get<std::string>()));
}

void add_shape(const Json& d, Table& table) {
  table.add("layers", d["layers"].dump());
  table.add("hidden dimension", fmt::format("{}, feed-forward {}", d["embedding_length"].dump(),
                                            by_layer(d["feed_forward_length"])));
  table.add("attention",
            fmt::format("{} heads, {} for keys and values, of dimension {}", by_layer(d["heads"]),
                        by_layer(d["kv_heads"]), by_layer(d["head_dimensions"])));
  if (const std::string text = windows(d["sliding_window"], d["layers"]); !text.empty())
    table.add("sliding window", text);
  table.add("output head", d["tied_head"].get<bool>() ? "shares the embedding" : "of its own");
  table.add("trained context", d["context_length"].dump() + " tokens");
  table.add("a token reads", bytes(d["weight_bytes_per_token"]) + " of weights");
}

void add_tokenizer(const Json& t, Table& table) {
  const std::string pre = t["pre"].get<std::string>();
  table.add("tokenizer", fmt::format("{}{}, {} tokens", t["model"].get<std::string>(),
                                     pre.empty() ? "" : " (" + pre + ")", t["tokens"].dump()));
  table.add("BOS", token(t["bos"]) + (t["adds_bos"].get<bool>() ? ", added" : ", not added"));
  table.add("EOS", token(t["eos"]) + (t["adds_eos"].get<bool>() ? ", added" : ", not added"));
  if (t["eot"] != t["eos"]) table.add("end of turn", token(t["eot"]));
}

void add_memory(const Json& memory, Table& table) {
  const Json& cache = memory["kv_cache"];
  table.add(fmt::format("memory at -c {}", memory["context"].dump()),
            human_bytes(memory["weight_bytes"].get<double>() + cache["f16_bytes"].get<double>()) +
                ", weights and f16 cache");
  table.add("  weights", bytes(memory["weight_bytes"]));
  table.add("  cache", fmt::format("f16 {}, q8_0 {}, f32 {}", bytes(cache["f16_bytes"]),
                                   bytes(cache["q8_0_bytes"]), bytes(cache["f32_bytes"])));
}

std::string describe(const Json& d) {
  Table table;
  table.add("model", fmt::format("{} ({}, {})", printable(d["name"].get<std::string>()),
                                 d["architecture"].get<std::string>(), d["format"].get<std::string>()));
  table.add("size", fmt::format("{}, {:.1f} M parameters", bytes(d["file_bytes"]),
                                d["parameters"].get<double>() / 1e6));
  table.add("fingerprint", d["fingerprint"].get<std::string>());
  std::string_view label = "weights";
  const Json types = d.value("types", Json::object());
  for (const auto& [name, type] : types.items()) {
    table.add(label,
              fmt::format("{:<7} {:>9} in {} tensors", name, bytes(type["bytes"]), type["tensors"].dump()));
    label = "";
  }
  if (d.contains("layers"))
    add_shape(d, table);
  else
    table.add("weights", "none: a vocabulary only");
  add_tokenizer(d["tokenizer"], table);
  const auto chat = d["chat_template"].get<std::string>();
  table.add("chat template",
            chat.empty() ? "none" : fmt::format("{} bytes of Jinja (--json shows it)", chat.size()));
  if (d.contains("memory")) add_memory(d["memory"], table);
  return table.text();
}

void info(const InfoOptions& options) {
  const bool vocab_only = !is_model_folder(options.path) && GgufFile::open(options.path).tensors().empty();
  const auto model = Model::load(options.path, {.threads = 1, .repack = false, .vocab_only = vocab_only});
  const Json description = Json::parse(model->describe(options.context));
  print(options.json ? description.dump(2) + "\n" : describe(description));
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
