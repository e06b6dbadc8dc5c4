// Splits a template into text and the tokens within its tags.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja_value.h"

namespace narrows::jinja {

enum class TokenKind : std::uint8_t {
  Data,
  PrintBegin,
  PrintEnd,
  TagBegin,
  TagEnd,
  Name,
  String,
  Integer,
  Float,
  Operator,
  End
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;          // of names, data and operators as written; of strings with escapes resolved
  std::int64_t integer = 0;  // of Integer
  double real = 0;           // of Float
};

// With trim_blocks (a newline after a tag goes), lstrip_blocks (blanks before a tag at a line's start go) and
// jinja2's handling of line ends: all become \n, and one at the end of the source is dropped. Ends with an
// End token.
std::vector<Token> tokenize(std::string_view source);

// Throws Error "chat template: line {line}: expected …".
[[noreturn]] void fail_at(int line, std::string_view message);

}  // namespace narrows::jinja
