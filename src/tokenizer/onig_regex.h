// Regular expressions as `tokenizers` writes them, which are Oniguruma's (Ruby syntax), run by PCRE2.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace narrows {

// The pattern in PCRE2's syntax, for UTF, UCP and MULTILINE. Throws Error for what has no counterpart.
std::string pcre2_pattern(std::string_view onig_pattern);
// The pattern that matches `text` as it is.
std::string escaped_pattern(std::string_view text);

class OnigRegex {
 public:
  // Throws Error if the pattern cannot be compiled; `where` names the item to blame.
  OnigRegex(std::string_view pattern, const std::string& where);
  OnigRegex(OnigRegex&&) noexcept;
  OnigRegex& operator=(OnigRegex&&) noexcept;
  ~OnigRegex();

  // Calls visit(begin, end) for each match from left to right; a match may be empty, but not where the one
  // before ends. `text` must be valid UTF-8. Throws Error if the matching takes too many steps. Thread-safe.
  void matches(std::string_view text, const std::function<void(std::size_t, std::size_t)>& visit) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace narrows
