#include "tokenizer/jinja_parser.h"

#include <utility>

#include "base/error.h"
#include "tokenizer/jinja_expressions.h"

namespace narrows::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  Body parse_template() {
    Body body = parse_body({});
    if (peek().kind != TokenKind::End) unexpected("the end of the template");
    return body;
  }

 private:
  // Up to the tag that one of `ends` begins, whose name is left to the caller, or the end of the template.
  Body parse_body(Names ends) {
    const Level level(*this);
    Body body;
    while (true) {
      const Token& token = peek();
      if (token.kind == TokenKind::Data) {
        auto data = statement(StmtKind::Data, token.line);
        data->text = next().text;
        body.push_back(std::move(data));
      } else if (token.kind == TokenKind::PrintBegin) {
        auto print = statement(StmtKind::Print, next().line);
        print->values.push_back(parse_tuple(true));
        if (peek().kind != TokenKind::PrintEnd) unexpected("the end of the expression");
        next();
        body.push_back(std::move(print));
      } else if (token.kind == TokenKind::TagBegin) {
        next();
        if (is_name_of(ends)) return body;
        body.push_back(parse_statement());
        expect_tag_end();
      } else {
        if (ends.size() > 0) unexpected(fmt::format("the tag {}", *(ends.end() - 1)));
        return body;
      }
    }
  }

  // The rest of a tag, which may end in a colon, and what follows up to one of `ends`.
  Body parse_block(Names ends) {
    accept_op(":");
    expect_tag_end();
    return parse_body(ends);
  }

  static std::unique_ptr<Stmt> statement(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  std::unique_ptr<Stmt> parse_statement() {
    const int line = peek().line;
    const std::string tag = expect_any_name("a tag's name");
    if (tag == "if") return parse_if(line);
    if (tag == "for") return parse_for(line);
    if (tag == "set") return parse_set(line);
    if (tag == "macro") return parse_macro(line);
    if (tag == "call") return parse_call_block(line);
    if (tag == "filter") return parse_filter_block(line);
    if (tag == "with") return parse_with(line);
    if (tag == "print") return parse_print(line);
    if (tag == "generation") {
      auto stmt = statement(StmtKind::Scope, line);
      stmt->body = parse_block({"endgeneration"});
      next();
      return stmt;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail_at(line, fmt::format("expected {} inside a loop only", tag));
      return statement(tag == "break" ? StmtKind::Break : StmtKind::Continue, line);
    }
    fail_at(line, fmt::format("expected a tag that chat templates use, found '{}'", tag));
  }

  std::unique_ptr<Stmt> parse_if(int line) {
    auto stmt = statement(StmtKind::If, line);
    ExprPtr condition = parse_tuple(false);
    while (true) {
      Branch branch;
      branch.condition = std::move(condition);
      branch.body = parse_block({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
      if (!accept_name("elif")) break;
      condition = parse_tuple(false);
    }
    if (accept_name("else")) stmt->branches.push_back({nullptr, parse_block({"endif"})});
    expect_name("endif");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_for(int line) {
    auto stmt = statement(StmtKind::For, line);
    stmt->target = parse_target(false);
    refuse_loop_variable(*stmt->target);
    expect_name("in");
    stmt->value = parse_tuple(false);
    if (accept_name("if")) stmt->condition = parse_expression();
    if (is_name("recursive")) unexpected("a loop that is not recursive");
    ++loops_;
    stmt->body = parse_block({"else", "endfor"});
    --loops_;
    if (accept_name("else")) stmt->orelse = parse_block({"endfor"});
    expect_name("endfor");
    return stmt;
  }

  void refuse_loop_variable(const Expr& target) const {
    if (target.kind == ExprKind::Name && target.name == "loop") {
      fail_at(target.line, "expected a loop's target other than 'loop'");
    }
    for (const ExprPtr& kid : target.kids) refuse_loop_variable(*kid);
  }

  std::unique_ptr<Stmt> parse_set(int line) {
    auto stmt = statement(StmtKind::Set, line);
    stmt->target = parse_target(true);
    if (accept_op("=")) {
      stmt->value = parse_tuple(true);
      return stmt;
    }
    stmt->kind = StmtKind::SetBlock;
    if (accept_op("|")) stmt->filter = parse_filter_chain();
    stmt->body = parse_block({"endset"});
    next();
    return stmt;
  }

  void parse_signature(Stmt& macro) {
    expect_op("(");
    while (!is_op(")")) {
      if (peek().kind != TokenKind::Name) unexpected("a parameter's name");
      macro.params.push_back(parse_target_part(false));
      if (accept_op("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        unexpected("a default for a parameter that follows one with a default");
      }
      if (!is_op(")")) expect_op(",");
    }
    next();
  }

  // A macro's body, noting which of the special names it reads.
  void parse_macro_body(Stmt& macro, std::string_view end) {
    const bool outer[] = {uses_varargs_, uses_kwargs_, uses_caller_};
    const int outer_loops = std::exchange(loops_, 0);
    uses_varargs_ = uses_kwargs_ = uses_caller_ = false;
    macro.body = parse_block({end});
    next();
    loops_ = outer_loops;
    macro.uses_varargs = uses_varargs_;
    macro.uses_kwargs = uses_kwargs_;
    macro.uses_caller = uses_caller_;
    uses_varargs_ |= outer[0];
    uses_kwargs_ |= outer[1];
    uses_caller_ |= outer[2];
  }

  std::unique_ptr<Stmt> parse_macro(int line) {
    auto stmt = statement(StmtKind::Macro, line);
    if (peek().kind != TokenKind::Name) unexpected("a macro's name");
    stmt->target = parse_target_part(false);
    stmt->text = stmt->target->name;
    parse_signature(*stmt);
    parse_macro_body(*stmt, "endmacro");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_call_block(int line) {
    auto stmt = statement(StmtKind::CallBlock, line);
    stmt->text = "caller";
    if (is_op("(")) parse_signature(*stmt);
    stmt->value = parse_expression();
    if (stmt->value->kind != ExprKind::Call) fail_at(line, "expected a call in the tag call");
    parse_macro_body(*stmt, "endcall");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_filter_block(int line) {
    auto stmt = statement(StmtKind::FilterBlock, line);
    stmt->filter = parse_filter_chain();
    stmt->body = parse_block({"endfilter"});
    next();
    return stmt;
  }

  std::unique_ptr<Stmt> parse_with(int line) {
    auto stmt = statement(StmtKind::With, line);
    while (peek().kind != TokenKind::TagEnd && !is_op(":")) {
      if (!stmt->params.empty()) expect_op(",");
      stmt->params.push_back(parse_target_part(false));
      expect_op("=");
      stmt->defaults.push_back(parse_expression());
    }
    stmt->body = parse_block({"endwith"});
    next();
    return stmt;
  }

  std::unique_ptr<Stmt> parse_print(int line) {
    auto stmt = statement(StmtKind::Print, line);
    while (peek().kind != TokenKind::TagEnd) {
      if (!stmt->values.empty()) expect_op(",");
      stmt->values.push_back(parse_expression());
    }
    return stmt;
  }

  int loops_ = 0;  // that enclose the current statement
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).parse_template(); }

}  // namespace narrows::jinja
