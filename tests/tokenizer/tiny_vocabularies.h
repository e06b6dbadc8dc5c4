// Small vocabularies, built in memory, for tests and fuzzers.
#pragma once
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace narrows {

// GPT-2's way to write a byte as a character.
inline std::string byte_character(unsigned byte) {
  unsigned code = byte;
  const auto printable = [](unsigned b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); };
  if (!printable(byte)) {
    code = 0x100;
    for (unsigned b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// Token ids: the byte b is b, then one for each merge, then `special` in order.
struct TinyBpe {
  std::vector<std::string> merges = {"a b",    "ab c",    "b c", "h e",   "l l", "he ll",
                                     "hell o", "Ġ hello", "Ġ Ġ", "ĠĠ ĠĠ", "1 2", "Ã ©"};
  std::vector<std::pair<std::string, TokenKind>> special = {{"<s>", TokenKind::Control},
                                                            {"<|im_end|>", TokenKind::Control},
                                                            {"[tool]", TokenKind::UserDefined},
                                                            {"[tool][x]", TokenKind::UserDefined},
                                                            {"x]yz", TokenKind::UserDefined}};
  std::string pre = "gpt-2";

  Vocabulary vocabulary() const {
    Vocabulary v;
    v.source = "tiny.gguf";
    v.model = "gpt2";
    v.pre = pre;
    for (unsigned byte = 0; byte < 256; ++byte) v.spellings.push_back(byte_character(byte));
    for (const std::string& merge : merges) {
      std::string joined = merge;
      v.spellings.push_back(joined.erase(joined.find(' '), 1));
    }
    v.kinds.assign(v.size(), TokenKind::Normal);
    for (const auto& [spelling, kind] : special) {
      v.spellings.push_back(spelling);
      v.kinds.push_back(kind);
    }
    v.bos = v.eos = static_cast<TokenId>(256 + merges.size());
    return v;
  }
  std::unique_ptr<const Tokenizer> make() const {
    Vocabulary v = vocabulary();
    finish_vocabulary(v);
    return make_bpe_tokenizer(std::move(v), merges);
  }
};

// Token ids: 0 <unk>, 1 <s>, 2 </s>, 3 + b the byte b, then `pieces` with their scores, then a user-defined
// [tool].
struct TinySpm {
  std::vector<std::pair<std::string, float>> pieces = {
      {"▁", -1},  {"a", -2},   {"b", -3}, {"c", -4},  {"ab", -5}, {"bc", -4.5}, {"▁a", -6},
      {"▁▁", -7}, {"▁ab", -8}, {"é", -9}, {"s", -10}, {"<", -11}, {">", -12},   {"<s", -13}};
  bool bytes = true;
  bool add_space_prefix = true;
  bool strip_after_special = false;
  bool remove_extra_whitespaces = false;

  static constexpr TokenId kByte = 3, kPieces = 259;

  std::unique_ptr<const Tokenizer> make() const {
    Vocabulary v;
    v.source = "tiny.gguf";
    v.model = "llama";
    v.spellings = {"<unk>", "<s>", "</s>"};
    v.kinds = {TokenKind::Unknown, TokenKind::Control, TokenKind::Control};
    for (unsigned byte = 0; bytes && byte < 256; ++byte) {
      v.spellings.push_back(fmt::format("<0x{:02X}>", byte));
      v.kinds.push_back(TokenKind::Byte);
    }
    v.scores.assign(v.size(), 0);
    for (const auto& [spelling, score] : pieces) {
      v.spellings.push_back(spelling);
      v.kinds.push_back(TokenKind::Normal);
      v.scores.push_back(score);
    }
    v.spellings.emplace_back("[tool]");
    v.kinds.push_back(TokenKind::UserDefined);
    v.scores.push_back(0);
    v.unk = 0;
    v.bos = 1;
    v.eos = 2;
    v.add_bos = true;
    v.add_space_prefix = add_space_prefix;
    v.strip_after_special = strip_after_special;
    v.remove_extra_whitespaces = remove_extra_whitespaces;
    finish_vocabulary(v);
    return make_spm_tokenizer(std::move(v));
  }
};

}  // namespace narrows
