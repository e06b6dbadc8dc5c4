// Filters of one value: text, numbers, JSON. Those of sequences are in jinja_sequences.cc.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_sequences.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {
namespace {

// What text filters see of a value: strings stay as they are, safe ones safe.
Value as_text(Interpreter& in, const Value& value) {
  return value.is_string() ? value : in.string(in.text_of(value));
}

Value call_method(Interpreter& in, const Value& value, std::string_view method, const Args& args) {
  const Value text = as_text(in, value);
  return find_method(text, method)(in, text, args);
}

Value upper(Interpreter& in, const Value& v, const Args& args) { return call_method(in, v, "upper", args); }
Value lower(Interpreter& in, const Value& v, const Args& args) { return call_method(in, v, "lower", args); }
Value capitalize_filter(Interpreter& in, const Value& v, const Args& args) {
  return call_method(in, v, "capitalize", args);
}
Value trim(Interpreter& in, const Value& v, const Args& args) { return call_method(in, v, "strip", args); }

Value center(Interpreter& in, const Value& v, const Args& args) {
  const Bound bound("center", {"width"}, 0, args);
  return call_method(in, v, "center", Args{{Value(bound.integer(0, 80))}, {}});
}

Value title(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("title", {}, 0, args);
  const Value text = as_text(in, value);
  const Charge charge(&in.heap(), 2 * text.text().size());
  std::string out;
  std::size_t word = 0;
  const auto finish = [&](std::size_t end) {
    const std::string_view part = text.text().substr(word, end - word);
    const std::size_t first = part.empty() ? 0 : char_bytes(part, 0);
    out += to_upper(part.substr(0, first)) + to_lower(part.substr(first));
    word = end;
  };
  std::size_t at = 0;
  each_char(text.text(), [&](std::string_view c) {
    if (is_space(code_point(c)) || c == "-" || c == "(" || c == "{" || c == "[" || c == "<") {
      finish(at);
      out += c;
      word = at + c.size();
    }
    at += c.size();
  });
  finish(at);
  return in.heap().string(std::move(out), text.str()->markup);
}

Value replace(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("replace", {"old", "new", "count"}, 2, args);
  return in.string(replace_text(in.heap(), in.text_of(value), in.text_of(*bound[0]), in.text_of(*bound[1]),
                                bound.integer(2, -1)));
}

Value default_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("default", {"default_value", "boolean"}, 0, args);
  if (!value.is_undefined() && (!bound.flag(1, false) || truth(value))) return value;
  return bound.given(0) ? *bound[0] : in.string("");
}

Value string(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("string", {}, 0, args);
  return as_text(in, value);
}

Value safe(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("safe", {}, 0, args);
  return in.heap().string(in.text_of(value), true);
}

Value escape(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("escape", {}, 0, args);
  if (value.is_string() && value.str()->markup) return value;
  return in.heap().string(escape_html(in.heap(), in.text_of(value)), true);
}

Value indent(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("indent", {"width", "first", "blank"}, 0, args);
  const Value text = as_text(in, value);
  std::string prefix;
  if (bound.given(0) && bound[0]->is_string()) {
    prefix = bound[0]->text();
  } else {
    prefix = pad(in.heap(), "", bound.integer(0, 4), " ", '<');
  }
  const bool first = bound.flag(1, false), blank = bound.flag(2, false);
  Text out(in.heap());
  std::string_view rest = text.text();
  for (bool begun = false;; begun = true) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    if (begun ? blank || end > 0 : first) out.append(prefix);
    out.append(rest.substr(0, end));
    if (end == rest.size()) break;
    out.append('\n');
    rest.remove_prefix(end + 1);
  }
  return in.heap().string(out.take(), text.str()->markup);
}

Value word_count(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("wordcount", {}, 0, args);
  std::int64_t words = 0;
  bool inside = false;
  const std::string text = in.text_of(value);
  each_char(text, [&](std::string_view c) {
    const bool word = c == "_" || all_of_class(c, CharClass::Alnum);
    words += word && !inside ? 1 : 0;
    inside = word;
  });
  return Value(words);
}

Value format(Interpreter& in, const Value& value, const Args& args) {
  if (!args.named.empty() && !args.positional.empty())
    fail("format: expected either named arguments or others");
  std::vector<std::pair<Value, Value>> named;
  for (const auto& [name, argument] : args.named) named.emplace_back(in.string(name), argument);
  const Value values = named.empty() ? in.heap().tuple(args.positional) : in.heap().dict(std::move(named));
  return in.string(percent_format(in.heap(), in.text_of(value), values));
}

Value tojson(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, args);
  JsonOptions options;
  options.ensure_ascii = bound.flag(0, false);
  options.sort_keys = bound.flag(3, false);
  if (bound.given(1) && !bound[1]->is_none()) {
    options.indented = true;
    options.item_separator = std::string(1, ',');
    options.indent = bound[1]->is_string() ? std::string(bound[1]->text())
                                           : pad(in.heap(), "", bound.integer(1, 0), " ", '<');
  }
  if (bound.given(2) && !bound[2]->is_none()) {
    const SeqRef separators = in.iterate(*bound[2]);
    if (separators->items.size() != 2)
      fail("tojson: expected two separators, found {}", separators->items.size());
    options.item_separator = separators->items[0].text();
    options.key_separator = separators->items[1].text();
  }
  Text out(in.heap());
  print_json(out, value, options);
  return in.string(out.take());
}

// ---- numbers ----

// Underscores may stand between digits, blanks around them, as Python reads numbers.
bool clean_number(std::string_view text, std::string& out) {
  text = strip(text, nullptr, true, true);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || !std::isalnum(static_cast<unsigned char>(text[i - 1])) ||
               !std::isalnum(static_cast<unsigned char>(text[i + 1]))) {
      return false;
    }
  }
  return !out.empty();
}

bool parse_integer(std::string_view text, std::int64_t base, std::int64_t& out) {
  std::string clean;
  if (base < 2 || base > 36 || !clean_number(text, clean)) return false;
  const bool sign = clean[0] == '-' || clean[0] == '+';
  const bool negative = clean[0] == '-';
  std::string_view digits = std::string_view(clean).substr(sign ? 1 : 0);
  if (digits.size() > 2 && digits[0] == '0') {
    const char letter = static_cast<char>(digits[1] | 0x20);
    if ((base == 16 && letter == 'x') || (base == 8 && letter == 'o') || (base == 2 && letter == 'b'))
      digits.remove_prefix(2);
  }
  if (digits.empty() || digits[0] == '-') return false;
  std::string signed_digits;
  if (negative) signed_digits += '-';
  signed_digits += digits;
  const char* end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, out, static_cast<int>(base));
  if (result.ec == std::errc::result_out_of_range) fail("int: expected an integer of at most 64 bits");
  return result.ec == std::errc() && result.ptr == end;
}

bool parse_real(std::string_view text, double& out) {
  std::string clean;
  if (!clean_number(text, clean)) return false;
  std::string_view word = clean;
  if (word[0] == '-' || word[0] == '+') word.remove_prefix(1);
  const std::string low = to_lower(word);
  const bool special = low == "inf" || low == "infinity" || low == "nan";
  if (!special && word.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return false;
  char* end = nullptr;
  out = std::strtod(clean.c_str(), &end);
  return end == clean.c_str() + clean.size();
}

bool real_to_integer(double real, std::int64_t& out) {
  if (!std::isfinite(real)) return false;
  if (std::fabs(real) >= 9.2e18) fail("int: expected an integer of at most 64 bits");
  out = static_cast<std::int64_t>(real);
  return true;
}

Value int_filter(Interpreter&, const Value& value, const Args& args) {
  const Bound bound("int", {"default", "base"}, 0, args);
  std::int64_t integer = 0;
  double real = 0;
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  if (as_integer(value, integer)) return Value(integer);
  if (value.real()) {
    if (std::isinf(*value.real())) fail("int: expected a finite number");
    if (real_to_integer(*value.real(), integer)) return Value(integer);
  } else if (value.is_string()) {
    if (parse_integer(value.text(), bound.integer(1, 10), integer)) return Value(integer);
    if (parse_real(value.text(), real) && real_to_integer(real, integer)) return Value(integer);
  }
  return bound.given(0) ? *bound[0] : Value(std::int64_t{0});
}

Value float_filter(Interpreter&, const Value& value, const Args& args) {
  const Bound bound("float", {"default"}, 0, args);
  double real = 0;
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  if (as_real(value, real) || (value.is_string() && parse_real(value.text(), real))) return Value(real);
  return bound.given(0) ? *bound[0] : Value(0.0);
}

Value abs_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("abs", {}, 0, args);
  std::int64_t integer = 0;
  if (as_integer(value, integer)) {
    return integer < 0 ? binary(in.heap(), BinaryOp::Sub, Value(std::int64_t{0}), value) : Value(integer);
  }
  if (value.real()) return Value(std::fabs(*value.real()));
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  fail("abs: expected a number, found {}", type_name(value));
}

Value round_filter(Interpreter&, const Value& value, const Args& args) {
  const Bound bound("round", {"precision", "method"}, 0, args);
  const std::int64_t precision = bound.integer(0, 0);
  const std::string_view method = bound.text(1, "common");
  double real = 0;
  if (value.is_undefined()) fail("{}", value.undefined_reason());
  if (!as_real(value, real)) fail("round: expected a number, found {}", type_name(value));
  if (precision < -300 || precision > 300) fail("round: expected a precision from -300 to 300");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(real * scale) / scale);
  if (method == "floor") return Value(std::floor(real * scale) / scale);
  if (method != "common") fail("round: expected the method common, ceil or floor, found '{}'", method);
  std::int64_t integer = 0;
  if (as_integer(value, integer) && precision >= 0) return Value(integer);
  double rounded = real;
  if (!std::isfinite(real)) {
    return value;
  } else if (precision < 0) {
    rounded = std::nearbyint(real * scale) / scale;
  } else {
    // As Python does: the shortest way to the correctly rounded decimal is through its digits.
    rounded = std::strtod(fmt::format("{:.{}f}", real, precision).c_str(), nullptr);
  }
  return as_integer(value, integer) ? Value(static_cast<std::int64_t>(rounded)) : Value(rounded);
}

struct NamedFilter {
  std::string_view name;
  FilterBody body;
};
constexpr NamedFilter kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", capitalize_filter},
    {"center", center},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape},
    {"escape", escape},
    {"float", float_filter},
    {"format", format},
    {"indent", indent},
    {"int", int_filter},
    {"lower", lower},
    {"replace", replace},
    {"round", round_filter},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", upper},
    {"wordcount", word_count},
};

}  // namespace

std::string replace_text(Heap& heap, std::string_view text, std::string_view old, std::string_view with,
                         std::int64_t count) {
  Text out(heap);
  const std::size_t limit = count < 0 ? kMaxText : static_cast<std::size_t>(count);
  std::size_t done = 0, at = 0;
  if (old.empty()) {
    for (; done < limit && at <= text.size(); ++done) {
      out.append(with);
      if (at == text.size()) return out.take();
      const std::size_t length = char_bytes(text, at);
      out.append(text.substr(at, length));
      at += length;
    }
  } else {
    for (; done < limit; ++done) {
      const std::size_t next = find_text(text, old, at);
      if (next == std::string_view::npos) break;
      heap.step();
      out.append(text.substr(at, next - at));
      out.append(with);
      at = next + old.size();
    }
  }
  out.append(text.substr(at));
  return out.take();
}

FilterBody find_filter(std::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.body;
  }
  return find_sequence_filter(name);
}

}  // namespace narrows::jinja
