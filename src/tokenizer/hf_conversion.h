// A tokenizer.json in the terms of tokenizer.ggml.*, and whether those are enough.
#pragma once
#include <string>
#include <vector>

#include "tokenizer/hf_vocabulary.h"
#include "tokenizer/json_item.h"

namespace narrows {

struct HfConversion {
  std::string model;                // tokenizer.ggml.model
  std::string pre;                  // tokenizer.ggml.pre, "" if it does not apply
  std::vector<std::string> merges;  // byte-level BPE
  std::vector<float> scores;        // SPM and unigram
  bool add_space_prefix = false;    // SPM and unigram
  bool remove_extra_whitespaces = false;
  std::string charsmap;              // unigram: SentencePiece's precompiled_charsmap
  std::vector<std::string> reasons;  // why ids may differ; empty if they do not
};

// Throws Error for what is broken.
HfConversion convert_hf_tokenizer(const JsonItem& document, const HfTokens& tokens);

// The first stretch of the tokens' own text that the two engines encode differently, "" if there is none:
// what cannot be seen from the rules is tried.
std::string compare_hf_engines(const HfConversion& conversion, const HfTokens& tokens,
                               const JsonItem& document);

}  // namespace narrows
