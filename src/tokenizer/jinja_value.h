// Values of the template language: Python's none, bool, int, float, str, list, tuple, dict, and jinja2's
// undefined.
//
// Containers and strings never change once made (jinja2's immutable sandbox forbids it), so the nesting of a
// value is known when it is made. Only namespaces change. Ints are 64 bits wide; overflow is an Error.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace narrows::jinja {

// What one rendering may use. Everything that a template makes is counted here, so that a hostile one ends in
// an Error rather than in a hang or an exhausted machine.
class Heap;

inline constexpr std::size_t kMaxSteps =
    20'000'000;                                     // nodes evaluated, elements visited, 16-byte units copied
inline constexpr std::size_t kMaxText = 64u << 20;  // bytes in one string, and in the output
inline constexpr std::size_t kMaxLive = 256u << 20;  // bytes held at one time
inline constexpr int kMaxNesting = 200;              // containers within containers
inline constexpr int kMaxDepth = 800;                // nested evaluations, macro calls included
inline constexpr std::int64_t kMaxRange = 100'000;   // elements of range(), as in jinja2's sandbox

class Value;
struct Str;
struct Seq;
struct Dict;

// Namespaces, macros, functions, bound methods, loops.
struct Object {
  virtual ~Object() = default;
  virtual std::string_view type() const = 0;  // Python's name of the type
  virtual int nesting() const { return 0; }   // of the containers it holds
};

struct None {};
struct Undefined {
  std::shared_ptr<const std::string> reason;  // "'x' is undefined"
};
using StrRef = std::shared_ptr<const Str>;
using SeqRef = std::shared_ptr<Seq>;
using DictRef = std::shared_ptr<const Dict>;
using ObjectRef = std::shared_ptr<Object>;

class Value {
 public:
  Value() = default;  // undefined
  Value(Undefined v) : data_(std::move(v)) {}
  Value(None v) : data_(v) {}
  explicit Value(bool v) : data_(v) {}
  explicit Value(std::int64_t v) : data_(v) {}
  explicit Value(double v) : data_(v) {}
  Value(StrRef v) : data_(std::move(v)) {}
  Value(SeqRef v) : data_(std::move(v)) {}
  Value(DictRef v) : data_(std::move(v)) {}
  Value(ObjectRef v) : data_(std::move(v)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_string() const { return std::holds_alternative<StrRef>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Str* str() const;
  Seq* seq() const;
  const Dict* dict() const;
  template <typename T>
  T* object() const {
    const auto* ref = std::get_if<ObjectRef>(&data_);
    return ref ? dynamic_cast<T*>(ref->get()) : nullptr;
  }
  SeqRef shared_seq() const { return std::get<SeqRef>(data_); }
  template <typename T>
  std::shared_ptr<T> shared_object() const {
    return std::dynamic_pointer_cast<T>(std::get<ObjectRef>(data_));
  }
  // The bytes of a string, which stay valid while the value lives.
  std::string_view text() const;
  const std::string& undefined_reason() const;

  // What Python's `is` compares.
  bool same(const Value& other) const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, StrRef, SeqRef, DictRef, ObjectRef> data_;
};

// Bytes taken from a heap, given back on destruction. Constants of a parsed template belong to no heap.
class Charge {
 public:
  Charge(Heap* heap, std::size_t bytes);
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  void add(std::size_t bytes);

 private:
  Heap* heap_;
  std::size_t bytes_ = 0;
};

struct Str {
  Str(Heap* heap, std::string text_in, bool markup_in)
      : text(std::move(text_in)), markup(markup_in), charge(heap, sizeof(Str) + text.capacity()) {}
  std::string text;
  bool markup = false;  // made by |safe or |escape: `+` escapes what is joined to it
  Charge charge;
};

// View: dict.items() and its kin; sized, not indexable. Generator: what lazy filters give; read once.
enum class SeqKind : std::uint8_t { List, Tuple, Range, View, Generator };

struct Seq {
  Seq(Heap& heap, SeqKind kind_in, std::vector<Value> items_in, int nesting_in, std::string label_in)
      : kind(kind_in),
        items(std::move(items_in)),
        nesting(nesting_in),
        label(std::move(label_in)),
        charge(&heap, sizeof(Seq) + label.capacity() + items.capacity() * sizeof(Value)) {}
  SeqKind kind;
  std::vector<Value> items;
  int nesting;
  std::string label;  // how a Range, View or Generator prints, less a View's elements
  Charge charge;

  bool indexable() const { return kind <= SeqKind::Range; }
  bool sized() const { return kind != SeqKind::Generator; }
};

struct Dict {
  Dict(Heap& heap, std::vector<std::pair<Value, Value>> entries_in, int nesting_in)
      : entries(std::move(entries_in)),
        nesting(nesting_in),
        charge(&heap, sizeof(Dict) + entries.capacity() * 2 * sizeof(Value)) {}
  std::vector<std::pair<Value, Value>> entries;  // in the order of insertion, keys differ
  int nesting;
  Charge charge;
};

class Heap {
 public:
  void step(std::size_t n = 1);
  void take(std::size_t bytes);
  void give(std::size_t bytes) { live_ -= bytes; }

  Value string(std::string text, bool markup = false);
  Value sequence(SeqKind kind, std::vector<Value> items, std::string label = {});
  Value list(std::vector<Value> items) { return sequence(SeqKind::List, std::move(items)); }
  Value tuple(std::vector<Value> items) { return sequence(SeqKind::Tuple, std::move(items)); }
  // Later entries replace earlier ones of an equal key. Throws Error if a key is unhashable.
  Value dict(std::vector<std::pair<Value, Value>> entries);

 private:
  std::size_t steps_ = 0;
  std::size_t live_ = 0;
};

// A string under construction, whose size is counted and bounded.
class Text {
 public:
  explicit Text(Heap& heap) : heap_(heap), charge_(&heap, 0) {}
  void append(std::string_view more);
  void append(char c) { append(std::string_view(&c, 1)); }
  void append(std::size_t count, std::string_view unit);
  std::string_view view() const { return text_; }
  std::string take() { return std::move(text_); }
  Heap& heap() { return heap_; }

 private:
  Heap& heap_;
  std::string text_;
  std::size_t owed_ = 0;  // sixteenths of a step
  Charge charge_;
};

Value undefined(std::string reason);
std::string_view type_name(const Value& value);
bool truth(const Value& value);
int nesting(const Value& value);
// A number's value, bools included; false if it is not one.
bool as_real(const Value& value, double& out);
bool as_integer(const Value& value, std::int64_t& out);  // ints and bools

void print(Text& out, const Value& value);  // str(): undefined prints nothing
void print_repr(Text& out, const Value& value, int depth = 0);
std::string print_real(double value);
std::string printed(Heap& heap, const Value& value);

bool equal(Heap& heap, const Value& a, const Value& b);
bool less(Heap& heap, const Value& a, const Value& b);  // throws Error if a and b have no order
const Value* find(Heap& heap, const Dict& dict, const Value& key);
const Value* find(Heap& heap, const Dict& dict, std::string_view key);
bool hashable(const Value& key);

enum class BinaryOp : std::uint8_t { Add, Sub, Mul, Div, FloorDiv, Mod, Pow };
Value binary(Heap& heap, BinaryOp op, const Value& a, const Value& b);
std::string escape_html(Heap& heap, std::string_view text);

// Python's "%" on strings: `args` is one value or a tuple.
std::string percent_format(Heap& heap, std::string_view format, const Value& args);

struct JsonOptions {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
void print_json(Text& out, const Value& value, const JsonOptions& options, int depth = 0);

}  // namespace narrows::jinja
