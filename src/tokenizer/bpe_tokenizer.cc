// Byte-level BPE: the bytes of a text, each written as a printable character, merged by rank within words.
#include <array>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/flat_map.h"
#include "tokenizer/merge.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Vocabulary vocabulary, std::span<const std::string> merges)
      : Tokenizer(std::move(vocabulary)),
        pre_tokenizer_(vocabulary_.pre, vocabulary_.source),
        special_(vocabulary_),
        ignore_merges_(pre_tokenizer_ignores_merges(vocabulary_.pre)) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      byte_tokens_[byte] = find(byte_alphabet().character(static_cast<unsigned char>(byte)));
    }
    read_merges(merges);
  }

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const override {
    check_length(text);
    std::vector<TokenId> ids;
    if (options.add_special && add_bos()) ids.push_back(bos());
    Scratch scratch;
    for (const Fragment& fragment : special_.partition(text, options.parse_special)) {
      if (fragment.token != kNoToken) {
        ids.push_back(fragment.token);
      } else {
        encode_text(fragment.text, scratch, ids);
      }
    }
    if (options.add_special && add_eos()) ids.push_back(eos());
    return ids;
  }

  std::string piece(TokenId id, bool show_special) const override {
    check_id(id);
    switch (kind(id)) {
      case TokenKind::Control:
      case TokenKind::Unknown:
        return show_special ? spelling(id) : std::string();
      case TokenKind::UserDefined:
        return spelling(id);
      default:
        return byte_alphabet().decode(spelling(id));
    }
  }

 private:
  struct Scratch {
    std::string valid, spelling;
    std::vector<std::string_view> words;
    std::vector<Symbol> symbols;
    Merger merger;
  };

  static std::uint64_t pair(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }

  // Every part and every result must be a token, as the `tokenizers` library asks too.
  void read_merges(std::span<const std::string> merges) {
    if (merges.size() >= Join::kNever) fail("{}: key {}: too many merges", vocabulary_.source, kMerges);
    merges_ = FlatMap<Join>(merges.size());
    std::string joined;
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const std::string_view merge = merges[rank];
      const std::size_t space = merge.find(' ', 1);
      if (space == merge.npos || space + 1 == merge.size()) {
        fail("{}: key {}: merge {}: expected two tokens with a space between, found {}", vocabulary_.source,
             kMerges, rank, quoted(merge));
      }
      const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
      joined.assign(left).append(right);
      const auto token = [&](std::string_view part) {
        const TokenId id = find(part);
        if (id == kNoToken) {
          fail("{}: key {}: merge {}: expected tokens of the vocabulary, found {}", vocabulary_.source,
               kMerges, rank, quoted(part));
        }
        return id;
      };
      const TokenId left_id = token(left), right_id = token(right);
      merges_.insert(pair(left_id, right_id), {static_cast<std::uint32_t>(rank), token(joined)});
    }
  }

  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
    if (!is_valid_utf8(text)) {
      scratch.valid.clear();
      append_valid_utf8(text, scratch.valid);
      text = scratch.valid;
    }
    scratch.words.clear();
    pre_tokenizer_.split(text, scratch.words);
    for (const auto word : scratch.words) encode_word(word, scratch, ids);
  }

  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const {
    if (ignore_merges_) {
      scratch.spelling.clear();
      for (const char c : word) scratch.spelling += byte_alphabet().character(static_cast<unsigned char>(c));
      const TokenId whole = find(scratch.spelling);
      if (whole != kNoToken) {
        ids.push_back(whole);
        return;
      }
    }
    scratch.symbols.clear();
    // A byte that has no token is left out, and its neighbours may merge, as in `tokenizers`.
    for (const char c : word) {
      const TokenId id = byte_tokens_[static_cast<unsigned char>(c)];
      if (id != kNoToken) scratch.symbols.push_back({id, 0, 1});
    }
    scratch.merger.merge(scratch.symbols, [this](const Symbol& left, const Symbol& right) {
      const Join* join = merges_.find(pair(left.id, right.id));
      return join ? *join : Join{};
    });
    for (const Symbol& symbol : scratch.symbols) ids.push_back(symbol.id);
  }

  static constexpr std::string_view kMerges = "tokenizer.ggml.merges";
  PreTokenizer pre_tokenizer_;
  SpecialTokens special_;
  bool ignore_merges_;
  std::array<TokenId, 256> byte_tokens_{};
  FlatMap<Join> merges_;
};

}  // namespace

std::unique_ptr<const Tokenizer> make_bpe_tokenizer(Vocabulary vocabulary,
                                                    std::span<const std::string> merges) {
  return std::make_unique<BpeTokenizer>(std::move(vocabulary), merges);
}

}  // namespace narrows
