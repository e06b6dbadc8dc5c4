// The syntax tree of a template.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja_value.h"

namespace narrows::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arg {
  enum class Kind : std::uint8_t { Positional, Named, Unpacked, UnpackedNamed } kind;  // x, name=x, *x, **x
  std::string name;
  ExprPtr value;
};

enum class ExprKind : std::uint8_t {
  Const,
  Name,       // name
  List,       // kids
  Tuple,      // kids
  Dict,       // kids: key, value, key, value, …
  Attribute,  // kids[0].name
  Item,       // kids[0][kids[1]]
  Slice,      // kids[0][kids[1]:kids[2]:kids[3]], each of the last three null if left out
  Call,       // kids[0](args)
  Filter,     // kids[0] | name(args); kids[0] null: the text of a block
  Test,       // kids[0] is name(args)
  Not,
  Negate,
  Plus,
  And,
  Or,
  Binary,   // op
  Concat,   // kids, joined as text
  Compare,  // kids[0] compares[0] kids[1] compares[1] kids[2] …
  Cond,     // kids[1] if kids[0] else kids[2], which is null if left out
};

enum class CompareOp : std::uint8_t { Eq, Ne, Lt, Le, Gt, Ge, In, NotIn };

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;  // of the tree below, bounded so that recursion over it is
  std::string name;
  Value constant;
  std::vector<ExprPtr> kids;
  std::vector<Arg> args;
  std::vector<CompareOp> compares;
  BinaryOp op = BinaryOp::Add;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : std::uint8_t {
  Data,         // text
  Print,        // values, each printed
  If,           // branches: the first whose condition holds; a null condition always does
  For,          // target in value if condition: body, else orelse
  Set,          // target = value
  SetBlock,     // target = text of body, through `filter` if not null
  Macro,        // text(params = defaults): body
  CallBlock,    // value (a Call), whose `caller` is the macro (params = defaults): body
  FilterBlock,  // filter(body)
  With,         // params = defaults within body
  Scope,        // body, whose assignments end with it: {% generation %}
  Break,
  Continue,
};

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  std::string text;
  std::vector<ExprPtr> values;
  std::vector<Branch> branches;
  ExprPtr target;  // Name, Tuple of targets, or Attribute of a Name
  ExprPtr value, condition, filter;
  Body body, orelse;
  std::vector<ExprPtr> params;    // targets
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

}  // namespace narrows::jinja
