#include "tokenizer/hf_vocabulary.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/hf_model.h"

namespace narrows {

HfTokens read_hf_tokens(const JsonItem& document, std::optional<std::int64_t> vocab_size) {
  HfTokens tokens;
  const JsonItem model = document.get("model");
  const JsonItem vocab = model.get("vocab");
  const HfVocabulary own = read_hf_vocabulary(model);
  tokens.added = read_hf_added_tokens(document);
  TokenId last = *std::max_element(own.ids.begin(), own.ids.end());
  for (const HfAddedToken& token : tokens.added) last = std::max(last, token.id);
  if (vocab_size && last >= *vocab_size) {
    fail("{}: expected ids below {}, the number of the model's tokens, found {}", document.where(),
         *vocab_size, last);
  }
  // Holes are for alignment and reserve; a file that is mostly holes is broken.
  const auto size = static_cast<std::size_t>(vocab_size.value_or(last + 1));
  const std::size_t count = own.ids.size() + tokens.added.size();
  constexpr std::size_t kMostHoles = 1 << 20;
  if (size > count + kMostHoles) {
    fail("{}: expected at most {} ids without a token, found {} tokens in {} ids", document.where(),
         kMostHoles, count, size);
  }
  for (std::size_t id = 0; id < size; ++id) tokens.spellings.push_back(fmt::format("[PAD{}]", id));
  tokens.kinds.assign(size, TokenKind::Unused);
  tokens.scores.assign(size, 0);
  const auto set = [&](TokenId id, const std::string& spelling, TokenKind kind) {
    tokens.spellings[static_cast<std::size_t>(id)] = spelling;
    tokens.kinds[static_cast<std::size_t>(id)] = kind;
  };
  for (std::size_t i = 0; i < own.ids.size(); ++i) {
    set(own.ids[i], own.spellings[i], TokenKind::Normal);
    if (vocab.json().is_array()) tokens.scores[i] = vocab.element(i).element(1).number();
  }
  for (const HfAddedToken& token : tokens.added) {
    const auto id = static_cast<std::size_t>(token.id);
    const TokenId in_model = own.find(token.content);
    if (in_model != kNoToken ? in_model != token.id : tokens.kinds[id] != TokenKind::Unused) {
      fail("{}: added token {}: expected the id that the vocabulary has for it, found {}, which is {}",
           document.where(), narrows::quoted(token.content), token.id, narrows::quoted(tokens.spellings[id]));
    }
    set(token.id, token.content, token.special ? TokenKind::Control : TokenKind::UserDefined);
  }
  if (model.boolean_or("byte_fallback", false)) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const TokenId id = own.find(fmt::format("<0x{:02X}>", byte));
      if (id != kNoToken) tokens.kinds[static_cast<std::size_t>(id)] = TokenKind::Byte;
    }
  }
  if (const auto unk = model.find("unk_id")) {
    tokens.unk = static_cast<TokenId>(unk->integer(0, static_cast<std::int64_t>(own.ids.size()) - 1));
  } else if (const auto name = model.find("unk_token")) {
    const auto at = std::find(tokens.spellings.begin(), tokens.spellings.end(), name->string());
    if (at != tokens.spellings.end()) tokens.unk = static_cast<TokenId>(at - tokens.spellings.begin());
  }
  if (tokens.unk != kNoToken &&
      tokens.kinds[static_cast<std::size_t>(tokens.unk)] != TokenKind::UserDefined) {
    tokens.kinds[static_cast<std::size_t>(tokens.unk)] = TokenKind::Unknown;
  }
  return tokens;
}

Vocabulary hf_vocabulary(std::string_view tokenizer_json, const std::string& source) {
  const nlohmann::json document = parse_tokenizer_json(tokenizer_json, source);
  HfTokens tokens = read_hf_tokens(JsonItem(document, source), std::nullopt);
  Vocabulary vocabulary;
  vocabulary.source = source;
  vocabulary.spellings = std::move(tokens.spellings);
  vocabulary.kinds = std::move(tokens.kinds);
  vocabulary.unk = tokens.unk;
  finish_vocabulary(vocabulary);
  return vocabulary;
}

}  // namespace narrows
