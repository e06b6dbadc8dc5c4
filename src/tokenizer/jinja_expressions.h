// The expressions of the template language, and the tokens they are read from.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_lexer.h"

namespace narrows::jinja {

inline constexpr int kMaxParseNesting = 120;  // brackets and blocks within each other
inline constexpr int kMaxTreeDepth = 400;     // of an expression, chains of operators included

using Names = std::initializer_list<std::string_view>;

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

  // Counts how deep the parser's own recursion is.
  class Level {
   public:
    explicit Level(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.level_ > kMaxParseNesting) {
        fail_at(parser_.peek().line, fmt::format("expected at most {} nested levels", kMaxParseNesting));
      }
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& next() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_op(std::string_view op, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::Operator && peek(ahead).text == op;
  }
  bool is_name(std::string_view name, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::Name && peek(ahead).text == name;
  }
  bool is_name_of(Names names) const {
    return peek().kind == TokenKind::Name &&
           std::find(names.begin(), names.end(), peek().text) != names.end();
  }
  bool accept_op(std::string_view op) { return is_op(op) && (next(), true); }
  bool accept_name(std::string_view name) { return is_name(name) && (next(), true); }

  // Throws Error that names what was wanted and what was found.
  [[noreturn]] void unexpected(std::string_view wanted) const;
  void expect_op(std::string_view op) {
    if (!accept_op(op)) unexpected(fmt::format("'{}'", op));
  }
  void expect_name(std::string_view name) {
    if (!accept_name(name)) unexpected(fmt::format("'{}'", name));
  }
  std::string expect_any_name(std::string_view what) {
    if (peek().kind != TokenKind::Name) unexpected(what);
    return next().text;
  }
  void expect_tag_end() {
    if (peek().kind != TokenKind::TagEnd) unexpected("the end of the tag");
    next();
  }

  ExprPtr make(ExprKind kind, int line) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }
  void add_kid(Expr& parent, ExprPtr kid) const {
    deepen(parent, kid.get());
    parent.kids.push_back(std::move(kid));
  }
  void deepen(Expr& parent, const Expr* kid) const {
    if (!kid) return;
    parent.depth = std::max(parent.depth, kid->depth + 1);
    if (parent.depth > kMaxTreeDepth) {
      fail_at(kid->line, fmt::format("expected an expression of at most {} levels", kMaxTreeDepth));
    }
  }
  template <typename... Kids>
  ExprPtr make(ExprKind kind, int line, Kids... kids) const {
    ExprPtr expr = make(kind, line);
    (add_kid(*expr, std::move(kids)), ...);
    return expr;
  }
  ExprPtr constant(int line, Value value) const {
    ExprPtr expr = make(ExprKind::Const, line);
    expr->constant = std::move(value);
    return expr;
  }

  // ---- expressions, loosest first ----
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  bool accept_compare(CompareOp& op);
  ExprPtr parse_compare();
  ExprPtr binary(int line, BinaryOp op, ExprPtr left, ExprPtr right) const;
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr name(const Token& token);
  bool at_tuple_end() const;
  ExprPtr parse_tuple(bool with_condition, bool in_parentheses = false);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_dot(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_call(ExprPtr callee);
  void parse_args(Expr& call);
  std::string parse_dotted_name(std::string_view what);
  // At the bar before the filter's name.
  ExprPtr parse_filter(ExprPtr expr);
  ExprPtr parse_filter_name(ExprPtr expr);
  // The chain of filters of a block, at its first name; the innermost filters the block's text.
  ExprPtr parse_filter_chain();
  bool at_test_argument() const;
  ExprPtr parse_test(ExprPtr expr);

  // ---- assignment targets ----
  ExprPtr parse_target_part(bool with_namespace);
  ExprPtr parse_target(bool with_namespace, bool in_parentheses = false);

  bool uses_varargs_ = false, uses_kwargs_ = false, uses_caller_ = false;  // names read since last cleared

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int level_ = 0;
};

}  // namespace narrows::jinja
