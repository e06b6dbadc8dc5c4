// The tokens of a model and the rules that come with them, read from GGUF metadata and checked.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_index.h"

namespace narrows {

class GgufFile;

enum class TokenKind : std::uint8_t { Normal, Unknown, Control, UserDefined, Unused, Byte };

// Movable, not copyable: `index` refers to the elements of `spellings`.
struct Vocabulary {
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  std::string source;         // the file, for error messages
  std::string model, pre;     // tokenizer.ggml.model; tokenizer.ggml.pre, "" if absent
  std::string chat_template;  // "" if absent
  std::vector<std::string> spellings;
  std::vector<TokenKind> kinds;
  std::vector<float> scores;  // SPM only
  std::vector<bool> end_of_generation;
  TokenIndex index;
  TokenId bos = kNoToken, eos = kNoToken, eot = kNoToken, eom = kNoToken, unk = kNoToken, pad = kNoToken;
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = false;          // SPM and tokenizer.json: decoding drops a space at the start
  bool space_prefix_once = false;         // tokenizer.json: only there, not after special tokens too
  bool remove_extra_whitespaces = false;  // SPM only: runs of spaces become one, spaces at the ends go
  bool strip_after_special = false;       // Phi-3: white space that follows a special token goes

  std::size_t size() const { return spellings.size(); }
  TokenKind kind(TokenId id) const { return kinds[static_cast<std::size_t>(id)]; }
  const std::string& spelling(TokenId id) const { return spellings[static_cast<std::size_t>(id)]; }
};

// Reads tokenizer.ggml.* but the merges. Keys that are absent have llama.cpp's defaults, but for the BOS and
// EOS of byte-level BPE, which it takes to be token 11 and which are none here. Throws Error naming file and
// key.
Vocabulary read_vocabulary(const GgufFile& file);

// Completes a vocabulary whose spellings and ids are set: builds the index, finds the tokens that end
// generation, and turns tokens that their spelling shows to be control tokens ("<|im_end|>") into such,
// whatever the file says. Throws Error if two tokens are spelled alike, or if BOS or EOS is to be added and
// there is none.
void finish_vocabulary(Vocabulary& vocabulary);

// `text` in quotes, shortened, what does not print escaped: for messages of one line.
std::string quoted(std::string_view text);

}  // namespace narrows
