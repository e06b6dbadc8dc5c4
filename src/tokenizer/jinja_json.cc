// Python's json.dumps.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja_text.h"
#include "tokenizer/jinja_value.h"

namespace narrows::jinja {
namespace {

void print_escaped(Text& out, std::uint32_t code) {
  if (code >= 0x10000) {
    const std::uint32_t rest = code - 0x10000;
    out.append(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)));
  } else {
    out.append(fmt::format("\\u{:04x}", code));
  }
}

void print_json_string(Text& out, std::string_view text, bool ensure_ascii) {
  out.append('"');
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = char_bytes(text, at);
    const std::uint32_t code = code_point(text.substr(at, length));
    constexpr std::string_view kShort = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const std::size_t known = code < 0x80 ? kShort.find(static_cast<char>(code)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out.append('\\');
      out.append(kLetters[known]);
    } else if (code < 0x20 || (ensure_ascii && code >= 0x7F + 1)) {
      print_escaped(out, code);
    } else {
      out.append(text.substr(at, length));
    }
    at += length;
  }
  out.append('"');
}

std::string print_json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return print_real(value);
}

void break_line(Text& out, const JsonOptions& options, int depth) {
  if (!options.indented) return;
  out.append('\n');
  out.append(static_cast<std::size_t>(depth), options.indent);
}

void print_key(Text& out, const Value& key, const JsonOptions& options) {
  if (key.is_string()) {
    print_json_string(out, key.text(), options.ensure_ascii);
  } else if (key.boolean() || key.is_none() || key.integer() || key.real()) {
    out.append('"');
    print_json(out, key, options);
    out.append('"');
  } else {
    fail("tojson: expected keys that are strings, numbers, bools or none, found {}", type_name(key));
  }
}

void print_dict(Text& out, const Dict& dict, const JsonOptions& options, int depth) {
  if (dict.entries.empty()) return out.append("{}");
  std::vector<const std::pair<Value, Value>*> order;
  for (const auto& entry : dict.entries) order.push_back(&entry);
  if (options.sort_keys) {
    std::stable_sort(order.begin(), order.end(),
                     [&](const auto* a, const auto* b) { return less(out.heap(), a->first, b->first); });
  }
  out.append('{');
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0) out.append(options.item_separator);
    break_line(out, options, depth + 1);
    print_key(out, order[i]->first, options);
    out.append(options.key_separator);
    print_json(out, order[i]->second, options, depth + 1);
  }
  break_line(out, options, depth);
  out.append('}');
}

void print_list(Text& out, const Seq& seq, const JsonOptions& options, int depth) {
  if (seq.items.empty()) return out.append("[]");
  out.append('[');
  for (std::size_t i = 0; i < seq.items.size(); ++i) {
    if (i > 0) out.append(options.item_separator);
    break_line(out, options, depth + 1);
    print_json(out, seq.items[i], options, depth + 1);
  }
  break_line(out, options, depth);
  out.append(']');
}

}  // namespace

void print_json(Text& out, const Value& value, const JsonOptions& options, int depth) {
  out.heap().step();
  if (value.is_string()) {
    print_json_string(out, value.text(), options.ensure_ascii);
  } else if (value.is_none()) {
    out.append("null");
  } else if (const bool* b = value.boolean()) {
    out.append(*b ? "true" : "false");
  } else if (const std::int64_t* i = value.integer()) {
    out.append(fmt::format("{}", *i));
  } else if (const double* d = value.real()) {
    out.append(print_json_real(*d));
  } else if (value.seq() && value.seq()->kind <= SeqKind::Tuple) {
    print_list(out, *value.seq(), options, depth);
  } else if (value.dict()) {
    print_dict(out, *value.dict(), options, depth);
  } else {
    fail("tojson: expected a value that JSON has, found {}", type_name(value));
  }
}

}  // namespace narrows::jinja
