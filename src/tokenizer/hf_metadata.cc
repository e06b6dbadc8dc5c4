#include "tokenizer/hf_metadata.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tokenizer/hf_conversion.h"
#include "tokenizer/hf_model.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/hf_vocabulary.h"
#include "tokenizer/json_item.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

using nlohmann::json;

std::optional<std::string> read_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  if (!std::filesystem::is_regular_file(path, error)) fail("{}: expected a file", path);
  constexpr std::uintmax_t kLargest = std::uintmax_t{1} << 30;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kLargest) fail("{}: expected a file of at most {} bytes", path, kLargest);
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in || text.size() != size) fail("{}: cannot be read", path);
  return text;
}

// A token in a configuration: its content, or an object that has it.
std::optional<std::string> token_content(const JsonItem& config, std::string_view key) {
  const auto item = config.find(key);
  if (!item) return std::nullopt;
  if (item->json().is_object()) return item->get("content").string();
  return item->string();
}

class Folder {
 public:
  explicit Folder(const std::string& path) : path_(path) {
    if (!std::filesystem::is_directory(path)) fail("{}: expected a folder with a tokenizer", path);
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                             "generation_config.json", "config.json"}) {
      const auto text = file(name);
      json& parsed = parsed_[name];
      parsed = text ? parse_tokenizer_json(*text, at(name)) : json::object();
      if (!parsed.is_object()) JsonItem(parsed, at(name)).expected("an object");
    }
  }

  std::string at(std::string_view name) const { return fmt::format("{}/{}", path_, name); }
  std::optional<std::string> file(std::string_view name) const { return read_file(at(name)); }
  JsonItem config(const std::string& name) const { return {parsed_.at(name), at(name)}; }

 private:
  std::string path_;
  std::map<std::string, json> parsed_;
};

// What a tokenizer.json says or would say.
struct Source {
  json document;
  std::string name;  // of the file
  std::string text;  // of it as it is, "" if the document is made up or changed
  std::optional<SentencePieceModel> pieces;
};

json byte_level_step(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

// vocab.json and merges.txt: GPT-2's tokenizer, or Qwen2's by its class.
json gpt2_document(const Folder& folder, std::string_view vocab, std::string_view merges) {
  const JsonItem config = folder.config("tokenizer_config.json");
  auto list = json::array();
  for (std::size_t line_number = 1; !merges.empty(); ++line_number) {
    std::string_view line = merges.substr(0, merges.find('\n'));
    merges.remove_prefix(std::min(line.size() + 1, merges.size()));
    while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == line.npos || space == 0 || line.find(' ', space + 1) != line.npos || !is_valid_utf8(line)) {
      fail("{}: line {}: expected two tokens, found {}", folder.at("merges.txt"), line_number,
           narrows::quoted(line));
    }
    list.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  const bool prefix = config.boolean_or("add_prefix_space", false);
  json document = {{"version", "1.0"},
                   {"added_tokens", json::array()},
                   {"normalizer", nullptr},
                   {"pre_tokenizer", byte_level_step(prefix, true)},
                   {"post_processor", nullptr},
                   {"decoder", byte_level_step(true, true)},
                   {"model",
                    {{"type", "BPE"},
                     {"vocab", parse_tokenizer_json(vocab, folder.at("vocab.json"))},
                     {"merges", std::move(list)}}}};
  const std::string kind = config.string_or("tokenizer_class", "");
  if (kind.empty() || kind.starts_with("GPT2")) {  // whose tokenizer has this one special token, if the files name no others
    const json& known = document["model"]["vocab"];
    const auto end = known.is_object() ? known.find("<|endoftext|>") : known.end();
    if (end != known.end())
      document["added_tokens"].push_back(
          {{"id", *end}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}});
  }
  if (kind == "Qwen2Tokenizer" || kind == "Qwen2TokenizerFast") {
    constexpr std::string_view kQwen2 =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
        R"(\s+(?!\S)|\s+)";
    const json split = {
        {"type", "Split"}, {"pattern", {{"Regex", kQwen2}}}, {"behavior", "Isolated"}, {"invert", false}};
    document["normalizer"] = {{"type", "NFC"}};
    document["pre_tokenizer"] = {{"type", "Sequence"},
                                 {"pretokenizers", json::array({split, byte_level_step(false, false)})}};
  }
  return document;
}

Source read_source(const Folder& folder) {
  Source source;
  if (auto text = folder.file("tokenizer.json")) {
    source.name = folder.at("tokenizer.json");
    source.document = parse_tokenizer_json(*text, source.name);
    source.text = std::move(*text);
  } else if (const auto bytes = folder.file("tokenizer.model")) {
    source.name = folder.at("tokenizer.model");
    source.pieces = read_sentencepiece_model(*bytes, source.name);
    source.document = sentencepiece_as_json(*source.pieces);
  } else if (const auto vocab = folder.file("vocab.json")) {
    source.name = folder.at("vocab.json");
    const auto merges = folder.file("merges.txt");
    if (!merges) fail("{}: expected the merges of vocab.json", folder.at("merges.txt"));
    source.document = gpt2_document(folder, *vocab, *merges);
  } else {
    fail("{}: expected tokenizer.json, tokenizer.model, or vocab.json and merges.txt", folder.at(""));
  }
  if (!source.document.is_object()) JsonItem(source.document, source.name).expected("an object");
  return source;
}

// Adds the tokens that the other files name and the tokenizer lacks.
void add_tokens(const Folder& folder, Source& source) {
  std::map<std::string, TokenId> known;
  for (const HfAddedToken& token : read_hf_added_tokens(JsonItem(source.document, source.name))) {
    known.emplace(token.content, token.id);
  }
  const auto add = [&](const std::string& content, std::int64_t id, json token) {
    if (content.empty() || !known.emplace(content, static_cast<TokenId>(id)).second) return;
    token["content"] = content;
    token["id"] = id;
    json& list = source.document["added_tokens"];
    if (list.is_null()) list = json::array();
    list.push_back(std::move(token));
    source.text.clear();
  };
  if (const auto decoder = folder.config("tokenizer_config.json").find("added_tokens_decoder")) {
    for (const auto& [id_text, value] : decoder->object().items()) {
      const JsonItem item = decoder->member(id_text, value);
      constexpr std::size_t kDigits = 8;
      const bool number =
          !id_text.empty() && id_text.size() <= kDigits &&
          std::all_of(id_text.begin(), id_text.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!number) fail("{}: expected ids, found {}", decoder->where(), narrows::quoted(id_text));
      json token;
      for (const char* flag : {"special", "lstrip", "rstrip", "single_word"})
        token[flag] = item.boolean_or(flag, false);
      token["normalized"] = item.boolean_or("normalized", !token["special"].get<bool>());
      add(item.get("content").string(), std::stoll(id_text), std::move(token));
    }
  }
  // These are the tokens' names alone: a name in angle or square brackets is a special token's.
  const JsonItem added = folder.config("added_tokens.json");
  for (const auto& [content, value] : added.object().items()) {
    const bool special = (content.starts_with('<') && content.ends_with('>')) ||
                         (content.starts_with('[') && content.ends_with(']'));
    add(content, added.member(content, value).integer(0, kHfMostTokens - 1),
        {{"special", special}, {"normalized", !special}});
  }
}

class Writer {
 public:
  Writer(const Folder& folder, const Source& source, const HfTokens& tokens)
      : folder_(folder), source_(source), tokens_(tokens), document_(source.document, source.name) {}

  HfTokenizerMetadata run() {
    HfConversion conversion = convert_hf_tokenizer(document_, tokens_);
    if (source_.pieces && source_.pieces->type == SentencePieceModel::Type::Bpe) use_pieces(conversion);
    if (conversion.reasons.empty() && !source_.pieces) {
      const std::string difference = compare_hf_engines(conversion, tokens_, document_);
      if (!difference.empty()) conversion.reasons.push_back(difference);
    }
    write_tokens(conversion);
    write_special_tokens(conversion);
    write_chat_template();
    out_.exact = conversion.reasons.empty();
    if (!out_.exact) {
      set_string(std::string(kHfTokenizerKey), source_.text.empty() ? source_.document.dump() : source_.text);
    }
    out_.notes = std::move(conversion.reasons);
    return std::move(out_);
  }

 private:
  void set(std::string key, GgufType type, GgufValue value) {
    out_.entries.emplace_back(std::move(key), GgufEntry{type, std::move(value)});
  }
  void set_string(std::string key, std::string value) {
    set(std::move(key), GgufType::String, std::move(value));
  }
  void set_bool(std::string key, bool value) { set(std::move(key), GgufType::Bool, value); }
  void set_strings(std::string key, std::vector<std::string> values) {
    GgufArray array;
    array.element = GgufType::String;
    array.strings = std::move(values);
    set(std::move(key), GgufType::Array, std::move(array));
  }

  // A SentencePiece model is what the engine for "llama" is made for: its own scores serve, and rules that
  // its form as a tokenizer.json breaks do not matter.
  void use_pieces(HfConversion& conversion) {
    const SentencePieceModel& model = *source_.pieces;
    conversion.reasons.clear();
    if (!model.charsmap.empty())
      conversion.reasons.emplace_back("the normalizer does more than write spaces");
    if (!model.escape_whitespaces || model.whitespace_as_suffix) {
      conversion.reasons.emplace_back("spaces are not written before words as U+2581");
    }
    for (std::size_t id = 0; id < model.pieces.size(); ++id) conversion.scores[id] = model.pieces[id].score;
    conversion.add_space_prefix = model.add_dummy_prefix;
    conversion.remove_extra_whitespaces = model.remove_extra_whitespaces;
  }

  void write_tokens(const HfConversion& conversion) {
    set_string("tokenizer.ggml.model", conversion.model);
    if (!conversion.pre.empty() || conversion.model == "llama") {
      set_string("tokenizer.ggml.pre", conversion.pre.empty() ? "default" : conversion.pre);
    }
    set_strings("tokenizer.ggml.tokens", tokens_.spellings);
    GgufArray types;
    types.element = GgufType::I32;
    for (const TokenKind kind : tokens_.kinds) {
      constexpr std::array kTypes = {1, 2, 3, 4, 5, 6};  // in the order of TokenKind
      types.integers.push_back(kTypes[static_cast<std::size_t>(kind)]);
    }
    set("tokenizer.ggml.token_type", GgufType::Array, std::move(types));
    if (!conversion.scores.empty()) {
      GgufArray scores;
      scores.element = GgufType::F32;
      scores.floats.assign(conversion.scores.begin(), conversion.scores.end());
      set("tokenizer.ggml.scores", GgufType::Array, std::move(scores));
    }
    if (conversion.model == "gpt2") set_strings("tokenizer.ggml.merges", conversion.merges);
    if (conversion.model == "llama" || conversion.model == "t5") {
      set_bool("tokenizer.ggml.add_space_prefix", conversion.add_space_prefix);
      if (conversion.remove_extra_whitespaces) set_bool("tokenizer.ggml.remove_extra_whitespaces", true);
    }
    if (!conversion.charsmap.empty()) {
      GgufArray bytes;
      bytes.element = GgufType::U8;
      for (const char c : conversion.charsmap) bytes.integers.push_back(static_cast<unsigned char>(c));
      set("tokenizer.ggml.precompiled_charsmap", GgufType::Array, std::move(bytes));
    }
  }

  TokenId find_token(std::string_view content) const {
    const auto at = std::find(tokens_.spellings.begin(), tokens_.spellings.end(), content);
    return at == tokens_.spellings.end() ? kNoToken : static_cast<TokenId>(at - tokens_.spellings.begin());
  }

  // The ids that a configuration gives: a number or a list; at the top or for the text part of a larger
  // model.
  std::vector<TokenId> config_ids(const std::string& name, std::string_view key) const {
    const JsonItem config = folder_.config(name);
    auto item = config.find(key);
    if (const auto text = config.find("text_config"); !item && text) item = text->find(key);
    std::vector<TokenId> ids;
    if (!item) return ids;
    // An id beyond the vocabulary is left out, as llama.cpp's converter does; -1 is used for "none".
    const auto add = [&](const JsonItem& id) {
      const std::int64_t number = id.integer(-1, std::numeric_limits<std::int32_t>::max());
      if (number >= 0 && number < static_cast<std::int64_t>(tokens_.spellings.size())) {
        ids.push_back(static_cast<TokenId>(number));
      }
    };
    if (item->json().is_array()) {
      for (std::size_t i = 0; i < item->array_size(); ++i) add(item->element(i));
    } else {
      add(*item);
    }
    return ids;
  }

  TokenId special_id(const std::string& name) const {
    const std::string key = name + "_token";
    for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
      if (const auto content = token_content(folder_.config(file), key)) {
        const TokenId id = find_token(*content);
        if (id != kNoToken) return id;
      }
    }
    for (const char* file : {"config.json", "generation_config.json"}) {
      const auto ids = config_ids(file, key + "_id");
      if (!ids.empty()) return ids.front();
    }
    return kNoToken;
  }

  void write_special_tokens(HfConversion& conversion) {
    const JsonItem config = folder_.config("tokenizer_config.json");
    const HfAffixes affixes = read_hf_affixes(document_);
    const auto from_pieces = [&](std::int32_t SentencePieceModel::*member) {
      return source_.pieces ? static_cast<TokenId>((*source_.pieces).*member) : kNoToken;
    };
    const auto settle = [](TokenId id, TokenId other) { return id != kNoToken ? id : other; };
    TokenId bos = settle(special_id("bos"), from_pieces(&SentencePieceModel::bos));
    TokenId eos = settle(special_id("eos"), from_pieces(&SentencePieceModel::eos));
    const TokenId pad = settle(special_id("pad"), from_pieces(&SentencePieceModel::pad));
    const TokenId unk = settle(tokens_.unk, special_id("unk"));
    if (bos == kNoToken && affixes.prefix.size() == 1) bos = affixes.prefix[0];
    if (eos == kNoToken && affixes.suffix.size() == 1) eos = affixes.suffix[0];

    // What transformers adds: as the configuration says, else as the post-processor does. A SentencePiece
    // model has none; of its users Llama's tokenizer adds BOS, T5's EOS.
    const std::string kind = config.string_or("tokenizer_class", "");
    const bool bpe = source_.pieces && source_.pieces->type == SentencePieceModel::Type::Bpe;
    const bool llama = source_.pieces && (kind.starts_with("Llama") || kind.starts_with("Gemma") || (bpe && kind.empty()));
    const bool t5 = source_.pieces && kind.starts_with("T5");
    const auto adds = [&](const char* key, const std::vector<TokenId>& affix, TokenId token, bool by_kind) {
      const auto stated = config.find(key);
      const bool wanted = stated ? stated->boolean() : !affix.empty() || by_kind;
      if (wanted && !affix.empty() && affix != std::vector{token}) {
        conversion.reasons.emplace_back(
            "the post-processor adds other tokens than BOS before and EOS after a text");
      }
      return wanted && (token != kNoToken || !affix.empty());
    };
    const bool add_bos = adds("add_bos_token", affixes.prefix, bos, llama);
    const bool add_eos = adds("add_eos_token", affixes.suffix, eos, t5);

    const auto set_id = [&](const char* name, TokenId id) {
      if (id == kNoToken) return;
      set(fmt::format("tokenizer.ggml.{}_token_id", name), GgufType::U32, static_cast<std::uint64_t>(id));
    };
    set_id("bos", bos);
    set_id("eos", eos);
    set_id("unknown", unk);
    set_id("padding", pad);
    // Generation may end at others too.
    std::vector<TokenId> ends;
    for (const char* file : {"generation_config.json", "config.json"}) {
      for (const TokenId id : config_ids(file, "eos_token_id")) {
        if (id != eos && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
      }
    }
    if (!ends.empty()) set_id("eot", ends[0]);
    if (ends.size() > 1) set_id("eom", ends[1]);
    set_bool("tokenizer.ggml.add_bos_token", add_bos);
    set_bool("tokenizer.ggml.add_eos_token", add_eos);
  }

  void write_chat_template() {
    const auto file = folder_.file("chat_template.jinja");
    if (file) {
      if (!is_valid_utf8(*file)) fail("{}: expected UTF-8", folder_.at("chat_template.jinja"));
      set_string("tokenizer.chat_template", *file);
      return;
    }
    const auto item = folder_.config("tokenizer_config.json").find("chat_template");
    if (!item) return;
    if (item->json().is_string()) {
      set_string("tokenizer.chat_template", item->string());
      return;
    }
    std::vector<std::string> names;
    std::map<std::string, std::string> templates;
    for (std::size_t i = 0; i < item->array_size(); ++i) {
      const JsonItem named = item->element(i);
      const std::string& name = named.get("name").string();
      if (!templates.emplace(name, named.get("template").string()).second) {
        fail("{}: expected names that differ, found {} twice", named.where(), narrows::quoted(name));
      }
      if (name != "default") names.push_back(name);
    }
    for (const std::string& name : names) {
      const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-';
      });
      if (name.empty() || !plain) {
        fail("{}: expected names of letters, digits, '_' and '-', found {}", item->where(),
             narrows::quoted(name));
      }
      set_string("tokenizer.chat_template." + name, templates[name]);
    }
    if (!names.empty()) set_strings("tokenizer.chat_templates", names);
    if (const auto found = templates.find("default"); found != templates.end()) {
      set_string("tokenizer.chat_template", found->second);
    }
  }

  const Folder& folder_;
  const Source& source_;
  const HfTokens& tokens_;
  JsonItem document_;
  HfTokenizerMetadata out_;
};

}  // namespace

HfTokenizerMetadata read_hf_tokenizer(const std::string& folder_path,
                                      std::optional<std::int64_t> vocab_size) {
  if (vocab_size && (*vocab_size < 1 || *vocab_size > kHfMostTokens)) {
    fail("{}: expected a model of 1 to {} tokens, found {}", folder_path, kHfMostTokens, *vocab_size);
  }
  const Folder folder(folder_path);
  Source source = read_source(folder);
  add_tokens(folder, source);
  HfTokens tokens = read_hf_tokens(JsonItem(source.document, source.name), vocab_size);
  if (source.pieces) {
    for (std::size_t id = 0; id < source.pieces->pieces.size(); ++id) {
      if (source.pieces->pieces[id].type == 5) tokens.kinds[id] = TokenKind::Unused;
    }
  }
  return Writer(folder, source, tokens).run();
}

}  // namespace narrows
