// Statements, macros, loops and what is visible in them.
#include <algorithm>

#include "base/error.h"
#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_level.h"

namespace narrows::jinja {

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->attributes.clear();
  for (const auto& scope : captured_) scope->vars.clear();
  for (const auto& loop : told_loops_) loop->last_changed.reset();
}

std::string Interpreter::run(const Body& body, const Dict& globals) {
  scope_ = std::make_shared<Scope>(nullptr);
  for (const auto& [name, value] : globals.entries) scope_->vars.emplace_back(name.text(), value);
  Text out(heap_);
  exec(body, out);
  return out.take();
}

std::shared_ptr<Namespace> Interpreter::make_namespace() {
  auto space = std::make_shared<Namespace>(heap_);
  namespaces_.push_back(space);
  return space;
}

Interpreter::Flow Interpreter::exec(const Body& body, Text& out) {
  for (const auto& stmt : body) {
    const Flow flow = exec(*stmt, out);
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Interpreter::Flow Interpreter::exec(const Stmt& stmt, Text& out) {
  const Level level(depth_);
  heap_.step();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::Data:
      out.append(stmt.text);
      break;
    case StmtKind::Print:
      for (const ExprPtr& value : stmt.values) print(out, eval(*value));
      break;
    case StmtKind::If:
      return exec_if(stmt, out);
    case StmtKind::For:
      return exec_for(stmt, out);
    case StmtKind::Set:
      assign(*stmt.target, eval(*stmt.value));
      break;
    case StmtKind::SetBlock:
    case StmtKind::FilterBlock:
      return exec_captured(stmt, out);
    case StmtKind::Macro:
      set(stmt.text, make_macro(stmt));
      break;
    case StmtKind::CallBlock: {
      const Value caller = make_macro(stmt);
      print(out, eval_call(*stmt.value, &caller));
      break;
    }
    case StmtKind::With:
      return exec_with(stmt, out);
    case StmtKind::Scope:
      return exec_in_scope(stmt.body, std::make_shared<Scope>(scope_), out);
    case StmtKind::Break:
      return Flow::Break;
    case StmtKind::Continue:
      return Flow::Continue;
  }
  return Flow::Next;
}

Interpreter::Flow Interpreter::exec_if(const Stmt& stmt, Text& out) {
  for (const Branch& branch : stmt.branches) {
    if (!branch.condition || truth(eval(*branch.condition))) return exec(branch.body, out);
  }
  return Flow::Next;
}

Interpreter::Flow Interpreter::exec_in_scope(const Body& body, ScopeRef scope, Text& out) {
  std::swap(scope_, scope);
  const Flow flow = exec(body, out);
  std::swap(scope_, scope);
  return flow;
}

Interpreter::Flow Interpreter::capture(const Body& body, std::string& text) {
  Text out(heap_);
  const Flow flow = exec_in_scope(body, std::make_shared<Scope>(scope_), out);
  text = out.take();
  return flow;
}

Interpreter::Flow Interpreter::exec_captured(const Stmt& stmt, Text& out) {
  std::string text;
  const Flow flow = capture(stmt.body, text);
  if (flow != Flow::Next) return flow;
  Value value = heap_.string(std::move(text));
  if (stmt.filter) {
    const Value input = std::move(value);
    const Value* outer = std::exchange(block_text_, &input);
    value = eval(*stmt.filter);
    block_text_ = outer;
  }
  if (stmt.kind == StmtKind::SetBlock) {
    assign(*stmt.target, std::move(value));
  } else {
    print(out, value);
  }
  return Flow::Next;
}

Interpreter::Flow Interpreter::exec_with(const Stmt& stmt, Text& out) {
  std::vector<Value> values;  // all evaluated outside
  for (const ExprPtr& value : stmt.defaults) values.push_back(eval(*value));
  ScopeRef outer = scope_;
  scope_ = std::make_shared<Scope>(outer);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*stmt.params[i], std::move(values[i]));
  const Flow flow = exec(stmt.body, out);
  scope_ = std::move(outer);
  return flow;
}

void Interpreter::set(std::string_view name, Value value) {
  for (auto& [known, old] : scope_->vars) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  scope_->vars.emplace_back(name, std::move(value));
}

void Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::Name) return set(target.name, std::move(value));
  line_ = target.line;
  if (target.kind == ExprKind::Tuple) {
    const SeqRef items = iterate(value);
    if (items->items.size() != target.kids.size()) {
      fail("expected {} values to assign, found {}", target.kids.size(), items->items.size());
    }
    for (std::size_t i = 0; i < target.kids.size(); ++i) assign(*target.kids[i], items->items[i]);
    return;
  }
  const Value holder = eval(*target.kids[0]);
  auto* space = holder.object<Namespace>();
  if (!space)
    fail("expected a namespace to assign the attribute '{}' of, found {}", target.name, type_name(holder));
  space->set(target.name, std::move(value));
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_'))
    fail("expected a namespace's attributes not to begin with '_', found '{}'", name);
  for (auto& [known, old] : attributes) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  charge.add(name.size() + sizeof(attributes[0]));
  attributes.emplace_back(name, std::move(value));
}

Value Interpreter::make_macro(const Stmt& stmt) {
  heap_.step(32);  // captured scopes live to the end
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  return ObjectRef(std::make_shared<Macro>(heap_, stmt, scope_));
}

Value Interpreter::call_macro(const Macro& macro, const Args& args) {
  const Stmt& definition = macro.definition;
  const std::size_t params = definition.params.size();
  ScopeRef outer = std::exchange(scope_, std::make_shared<Scope>(macro.closure));
  const int line = line_;

  std::vector<bool> used(args.named.size(), false);
  const auto take_named = [&](std::string_view name) -> const Value* {
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (args.named[i].first != name) continue;
      used[i] = true;
      return &args.named[i].second;
    }
    return nullptr;
  };
  bool explicit_caller = false;
  for (std::size_t i = 0; i < params; ++i) {
    const std::string& name = definition.params[i]->name;
    explicit_caller = explicit_caller || name == "caller";
    const std::size_t first_default = params - definition.defaults.size();
    if (i < args.positional.size()) {
      set(name, args.positional[i]);
    } else if (const Value* named = take_named(name)) {
      set(name, *named);
    } else if (i >= first_default) {
      set(name, eval(*definition.defaults[i - first_default]));
    } else {
      set(name, missing(fmt::format("parameter '{}' was not provided", name)));
    }
  }
  if (definition.uses_caller && !explicit_caller) {
    const Value* caller = take_named("caller");
    set("caller", caller ? *caller : missing("no caller is defined"));
  }
  line_ = line;
  if (definition.uses_varargs) {
    const auto rest = static_cast<std::ptrdiff_t>(std::min(params, args.positional.size()));
    set("varargs", heap_.tuple({args.positional.begin() + rest, args.positional.end()}));
  } else if (args.positional.size() > params) {
    fail("macro '{}': expected at most {} arguments, found {}", definition.text, params,
         args.positional.size());
  }
  std::vector<std::pair<Value, Value>> rest;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    if (!definition.uses_kwargs)
      fail("macro '{}': expected no argument named '{}'", definition.text, args.named[i].first);
    rest.emplace_back(heap_.string(args.named[i].first), args.named[i].second);
  }
  if (definition.uses_kwargs) set("kwargs", heap_.dict(std::move(rest)));

  Text out(heap_);
  exec(definition.body, out);
  scope_ = std::move(outer);
  line_ = line;
  return heap_.string(out.take());
}

// ---- loops ----

Interpreter::Flow Interpreter::exec_for(const Stmt& stmt, Text& out) {
  const Value iterable = eval(*stmt.value);
  line_ = stmt.line;
  const ScopeRef outer = scope_;
  const auto loop = std::make_shared<Loop>(heap_, stmt, iterate(iterable), outer);
  bool completed =
      false;  // any round; as in jinja2, one that is broken off does not keep `else` from running
  while (advance(*loop)) {
    heap_.step();
    scope_ = std::make_shared<Scope>(outer);
    set("loop", ObjectRef(loop));
    assign(*stmt.target, loop->current);
    const Flow flow = exec(stmt.body, out);
    scope_ = outer;
    if (flow == Flow::Break) break;
    completed = completed || flow == Flow::Next;
  }
  return completed ? Flow::Next : exec_in_scope(stmt.orelse, std::make_shared<Scope>(outer), out);
}

bool Interpreter::condition_holds(const Loop& loop, const Value& item) {
  if (!loop.statement.condition) return true;
  ScopeRef outer = std::exchange(scope_, std::make_shared<Scope>(loop.outer));
  assign(*loop.statement.target, item);
  const bool holds = truth(eval(*loop.statement.condition));
  scope_ = std::move(outer);
  return holds;
}

std::optional<Value> Interpreter::pull(Loop& loop) {
  while (loop.position < loop.source->items.size()) {
    heap_.step();
    Value item = loop.source->items[loop.position++];
    if (condition_holds(loop, item)) return item;
  }
  return std::nullopt;
}

bool Interpreter::look_ahead(Loop& loop) {
  if (!loop.ahead.empty()) return true;
  std::optional<Value> item = pull(loop);
  if (item) loop.ahead.push_back(std::move(*item));
  return !loop.ahead.empty();
}

bool Interpreter::advance(Loop& loop) {
  if (!look_ahead(loop)) return false;
  loop.previous = std::exchange(loop.current, std::move(loop.ahead.front()));
  loop.ahead.pop_front();
  ++loop.index0;
  return true;
}

std::int64_t Interpreter::loop_length(Loop& loop) {
  if (!loop.statement.condition) return static_cast<std::int64_t>(loop.source->items.size());
  while (std::optional<Value> item = pull(loop)) loop.ahead.push_back(std::move(*item));
  return loop.index0 + 1 + static_cast<std::int64_t>(loop.ahead.size());
}

Value Interpreter::loop_attribute(const Value& value, Loop& loop, std::string_view name) {
  if (name == "index0") return Value(loop.index0);
  if (name == "index") return Value(loop.index0 + 1);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(!look_ahead(loop));
  if (name == "length") return Value(loop_length(loop));
  if (name == "revindex") return Value(loop_length(loop) - loop.index0);
  if (name == "revindex0") return Value(loop_length(loop) - loop.index0 - 1);
  if (name == "depth") return Value(std::int64_t{1});
  if (name == "depth0") return Value(std::int64_t{0});
  if (name == "previtem") return loop.index0 > 0 ? loop.previous : missing("there is no previous item");
  if (name == "nextitem") return look_ahead(loop) ? loop.ahead.front() : missing("there is no next item");
  MethodBody body = nullptr;
  if (name == "cycle") {
    body = [](Interpreter&, const Value& self, const Args& args) {
      if (args.positional.empty()) fail("loop.cycle: expected items to cycle through");
      const auto index = static_cast<std::size_t>(self.object<Loop>()->index0);
      return args.positional[index % args.positional.size()];
    };
  } else if (name == "changed") {
    body = [](Interpreter& in, const Value& self, const Args& args) { return in.tell_loop(self, args); };
  }
  if (!body) return missing(fmt::format("'loop object' has no attribute '{}'", name));
  return ObjectRef(std::make_shared<Method>(heap_, value, body));
}

Value Interpreter::tell_loop(const Value& value, const Args& args) {
  auto* loop = value.object<Loop>();
  Value told = heap_.tuple(args.positional);
  if (!loop->last_changed) told_loops_.push_back(value.shared_object<Loop>());
  const bool changed = !loop->last_changed || !equal(heap_, *loop->last_changed, told);
  loop->last_changed = std::move(told);
  return Value(changed);
}

}  // namespace narrows::jinja
