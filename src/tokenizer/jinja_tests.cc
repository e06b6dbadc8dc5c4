// The tests of `is`, and the global functions.
#include <array>
#include <ctime>

#include "base/error.h"
#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {
namespace {

const Value& argument(const Args& args) {
  if (args.positional.size() != 1 || !args.named.empty()) fail("expected one argument of the test");
  return args.positional[0];
}

// Wraps a test that takes no argument.
template <bool (*Test)(const Value&)>
bool plain(Interpreter&, const Value& value, const Args& args) {
  if (!args.positional.empty() || !args.named.empty()) fail("expected no argument of the test");
  return Test(value);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.boolean() != nullptr; }
bool is_true(const Value& v) { return v.boolean() && *v.boolean(); }
bool is_false(const Value& v) { return v.boolean() && !*v.boolean(); }
bool is_integer(const Value& v) { return v.integer() != nullptr; }
bool is_float(const Value& v) { return v.real() != nullptr; }
bool is_number(const Value& v) { return v.boolean() || v.integer() || v.real(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.dict() != nullptr; }
// What has a length and items: in jinja2, dicts and undefined values as well.
bool is_sequence(const Value& v) {
  return v.is_string() || v.is_undefined() || v.dict() || (v.seq() && v.seq()->indexable());
}
bool is_iterable(const Value& v) {
  return v.is_string() || v.is_undefined() || v.dict() || v.seq() || v.object<Loop>();
}
bool is_callable(const Value& v) {
  return v.is_undefined() || v.object<Macro>() || v.object<Function>() || v.object<Method>();
}
bool is_escaped(const Value& v) { return v.is_string() && v.str()->markup; }

template <CharClass Class>
bool in_case(Interpreter& in, const Value& value, const Args&) {
  return all_of_class(in.text_of(value), Class);
}

bool remainder_is(Interpreter& in, const Value& value, const Value& divisor, std::int64_t wanted) {
  return equal(in.heap(), binary(in.heap(), BinaryOp::Mod, value, divisor), Value(wanted));
}
bool is_odd(Interpreter& in, const Value& v, const Args&) {
  return remainder_is(in, v, Value(std::int64_t{2}), 1);
}
bool is_even(Interpreter& in, const Value& v, const Args&) {
  return remainder_is(in, v, Value(std::int64_t{2}), 0);
}
bool is_divisible(Interpreter& in, const Value& v, const Args& args) {
  return remainder_is(in, v, argument(args), 0);
}

bool is_equal(Interpreter& in, const Value& v, const Args& args) {
  return equal(in.heap(), v, argument(args));
}
bool is_unequal(Interpreter& in, const Value& v, const Args& args) {
  return !equal(in.heap(), v, argument(args));
}
bool is_less(Interpreter& in, const Value& v, const Args& args) { return less(in.heap(), v, argument(args)); }
bool is_greater(Interpreter& in, const Value& v, const Args& args) {
  return less(in.heap(), argument(args), v);
}
bool is_at_most(Interpreter& in, const Value& v, const Args& args) {
  return !less(in.heap(), argument(args), v);
}
bool is_at_least(Interpreter& in, const Value& v, const Args& args) {
  return !less(in.heap(), v, argument(args));
}
bool is_in(Interpreter& in, const Value& v, const Args& args) { return in.contains(argument(args), v); }
bool is_same(Interpreter&, const Value& v, const Args& args) { return v.same(argument(args)); }
bool is_filter(Interpreter&, const Value& v, const Args&) { return v.is_string() && find_filter(v.text()); }
bool is_test(Interpreter&, const Value& v, const Args&) { return v.is_string() && find_test(v.text()); }

struct NamedTest {
  std::string_view name;
  TestBody body;
};
constexpr NamedTest kTests[] = {
    {"defined", plain<is_defined>},
    {"undefined", plain<is_undefined>},
    {"none", plain<is_none>},
    {"boolean", plain<is_boolean>},
    {"true", plain<is_true>},
    {"false", plain<is_false>},
    {"integer", plain<is_integer>},
    {"float", plain<is_float>},
    {"number", plain<is_number>},
    {"string", plain<is_string>},
    {"mapping", plain<is_mapping>},
    {"sequence", plain<is_sequence>},
    {"iterable", plain<is_iterable>},
    {"callable", plain<is_callable>},
    {"escaped", plain<is_escaped>},
    {"lower", in_case<CharClass::Lower>},
    {"upper", in_case<CharClass::Upper>},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"==", is_equal},
    {"ne", is_unequal},
    {"!=", is_unequal},
    {"lt", is_less},
    {"lessthan", is_less},
    {"<", is_less},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {">", is_greater},
    {"le", is_at_most},
    {"<=", is_at_most},
    {"ge", is_at_least},
    {">=", is_at_least},
    {"in", is_in},
    {"sameas", is_same},
    {"filter", is_filter},
    {"test", is_test},
};

// ---- global functions ----

Value range(Interpreter& in, const Args& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) {
    fail("range: expected one to three integers");
  }
  std::array<std::int64_t, 3> n{};
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    if (!as_integer(args.positional[i], n[i]))
      fail("range: expected integers, found {}", type_name(args.positional[i]));
  }
  const bool one = args.positional.size() == 1;
  const std::int64_t start = one ? 0 : n[0], stop = one ? n[0] : n[1],
                     step = args.positional.size() == 3 ? n[2] : 1;
  if (step == 0) fail("range: expected a step other than zero");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange)
      fail("range: expected at most {} elements", kMaxRange);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return in.heap().sequence(SeqKind::Range, std::move(items),
                            step == 1 ? fmt::format("range({}, {})", start, stop)
                                      : fmt::format("range({}, {}, {})", start, stop, step));
}

std::vector<std::pair<Value, Value>> pairs_of(Interpreter& in, std::string_view callee, const Args& args) {
  if (args.positional.size() > 1) fail("{}: expected at most one argument without a name", callee);
  std::vector<std::pair<Value, Value>> pairs;
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.dict()) {
      pairs = source.dict()->entries;
    } else {
      const SeqRef source_items = in.iterate(source);
      for (const Value& item : source_items->items) {
        const SeqRef pair = in.iterate(item);
        if (pair->items.size() != 2) fail("{}: expected pairs, found {} values", callee, pair->items.size());
        pairs.emplace_back(pair->items[0], pair->items[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) pairs.emplace_back(in.heap().string(name), value);
  return pairs;
}

Value dict(Interpreter& in, const Args& args) { return in.heap().dict(pairs_of(in, "dict", args)); }

Value make_namespace(Interpreter& in, const Args& args) {
  const auto space = in.make_namespace();
  for (auto& [name, value] : pairs_of(in, "namespace", args)) space->set(name.text(), std::move(value));
  return ObjectRef(space);
}

Value raise_exception(Interpreter& in, const Args& args) {
  const Bound bound("raise_exception", {"message"}, 1, args);
  fail("the template raises: {}", in.text_of(*bound[0]));
}

Value strftime_now(Interpreter& in, const Args& args) {
  const Bound bound("strftime_now", {"format"}, 1, args);
  // The final blank tells an empty result from one that does not fit.
  const std::string format = std::string(bound.text(0, "")) + ' ';
  constexpr std::size_t kMaxFormat = 1000;
  if (format.size() > kMaxFormat) fail("strftime_now: expected a format of less than {} bytes", kMaxFormat);
  std::tm local{};
  const std::time_t now = in.now();
  localtime_r(&now, &local);
  std::string out(64 * kMaxFormat, '\0');
  const std::size_t size = std::strftime(out.data(), out.size(), format.c_str(), &local);
  if (size == 0) fail("strftime_now: expected a format whose result fits into {} bytes", out.size());
  out.resize(size - 1);
  return in.heap().string(std::move(out));
}

struct NamedFunction {
  std::string_view name;
  FunctionBody body;
};
constexpr NamedFunction kFunctions[] = {{"range", range},
                                        {"dict", dict},
                                        {"namespace", make_namespace},
                                        {"raise_exception", raise_exception},
                                        {"strftime_now", strftime_now}};

}  // namespace

TestBody find_test(std::string_view name) {
  for (const NamedTest& test : kTests) {
    if (test.name == name) return test.body;
  }
  return nullptr;
}

Value global_function(std::string_view name) {
  for (const NamedFunction& function : kFunctions) {
    if (function.name == name) return ObjectRef(std::make_shared<Function>(function.name, function.body));
  }
  return {};
}

}  // namespace narrows::jinja
