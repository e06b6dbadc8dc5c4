// The tokenizer of a Hugging Face folder as GGUF metadata.
//
// Read are tokenizer.json, or else tokenizer.model (SentencePiece), or else vocab.json with merges.txt; and
// where they are there tokenizer_config.json, special_tokens_map.json, added_tokens.json,
// chat_template.jinja, generation_config.json and config.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf.h"

namespace narrows {

struct HfTokenizerMetadata {
  // tokenizer.ggml.*, tokenizer.chat_template*, and tokenizer.huggingface.json if those are not enough.
  std::vector<std::pair<std::string, GgufEntry>> entries;
  // Whether tokenizer.ggml.* alone give the ids of the folder's tokenizer, in narrows and in llama.cpp.
  bool exact = false;
  std::vector<std::string> notes;  // why they do not
};

// `vocab_size` is the number of rows of the model's embedding: those that the tokenizer has no token for
// become unused tokens "[PAD{id}]"; without it there are as many tokens as the largest id needs. Throws
// Error, naming file and item, if no tokenizer is there, or if it is broken, not supported, or has more
// tokens than the model.
HfTokenizerMetadata read_hf_tokenizer(const std::string& folder,
                                      std::optional<std::int64_t> vocab_size = std::nullopt);

}  // namespace narrows
