#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/gguf.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kScores = "tokenizer.ggml.scores";

// A turn ends with one of these, the likelier first: the first that a vocabulary has is its EOT if no key
// says.
constexpr std::array<std::string_view, 11> kEndOfTurn = {"<|eot_id|>",
                                                         "<|im_end|>",
                                                         "<end_of_turn>",
                                                         "<|end|>",
                                                         "<EOT>",
                                                         "_<EOT>",
                                                         "[EOT]",
                                                         "<｜end▁of▁sentence｜>",
                                                         "<end_of_utterance>",
                                                         "<|end_of_text|>",
                                                         "<|endoftext|>"};
// Generation stops at these too.
constexpr std::array<std::string_view, 11> kOtherEnds = {
    "<|eom_id|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",       "</s>",
    "[EOS]",      "<eos>",      "<turn|>",  "[e~[",      "<|tool_response>"};
// Tokens of fill-in-the-middle code models; the first that there is of each row is the one that is meant.
// A file or repository that follows, or padding, ends generation.
constexpr std::array<std::array<std::string_view, 5>, 3> kEndOfFile = {{
    {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    {"<|file_sep|>", "", "", "", ""},
}};
constexpr std::array<std::array<std::string_view, 8>, 3> kFillInTheMiddle = {{
    {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
     "<|code_prefix|>", "<|prefix|>"},
    {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
     "<|suffix|>"},
    {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
     "<|middle|>"},
}};

const GgufArray& array_of(const GgufFile& file, std::string_view key, std::size_t length) {
  const GgufArray& array = file.get_array(key);
  if (array.size() != length) {
    fail("{}: key {}: expected {} elements, one for each token, found {}", file.path(), key, length,
         array.size());
  }
  return array;
}

std::vector<std::string> read_spellings(const GgufFile& file) {
  const GgufArray& tokens = file.get_array(kTokens);
  if (tokens.element != GgufType::String) {
    fail("{}: key {}: expected an array of strings", file.path(), kTokens);
  }
  if (tokens.size() == 0 || tokens.size() > std::numeric_limits<TokenId>::max()) {
    fail("{}: key {}: expected 1 to 2^31 - 1 tokens, found {}", file.path(), kTokens, tokens.size());
  }
  std::vector<std::string> spellings = tokens.strings;
  for (std::size_t id = 0; id < spellings.size(); ++id) {
    if (spellings[id].empty()) spellings[id] = fmt::format("[EMPTY_{}]", id);
  }
  return spellings;
}

std::vector<TokenKind> read_kinds(const GgufFile& file, std::size_t count) {
  std::vector<TokenKind> kinds(count, TokenKind::Normal);
  if (!file.has(kTypes)) return kinds;
  const GgufArray& types = array_of(file, kTypes, count);
  if (types.integers.size() != count) fail("{}: key {}: expected an array of integers", file.path(), kTypes);
  // 0, "undefined", is what some converters write for ordinary tokens.
  constexpr std::array kByType = {TokenKind::Normal,  TokenKind::Normal,      TokenKind::Unknown,
                                  TokenKind::Control, TokenKind::UserDefined, TokenKind::Unused,
                                  TokenKind::Byte};
  for (std::size_t id = 0; id < count; ++id) {
    const std::int64_t type = types.integers[id];
    if (type < 0 || type >= static_cast<std::int64_t>(kByType.size())) {
      fail("{}: key {}: token {}: expected a type of 0 to 6, found {}", file.path(), kTypes, id, type);
    }
    kinds[id] = kByType[static_cast<std::size_t>(type)];
  }
  return kinds;
}

std::vector<float> read_scores(const GgufFile& file, std::size_t count) {
  const GgufArray& array = array_of(file, kScores, count);
  if (array.element == GgufType::String)
    fail("{}: key {}: expected an array of numbers", file.path(), kScores);
  std::vector<float> scores(count);
  for (std::size_t id = 0; id < count; ++id) {
    scores[id] =
        array.floats.empty() ? static_cast<float>(array.integers[id]) : static_cast<float>(array.floats[id]);
    if (std::isnan(scores[id]))
      fail("{}: key {}: token {}: expected a number, found NaN", file.path(), kScores, id);
  }
  return scores;
}

TokenId read_id(const GgufFile& file, std::string_view key, std::size_t count, TokenId fallback) {
  const auto value = file.find_int(key);
  if (!value) return fallback >= 0 && static_cast<std::size_t>(fallback) < count ? fallback : kNoToken;
  if (*value == -1 || *value == std::numeric_limits<std::uint32_t>::max())
    return kNoToken;  // written for "none"
  if (*value < 0 || *value >= static_cast<std::int64_t>(count)) {
    fail("{}: key {}: expected a token id below {}, found {}", file.path(), key, count, *value);
  }
  return static_cast<TokenId>(*value);
}

}  // namespace

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string out = "'";
  const std::string_view shown = text.substr(0, kShown);
  for (std::size_t i = 0; i < shown.size();) {
    const std::size_t length = utf8_sequence(shown.substr(i));
    const auto byte = static_cast<unsigned char>(shown[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += shown.substr(i, length);
    }
    i += std::max<std::size_t>(length, 1);
  }
  return out + (text.size() > kShown ? "…'" : "'");
}

void finish_vocabulary(Vocabulary& v) {
  const auto [first, second] = v.index.build(v.spellings);
  if (second != kNoToken) {
    fail("{}: key {}: tokens {} and {} are both {}", v.source, kTokens, first, second,
         quoted(v.spelling(second)));
  }
  v.end_of_generation.assign(v.size(), false);
  const auto find_control = [&](std::string_view spelling) {
    const TokenId id = spelling.empty() ? kNoToken : v.index.find(spelling);
    if (id != kNoToken) v.kinds[static_cast<std::size_t>(id)] = TokenKind::Control;
    return id;
  };
  const auto mark_end = [&](TokenId id) {
    if (id != kNoToken) v.end_of_generation[static_cast<std::size_t>(id)] = true;
  };
  for (const auto spelling : kEndOfTurn) {
    const TokenId id = find_control(spelling);
    if (v.eot == kNoToken) v.eot = id;
    mark_end(id);
  }
  for (const auto spelling : kOtherEnds) mark_end(find_control(spelling));
  const auto first_of = [&](const auto& spellings) {
    for (const auto spelling : spellings) {
      const TokenId id = find_control(spelling);
      if (id != kNoToken) return id;
    }
    return kNoToken;
  };
  for (const auto& spellings : kEndOfFile) mark_end(first_of(spellings));
  for (const auto& spellings : kFillInTheMiddle) first_of(spellings);
  for (const TokenId id : {v.eos, v.eot, v.eom}) mark_end(id);

  const auto unmark = [&](std::string_view spelling, TokenKind kind) {
    const TokenId id = v.index.find(spelling);
    if (id == kNoToken) return;
    v.end_of_generation[static_cast<std::size_t>(id)] = false;
    v.kinds[static_cast<std::size_t>(id)] = kind;
  };
  const auto has = [&](std::string_view spelling) { return v.index.find(spelling) != kNoToken; };
  // The formats of gpt-oss and Solar Open end a message, not the answer, with <|end|>, and their channel
  // marks are text that a reader must see.
  const bool calls = has("<|call|>") || has("<|calls|>");
  if (calls && (has("<|return|>") || has("<|flush|>"))) unmark("<|end|>", TokenKind::UserDefined);
  for (const auto mark : {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}) {
    const TokenId id = v.index.find(mark);
    if (id != kNoToken) v.kinds[static_cast<std::size_t>(id)] = TokenKind::UserDefined;
  }
  // Where tools answer with this token, </s> is HTML.
  if (has("<|tool_response>")) unmark("</s>", TokenKind::Normal);

  if (v.add_bos && v.bos == kNoToken) {
    fail("{}: BOS is to be added to texts, but key tokenizer.ggml.bos_token_id is missing", v.source);
  }
  if (v.add_eos && v.eos == kNoToken) {
    fail("{}: EOS is to be added to texts, but key tokenizer.ggml.eos_token_id is missing", v.source);
  }
}

Vocabulary read_vocabulary(const GgufFile& file) {
  Vocabulary v;
  v.source = file.path();
  v.model = file.get_string("tokenizer.ggml.model");
  // A tokenizer.json says itself what it is; the other keys complete it.
  const bool hf = file.has(kHfTokenizerKey);
  const bool spm = v.model == "llama" && !hf;
  if (!spm && !hf && v.model != "gpt2") {
    fail("{}: key tokenizer.ggml.model: expected gpt2 or llama, found {}", file.path(), quoted(v.model));
  }
  v.pre = file.find_string("tokenizer.ggml.pre").value_or("");
  v.chat_template = file.find_string("tokenizer.chat_template").value_or("");
  v.spellings = read_spellings(file);
  v.kinds = read_kinds(file, v.size());
  if (spm) v.scores = read_scores(file, v.size());

  const auto id = [&](std::string_view key, TokenId fallback) {
    return read_id(file, key, v.size(), fallback);
  };
  v.bos = id("tokenizer.ggml.bos_token_id", spm ? 1 : kNoToken);
  v.eos = id("tokenizer.ggml.eos_token_id", spm ? 2 : kNoToken);
  v.unk = id("tokenizer.ggml.unknown_token_id", spm ? 0 : kNoToken);
  v.eot = id("tokenizer.ggml.eot_token_id", kNoToken);
  v.eom = id("tokenizer.ggml.eom_token_id", kNoToken);
  v.pad = id("tokenizer.ggml.padding_token_id", kNoToken);
  const auto flag = [&](std::string_view key, bool fallback) {
    return file.find_bool(key).value_or(fallback);
  };
  v.add_bos = flag("tokenizer.ggml.add_bos_token", !hf && (spm || pre_tokenizer_adds_bos(v.pre)));
  v.add_eos = flag("tokenizer.ggml.add_eos_token", false);
  if (spm) {
    v.add_space_prefix = flag("tokenizer.ggml.add_space_prefix", true);
    v.remove_extra_whitespaces = flag("tokenizer.ggml.remove_extra_whitespaces", false);
  }
  // GGUF has no key for this: like llama.cpp, go by the model's name.
  std::string name = file.find_string("general.name").value_or("");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  v.strip_after_special = name.find("phi-3") != name.npos || name.find("phi3") != name.npos;
  finish_vocabulary(v);
  return v;
}

}  // namespace narrows
