// The model of a tokenizer.json: what turns a word into token ids.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_item.h"
#include "tokenizer/merge.h"
#include "tokenizer/token_index.h"

namespace narrows {

// The model's own tokens, without those added to them.
struct HfVocabulary {
  HfVocabulary() = default;
  HfVocabulary(HfVocabulary&&) = default;
  HfVocabulary& operator=(HfVocabulary&&) = default;
  HfVocabulary(const HfVocabulary&) = delete;  // `index` refers to the elements of `spellings`
  HfVocabulary& operator=(const HfVocabulary&) = delete;

  // Throws Error, naming `where`, if two tokens share a spelling or an id.
  void finish(const std::string& where);

  TokenId find(std::string_view spelling) const {
    const TokenId at = index.find(spelling);
    return at == kNoToken ? kNoToken : ids[static_cast<std::size_t>(at)];
  }

  std::vector<std::string> spellings;
  std::vector<TokenId> ids;  // of the token of each spelling
  TokenIndex index;          // gives the place in `spellings`
};

class HfModel {
 public:
  // What a thread needs while it encodes.
  struct Scratch {
    std::vector<Symbol> symbols;
    Merger merger;
    struct Node {
      double score = 0;
      std::size_t begin = 0;
      TokenId id = kNoToken;
      bool reached = false;
    };
    std::vector<Node> nodes;
    std::string bytes;
  };

  // `find_added` gives the id of an added token: an unknown token may be one. Throws Error for a type other
  // than BPE, Unigram and WordLevel, and for what does not fit together.
  using FindAdded = TokenId (*)(const void* context, std::string_view spelling);
  static std::unique_ptr<const HfModel> read(const JsonItem& description, FindAdded find_added,
                                             const void* context);
  virtual ~HfModel() = default;

  // Appends the ids of a word, valid UTF-8. Thread-safe.
  virtual void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const = 0;

  const HfVocabulary& vocabulary() const { return vocabulary_; }
  TokenId unk() const { return unk_; }

 protected:
  HfVocabulary vocabulary_;
  TokenId unk_ = kNoToken;
};

// The largest id that is believed.
inline constexpr std::int64_t kHfMostTokens = std::int64_t{1} << 24;

// The tokens of a model: "vocab" is an object of ids, or for Unigram an array of [token, score].
HfVocabulary read_hf_vocabulary(const JsonItem& model);
// Calls visit(rank, left, right) for each of a BPE model's merges: "a b", or ["a", "b"].
void for_each_hf_merge(const JsonItem& model,
                       const std::function<void(std::size_t, std::string_view, std::string_view)>& visit);

}  // namespace narrows
