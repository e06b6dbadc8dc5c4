// SentencePiece's BPE: the characters of a text, spaces written as U+2581, merged by the score of what they
// become; what is no token falls back to bytes.
#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstdint>

#include "base/error.h"
#include "tokenizer/merge.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"

namespace narrows {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// The symbol that `text` begins with: what its lead byte promises, valid or not, as in llama.cpp, but never
// beyond a space, which as part of a broken symbol would come back as U+2581.
std::string_view first_symbol(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  std::string_view symbol = text.substr(0, lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4);
  for (std::size_t i = 1; i < symbol.size(); ++i) {
    if (text[i] == kSpace[0] && text.substr(i).starts_with(kSpace)) return symbol.substr(0, i);
  }
  return symbol;
}

// A higher score gives a smaller number.
std::uint32_t priority_of(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // -0 becomes 0
  const std::uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

// The value of a token "<0xAB>", -1 if it is not spelled so.
int byte_value(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return -1;
  int value = 0;
  for (const char c : spelling.substr(3, 2)) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return -1;
    value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return value;
}

void append_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    if (c == ' ') {
      out += kSpace;
    } else {
      out += c;
    }
  }
}

class SpmTokenizer final : public Tokenizer {
 public:
  explicit SpmTokenizer(Vocabulary vocabulary) : Tokenizer(std::move(vocabulary)), special_(vocabulary_) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    for (unsigned byte = 0; byte < 256; ++byte) {
      byte_tokens_[byte] = find(fmt::format("<0x{}{}>", kHex[byte >> 4], kHex[byte & 15]));
      if (byte_tokens_[byte] == kNoToken) byte_tokens_[byte] = find(std::string(1, static_cast<char>(byte)));
    }
    for (std::size_t id = 0; id < vocabulary_.size(); ++id) {
      const std::string_view token = vocabulary_.spellings[id];
      if (vocabulary_.kinds[id] == TokenKind::Byte && byte_value(token) < 0) {
        fail("{}: key tokenizer.ggml.tokens: token {}: expected a byte as <0xAB>, found {}",
             vocabulary_.source, id, quoted(token));
      }
      if (!can_be_text(vocabulary_.kinds[id])) continue;
      longest_ = std::max(longest_, token.size());
      for (std::size_t at = token.find(kSpace, 1); at != token.npos; at = token.find(kSpace, at + 1)) {
        before_space_[static_cast<unsigned char>(token[at - 1])] = true;
      }
    }
  }

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const override {
    check_length(text);
    std::vector<TokenId> ids;
    if (options.add_special && add_bos()) ids.push_back(bos());
    Scratch scratch;
    bool after_special = true;  // so is the start
    for (const Fragment& fragment : special_.partition(text, options.parse_special)) {
      if (fragment.token != kNoToken) {
        ids.push_back(fragment.token);
      } else {
        encode_text(fragment.text, after_special && vocabulary_.add_space_prefix, scratch, ids);
      }
      after_special = fragment.token != kNoToken;
    }
    if (options.add_special && add_eos()) ids.push_back(eos());
    return ids;
  }

  std::string piece(TokenId id, bool show_special) const override {
    check_id(id);
    const std::string& token = spelling(id);
    switch (kind(id)) {
      case TokenKind::Control:
      case TokenKind::Unknown:
        return show_special ? token : std::string();
      case TokenKind::UserDefined:
        return token;
      case TokenKind::Byte:
        return std::string(1, static_cast<char>(byte_value(token)));
      default:
        break;
    }
    std::string text;
    std::size_t done = 0;
    for (std::size_t at; (at = token.find(kSpace, done)) != token.npos; done = at + kSpace.size()) {
      text.append(token, done, at - done) += ' ';
    }
    return text.append(token, done);
  }

 private:
  struct Scratch {
    std::string escaped;
    std::vector<Symbol> symbols;
    Merger merger;
  };

  // Text never becomes a control token, even if it is spelled like one: here llama.cpp differs from
  // SentencePiece.
  static bool can_be_text(TokenKind kind) {
    return kind == TokenKind::Normal || kind == TokenKind::UserDefined || kind == TokenKind::Unused;
  }

  TokenId find_text(std::string_view bytes) const {
    if (bytes.size() > longest_) return kNoToken;
    const TokenId id = find(bytes);
    return id != kNoToken && can_be_text(kind(id)) ? id : kNoToken;
  }

  void escape(std::string_view text, bool prefix, std::string& out) const {
    out.clear();
    if (!vocabulary_.remove_extra_whitespaces) {
      if (prefix) out += kSpace;
      append_escaped(text, out);
      return;
    }
    for (std::size_t begin; (begin = text.find_first_not_of(' ')) != text.npos;) {
      text.remove_prefix(begin);
      const std::string_view word = text.substr(0, text.find(' '));
      if (prefix || !out.empty()) out += kSpace;
      out += word;
      text.remove_prefix(word.size());
    }
  }

  void encode_text(std::string_view raw, bool prefix, Scratch& scratch, std::vector<TokenId>& ids) const {
    escape(raw, prefix, scratch.escaped);
    const std::string_view text = scratch.escaped;
    auto& symbols = scratch.symbols;
    symbols.clear();
    for (std::size_t i = 0; i < text.size();) {
      const std::string_view character = first_symbol(text.substr(i));
      // No token reaches from a byte that no token has before a space over that space: what lies before such
      // a place can be merged by itself.
      if (character == kSpace && i > 0 && !before_space_[static_cast<unsigned char>(text[i - 1])]) {
        encode_symbols(scratch, ids);
        symbols.clear();
      }
      const auto length = static_cast<std::uint32_t>(character.size());
      symbols.push_back({find_text(character), static_cast<std::uint32_t>(i), length});
      i += length;
    }
    encode_symbols(scratch, ids);
  }

  void encode_symbols(Scratch& scratch, std::vector<TokenId>& ids) const {
    const std::string_view text = scratch.escaped;
    scratch.merger.merge(scratch.symbols, [&](const Symbol& left, const Symbol& right) {
      const TokenId id = find_text(text.substr(left.begin, std::size_t{left.length} + right.length));
      if (id == kNoToken) return Join{};
      return Join{priority_of(vocabulary_.scores[static_cast<std::size_t>(id)]), id};
    });
    for (const Symbol& symbol : scratch.symbols) {
      if (symbol.id != kNoToken) {
        ids.push_back(symbol.id);
      } else {
        encode_bytes(text.substr(symbol.begin, symbol.length), ids);
      }
    }
  }

  // One unknown token for a character whose bytes are no tokens either.
  void encode_bytes(std::string_view character, std::vector<TokenId>& ids) const {
    const auto token = [this](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return token(c) != kNoToken; })) {
      for (const char c : character) ids.push_back(token(c));
    } else if (unk() != kNoToken) {
      ids.push_back(unk());
    }
  }

  SpecialTokens special_;
  std::array<TokenId, 256> byte_tokens_{};
  std::array<bool, 256> before_space_{};  // bytes that some token has before a U+2581
  std::size_t longest_ = 0;               // bytes of the longest token that text can become
};

}  // namespace

std::unique_ptr<const Tokenizer> make_spm_tokenizer(Vocabulary vocabulary) {
  return std::make_unique<SpmTokenizer>(std::move(vocabulary));
}

}  // namespace narrows
