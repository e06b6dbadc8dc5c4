#include "tokenizer/hf_added_tokens.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "tokenizer/hf_model.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

namespace {

// The character that ends or begins `text`, which is not empty.
char32_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return decode_utf8(text.substr(at), text.size() - at);
}

char32_t first_character(std::string_view text) { return decode_utf8(text, utf8_sequence(text)); }

}  // namespace

std::vector<HfAddedToken> read_hf_added_tokens(const JsonItem& document) {
  std::vector<HfAddedToken> tokens;
  const auto list = document.find("added_tokens");
  if (!list) return tokens;
  std::map<TokenId, std::string> by_id;
  std::map<std::string, TokenId> by_content;
  for (std::size_t i = 0; i < list->array_size(); ++i) {
    const JsonItem item = list->element(i);
    HfAddedToken token;
    token.content = item.get("content").string();
    if (token.content.empty()) continue;  // `tokenizers` ignores it
    token.id = static_cast<TokenId>(item.get("id").integer(0, kHfMostTokens - 1));
    token.special = item.boolean_or("special", false);
    token.normalized = item.boolean_or("normalized", !token.special);
    token.lstrip = item.boolean_or("lstrip", false);
    token.rstrip = item.boolean_or("rstrip", false);
    token.single_word = item.boolean_or("single_word", false);
    if (!by_content.emplace(token.content, token.id).second) {
      fail("{}: expected added tokens that differ, found {} twice", item.where(),
           narrows::quoted(token.content));  // not std::quoted
    }
    if (const auto [other, fresh] = by_id.emplace(token.id, token.content); !fresh) {
      fail("{}: {} and {} both have the id {}", item.where(), narrows::quoted(other->second),
           narrows::quoted(token.content), token.id);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

HfAddedTokenFinder::HfAddedTokenFinder(const std::vector<HfAddedToken>& tokens, bool normalized,
                                       const HfNormalizer& normalizer) {
  std::vector<std::string> contents;
  for (const HfAddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    HfText text(token.content, 0);
    if (normalized) normalizer.apply(text);
    if (text.text.empty()) continue;
    begins_[static_cast<unsigned char>(text.text[0])] = true;
    contents.push_back(std::move(text.text));
    tokens_.push_back(token);
  }
  trie_ = ByteTrie(contents);
}

HfAddedTokenFinder::Found HfAddedTokenFinder::longest(std::string_view text, std::size_t at) const {
  Found found;
  if (!begins_[static_cast<unsigned char>(text[at])]) return found;
  trie_.prefixes(text.substr(at), [&](std::size_t length, std::int32_t index) {
    found = {length, &tokens_[static_cast<std::size_t>(index)]};
  });
  return found;
}

// False if the token does not count here; else begin and end take in what it strips, but not what is done.
bool HfAddedTokenFinder::widen(std::string_view text, const HfAddedToken& token, bool parse_special,
                               std::size_t done, std::size_t& begin, std::size_t& end) {
  if (token.special && !parse_special) return false;
  if (token.single_word) {
    const std::string_view before = text.substr(0, begin), after = text.substr(end);
    if (!before.empty() && is_word(last_character(before))) return false;
    if (!after.empty() && is_word(first_character(after))) return false;
  }
  if (token.lstrip) {
    std::size_t left = begin;
    while (left > 0) {
      const std::string_view before = text.substr(0, left);
      const char32_t c = last_character(before);
      if (left <= done || !is_white_space(c)) break;
      --left;
      while ((static_cast<unsigned char>(text[left]) & 0xC0) == 0x80) --left;
    }
    begin = std::max(left, done);
  }
  if (token.rstrip) {
    while (end < text.size()) {
      const std::size_t length = utf8_sequence(text.substr(end));
      if (!is_white_space(decode_utf8(text.substr(end), length))) break;
      end += length;
    }
  }
  return true;
}

}  // namespace narrows
