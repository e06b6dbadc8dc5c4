// Cuts a text into the words that byte-level BPE merges within, by the regular expressions that
// tokenizer.ggml.pre names.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

// Whether llama.cpp adds BOS for this tokenizer.ggml.pre if the file does not say.
bool pre_tokenizer_adds_bos(std::string_view name);
// Whether a word that is in the vocabulary as a whole becomes that token, whatever the merges give.
bool pre_tokenizer_ignores_merges(std::string_view name);

// The first name whose patterns are these and which ignores merges or not, "" if there is none.
std::string_view pre_tokenizer_name(std::span<const std::string> patterns, bool ignore_merges);
// What the parts of a tokenizer.json are as patterns.
struct PreTokenizerPatterns {
  static const std::string_view kByteLevel, kEachDigit, kDigits, kPunctuation;
};

class PreTokenizer {
 public:
  // Throws Error for an unknown name; `source` is the file to blame. "" is "default".
  PreTokenizer(std::string_view name, const std::string& source);
  ~PreTokenizer();

  // Appends the words of `text`, which must be valid UTF-8; concatenated they are `text`. Thread-safe.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Pattern;
  std::vector<Pattern> patterns_;
};

}  // namespace narrows
