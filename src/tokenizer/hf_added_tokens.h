// The added tokens of a tokenizer.json: they are cut out of a text before the model sees it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/hf_normalizer.h"
#include "tokenizer/json_item.h"
#include "tokenizer/token_index.h"

namespace narrows {

struct HfAddedToken {
  TokenId id = kNoToken;
  std::string content;
  bool special = false;
  bool normalized = false;   // searched in the normalized text, itself normalized
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool single_word = false;  // only where no word character touches it
};

// Reads "added_tokens". Throws Error if two have the same content or the same id.
std::vector<HfAddedToken> read_hf_added_tokens(const JsonItem& document);

// Finds tokens in a text, all of them either normalized or not.
class HfAddedTokenFinder {
 public:
  // Tokens with `normalized` other than this are left out.
  HfAddedTokenFinder(const std::vector<HfAddedToken>& tokens, bool normalized,
                     const HfNormalizer& normalizer);

  // Calls visit(begin, end, id) for the stretches of `text` in order, id being kNoToken for text that is no
  // token. Of tokens that begin at the same place the longest is taken. A special token is text unless
  // parse_special.
  template <typename Visit>
  void cut(std::string_view text, bool parse_special, const Visit& visit) const {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      const auto [length, token] = longest(text, at);
      if (token == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at, end = at + length;
      at = end;
      if (!widen(text, *token, parse_special, done, begin, end)) continue;
      if (begin > done) visit(done, begin, kNoToken);
      visit(begin, end, token->id);
      done = end;
    }
    if (done != text.size()) visit(done, text.size(), kNoToken);
  }

  bool empty() const { return trie_.empty(); }

 private:
  struct Found {
    std::size_t length = 0;
    const HfAddedToken* token = nullptr;
  };
  Found longest(std::string_view text, std::size_t at) const;
  static bool widen(std::string_view text, const HfAddedToken& token, bool parse_special, std::size_t done,
                    std::size_t& begin, std::size_t& end);

  std::vector<HfAddedToken> tokens_;
  ByteTrie trie_;
  bool begins_[256] = {};  // whether a token begins with this byte
};

}  // namespace narrows
