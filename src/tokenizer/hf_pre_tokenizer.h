// The pre-tokenizer of a tokenizer.json: cuts a text into the words that the model works on.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/hf_normalizer.h"
#include "tokenizer/json_item.h"

namespace narrows {

// A text and the words in it, which may leave parts of it out.
struct HfWords {
  struct Word {
    std::size_t begin, end;
    std::size_t start_bytes;  // see HfText
  };
  explicit HfWords(HfText t) : text(std::move(t)), words{{0, text.text.size(), text.start_bytes}} {}
  std::string_view view(const Word& word) const {
    return std::string_view(text.text).substr(word.begin, word.end - word.begin);
  }

  HfText text;
  std::vector<Word> words;
};

class HfPreTokenizer {
 public:
  // Throws Error for a type that is unknown or badly described.
  explicit HfPreTokenizer(const JsonItem& description);
  HfPreTokenizer() = default;  // leaves a text as one word
  HfPreTokenizer(HfPreTokenizer&&) noexcept;
  HfPreTokenizer& operator=(HfPreTokenizer&&) noexcept;
  ~HfPreTokenizer();

  bool prepends_always() const;  // whether a step puts a space before every text
  // Cuts further. Empty words are left out. Thread-safe.
  void apply(HfWords& words) const;

  struct Step {
    virtual ~Step() = default;
    virtual void apply(HfWords& words) const = 0;
    virtual bool prepends_always() const { return false; }
  };

 private:
  void add(const JsonItem& part);
  std::vector<std::unique_ptr<Step>> steps_;
};

// Metaspace's prepend_scheme, as a pre-tokenizer and as a decoder; add_prefix_space is its older form.
enum class PrependScheme { Always, Never, First };
PrependScheme read_prepend_scheme(const JsonItem& metaspace);

}  // namespace narrows
