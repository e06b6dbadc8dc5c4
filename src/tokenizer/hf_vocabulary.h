// The tokens of a tokenizer.json, as GGUF metadata would list them.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/hf_added_tokens.h"
#include "tokenizer/json_item.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

struct HfTokens {
  std::vector<std::string> spellings;  // a hole in the ids is spelled "[PAD{id}]"
  std::vector<TokenKind> kinds;        // Unused for a hole
  std::vector<double> scores;          // Unigram's; 0 for others
  std::vector<HfAddedToken> added;
  TokenId unk = kNoToken;
};

// `vocab_size` is the number of the model's tokens: those that the tokenizer lacks are holes. Without it the
// largest id decides. Throws Error if an id is not below it, or if two tokens share an id or a spelling.
HfTokens read_hf_tokens(const JsonItem& document, std::optional<std::int64_t> vocab_size);

// A finished vocabulary of the tokenizer.json alone, which names no BOS, EOS or template.
Vocabulary hf_vocabulary(std::string_view tokenizer_json, const std::string& source);

}  // namespace narrows
