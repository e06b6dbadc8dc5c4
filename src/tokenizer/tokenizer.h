// Text to token ids and back.
//
// Kinds: byte-level BPE (tokenizer.ggml.model = "gpt2": merges over bytes written as printable characters, after a
// pre-tokenizer pattern named by tokenizer.ggml.pre) and SPM (tokenizer.ggml.model = "llama": SentencePiece's
// BPE by score with byte fallback). Ids are those of llama.cpp and of the Hugging Face tokenizer of the same model.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrows/model.h"

namespace narrows {

class GgufFile;
enum class TokenKind : std::uint8_t { Normal, Unknown, Control, UserDefined, Unused, Byte };

struct EncodeOptions {
  bool add_special = false;    // BOS / EOS as the model's add_bos_token / add_eos_token say
  bool parse_special = false;  // control tokens written out in the text ("<|im_end|>") become their ids;
                               // user-defined tokens always do
};

class Tokenizer {
 public:
  // Reads tokenizer.ggml.*. Throws Error if the tokenizer is missing, inconsistent or of an unknown kind or
  // pre-tokenizer.
  static std::unique_ptr<const Tokenizer> from_gguf(const GgufFile& file);
  virtual ~Tokenizer() = default;

  // Any bytes are accepted; invalid UTF-8 is treated as llama.cpp does (bytes fall back).
  virtual std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const = 0;

  // The exact bytes that the ids stand for: concatenated pieces, less SPM's leading space prefix where the model
  // adds one and `ids` starts a text. Control tokens give nothing unless show_special.
  // Throws Error for an id out of range.
  std::string decode(std::span<const TokenId> ids, bool show_special = false) const;

  // The bytes of one token inside a text ("▁" is a space, byte tokens are their byte).
  virtual std::string piece(TokenId id, bool show_special = false) const = 0;

  // The token as the vocabulary spells it.
  const std::string& spelling(TokenId id) const { return spellings_.at(static_cast<std::size_t>(id)); }
  TokenKind kind(TokenId id) const { return kinds_.at(static_cast<std::size_t>(id)); }
  TokenId find(std::string_view spelling) const;  // kNoToken if absent

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(spellings_.size()); }
  const std::string& model() const { return model_; }  // "gpt2", "llama"
  const std::string& pre() const { return pre_; }      // pre-tokenizer, "" if none
  TokenId bos() const { return bos_; }
  TokenId eos() const { return eos_; }
  TokenId eot() const { return eot_; }
  TokenId unk() const { return unk_; }
  TokenId pad() const { return pad_; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  // EOS, EOT and their kin (<|im_end|>, <end_of_turn>, <|eot_id|>, <|end|>, …): generation stops there.
  bool is_end_of_generation(TokenId id) const;
  const std::string& chat_template() const { return chat_template_; }  // Jinja source, "" if none

 protected:
  std::string model_, pre_, chat_template_;
  std::vector<std::string> spellings_;
  std::vector<TokenKind> kinds_;
  std::vector<bool> end_of_generation_;
  TokenId bos_ = kNoToken, eos_ = kNoToken, eot_ = kNoToken, unk_ = kNoToken, pad_ = kNoToken;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false;
};

}  // namespace narrows
