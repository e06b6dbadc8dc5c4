// Text to token ids and back.
//
// Kinds: byte-level BPE (tokenizer.ggml.model = "gpt2": merges over bytes written as printable characters,
// after a pre-tokenizer pattern named by tokenizer.ggml.pre) and SPM (tokenizer.ggml.model = "llama":
// SentencePiece's BPE by score with byte fallback). Ids are those of llama.cpp and of the Hugging Face
// tokenizer of the same model, less the latter's normalizer (Qwen's NFC), of which a GGUF file does not tell
// and which would change the text. A file that has a tokenizer.json (key tokenizer.huggingface.json) runs that, with
// all its parts (hf_tokenizer.h); the ggml keys give the special ids, the kinds and the template.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace narrows {

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

  // Any bytes are accepted, up to 1 GiB. Invalid UTF-8 is treated as llama.cpp does: SPM encodes its bytes;
  // byte-level BPE, whose patterns need characters, takes each for U+FFFD. Thread-safe.
  virtual std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const = 0;

  // The exact bytes that the ids stand for: concatenated pieces, less SPM's leading space prefix where the
  // model adds one and `ids` starts a text. Control tokens give nothing unless show_special. Throws Error for
  // an id out of range.
  std::string decode(std::span<const TokenId> ids, bool show_special = false) const;

  // The bytes of one token inside a text ("▁" is a space, byte tokens are their byte).
  virtual std::string piece(TokenId id, bool show_special = false) const = 0;

  // The token as the vocabulary spells it, and its kind. `id` must be in range.
  const std::string& spelling(TokenId id) const {
    return vocabulary_.spellings.at(static_cast<std::size_t>(id));
  }
  TokenKind kind(TokenId id) const { return vocabulary_.kinds.at(static_cast<std::size_t>(id)); }
  TokenId find(std::string_view spelling) const { return vocabulary_.index.find(spelling); }

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(vocabulary_.size()); }
  const std::string& model() const { return vocabulary_.model; }  // "gpt2", "llama"; with a tokenizer.json others too
  const std::string& pre() const { return vocabulary_.pre; }      // pre-tokenizer, "" if none
  TokenId bos() const { return vocabulary_.bos; }
  TokenId eos() const { return vocabulary_.eos; }
  TokenId eot() const { return vocabulary_.eot; }
  TokenId unk() const { return vocabulary_.unk; }
  TokenId pad() const { return vocabulary_.pad; }
  bool add_bos() const { return vocabulary_.add_bos; }
  bool add_eos() const { return vocabulary_.add_eos; }
  // EOS, EOT and their kin (<|im_end|>, <end_of_turn>, <|eot_id|>, <|end|>, …): generation stops there.
  bool is_end_of_generation(TokenId id) const;
  const std::string& chat_template() const { return vocabulary_.chat_template; }  // Jinja source, "" if none

 protected:
  explicit Tokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  void check_id(TokenId id) const;                  // throws Error if out of range
  static void check_length(std::string_view text);  // throws Error for a text of more than 1 GiB

  Vocabulary vocabulary_;
};

// From a finished vocabulary; from_gguf comes down to these. `merges` are only read.
std::unique_ptr<const Tokenizer> make_bpe_tokenizer(Vocabulary vocabulary,
                                                    std::span<const std::string> merges);
std::unique_ptr<const Tokenizer> make_spm_tokenizer(Vocabulary vocabulary);

}  // namespace narrows
