#include "tokenizer/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {
namespace {

// Ends a namespace that holds itself, which no other value can.
constexpr int kMaxPrintDepth = kMaxNesting + 50;

int deepest(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, nesting(item));
  return depth;
}

int nested(int depth) {
  if (depth >= kMaxNesting) fail("expected at most {} containers within each other", kMaxNesting);
  return depth + 1;
}

void print_string_repr(Text& out, std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  out.append(quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = char_bytes(text, at);
    const std::uint32_t code = code_point(text.substr(at, length));
    if (code == '\n') {
      out.append("\\n");
    } else if (code == '\r') {
      out.append("\\r");
    } else if (code == '\t') {
      out.append("\\t");
    } else if (code == '\\' || code == static_cast<std::uint32_t>(quote)) {
      out.append('\\');
      out.append(static_cast<char>(code));
    } else if (code < 0x20 || (code >= 0x7F && code <= 0xA0) || code == 0xAD) {
      out.append(fmt::format("\\x{:02x}", code));
    } else if (code != ' ' && is_space(code)) {
      out.append(fmt::format("\\u{:04x}", code));
    } else {
      out.append(text.substr(at, length));
    }
    at += length;
  }
  out.append(quote);
}

void print_sequence_repr(Text& out, const Seq& seq, int depth) {
  if (seq.kind == SeqKind::Range || seq.kind == SeqKind::Generator) {
    out.append(seq.label);
    return;
  }
  const bool tuple = seq.kind == SeqKind::Tuple;
  out.append(seq.kind == SeqKind::View ? seq.label + "([" : tuple ? "(" : "[");
  for (std::size_t i = 0; i < seq.items.size(); ++i) {
    if (i > 0) out.append(", ");
    print_repr(out, seq.items[i], depth + 1);
  }
  out.append(seq.kind == SeqKind::View ? "])" : tuple ? (seq.items.size() == 1 ? ",)" : ")") : "]");
}

bool equal_sequences(Heap& heap, const Seq& a, const Seq& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(heap, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Heap& heap, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = find(heap, b, key);
    if (!other || !equal(heap, value, *other)) return false;
  }
  return true;
}

}  // namespace

const Str* Value::str() const {
  const auto* ref = std::get_if<StrRef>(&data_);
  return ref ? ref->get() : nullptr;
}

Seq* Value::seq() const {
  const auto* ref = std::get_if<SeqRef>(&data_);
  return ref ? ref->get() : nullptr;
}

const Dict* Value::dict() const {
  const auto* ref = std::get_if<DictRef>(&data_);
  return ref ? ref->get() : nullptr;
}

std::string_view Value::text() const {
  const Str* s = str();
  if (!s) fail("expected a string, found {}", type_name(*this));
  return s->text;
}

const std::string& Value::undefined_reason() const {
  static const std::string kUnnamed = "the value is undefined";
  const auto* u = std::get_if<Undefined>(&data_);
  return u && u->reason ? *u->reason : kUnnamed;
}

bool Value::same(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_none()) return true;
  if (boolean()) return *boolean() == *other.boolean();
  if (integer()) return *integer() == *other.integer();
  if (real()) return *real() == *other.real();
  if (str()) return str() == other.str() || str()->text == other.str()->text;
  if (seq()) return seq() == other.seq();
  if (dict()) return dict() == other.dict();
  const auto* object = std::get_if<ObjectRef>(&data_);
  return object && *object == std::get<ObjectRef>(other.data_);
}

Charge::Charge(Heap* heap, std::size_t bytes) : heap_(heap) { add(bytes); }

Charge::~Charge() {
  if (heap_) heap_->give(bytes_);
}

void Charge::add(std::size_t bytes) {
  if (!heap_) return;
  heap_->take(bytes);
  bytes_ += bytes;
}

void Heap::step(std::size_t n) {
  if (n > kMaxSteps - steps_) fail("expected a template that ends within {} steps", kMaxSteps);
  steps_ += n;
}

void Heap::take(std::size_t bytes) {
  step(bytes / 16);
  if (bytes > kMaxLive - live_) fail("expected a template that needs at most {} bytes of memory", kMaxLive);
  live_ += bytes;
}

Value Heap::string(std::string text, bool markup) {
  if (text.size() > kMaxText) fail("expected strings of at most {} bytes", kMaxText);
  return StrRef(std::make_shared<const Str>(this, std::move(text), markup));
}

Value Heap::sequence(SeqKind kind, std::vector<Value> items, std::string label) {
  step(items.size());
  const int depth = nested(deepest(items));
  return SeqRef(std::make_shared<Seq>(*this, kind, std::move(items), depth, std::move(label)));
}

Value Heap::dict(std::vector<std::pair<Value, Value>> entries) {
  std::vector<std::pair<Value, Value>> kept;
  int depth = 0;
  for (auto& [key, value] : entries) {
    if (!hashable(key)) fail("expected a key of an unchanging type, found {}", type_name(key));
    step(1 + kept.size() / 4);
    depth = std::max({depth, nesting(key), nesting(value)});
    auto same = kept.begin();
    while (same != kept.end() && !equal(*this, same->first, key)) ++same;
    if (same == kept.end()) {
      kept.emplace_back(std::move(key), std::move(value));
    } else {
      same->second = std::move(value);
    }
  }
  const int outer = nested(depth);
  return DictRef(std::make_shared<const Dict>(*this, std::move(kept), outer));
}

void Text::append(std::string_view more) {
  if (more.size() > kMaxText - text_.size()) fail("expected a text of at most {} bytes", kMaxText);
  charge_.add(more.size());
  owed_ += 4;  // so that many small pieces count as well
  heap_.step(owed_ / 16);
  owed_ %= 16;
  text_ += more;
}

void Text::append(std::size_t count, std::string_view unit) {
  if (count == 0 || unit.empty()) return;
  if (count > (kMaxText - text_.size()) / unit.size()) fail("expected a text of at most {} bytes", kMaxText);
  charge_.add(count * unit.size());
  text_.reserve(text_.size() + count * unit.size());
  for (; count > 0; --count) text_ += unit;
}

Value undefined(std::string reason) {
  return Undefined{std::make_shared<const std::string>(std::move(reason))};
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "undefined";
  if (value.is_none()) return "none";
  if (value.boolean()) return "bool";
  if (value.integer()) return "int";
  if (value.real()) return "float";
  if (value.is_string()) return "str";
  if (value.dict()) return "dict";
  if (const Seq* seq = value.seq()) {
    constexpr std::string_view kNames[] = {"list", "tuple", "range", "dict view", "generator"};
    return kNames[static_cast<std::size_t>(seq->kind)];
  }
  return value.object<Object>()->type();
}

bool truth(const Value& value) {
  if (const bool* b = value.boolean()) return *b;
  if (const std::int64_t* i = value.integer()) return *i != 0;
  if (const double* d = value.real()) return *d != 0;
  if (const Str* s = value.str()) return !s->text.empty();
  if (const Seq* s = value.seq()) return s->kind == SeqKind::Generator || !s->items.empty();
  if (const Dict* d = value.dict()) return !d->entries.empty();
  return !value.is_none() && !value.is_undefined();
}

int nesting(const Value& value) {
  if (const Seq* s = value.seq()) return s->nesting;
  if (const Dict* d = value.dict()) return d->nesting;
  if (const Object* o = value.object<Object>()) return o->nesting();
  return 0;
}

bool as_integer(const Value& value, std::int64_t& out) {
  if (const bool* b = value.boolean()) {
    out = *b ? 1 : 0;
  } else if (const std::int64_t* i = value.integer()) {
    out = *i;
  } else {
    return false;
  }
  return true;
}

bool as_real(const Value& value, double& out) {
  std::int64_t integer = 0;
  if (as_integer(value, integer)) {
    out = static_cast<double>(integer);
  } else if (const double* d = value.real()) {
    out = *d;
  } else {
    return false;
  }
  return true;
}

std::string print_real(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

void print_repr(Text& out, const Value& value, int depth) {
  if (depth > kMaxPrintDepth) fail("expected a value that does not hold itself, to print it");
  out.heap().step();
  if (const Str* s = value.str()) {
    if (s->markup) out.append("Markup(");
    print_string_repr(out, s->text);
    if (s->markup) out.append(')');
  } else if (value.is_undefined()) {
    out.append("Undefined");
  } else if (value.is_none()) {
    out.append("None");
  } else if (const bool* b = value.boolean()) {
    out.append(*b ? "True" : "False");
  } else if (const std::int64_t* i = value.integer()) {
    out.append(fmt::format("{}", *i));
  } else if (const double* d = value.real()) {
    out.append(print_real(*d));
  } else if (const Seq* seq = value.seq()) {
    print_sequence_repr(out, *seq, depth);
  } else if (const Dict* dict = value.dict()) {
    out.append('{');
    for (std::size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out.append(", ");
      print_repr(out, dict->entries[i].first, depth + 1);
      out.append(": ");
      print_repr(out, dict->entries[i].second, depth + 1);
    }
    out.append('}');
  } else {
    out.append(fmt::format("<{}>", type_name(value)));
  }
}

void print(Text& out, const Value& value) {
  if (const Str* s = value.str()) {
    out.append(s->text);
  } else if (!value.is_undefined()) {
    print_repr(out, value);
  }
}

std::string printed(Heap& heap, const Value& value) {
  Text out(heap);
  print(out, value);
  return out.take();
}

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  std::int64_t ai = 0, bi = 0;
  if (as_integer(a, ai) && as_integer(b, bi)) return ai == bi;
  double ar = 0, br = 0;
  if (as_real(a, ar) && as_real(b, br)) return ar == br;
  if (a.is_string() && b.is_string()) {
    heap.step(std::min(a.text().size(), b.text().size()) / 16);
    return a.text() == b.text();
  }
  if (a.seq() && b.seq()) return a.seq() == b.seq() || equal_sequences(heap, *a.seq(), *b.seq());
  if (a.dict() && b.dict()) return a.dict() == b.dict() || equal_dicts(heap, *a.dict(), *b.dict());
  if (a.is_undefined() && b.is_undefined()) return true;
  return a.same(b);
}

bool less(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  std::int64_t ai = 0, bi = 0;
  if (as_integer(a, ai) && as_integer(b, bi)) return ai < bi;
  double ar = 0, br = 0;
  if (as_real(a, ar) && as_real(b, br)) return ar < br;
  if (a.is_string() && b.is_string()) {
    heap.step(std::min(a.text().size(), b.text().size()) / 16);
    return a.text() < b.text();
  }
  const Seq *as = a.seq(), *bs = b.seq();
  if (as && bs && as->kind == bs->kind && as->kind <= SeqKind::Tuple) {
    for (std::size_t i = 0; i < as->items.size() && i < bs->items.size(); ++i) {
      if (!equal(heap, as->items[i], bs->items[i])) return less(heap, as->items[i], bs->items[i]);
    }
    return as->items.size() < bs->items.size();
  }
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) fail("{}", v->undefined_reason());
  }
  fail("expected values that can be ordered, found {} and {}", type_name(a), type_name(b));
}

const Value* find(Heap& heap, const Dict& dict, const Value& key) {
  if (key.is_string()) return find(heap, dict, key.text());
  if (!hashable(key)) fail("expected a key of an unchanging type, found {}", type_name(key));
  for (const auto& [k, v] : dict.entries) {
    if (equal(heap, k, key)) return &v;
  }
  return nullptr;
}

const Value* find(Heap& heap, const Dict& dict, std::string_view key) {
  heap.step(1 + dict.entries.size() / 8);
  for (const auto& [k, v] : dict.entries) {
    if (const Str* s = k.str(); s && s->text == key) return &v;
  }
  return nullptr;
}

bool hashable(const Value& key) {
  const Seq* seq = key.seq();
  if (key.dict() || (seq && seq->kind == SeqKind::List)) return false;
  return !seq || seq->kind != SeqKind::Tuple || std::all_of(seq->items.begin(), seq->items.end(), hashable);
}

}  // namespace narrows::jinja
