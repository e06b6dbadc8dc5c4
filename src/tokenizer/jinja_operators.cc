// Arithmetic, with Python's rules for mixed types.
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja_value.h"

namespace narrows::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

// `result` is a reference as it is set while `overflow` is evaluated.
std::int64_t checked(bool overflow, const std::int64_t& result) {
  if (overflow) fail("expected integers of at most 64 bits");
  return result;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (true) {
    if (exponent & 1) {
      checked(__builtin_mul_overflow(result, base, &result), result);
    }
    exponent >>= 1;
    if (exponent == 0) return result;
    checked(__builtin_mul_overflow(base, base, &base), base);
  }
}

Value integers(BinaryOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case BinaryOp::Add:
      return Value(checked(__builtin_add_overflow(a, b, &result), result));
    case BinaryOp::Sub:
      return Value(checked(__builtin_sub_overflow(a, b, &result), result));
    case BinaryOp::Mul:
      return Value(checked(__builtin_mul_overflow(a, b, &result), result));
    case BinaryOp::Pow:
      if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      return Value(power(a, b));
    default:
      break;
  }
  if (b == 0) fail("expected a divisor other than zero");
  if (op == BinaryOp::Div) return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {
    return op == BinaryOp::Mod ? Value(std::int64_t{0})
                               : Value(checked(__builtin_sub_overflow(std::int64_t{0}, a, &result), result));
  }
  const bool round_down = a % b != 0 && (a < 0) != (b < 0);
  if (op == BinaryOp::Mod) return Value(a % b + (round_down ? b : 0));
  return Value(a / b - (round_down ? 1 : 0));
}

Value reals(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::Add:
      return Value(a + b);
    case BinaryOp::Sub:
      return Value(a - b);
    case BinaryOp::Mul:
      return Value(a * b);
    case BinaryOp::Pow: {
      if (a == 0 && b < 0) fail("expected a base other than zero for a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b))
        fail("expected a power that is a real number");
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("expected a power within range");
      return Value(result);
    }
    default:
      break;
  }
  if (b == 0) fail("expected a divisor other than zero");
  if (op == BinaryOp::Div) return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == BinaryOp::Mod) return Value(remainder == 0 ? std::copysign(0.0, b) : remainder);
  const double quotient = (a - remainder) / b;
  const double floor = std::floor(quotient);
  return Value(quotient == 0 ? std::copysign(0.0, a / b) : quotient - floor > 0.5 ? floor + 1 : floor);
}

Value repeat(Heap& heap, const Value& what, std::int64_t times) {
  const std::size_t count = times < 0 ? 0 : static_cast<std::size_t>(times);
  if (const Str* s = what.str()) {
    Text out(heap);
    out.append(count, s->text);
    return heap.string(out.take(), s->markup);
  }
  const Seq& seq = *what.seq();
  if (!seq.items.empty() && count > kMaxSteps) fail("expected a list of at most {} elements", kMaxSteps);
  const std::size_t total = seq.items.empty() ? 0 : count * seq.items.size();
  const Charge charge(&heap, total * sizeof(Value));  // before it is built
  std::vector<Value> items;
  items.reserve(total);
  for (std::size_t i = 0; i < count && !seq.items.empty(); ++i) {
    items.insert(items.end(), seq.items.begin(), seq.items.end());
  }
  return heap.sequence(seq.kind, std::move(items));
}

Value add_strings(Heap& heap, const Str& a, const Str& b) {
  const bool markup = a.markup || b.markup;
  Text out(heap);
  out.append(markup && !a.markup ? escape_html(heap, a.text) : a.text);
  out.append(markup && !b.markup ? escape_html(heap, b.text) : b.text);
  return heap.string(out.take(), markup);
}

bool repeatable(const Value& value) {
  return value.is_string() || (value.seq() && value.seq()->kind <= SeqKind::Tuple);
}

}  // namespace

std::string escape_html(Heap& heap, std::string_view text) {
  Text out(heap);
  for (const char c : text) {
    switch (c) {
      case '&':
        out.append("&amp;");
        break;
      case '<':
        out.append("&lt;");
        break;
      case '>':
        out.append("&gt;");
        break;
      case '"':
        out.append("&#34;");
        break;
      case '\'':
        out.append("&#39;");
        break;
      default:
        out.append(c);
    }
  }
  return out.take();
}

Value binary(Heap& heap, BinaryOp op, const Value& a, const Value& b) {
  std::int64_t ai = 0, bi = 0;
  const bool a_integer = as_integer(a, ai), b_integer = as_integer(b, bi);
  if (a_integer && b_integer) return integers(op, ai, bi);
  double ar = 0, br = 0;
  if (as_real(a, ar) && as_real(b, br)) return reals(op, ar, br);
  for (const Value* v : {&a, &b}) {
    // A string's % takes an undefined argument, and prints nothing for it.
    if (v->is_undefined() && !(op == BinaryOp::Mod && a.is_string())) fail("{}", v->undefined_reason());
  }
  const Seq *as = a.seq(), *bs = b.seq();
  if (op == BinaryOp::Add && a.is_string() && b.is_string()) return add_strings(heap, *a.str(), *b.str());
  if (op == BinaryOp::Add && as && bs && as->kind == bs->kind && as->kind <= SeqKind::Tuple) {
    heap.step(as->items.size());
    std::vector<Value> items = as->items;
    items.insert(items.end(), bs->items.begin(), bs->items.end());
    return heap.sequence(as->kind, std::move(items));
  }
  if (op == BinaryOp::Mul && repeatable(a) && b_integer) return repeat(heap, a, bi);
  if (op == BinaryOp::Mul && a_integer && repeatable(b)) return repeat(heap, b, ai);
  if (op == BinaryOp::Mod && a.is_string())
    return heap.string(percent_format(heap, a.text(), b), a.str()->markup);
  fail("{}: expected operands that fit, found {} and {}", kSymbols[static_cast<std::size_t>(op)],
       type_name(a), type_name(b));
}

}  // namespace narrows::jinja
