// Expressions. Statements are in jinja_exec.cc.
#include "tokenizer/jinja_eval.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/jinja_level.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {

Bound::Bound(std::string_view callee, std::initializer_list<std::string_view> params, std::size_t required,
             const Args& args)
    : callee_(callee), values_(params.size(), nullptr) {
  if (args.positional.size() > params.size()) {
    fail("{}: expected at most {} arguments, found {}", callee, params.size(), args.positional.size());
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto* param = std::find(params.begin(), params.end(), name);
    if (param == params.end()) fail("{}: expected no argument named '{}'", callee, name);
    const Value*& slot = values_[static_cast<std::size_t>(param - params.begin())];
    if (slot) fail("{}: expected the argument '{}' once", callee, name);
    slot = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!values_[i]) fail("{}: expected an argument '{}'", callee, *(params.begin() + i));
  }
}

std::int64_t Bound::integer(std::size_t i, std::int64_t otherwise) const {
  if (!values_[i] || values_[i]->is_none()) return otherwise;
  std::int64_t result = 0;
  if (!as_integer(*values_[i], result))
    fail("{}: expected an integer, found {}", callee_, type_name(*values_[i]));
  return result;
}

std::string_view Bound::text(std::size_t i, std::string_view otherwise) const {
  if (!values_[i]) return otherwise;
  if (!values_[i]->is_string()) fail("{}: expected a string, found {}", callee_, type_name(*values_[i]));
  return values_[i]->text();
}

Value* Scope::find(std::string_view name) {
  for (Scope* scope = this; scope; scope = scope->parent.get()) {
    for (auto& [known, value] : scope->vars) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

Value Interpreter::missing(std::string reason) {
  heap_.step(8);
  return undefined(std::move(reason));
}

Value Interpreter::eval(const Expr& expr) {
  const Level level(depth_);
  heap_.step();
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::Const:
      return expr.constant;
    case ExprKind::Name:
      return eval_name(expr);
    case ExprKind::List:
    case ExprKind::Tuple:
      return eval_sequence(expr);
    case ExprKind::Dict:
      return eval_dict(expr);
    case ExprKind::Attribute:
      return attribute(eval(*expr.kids[0]), expr.name);
    case ExprKind::Item:
      return eval_item(expr);
    case ExprKind::Slice:
      return eval_slice(expr);
    case ExprKind::Call:
      return eval_call(expr);
    case ExprKind::Filter:
      return eval_filter(expr);
    case ExprKind::Test:
      return eval_test(expr);
    case ExprKind::Not:
      return Value(!truth(eval(*expr.kids[0])));
    case ExprKind::Negate:
    case ExprKind::Plus:
      return eval_sign(expr);
    case ExprKind::And:
    case ExprKind::Or:
      return eval_logic(expr);
    case ExprKind::Binary:
      return eval_binary(expr);
    case ExprKind::Concat:
      return eval_concat(expr);
    case ExprKind::Compare:
      return eval_compare(expr);
    case ExprKind::Cond:
      return eval_condition(expr);
  }
  return {};
}

Value Interpreter::eval_name(const Expr& expr) {
  if (const Value* found = scope_->find(expr.name)) return *found;
  Value function = global_function(expr.name);
  if (!function.is_undefined()) return function;
  return missing(fmt::format("'{}' is undefined", expr.name));
}

Value Interpreter::eval_sequence(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.kids.size());
  for (const ExprPtr& kid : expr.kids) items.push_back(eval(*kid));
  return heap_.sequence(expr.kind == ExprKind::List ? SeqKind::List : SeqKind::Tuple, std::move(items));
}

Value Interpreter::eval_dict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  for (std::size_t i = 0; i < expr.kids.size(); i += 2) {
    Value key = eval(*expr.kids[i]);
    entries.emplace_back(std::move(key), eval(*expr.kids[i + 1]));
  }
  return heap_.dict(std::move(entries));
}

Value Interpreter::eval_item(const Expr& expr) {
  const Value container = eval(*expr.kids[0]);
  const Value key = eval(*expr.kids[1]);
  line_ = expr.line;
  return item(container, key);
}

Value Interpreter::eval_logic(const Expr& expr) {
  Value left = eval(*expr.kids[0]);
  return truth(left) == (expr.kind == ExprKind::Or) ? left : eval(*expr.kids[1]);
}

Value Interpreter::eval_condition(const Expr& expr) {
  if (truth(eval(*expr.kids[0]))) return eval(*expr.kids[1]);
  if (expr.kids[2]) return eval(*expr.kids[2]);
  return missing("the inline if has no else and its condition does not hold");
}

Value Interpreter::eval_binary(const Expr& expr) {
  const Value left = eval(*expr.kids[0]);
  const Value right = eval(*expr.kids[1]);
  line_ = expr.line;
  return binary(heap_, expr.op, left, right);
}

Value Interpreter::eval_sign(const Expr& expr) {
  const Value value = eval(*expr.kids[0]);
  const bool negate = expr.kind == ExprKind::Negate;
  std::int64_t integer = 0;
  if (as_integer(value, integer)) {
    return negate ? binary(heap_, BinaryOp::Sub, Value(std::int64_t{0}), value) : Value(integer);
  }
  if (const double* real = value.real()) return Value(negate ? -*real : *real);
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  fail("expected a number after the sign, found {}", type_name(value));
}

Value Interpreter::eval_concat(const Expr& expr) {
  Text out(heap_);
  for (const ExprPtr& kid : expr.kids) print(out, eval(*kid));
  return heap_.string(out.take());
}

bool Interpreter::compare(CompareOp op, const Value& a, const Value& b) {
  // Python's a <= b is neither b < a nor an unordered pair, which only a float that is not a number makes.
  double x = 0, y = 0;
  const bool unordered = as_real(a, x) && as_real(b, y) && (x != x || y != y);
  switch (op) {
    case CompareOp::Eq:
      return equal(heap_, a, b);
    case CompareOp::Ne:
      return !equal(heap_, a, b);
    case CompareOp::Lt:
      return less(heap_, a, b);
    case CompareOp::Gt:
      return less(heap_, b, a);
    case CompareOp::Le:
      return !less(heap_, b, a) && !unordered;
    case CompareOp::Ge:
      return !less(heap_, a, b) && !unordered;
    case CompareOp::In:
      return contains(b, a);
    case CompareOp::NotIn:
      return !contains(b, a);
  }
  return false;
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.kids[0]);
  for (std::size_t i = 0; i < expr.compares.size(); ++i) {
    Value right = eval(*expr.kids[i + 1]);
    line_ = expr.line;
    if (!compare(expr.compares[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Args Interpreter::eval_args(const Expr& expr) {
  Args args;
  for (const Arg& arg : expr.args) {
    Value value = eval(*arg.value);
    switch (arg.kind) {
      case Arg::Kind::Positional:
        args.positional.push_back(std::move(value));
        break;
      case Arg::Kind::Named:
        args.named.emplace_back(arg.name, std::move(value));
        break;
      case Arg::Kind::Unpacked: {
        const SeqRef items = iterate(value);
        args.positional.insert(args.positional.end(), items->items.begin(), items->items.end());
        break;
      }
      case Arg::Kind::UnpackedNamed: {
        if (!value.dict()) fail("expected a dict after **, found {}", type_name(value));
        for (const auto& [name, entry] : value.dict()->entries) args.named.emplace_back(name.text(), entry);
        break;
      }
    }
  }
  for (std::size_t i = 0; i < args.named.size(); ++i) {
    heap_.step(i);
    for (std::size_t j = 0; j < i; ++j) {
      if (args.named[i].first == args.named[j].first)
        fail("expected the argument '{}' once", args.named[i].first);
    }
  }
  return args;
}

Value Interpreter::eval_call(const Expr& expr, const Value* caller) {
  const Value callee = eval(*expr.kids[0]);
  Args args = eval_args(expr);
  if (caller) args.named.emplace_back("caller", *caller);
  line_ = expr.line;
  return call(callee, args);
}

Value Interpreter::eval_filter(const Expr& expr) {
  const Value value = expr.kids[0] ? eval(*expr.kids[0]) : *block_text_;
  const Args args = eval_args(expr);
  line_ = expr.line;
  return filter(expr.name, value, args);
}

Value Interpreter::eval_test(const Expr& expr) {
  const Value value = eval(*expr.kids[0]);
  const Args args = eval_args(expr);
  line_ = expr.line;
  return Value(test(expr.name, value, args));
}

Value Interpreter::eval_slice(const Expr& expr) {
  const Value value = eval(*expr.kids[0]);
  const auto bound = [&](std::size_t i) { return expr.kids[i] ? eval(*expr.kids[i]) : Value(None{}); };
  const Value start = bound(1), stop = bound(2), step = bound(3);
  line_ = expr.line;
  return slice(value, start, stop, step);
}

Value Interpreter::slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  const Seq* seq = value.seq();
  if (!value.is_string() && !(seq && seq->indexable())) {
    return missing(fmt::format("a {} has no slices", type_name(value)));
  }
  std::int64_t by = 1;
  if (!step.is_none() && !as_integer(step, by))
    fail("expected an integer step of a slice, found {}", type_name(step));
  if (by == 0) fail("expected a slice's step other than zero");
  const std::int64_t size = length(value);
  const auto bound = [&](const Value& v, std::int64_t otherwise) {
    std::int64_t at = 0;
    if (v.is_none()) return otherwise;
    if (!as_integer(v, at)) fail("expected integer bounds of a slice, found {}", type_name(v));
    if (at < 0) at = at < -size ? -1 : at + size;
    return by > 0 ? std::clamp<std::int64_t>(at, 0, size) : std::clamp<std::int64_t>(at, -1, size - 1);
  };
  const std::int64_t from = bound(start, by > 0 ? 0 : size - 1);
  const std::int64_t to = bound(stop, by > 0 ? size : -1);
  by = std::clamp<std::int64_t>(by, -size - 1, size + 1);
  const auto ends = [&](std::int64_t i) { return by > 0 ? i >= to : i <= to; };
  if (seq) {
    std::vector<Value> items;
    for (std::int64_t i = from; !ends(i); i += by) items.push_back(seq->items[static_cast<std::size_t>(i)]);
    return heap_.sequence(seq->kind == SeqKind::Tuple ? SeqKind::Tuple : SeqKind::List, std::move(items));
  }
  const std::string_view text = value.text();
  if (by == 1) {
    const std::size_t first = byte_offset(text, static_cast<std::size_t>(from));
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(to - from, 0));
    const std::size_t bytes = byte_offset(text.substr(first), count);
    return heap_.string(std::string(text.substr(first, bytes)), value.str()->markup);
  }
  const Charge charge(&heap_, static_cast<std::size_t>(size) * sizeof(std::string_view));
  std::vector<std::string_view> chars;
  each_char(text, [&](std::string_view c) { chars.push_back(c); });
  Text out(heap_);
  for (std::int64_t i = from; !ends(i); i += by) out.append(chars[static_cast<std::size_t>(i)]);
  return heap_.string(out.take(), value.str()->markup);
}

void Interpreter::count_reading(const Value& value) {
  heap_.step(1 + (value.is_string() ? value.text().size() / 16 : 0));
}

Value Interpreter::call(const Value& callee, const Args& args) {
  const Level level(depth_);
  heap_.step();
  if (const auto* macro = callee.object<Macro>()) return call_macro(*macro, args);
  if (const auto* function = callee.object<Function>()) return function->body(*this, args);
  if (const auto* method = callee.object<Method>()) {
    count_reading(method->self);
    return method->body(*this, method->self, args);
  }
  if (callee.is_undefined()) fail("{}", callee.undefined_reason());
  fail("expected something to call, found {}", type_name(callee));
}

Value Interpreter::filter(std::string_view name, const Value& value, const Args& args) {
  const FilterBody body = find_filter(name);
  if (!body) fail("expected a known filter, found '{}'", name);
  count_reading(value);
  return body(*this, value, args);
}

bool Interpreter::test(std::string_view name, const Value& value, const Args& args) {
  const TestBody body = find_test(name);
  if (!body) fail("expected a known test, found '{}'", name);
  count_reading(value);
  return body(*this, value, args);
}

Value Interpreter::attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  if (is_mutating_method(value, name)) {
    return missing(
        fmt::format("{}.{} would change a value, which templates must not", type_name(value), name));
  }
  if (const MethodBody body = find_method(value, name)) {
    return ObjectRef(std::make_shared<Method>(heap_, value, body));
  }
  if (const Dict* dict = value.dict()) {
    if (const Value* found = find(heap_, *dict, name)) return *found;
  } else if (const auto* space = value.object<Namespace>()) {
    heap_.step(space->attributes.size() / 8);
    for (const auto& [known, attribute_value] : space->attributes) {
      if (known == name) return attribute_value;
    }
  } else if (auto* loop = value.object<Loop>()) {
    return loop_attribute(value, *loop, name);
  } else if (const auto* macro = value.object<Macro>(); macro && name == "name") {
    return heap_.string(macro->definition.text);
  }
  return missing(fmt::format("'{} object' has no attribute '{}'", type_name(value), name));
}

Value Interpreter::item(const Value& value, const Value& key) {
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  std::int64_t index = 0;
  const Seq* seq = value.seq();
  if (const Dict* dict = value.dict()) {
    if (const Value* found = hashable(key) ? find(heap_, *dict, key) : nullptr) return *found;
  } else if ((value.is_string() || (seq && seq->indexable())) && as_integer(key, index)) {
    const std::int64_t size = length(value);
    if (index < 0) index += size;
    if (index < 0 || index >= size)
      return missing(fmt::format("'{} object' has no such element", type_name(value)));
    if (seq) return seq->items[static_cast<std::size_t>(index)];
    const std::string_view text = value.text();
    const std::size_t at = byte_offset(text, static_cast<std::size_t>(index));
    return heap_.string(std::string(text.substr(at, char_bytes(text, at))));
  }
  if (key.is_string()) return attribute(value, key.text());
  return missing(fmt::format("'{} object' has no such element", type_name(value)));
}

std::int64_t Interpreter::length(const Value& value) {
  if (const Str* s = value.str()) {
    heap_.step(s->text.size() / 16);
    return static_cast<std::int64_t>(count_chars(s->text));
  }
  if (const Seq* seq = value.seq(); seq && seq->sized()) return static_cast<std::int64_t>(seq->items.size());
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->entries.size());
  if (value.is_undefined()) return 0;
  if (auto* loop = value.object<Loop>()) return loop_length(*loop);
  fail("expected a value that has a length, found {}", type_name(value));
}

SeqRef Interpreter::iterate(const Value& value) {
  std::vector<Value> items;
  if (Seq* seq = value.seq()) {
    heap_.step(seq->items.size());
    if (seq->kind == SeqKind::Generator) {
      items.swap(seq->items);
    } else {
      return value.shared_seq();
    }
  } else if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->entries) items.push_back(entry.first);
  } else if (const Str* s = value.str()) {
    each_char(s->text, [&](std::string_view c) { items.push_back(heap_.string(std::string(c))); });
  } else if (!value.is_undefined()) {
    fail("expected a value to iterate over, found {}", type_name(value));
  }
  return heap_.list(std::move(items)).shared_seq();
}

bool Interpreter::contains(const Value& container, const Value& value) {
  if (const Str* s = container.str()) {
    if (!value.is_string()) fail("in: expected a string on the left of a string, found {}", type_name(value));
    heap_.step((s->text.size() + value.text().size()) / 16);
    return find_text(s->text, value.text()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) return find(heap_, *dict, value) != nullptr;
  const SeqRef items = iterate(container);
  return std::any_of(items->items.begin(), items->items.end(),
                     [&](const Value& item) { return equal(heap_, item, value); });
}

}  // namespace narrows::jinja
