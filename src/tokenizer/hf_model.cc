#include "tokenizer/hf_model.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/flat_map.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

namespace {

using ByteTokens = std::array<TokenId, 256>;

ByteTokens find_byte_tokens(const HfVocabulary& vocabulary) {
  ByteTokens tokens;
  for (unsigned byte = 0; byte < 256; ++byte) tokens[byte] = vocabulary.find(fmt::format("<0x{:02X}>", byte));
  return tokens;
}

bool all_known(const ByteTokens& tokens, std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](char c) { return tokens[static_cast<unsigned char>(c)] != kNoToken; });
}

class HfBpe final : public HfModel {
 public:
  HfBpe(const JsonItem& description, FindAdded find_added, const void* context)
      : byte_fallback_(description.boolean_or("byte_fallback", false)),
        fuse_unk_(description.boolean_or("fuse_unk", false)),
        ignore_merges_(description.boolean_or("ignore_merges", false)),
        prefix_(description.string_or("continuing_subword_prefix", "")),
        suffix_(description.string_or("end_of_word_suffix", "")) {
    vocabulary_ = read_hf_vocabulary(description);
    if (const auto dropout = description.find("dropout"); dropout && dropout->number() != 0) {
      dropout->expected("no dropout");
    }
    if (const auto unk = description.find("unk_token"); unk && !unk->string().empty()) {
      unk_ = vocabulary_.find(unk->string());
      if (unk_ == kNoToken) unk_ = find_added(context, unk->string());
    }
    if (byte_fallback_) bytes_ = find_byte_tokens(vocabulary_);
    read_characters();
    read_merges(description);
  }

  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const override {
    if (ignore_merges_) {
      const TokenId whole = vocabulary_.find(word);
      if (whole != kNoToken) {
        ids.push_back(whole);
        return;
      }
    }
    auto& symbols = scratch.symbols;
    symbols.clear();
    bool pending = false;  // an unknown token that later ones may be fused with
    const auto flush = [&] {
      if (pending) symbols.push_back({unk_, 0, 1});
      pending = false;
    };
    for (std::size_t i = 0; i < word.size();) {
      const std::size_t length = utf8_sequence(word.substr(i));
      const TokenId id = find_character(word, i, length, scratch.bytes);
      const std::string_view character =
          prefix_.empty() && suffix_.empty() ? word.substr(i, length) : std::string_view(scratch.bytes);
      i += length;
      if (id != kNoToken) {
        flush();
        symbols.push_back({id, 0, 1});
      } else if (byte_fallback_ && all_known(bytes_, character)) {
        flush();
        for (const char c : character) symbols.push_back({bytes_[static_cast<unsigned char>(c)], 0, 1});
      } else if (unk_ != kNoToken) {
        if (!fuse_unk_) flush();
        pending = true;
      }
    }
    flush();
    scratch.merger.merge(symbols, [this](const Symbol& left, const Symbol& right) {
      const Join* join = merges_.find(pair(left.id, right.id));
      return join ? *join : Join{};
    });
    for (const Symbol& symbol : symbols) ids.push_back(symbol.id);
  }

 private:
  static std::uint64_t pair(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }

  TokenId find_character(std::string_view word, std::size_t at, std::size_t length,
                         std::string& spelling) const {
    if (prefix_.empty() && suffix_.empty()) {
      const TokenId* id = characters_.find(decode_utf8(word.substr(at), length));
      return id ? *id : kNoToken;
    }
    spelling.assign(at > 0 ? prefix_ : "").append(word.substr(at, length));
    if (at + length == word.size()) spelling += suffix_;
    return vocabulary_.find(spelling);
  }

  void read_characters() {
    const auto is_character = [](const std::string& s) { return !s.empty() && utf8_sequence(s) == s.size(); };
    const auto& spellings = vocabulary_.spellings;
    characters_ = FlatMap<TokenId>(
        static_cast<std::size_t>(std::count_if(spellings.begin(), spellings.end(), is_character)));
    for (std::size_t i = 0; i < spellings.size(); ++i) {
      if (is_character(spellings[i])) {
        characters_.insert(decode_utf8(spellings[i], spellings[i].size()), vocabulary_.ids[i]);
      }
    }
  }

  // Of merges of the same pair the last counts, as in `tokenizers`.
  void read_merges(const JsonItem& description) {
    std::vector<std::pair<std::uint64_t, Join>> merges;
    std::string joined;
    const std::string where = description.where();
    for_each_hf_merge(description, [&](std::size_t rank, std::string_view left, std::string_view right) {
      const auto token = [&](std::string_view spelling) {
        const TokenId id = vocabulary_.find(spelling);
        if (id == kNoToken) {
          fail("{}.merges[{}]: expected tokens of the vocabulary, found {}", where, rank,
               narrows::quoted(spelling));
        }
        return id;
      };
      const TokenId left_id = token(left), right_id = token(right);
      if (right.size() < prefix_.size()) {
        fail("{}.merges[{}]: expected a token that begins with {}, found {}", where, rank,
             narrows::quoted(prefix_), narrows::quoted(right));
      }
      joined.assign(left).append(right.substr(prefix_.size()));
      merges.push_back({pair(left_id, right_id), {static_cast<std::uint32_t>(rank), token(joined)}});
    });
    if (merges.size() >= Join::kNever) fail("{}.merges: too many", where);
    merges_ = FlatMap<Join>(merges.size());
    for (auto merge = merges.rbegin(); merge != merges.rend(); ++merge)
      merges_.insert(merge->first, merge->second);
  }

  bool byte_fallback_, fuse_unk_, ignore_merges_;
  std::string prefix_, suffix_;
  ByteTokens bytes_{};
  FlatMap<TokenId> characters_;  // tokens of one character
  FlatMap<Join> merges_;
};

class HfUnigram final : public HfModel {
 public:
  explicit HfUnigram(const JsonItem& description)
      : byte_fallback_(description.boolean_or("byte_fallback", false)) {
    vocabulary_ = read_hf_vocabulary(description);
    const JsonItem vocab = description.get("vocab");
    double lowest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < vocab.array_size(); ++i) {
      scores_.push_back(vocab.element(i).element(1).number());
      lowest = std::min(lowest, scores_.back());
    }
    const auto unk = description.find("unk_id");
    if (!unk)
      fail("{}: expected a member 'unk_id', without which some texts have no tokens", description.where());
    unk_ = static_cast<TokenId>(unk->integer(0, static_cast<std::int64_t>(vocab.array_size()) - 1));
    constexpr double kPenalty = 10;  // of the unknown token below the rarest one
    unk_score_ = lowest - kPenalty;
    trie_ = ByteTrie(vocabulary_.spellings);
    if (byte_fallback_) bytes_ = find_byte_tokens(vocabulary_);
  }

  // Viterbi: the best way to each place in the word.
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const override {
    auto& nodes = scratch.nodes;
    nodes.assign(word.size() + 1, {});
    for (std::size_t at = 0; at < word.size();) {
      const double here = nodes[at].score;
      const std::size_t length = utf8_sequence(word.substr(at));
      const auto reach = [&](std::size_t end, double score, TokenId id) {
        Scratch::Node& node = nodes[end];
        if (!node.reached || score > node.score) node = {score, at, id, true};
      };
      bool single = false;
      trie_.prefixes(word.substr(at), [&](std::size_t size, std::int32_t id) {
        reach(at + size, here + scores_[static_cast<std::size_t>(id)], id);
        single |= size == length;
      });
      if (!single) reach(at + length, here + unk_score_, unk_);
      at += length;
    }
    // Backwards; unknown neighbours are one.
    const std::size_t first = ids.size();
    for (std::size_t end = word.size(); end > 0;) {
      std::size_t begin = nodes[end].begin;
      if (nodes[end].id == unk_) {
        while (begin > 0 && nodes[begin].id == unk_) begin = nodes[begin].begin;
      }
      const std::string_view piece = word.substr(begin, end - begin);
      const TokenId id = nodes[end].id == unk_ ? vocabulary_.find(piece) : nodes[end].id;
      if (id != kNoToken) {
        ids.push_back(id);
      } else if (byte_fallback_ && all_known(bytes_, piece)) {
        for (auto c = piece.rbegin(); c != piece.rend(); ++c)
          ids.push_back(bytes_[static_cast<unsigned char>(*c)]);
      } else {
        ids.push_back(unk_);
      }
      end = begin;
    }
    std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
  }

 private:
  bool byte_fallback_;
  double unk_score_;
  std::vector<double> scores_;
  ByteTrie trie_;
  ByteTokens bytes_{};
};

class HfWordLevel final : public HfModel {
 public:
  explicit HfWordLevel(const JsonItem& description) {
    vocabulary_ = read_hf_vocabulary(description);
    const JsonItem unk = description.get("unk_token");
    unk_ = vocabulary_.find(unk.string());
    if (unk_ == kNoToken) unk.expected("a token of the vocabulary");
  }

  void encode(std::string_view word, Scratch&, std::vector<TokenId>& ids) const override {
    const TokenId id = vocabulary_.find(word);
    ids.push_back(id != kNoToken ? id : unk_);
  }
};

}  // namespace

void HfVocabulary::finish(const std::string& where) {
  const auto [first, second] = index.build(spellings);
  if (second != kNoToken) {
    const auto id = [&](TokenId at) { return ids[static_cast<std::size_t>(at)]; };
    fail("{}: tokens {} and {} are both {}", where, id(first), id(second),
         narrows::quoted(spellings[static_cast<std::size_t>(second)]));
  }
  std::vector<std::size_t> order(ids.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) { return ids[a] < ids[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (ids[order[i]] != ids[order[i - 1]]) continue;
    fail("{}: {} and {} both have the id {}", where, narrows::quoted(spellings[order[i - 1]]),
         narrows::quoted(spellings[order[i]]), ids[order[i]]);
  }
}

HfVocabulary read_hf_vocabulary(const JsonItem& model) {
  HfVocabulary vocabulary;
  const JsonItem vocab = model.get("vocab");
  if (vocab.json().is_array()) {
    for (std::size_t i = 0; i < vocab.array_size(); ++i) {
      const JsonItem entry = vocab.element(i);
      if (entry.array_size() != 2) entry.expected("a token and its score");
      vocabulary.spellings.push_back(entry.element(0).string());
      vocabulary.ids.push_back(static_cast<TokenId>(i));
    }
  } else {
    for (const auto& [spelling, id] : vocab.object().items()) {
      vocabulary.spellings.push_back(spelling);
      vocabulary.ids.push_back(
          static_cast<TokenId>(vocab.member(spelling, id).integer(0, kHfMostTokens - 1)));
    }
  }
  if (vocabulary.ids.empty()) vocab.expected("tokens");
  vocabulary.finish(vocab.where());
  return vocabulary;
}

void for_each_hf_merge(const JsonItem& model,
                       const std::function<void(std::size_t, std::string_view, std::string_view)>& visit) {
  const JsonItem merges = model.get("merges");
  for (std::size_t rank = 0; rank < merges.array_size(); ++rank) {
    const auto& merge = merges.json()[rank];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      visit(rank, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
      continue;
    }
    const JsonItem item = merges.element(rank);
    if (!merge.is_string()) item.expected("two tokens");
    const std::string_view text = item.string();
    const std::size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) {
      item.expected("two tokens with a space between");
    }
    visit(rank, text.substr(0, space), text.substr(space + 1));
  }
}

std::unique_ptr<const HfModel> HfModel::read(const JsonItem& description, FindAdded find_added,
                                             const void* context) {
  // Old files do not name the type of BPE.
  const std::string type = description.string_or("type", "BPE");
  if (type == "BPE") return std::make_unique<HfBpe>(description, find_added, context);
  if (type == "Unigram") return std::make_unique<HfUnigram>(description);
  if (type == "WordLevel") return std::make_unique<HfWordLevel>(description);
  description.get("type").expected("BPE, Unigram or WordLevel");
}

}  // namespace narrows
