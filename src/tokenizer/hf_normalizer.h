// The normalizer of a tokenizer.json: what is done to a text before it is cut into words.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_item.h"

namespace narrows {

// A stretch of text. How much of it comes from the first character of what was encoded decides about a space
// that is only put there.
struct HfText {
  HfText(std::string_view t, std::size_t start)
      : text(t), start_bytes(start), longest(64 * t.size() + (1 << 16)) {}
  // Throws Error if `bytes` is more than a text may grow to.
  void check_length(std::size_t bytes) const;

  std::string text;
  std::size_t start_bytes;  // so many at the beginning come from that character
  std::size_t longest;
};

class HfNormalizer {
 public:
  // Throws Error for a type that is unknown or badly described.
  explicit HfNormalizer(const JsonItem& description);
  HfNormalizer() = default;  // leaves every text as it is
  HfNormalizer(HfNormalizer&&) noexcept;
  HfNormalizer& operator=(HfNormalizer&&) noexcept;
  ~HfNormalizer();

  bool is_identity() const { return steps_.empty(); }
  bool prepends() const;  // whether a step puts something before every text
  void apply(HfText& text) const;

  struct Step {
    virtual ~Step() = default;
    virtual void apply(HfText& text) const = 0;
    virtual bool prepends() const { return false; }
  };

 private:
  void add(const JsonItem& part);
  std::vector<std::unique_ptr<Step>> steps_;
};

// The pattern of a Replace or Split: {"String": …} or {"Regex": …}.
class OnigRegex;
OnigRegex read_hf_pattern(const JsonItem& pattern);

}  // namespace narrows
