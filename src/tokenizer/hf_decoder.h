// The decoder of a tokenizer.json: the bytes that a token stands for.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_item.h"
#include "tokenizer/onig_regex.h"

namespace narrows {

class HfDecoder {
 public:
  // Of the document: a decoder of null puts a space between tokens. Throws Error for a type that is unknown.
  explicit HfDecoder(const JsonItem& document);

  // Byte-level decoders take an added token as it is.
  std::string bytes(std::string_view spelling, bool added) const;
  // Whether a space that begins a text is dropped.
  bool strips_space() const { return strips_space_; }

 private:
  struct Step {
    enum class Kind { ByteLevel, Replace, ByteFallback } kind;
    std::optional<OnigRegex> pattern;  // Replace
    std::string content;
  };
  void add(const JsonItem& part);

  std::vector<Step> steps_;
  bool space_before_ = false;
  bool strips_space_ = false;
};

}  // namespace narrows
