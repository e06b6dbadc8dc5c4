#include "tokenizer/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {
namespace {

constexpr auto kNone = std::string_view::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t open = next_tag();
      if (open == kNone) {
        add_data(text_.substr(at_));
        advance(text_.size());
        break;
      }
      open_tag(open);
    }
    add(TokenKind::End, "");
    return std::move(tokens_);
  }

 private:
  std::size_t next_tag() const {
    for (std::size_t at = text_.find('{', at_); at != kNone; at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() && (text_[at + 1] == '{' || text_[at + 1] == '%' || text_[at + 1] == '#'))
        return at;
    }
    return kNone;
  }

  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool at(std::string_view what) const { return text_.substr(at_, what.size()) == what; }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  std::size_t skip_space(std::size_t from) const {
    return text_.size() - strip(text_.substr(from), nullptr, true, false).size();
  }

  void add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text)}); }
  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::Data, text);
  }

  // Text before a tag, less what the tag's sign or lstrip_blocks takes from its end.
  std::string_view before_tag(std::string_view text, char sign, bool lstrip) const {
    if (sign == '-') return strip(text, nullptr, false, true);
    if (sign == '+' || !lstrip) return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t start = newline == kNone ? 0 : newline + 1;
    if (newline == kNone && at_ > 0 && text_[at_ - 1] != '\n') return text;
    return strip(text.substr(start), nullptr, true, false).empty() ? text.substr(0, start) : text;
  }

  char sign_at(std::size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
  }

  void open_tag(std::size_t open) {
    const char mark = text_[open + 1];
    const char sign = sign_at(open + 2);
    add_data(before_tag(text_.substr(at_, open - at_), sign, mark != '{'));
    advance(open);
    std::size_t inside = open + 2 + (sign ? 1 : 0);
    if (mark == '%') {
      if (const std::size_t body = after_raw(inside, "raw", true); body != kNone) return read_raw(body);
    }
    if (mark == '#') return read_comment(inside);
    add(mark == '{' ? TokenKind::PrintBegin : TokenKind::TagBegin, "");
    advance(inside);
    read_tokens(mark == '{');
  }

  // The offset after `word` and the end of its tag, if the tag that is open at `at` holds just that word.
  std::size_t after_raw(std::size_t at, std::string_view word, bool opening) const {
    at = skip_space(at);
    if (text_.substr(at, word.size()) != word) return kNone;
    return after_end(skip_space(at + word.size()), '%', !opening);
  }

  // The offset after the end of a tag at `at`, with what its sign or trim_blocks takes; kNone if there is
  // none.
  std::size_t after_end(std::size_t at, char mark, bool trim) const {
    const char closing[] = {mark, '}', '\0'};
    const char sign = sign_at(at);
    if (sign == '+' && (mark == '}' || !trim)) return kNone;
    const std::size_t end = at + (sign ? 1 : 0);
    if (text_.substr(end, 2) != closing) return kNone;
    if (sign == '-') return skip_space(end + 2);
    return end + 2 + (trim && sign != '+' && end + 2 < text_.size() && text_[end + 2] == '\n' ? 1 : 0);
  }

  void read_comment(std::size_t inside) {
    if (inside == text_.size()) return advance(inside);  // jinja2 lets it pass
    for (std::size_t at = text_.find("#}", inside); at != kNone; at = text_.find("#}", at + 1)) {
      // A sign just after {# has been taken as that one's.
      const std::size_t end = at > inside && sign_at(at - 1) ? at - 1 : at;
      return advance(after_end(end, '#', true));
    }
    fail_at(line_, "expected the end of a comment, found the end of the template");
  }

  void read_raw(std::size_t body) {
    advance(body);
    if (body == text_.size()) return;  // jinja2 lets it pass
    for (std::size_t at = text_.find("{%", body); at != kNone; at = text_.find("{%", at + 1)) {
      const char sign = sign_at(at + 2);
      const std::size_t end = after_raw(at + 2 + (sign ? 1 : 0), "endraw", false);
      if (end == kNone) continue;
      add_data(before_tag(text_.substr(body, at - body), sign, true));
      return advance(end);
    }
    fail_at(line_, "expected endraw, found the end of the template");
  }

  void read_tokens(bool printing) {
    std::string open;  // brackets not yet closed
    while (true) {
      if (open.empty()) {
        const std::size_t end = after_end(at_, printing ? '}' : '%', !printing);
        if (end != kNone) {
          add(printing ? TokenKind::PrintEnd : TokenKind::TagEnd, "");
          return advance(end);
        }
      }
      advance(skip_space(at_));
      if (at_ == text_.size()) return;
      if (open.empty() && after_end(at_, printing ? '}' : '%', !printing) != kNone) continue;
      const char c = peek();
      if (is_digit(c)) {
        read_number();
      } else if (is_name_start(c)) {
        read_name();
      } else if (c == '\'' || c == '"') {
        read_string(c);
      } else {
        read_operator(open);
      }
    }
  }

  void read_name() {
    std::size_t end = at_;
    while (end < text_.size() && (is_name_start(text_[end]) || is_digit(text_[end]))) ++end;
    add(TokenKind::Name, text_.substr(at_, end - at_));
    at_ = end;
  }

  // Digits with single underscores between them, from `at`; returns where they end.
  template <typename IsDigit>
  std::size_t digits(std::size_t at, IsDigit is) const {
    while (at < text_.size() &&
           (is(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() && is(text_[at + 1]))))
      ++at;
    return at;
  }

  void read_number() {
    if (peek() == '0' && read_prefixed()) return;
    std::size_t end = digits(at_, is_digit);
    const std::size_t integer_end = end;
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    bool real = false;
    if (!after_dot) {
      if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
        end = digits(end + 1, is_digit);
        real = true;
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        const std::size_t sign = end + 1 + (sign_at(end + 1) ? 1 : 0);
        if (sign < text_.size() && is_digit(text_[sign])) {
          end = digits(sign, is_digit);
          real = true;
        }
      }
    }
    if (!real) return add_integer(at_, leading_zeros_end(integer_end), 10);
    std::string digits_only(text_.substr(at_, end - at_));
    std::erase(digits_only, '_');
    add(TokenKind::Float, "");
    tokens_.back().real = std::strtod(digits_only.c_str(), nullptr);
    at_ = end;
  }

  // As in Python, an integer that starts with 0 is all zeros; the parser refuses what follows.
  std::size_t leading_zeros_end(std::size_t end) const {
    if (peek() != '0') return end;
    return digits(at_, [](char c) { return c == '0'; });
  }

  bool read_prefixed() {
    const char letter = static_cast<char>(peek(1) | 0x20);
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (base == 0) return false;
    const auto is = [base](char c) {
      const char low = static_cast<char>(c | 0x20);
      return base == 16 ? is_digit(c) || (low >= 'a' && low <= 'f') : c >= '0' && c < '0' + base;
    };
    const std::size_t end = digits(at_ + 2, is);
    if (end == at_ + 2) return false;
    add_integer(at_ + 2, end, base);
    return true;
  }

  void add_integer(std::size_t from, std::size_t end, int base) {
    std::string digits_only(text_.substr(from, end - from));
    std::erase(digits_only, '_');
    std::int64_t value = 0;
    const auto result =
        std::from_chars(digits_only.data(), digits_only.data() + digits_only.size(), value, base);
    if (result.ec != std::errc()) fail_at(line_, "expected integers of at most 64 bits");
    add(TokenKind::Integer, "");
    tokens_.back().integer = value;
    at_ = end;
  }

  void read_string(char quote) {
    const int line = line_;
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail_at(line, "expected the end of a string, found the end of the template");
    std::string value = unescape(text_.substr(at_ + 1, end - at_ - 1));
    tokens_.push_back({TokenKind::String, line, std::move(value)});
    advance(end + 1);
  }

  std::string unescape(std::string_view text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        out += text[i++];
        continue;
      }
      const char c = text[i + 1];
      i += 2;
      constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
      if (const std::size_t known = kLetters.find(c); known != kNone) {
        out += kMeanings[known];
      } else if (c >= '0' && c <= '7') {
        std::uint32_t code = static_cast<std::uint32_t>(c - '0');
        for (int n = 0; n < 2 && i < text.size() && text[i] >= '0' && text[i] <= '7'; ++n, ++i) {
          code = code * 8 + static_cast<std::uint32_t>(text[i] - '0');
        }
        append_code_point(out, code);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_hex(out, text, i, c == 'x' ? 2 : c == 'u' ? 4 : 8);
      } else if (c == 'N') {
        fail_at(line_, "expected a string without \\N{...} escapes");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void append_hex(std::string& out, std::string_view text, std::size_t& i, std::size_t count) const {
    std::uint32_t code = 0;
    const std::string_view hex = text.substr(std::min(i, text.size()), count);
    const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool valid = hex.size() == count && result.ec == std::errc() && result.ptr == hex.data() + count;
    if (!valid || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail_at(line_, fmt::format("expected {} hexadecimal digits of a character after a backslash", count));
    }
    append_code_point(out, code);
    i += count;
  }

  void read_operator(std::string& open) {
    constexpr std::string_view kDouble[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view op : kDouble) {
      if (!at(op)) continue;
      add(TokenKind::Operator, op);
      at_ += op.size();
      return;
    }
    const char c = peek();
    if (kSingle.find(c) == kNone)
      fail_at(line_,
              fmt::format("expected an expression, found the character {:?}", std::string_view(&c, 1)));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) {
        fail_at(line_, open.empty() ? fmt::format("expected no '{}' here", c)
                                    : fmt::format("expected '{}', found '{}'", open.back(), c));
      }
      open.pop_back();
    }
    add(TokenKind::Operator, std::string_view(&c, 1));
    ++at_;
  }

  std::string source_;
  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

void fail_at(int line, std::string_view message) { fail("chat template: line {}: {}", line, message); }

}  // namespace narrows::jinja
