#include "tokenizer/jinja_expressions.h"

namespace narrows::jinja {

void ExpressionParser::unexpected(std::string_view wanted) const {
  const Token& token = peek();
  std::string found;
  switch (token.kind) {
    case TokenKind::End:
      found = "the end of the template";
      break;
    case TokenKind::TagEnd:
    case TokenKind::PrintEnd:
      found = "the end of the tag";
      break;
    case TokenKind::Data:
      found = "text";
      break;
    case TokenKind::String:
      found = "a string";
      break;
    case TokenKind::Integer:
    case TokenKind::Float:
      found = "a number";
      break;
    default:
      found = fmt::format("'{}'", token.text);
  }
  fail_at(token.line, fmt::format("expected {}, found {}", wanted, found));
}

// ---- expressions, loosest first ----

ExprPtr ExpressionParser::parse_expression(bool with_condition) {
  const Level level(*this);
  if (!with_condition) return parse_or();
  ExprPtr expr = parse_or();
  while (is_name("if")) {
    const int line = next().line;
    ExprPtr test = parse_or();
    ExprPtr otherwise = accept_name("else") ? parse_expression() : nullptr;
    expr = make(ExprKind::Cond, line, std::move(test), std::move(expr), std::move(otherwise));
  }
  return expr;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or")) {
    const int line = next().line;
    ExprPtr right = parse_and();
    left = make(ExprKind::Or, line, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and")) {
    const int line = next().line;
    ExprPtr right = parse_not();
    left = make(ExprKind::And, line, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Level level(*this);
  const int line = next().line;
  return make(ExprKind::Not, line, parse_not());
}

bool ExpressionParser::accept_compare(CompareOp& op) {
  constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::Eq}, {"!=", CompareOp::Ne},
                                                             {"<", CompareOp::Lt},  {"<=", CompareOp::Le},
                                                             {">", CompareOp::Gt},  {">=", CompareOp::Ge}};
  for (const auto& [text, known] : kOps) {
    if (!accept_op(text)) continue;
    op = known;
    return true;
  }
  op = CompareOp::In;
  if (accept_name("in")) return true;
  if (!is_name("not") || !is_name("in", 1)) return false;
  next();
  next();
  op = CompareOp::NotIn;
  return true;
}

ExprPtr ExpressionParser::parse_compare() {
  ExprPtr left = parse_sum();
  const int line = peek().line;
  CompareOp op{};
  if (!accept_compare(op)) return left;
  ExprPtr compare = make(ExprKind::Compare, line, std::move(left));
  do {
    compare->compares.push_back(op);
    add_kid(*compare, parse_sum());
  } while (accept_compare(op));
  return compare;
}

ExprPtr ExpressionParser::binary(int line, BinaryOp op, ExprPtr left, ExprPtr right) const {
  ExprPtr expr = make(ExprKind::Binary, line, std::move(left), std::move(right));
  expr->op = op;
  return expr;
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (is_op("+") || is_op("-")) {
    const Token& token = next();
    ExprPtr right = parse_concat();
    left = binary(token.line, token.text == "+" ? BinaryOp::Add : BinaryOp::Sub, std::move(left),
                  std::move(right));
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!is_op("~")) return first;
  ExprPtr concat = make(ExprKind::Concat, peek().line, std::move(first));
  while (accept_op("~")) add_kid(*concat, parse_product());
  return concat;
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const Token& token = next();
    const BinaryOp op = token.text == "*"    ? BinaryOp::Mul
                        : token.text == "/"  ? BinaryOp::Div
                        : token.text == "//" ? BinaryOp::FloorDiv
                                             : BinaryOp::Mod;
    ExprPtr right = parse_power();
    left = binary(token.line, op, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (is_op("**")) {
    const int line = next().line;
    ExprPtr right = parse_unary(true);
    left = binary(line, BinaryOp::Pow, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
  ExprPtr expr;
  if (is_op("-") || is_op("+")) {
    const Level level(*this);
    const Token& token = next();
    expr = make(token.text == "-" ? ExprKind::Negate : ExprKind::Plus, token.line, parse_unary(false));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filter ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::parse_primary() {
  const Token& token = peek();
  switch (token.kind) {
    case TokenKind::Name:
      next();
      if (token.text == "true" || token.text == "True") return constant(token.line, Value(true));
      if (token.text == "false" || token.text == "False") return constant(token.line, Value(false));
      if (token.text == "none" || token.text == "None") return constant(token.line, None{});
      return name(token);
    case TokenKind::String: {
      std::string text;
      while (peek().kind == TokenKind::String) text += next().text;
      return constant(token.line, StrRef(std::make_shared<const Str>(nullptr, std::move(text), false)));
    }
    case TokenKind::Integer:
      return constant(token.line, Value(next().integer));
    case TokenKind::Float:
      return constant(token.line, Value(next().real));
    default:
      break;
  }
  if (accept_op("(")) {
    ExprPtr inner = parse_tuple(true, true);
    expect_op(")");
    return inner;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  unexpected("an expression");
}

ExprPtr ExpressionParser::name(const Token& token) {
  if (token.text == "varargs") uses_varargs_ = true;
  if (token.text == "kwargs") uses_kwargs_ = true;
  if (token.text == "caller") uses_caller_ = true;
  ExprPtr expr = make(ExprKind::Name, token.line);
  expr->name = token.text;
  return expr;
}

bool ExpressionParser::at_tuple_end() const {
  return peek().kind == TokenKind::PrintEnd || peek().kind == TokenKind::TagEnd || is_op(")");
}

ExprPtr ExpressionParser::parse_tuple(bool with_condition, bool in_parentheses) {
  const int line = peek().line;
  if (at_tuple_end()) {
    if (!in_parentheses) unexpected("an expression");
    return make(ExprKind::Tuple, line);
  }
  ExprPtr first = parse_expression(with_condition);
  if (!is_op(",")) return first;
  ExprPtr tuple = make(ExprKind::Tuple, line, std::move(first));
  while (accept_op(",") && !at_tuple_end()) add_kid(*tuple, parse_expression(with_condition));
  return tuple;
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr list = make(ExprKind::List, next().line);
  while (!is_op("]")) {
    add_kid(*list, parse_expression());
    if (!is_op("]")) expect_op(",");
  }
  next();
  return list;
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr dict = make(ExprKind::Dict, next().line);
  while (!is_op("}")) {
    add_kid(*dict, parse_expression());
    expect_op(":");
    add_kid(*dict, parse_expression());
    if (!is_op("}")) expect_op(",");
  }
  next();
  return dict;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (is_op(".")) {
      expr = parse_dot(std::move(expr));
    } else if (is_op("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (is_op("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr expr) {
  while (true) {
    if (is_op("|")) {
      expr = parse_filter(std::move(expr));
    } else if (is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (is_op("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_dot(ExprPtr expr) {
  const int line = next().line;
  if (peek().kind == TokenKind::Integer) {
    return make(ExprKind::Item, line, std::move(expr), constant(line, Value(next().integer)));
  }
  ExprPtr attribute = make(ExprKind::Attribute, line, std::move(expr));
  attribute->name = expect_any_name("an attribute's name");
  return attribute;
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr expr) {
  const int line = next().line;
  if (is_op("]")) unexpected("an index");
  ExprPtr start = is_op(":") ? nullptr : parse_expression();
  if (is_op(",")) {
    ExprPtr tuple = make(ExprKind::Tuple, line, std::move(start));
    while (accept_op(",") && !is_op("]")) add_kid(*tuple, parse_expression());
    start = std::move(tuple);
  }
  if (accept_op("]")) return make(ExprKind::Item, line, std::move(expr), std::move(start));
  expect_op(":");
  ExprPtr stop = is_op(":") || is_op("]") ? nullptr : parse_expression();
  ExprPtr step = accept_op(":") && !is_op("]") ? parse_expression() : nullptr;
  expect_op("]");
  return make(ExprKind::Slice, line, std::move(expr), std::move(start), std::move(stop), std::move(step));
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr call = make(ExprKind::Call, peek().line, std::move(callee));
  parse_args(*call);
  return call;
}

void ExpressionParser::parse_args(Expr& call) {
  expect_op("(");
  while (!is_op(")")) {
    Arg arg{Arg::Kind::Positional, "", nullptr};
    const auto last = call.args.empty() ? Arg::Kind::Positional : call.args.back().kind;
    if (accept_op("*")) {
      arg.kind = Arg::Kind::Unpacked;
    } else if (accept_op("**")) {
      arg.kind = Arg::Kind::UnpackedNamed;
    } else if (peek().kind == TokenKind::Name && is_op("=", 1)) {
      arg.kind = Arg::Kind::Named;
      arg.name = next().text;
      next();
    }
    if (arg.kind == Arg::Kind::Positional && last != Arg::Kind::Positional) {
      fail_at(peek().line, "expected positional arguments before the others");
    }
    arg.value = parse_expression();
    deepen(call, arg.value.get());
    call.args.push_back(std::move(arg));
    if (!is_op(")")) expect_op(",");
  }
  next();
}

std::string ExpressionParser::parse_dotted_name(std::string_view what) {
  std::string dotted = expect_any_name(what);
  while (accept_op(".")) {
    dotted += '.';
    dotted += expect_any_name(what);
  }
  return dotted;
}

ExprPtr ExpressionParser::parse_filter(ExprPtr expr) {
  next();
  return parse_filter_name(std::move(expr));
}

ExprPtr ExpressionParser::parse_filter_name(ExprPtr expr) {
  ExprPtr filter = make(ExprKind::Filter, peek().line, std::move(expr));
  filter->name = parse_dotted_name("a filter's name");
  if (is_op("(")) parse_args(*filter);
  return filter;
}

ExprPtr ExpressionParser::parse_filter_chain() {
  ExprPtr filter = parse_filter_name(nullptr);
  while (is_op("|")) filter = parse_filter(std::move(filter));
  return filter;
}

bool ExpressionParser::at_test_argument() const {
  switch (peek().kind) {
    case TokenKind::Name:
      return !is_name_of({"else", "or", "and"});
    case TokenKind::String:
    case TokenKind::Integer:
    case TokenKind::Float:
      return true;
    default:
      return is_op("[") || is_op("{");
  }
}

ExprPtr ExpressionParser::parse_test(ExprPtr expr) {
  const int line = next().line;
  const bool negated = accept_name("not");
  ExprPtr test = make(ExprKind::Test, line, std::move(expr));
  test->name = parse_dotted_name("a test's name");
  if (is_op("(")) {
    parse_args(*test);
  } else if (at_test_argument()) {
    if (is_name("is")) unexpected("one test only");
    Arg arg{Arg::Kind::Positional, "", parse_postfix(parse_primary())};
    deepen(*test, arg.value.get());
    test->args.push_back(std::move(arg));
  }
  return negated ? make(ExprKind::Not, line, std::move(test)) : std::move(test);
}

// ---- assignment targets ----

ExprPtr ExpressionParser::parse_target_part(bool with_namespace) {
  const Token& token = peek();
  if (is_op("(")) {
    const Level level(*this);
    next();
    ExprPtr inner = parse_target(with_namespace, true);
    expect_op(")");
    return inner;
  }
  if (token.kind != TokenKind::Name || is_name_of({"true", "false", "none", "True", "False", "None"})) {
    unexpected("a name to assign to");
  }
  next();
  ExprPtr target = make(ExprKind::Name, token.line);
  target->name = token.text;
  if (!with_namespace || !accept_op(".")) return target;
  ExprPtr attribute = make(ExprKind::Attribute, token.line, std::move(target));
  attribute->name = expect_any_name("an attribute's name");
  return attribute;
}

ExprPtr ExpressionParser::parse_target(bool with_namespace, bool in_parentheses) {
  const int line = peek().line;
  ExprPtr first = parse_target_part(with_namespace);
  if (!is_op(",")) return first;
  ExprPtr tuple = make(ExprKind::Tuple, line, std::move(first));
  while (accept_op(",")) {
    if (is_name("in") || at_tuple_end() || (in_parentheses && is_op(")"))) break;
    add_kid(*tuple, parse_target_part(with_namespace));
  }
  return tuple;
}

}  // namespace narrows::jinja
