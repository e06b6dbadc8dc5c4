// Runs a Hugging Face tokenizer.json as the `tokenizers` library does: the added tokens are cut out of the
// text, the rest is normalized, cut into words, and given to the model; the post-processor says what
// add_special adds.
//
// Supported
//   normalizers      Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents,
//   ByteLevel,
//                    Precompiled
//   pre-tokenizers   Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation,
//                    BertPreTokenizer, CharDelimiterSplit
//   models           BPE without dropout, Unigram, WordLevel
//   post-processors  Sequence, ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing
//   decoders         Sequence, ByteLevel, Metaspace, ByteFallback, Fuse, Strip (at the left), Replace,
//   BPEDecoder
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace narrows {

// `vocabulary` is finished and has the ids, kinds and spellings that the model's metadata give; the text's
// own ids must lie in it. Where add_bos or add_eos is given it decides whether what the post-processor puts
// before or after a text is put there, or BOS or EOS if it puts nothing; else the post-processor does.
// Invalid UTF-8 in a text is taken for U+FFFD. Throws Error, naming `source` and the item, for what is broken
// or not supported.
std::unique_ptr<const Tokenizer> make_hf_tokenizer(Vocabulary vocabulary, std::string_view tokenizer_json,
                                                   const std::string& source,
                                                   std::optional<bool> add_bos = std::nullopt,
                                                   std::optional<bool> add_eos = std::nullopt);

// The same from the parsed text.
std::unique_ptr<const Tokenizer> make_parsed_hf_tokenizer(Vocabulary vocabulary,
                                                          const nlohmann::json& document,
                                                          const std::string& source,
                                                          std::optional<bool> add_bos = std::nullopt,
                                                          std::optional<bool> add_eos = std::nullopt);

// The key of GGUF metadata that holds such a text.
inline constexpr std::string_view kHfTokenizerKey = "tokenizer.huggingface.json";

// The tokens that a post-processor puts before and after a text.
class JsonItem;
struct HfAffixes {
  std::vector<TokenId> prefix, suffix;
};
HfAffixes read_hf_affixes(const JsonItem& document);

}  // namespace narrows
