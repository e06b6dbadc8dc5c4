#include "tokenizer/onig_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "base/error.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

namespace {

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

constexpr std::size_t kLongestPattern = 1 << 16;

}  // namespace

struct OnigRegex::Code {
  explicit Code(pcre2_code* c) : code(c) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code;
};

OnigRegex::OnigRegex(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kLongestPattern) {
    fail("{}: expected a pattern of at most {} bytes, found {}", where, kLongestPattern, pattern.size());
  }
  std::string translated;
  try {
    translated = pcre2_pattern(pattern);
  } catch (const Error& error) {
    fail("{}: expected a regular expression, but in {} {}", where, quoted(pattern), error.what());
  }
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                   &offset, context.get());
  if (code == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof message);
    fail("{}: expected a regular expression, but PCRE2 says of {}: {}", where, quoted(pattern),
         reinterpret_cast<const char*>(message));
  }
  code_ = std::make_unique<Code>(code);
  // Where PCRE2 has no compiler for this machine, its interpreter serves.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

OnigRegex::OnigRegex(OnigRegex&&) noexcept = default;
OnigRegex& OnigRegex::operator=(OnigRegex&&) noexcept = default;
OnigRegex::~OnigRegex() = default;

void OnigRegex::matches(std::string_view text,
                        const std::function<void(std::size_t, std::size_t)>& visit) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match.get());
  const auto search = [&](std::size_t from) {
    const auto run = [&](std::uint32_t options) {
      return pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | options, match.get(),
                         nullptr);
    };
    const int rc = run(0);
    return rc == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : rc;
  };
  std::size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    const int rc = search(from);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      fail(
          "pre-tokenizer: PCRE2 error {} in a text of {} bytes at offset {}: expected a pattern that takes "
          "fewer steps",
          rc, text.size(), from);
    }
    const std::size_t begin = found[0], end = found[1];
    if (begin == end && end == last_end) {
      from += from < text.size() ? utf8_sequence(text.substr(from)) : 1;
      continue;
    }
    if (begin > end || (last_end != std::string_view::npos && begin < last_end))
      break;  // \K moved the beginning
    from = last_end = end;
    visit(begin, end);
  }
}

}  // namespace narrows
