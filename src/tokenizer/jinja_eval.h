// Evaluates a template's syntax tree.
#pragma once
#include <ctime>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_value.h"

namespace narrows::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments in the order of a callee's parameters; those left out are null.
class Bound {
 public:
  Bound(std::string_view callee, std::initializer_list<std::string_view> params, std::size_t required,
        const Args& args);
  const Value* operator[](std::size_t i) const { return values_[i]; }
  bool given(std::size_t i) const { return values_[i] != nullptr; }
  // Each throws Error if the argument has another type; none counts as left out where a default makes sense
  // of it.
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  std::string_view text(std::size_t i, std::string_view otherwise) const;
  bool flag(std::size_t i, bool otherwise) const { return values_[i] ? truth(*values_[i]) : otherwise; }

 private:
  std::string callee_;
  std::vector<const Value*> values_;
};

struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
  Value* find(std::string_view name);
  std::vector<std::pair<std::string_view, Value>> vars;  // names live in the tree
  std::shared_ptr<Scope> parent;
};
using ScopeRef = std::shared_ptr<Scope>;

class Interpreter;

struct Namespace : Object {
  explicit Namespace(Heap& heap) : charge(&heap, sizeof(Namespace)) {}
  std::string_view type() const override { return "namespace"; }
  void set(std::string_view name, Value value);
  std::vector<std::pair<std::string, Value>> attributes;
  Charge charge;
};

struct Macro : Object {
  Macro(Heap& heap, const Stmt& stmt, ScopeRef scope)
      : definition(stmt), closure(std::move(scope)), charge(&heap, sizeof(Macro) + sizeof(Scope)) {}
  std::string_view type() const override { return "macro"; }
  const Stmt& definition;
  ScopeRef closure;
  Charge charge;
};

using FunctionBody = Value (*)(Interpreter&, const Args&);
struct Function : Object {
  Function(std::string_view name_in, FunctionBody body_in) : name(name_in), body(body_in) {}
  std::string_view type() const override { return "function"; }
  std::string_view name;
  FunctionBody body;
};

using MethodBody = Value (*)(Interpreter&, const Value& self, const Args&);
struct Method : Object {
  Method(Heap& heap, Value self_in, MethodBody body_in)
      : self(std::move(self_in)), body(body_in), charge(&heap, sizeof(Method)) {}
  std::string_view type() const override { return "method"; }
  int nesting() const override { return jinja::nesting(self); }
  Value self;
  MethodBody body;
  Charge charge;
};

// The `loop` of a for statement, and the source of its items.
struct Loop : Object {
  Loop(Heap& heap, const Stmt& for_statement, SeqRef items, ScopeRef scope)
      : source(std::move(items)),
        statement(for_statement),
        outer(std::move(scope)),
        charge(&heap, sizeof(Loop)) {}
  std::string_view type() const override { return "loop"; }
  int nesting() const override { return source->nesting; }
  SeqRef source;
  std::size_t position = 0;  // of the next item of the source that the condition has not seen
  const Stmt& statement;     // whose condition filters
  ScopeRef outer;            // in which the condition is evaluated
  std::deque<Value> ahead;   // items that were looked at before their turn
  std::int64_t index0 = -1;
  Value previous, current;
  std::optional<Value> last_changed;  // what loop.changed() was last told
  Charge charge;
};

class Interpreter {
 public:
  Interpreter(Heap& heap, std::time_t now) : heap_(heap), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Renders `body` with the entries of `globals` as variables.
  std::string run(const Body& body, const Dict& globals);
  int line() const { return line_; }  // last evaluated: where an Error arose
  std::time_t now() const { return now_; }

  Heap& heap() { return heap_; }
  Value string(std::string text) { return heap_.string(std::move(text)); }
  std::string text_of(const Value& value) { return printed(heap_, value); }
  std::shared_ptr<Namespace> make_namespace();

  Value call(const Value& callee, const Args& args);
  Value filter(std::string_view name, const Value& value, const Args& args);
  bool test(std::string_view name, const Value& value, const Args& args);
  Value attribute(const Value& value, std::string_view name);
  Value item(const Value& value, const Value& key);
  bool contains(const Value& container, const Value& value);
  std::int64_t length(const Value& value);  // throws Error if it has none
  // The elements that iteration gives; reading a generator empties it. Throws Error if not iterable.
  SeqRef iterate(const Value& value);
  Value tell_loop(const Value& loop, const Args& args);  // loop.changed(args)

 private:
  enum class Flow : std::uint8_t { Next, Break, Continue };

  Value eval(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_sequence(const Expr& expr);
  Value eval_item(const Expr& expr);
  Value eval_logic(const Expr& expr);
  Value eval_condition(const Expr& expr);
  Value eval_binary(const Expr& expr);
  Value eval_test(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_call(const Expr& expr, const Value* caller = nullptr);
  Value eval_filter(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_sign(const Expr& expr);
  bool compare(CompareOp op, const Value& a, const Value& b);
  Args eval_args(const Expr& expr);
  Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);

  Flow exec(const Body& body, Text& out);
  Flow exec(const Stmt& stmt, Text& out);
  Flow exec_for(const Stmt& stmt, Text& out);
  Flow exec_if(const Stmt& stmt, Text& out);
  Flow exec_captured(const Stmt& stmt, Text& out);
  Flow exec_with(const Stmt& stmt, Text& out);
  Flow exec_in_scope(const Body& body, ScopeRef scope, Text& out);
  Flow capture(const Body& body, std::string& text);
  bool condition_holds(const Loop& loop, const Value& item);
  std::int64_t loop_length(Loop& loop);
  Value missing(std::string reason);
  void count_reading(const Value& value);  // charges for what a method, filter or test reads of a string
  void assign(const Expr& target, Value value);
  void set(std::string_view name, Value value);
  Value make_macro(const Stmt& stmt);
  Value call_macro(const Macro& macro, const Args& args);
  bool advance(Loop& loop);
  bool look_ahead(Loop& loop);
  std::optional<Value> pull(Loop& loop);
  Value loop_attribute(const Value& value, Loop& loop, std::string_view name);

  Heap& heap_;
  std::time_t now_;
  int line_ = 1;
  int depth_ = 0;
  ScopeRef scope_;
  const Value* block_text_ = nullptr;  // what the innermost filter of a block's chain filters
  // What can hold itself, and is emptied at the end for that reason.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<ScopeRef> captured_;
  std::vector<std::shared_ptr<Loop>> told_loops_;
};

// Named things, each undefined or null if unknown.
Value global_function(std::string_view name);
using FilterBody = Value (*)(Interpreter&, const Value&, const Args&);
FilterBody find_filter(std::string_view name);
using TestBody = bool (*)(Interpreter&, const Value&, const Args&);
TestBody find_test(std::string_view name);
MethodBody find_method(const Value& value, std::string_view name);  // of a string, list, tuple, range or dict
bool is_mutating_method(const Value& value, std::string_view name);

// Text filled up to `width` characters: '<' and '>' name the side on which the text stays, '^' and '=' centre
// it as a format specification and as str.center do.
std::string pad(Heap& heap, std::string_view text, std::int64_t width, std::string_view fill, char align);
// At most `count` replacements, all if negative.
std::string replace_text(Heap& heap, std::string_view text, std::string_view old, std::string_view with,
                         std::int64_t count);

// str.format.
std::string brace_format(Interpreter& in, std::string_view format, const Args& args);
// One value as a format specification such as ">8.2f" says.
std::string format_spec(Heap& heap, const Value& value, std::string_view spec);

}  // namespace narrows::jinja
