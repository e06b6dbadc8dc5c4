// The methods of strings, lists, tuples, ranges and dicts.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {
namespace {

constexpr auto kNone = std::string_view::npos;

struct Named {
  std::string_view name;
  MethodBody body;
};

template <std::size_t N>
MethodBody look_up(const Named (&table)[N], std::string_view name) {
  for (const Named& entry : table) {
    if (entry.name == name) return entry.body;
  }
  return nullptr;
}

Value like(Interpreter& in, const Value& self, std::string text) {
  return in.heap().string(std::move(text), self.str()->markup);
}

// ---- strings ----

template <std::string (*Map)(std::string_view)>
Value mapped(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("str method", {}, 0, args);
  const Charge charge(&in.heap(), 2 * self.text().size());
  return like(in, self, Map(self.text()));
}

template <bool Left, bool Right>
Value stripped(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("strip", {"chars"}, 0, args);
  if (!bound.given(0) || bound[0]->is_none()) {
    return like(in, self, std::string(strip(self.text(), nullptr, Left, Right)));
  }
  const std::string_view chars = bound.text(0, "");
  if (chars.size() > 64) in.heap().step(self.text().size() / 64 * chars.size());
  return like(in, self, std::string(strip(self.text(), &chars, Left, Right)));
}

// Words between whitespace, at most `limit` cuts; what is left over stays whole.
std::vector<std::string_view> split_words(std::string_view text, std::int64_t limit, bool from_right) {
  std::vector<std::string_view> words;
  text = strip(text, nullptr, !from_right, from_right);
  while (!text.empty() && limit-- != 0) {
    std::size_t at = from_right ? text.size() : 0;
    if (from_right) {
      while (at > 0) {
        const std::string_view rest = strip(text.substr(0, at), nullptr, false, true);
        if (rest.size() != at) break;
        --at;
      }
      words.push_back(text.substr(at));
      text = strip(text.substr(0, at), nullptr, false, true);
    } else {
      while (at < text.size() && !is_space(code_point(text.substr(at, char_bytes(text, at)))))
        at += char_bytes(text, at);
      words.push_back(text.substr(0, at));
      text = strip(text.substr(at), nullptr, true, false);
    }
  }
  if (!text.empty()) words.push_back(text);
  return words;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t limit,
                                       bool from_right) {
  std::vector<std::string_view> parts;
  while (limit-- != 0) {
    const std::size_t at = from_right ? text.rfind(separator) : find_text(text, separator);
    if (at == kNone) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

Value text_list(Interpreter& in, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(in.heap().string(std::string(part)));
  return in.heap().list(std::move(items));
}

template <bool FromRight>
Value split(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("split", {"sep", "maxsplit"}, 0, args);
  const std::int64_t limit = std::max<std::int64_t>(bound.integer(1, -1), -1);
  const bool words = !bound.given(0) || bound[0]->is_none();
  const std::string_view separator = words ? "" : bound.text(0, "");
  if (!words && separator.empty()) fail("split: expected a separator that is not empty");
  if (separator.size() > 32 && FromRight) in.heap().step(self.text().size() / 32 * separator.size());
  const Charge charge(&in.heap(), self.text().size());
  std::vector<std::string_view> parts =
      words ? split_words(self.text(), limit, FromRight) : split_at(self.text(), separator, limit, FromRight);
  if (FromRight) std::reverse(parts.begin(), parts.end());
  return text_list(in, parts);
}

Value splitlines(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("splitlines", {"keepends"}, 0, args);
  const bool keep = bound.flag(0, false);
  const std::string_view text = self.text();
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = char_bytes(text, at);
    const std::uint32_t code = code_point(text.substr(at, length));
    const bool ends = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    std::size_t after = at + length;
    if (ends) {
      if (code == '\r' && after < text.size() && text[after] == '\n') ++after;
      lines.push_back(text.substr(start, (keep ? after : at) - start));
      start = after;
    }
    at = after;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return text_list(in, lines);
}

template <bool Start>
Value affixed(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound(Start ? "startswith" : "endswith", {"prefix", "start", "end"}, 1, args);
  std::string_view text = self.text();
  const auto size = static_cast<std::int64_t>(count_chars(text));
  const auto clip = [&](std::int64_t i) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(i < 0 ? std::max(i, -size) + size : i, 0, size));
  };
  if (bound.given(1)) {
    const std::size_t from = clip(bound.integer(1, 0)), to = clip(bound.integer(2, size));
    if (bound.integer(1, 0) > size || from > to) return Value(false);
    text = text.substr(byte_offset(text, from), byte_offset(text, to) - byte_offset(text, from));
  }
  const auto matches = [&](const Value& affix) {
    in.heap().step();
    return Start ? text.starts_with(affix.text()) : text.ends_with(affix.text());
  };
  if (const Seq* choices = bound[0]->seq(); choices && choices->kind == SeqKind::Tuple) {
    return Value(std::any_of(choices->items.begin(), choices->items.end(), matches));
  }
  return Value(matches(*bound[0]));
}

template <bool Last, bool Required>
Value found(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("find", {"sub", "start", "end"}, 1, args);
  const std::string_view needle = bound.text(0, "");
  const std::string_view text = self.text();
  in.heap().step((text.size() + needle.size()) / 8 +
                 (Last && needle.size() > 32 ? text.size() / 32 * needle.size() : 0));
  const auto size = static_cast<std::int64_t>(count_chars(text));
  const auto clip = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(i < 0 ? std::max(i, -size) + size : i, 0, size);
  };
  const std::int64_t first = bound.integer(1, 0);
  const auto from = static_cast<std::size_t>(clip(first)),
             to = static_cast<std::size_t>(clip(bound.integer(2, size)));
  std::size_t at = kNone;
  if (first <= size && from <= to) {
    const std::size_t start = byte_offset(text, from);
    const std::string_view part = text.substr(start, byte_offset(text, to) - start);
    at = Last ? part.rfind(needle) : find_text(part, needle);
    if (at != kNone) at += start;
  }
  if (at == kNone && Required) fail("index: expected the text {:?} within the string", needle.substr(0, 40));
  return Value(at == kNone ? std::int64_t{-1} : static_cast<std::int64_t>(count_chars(text.substr(0, at))));
}

Value count_text(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("count", {"sub"}, 1, args);
  const std::string_view needle = bound.text(0, "");
  const std::string_view text = self.text();
  in.heap().step(text.size() / 8);
  if (needle.empty()) return Value(static_cast<std::int64_t>(count_chars(text)) + 1);
  std::vector<std::string_view> parts = split_at(text, needle, -1, false);
  return Value(static_cast<std::int64_t>(parts.size()) - 1);
}

Value replace(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("replace", {"old", "new", "count"}, 2, args);
  const std::string_view old = bound.text(0, ""), with = bound.text(1, "");
  return like(in, self, replace_text(in.heap(), self.text(), old, with, bound.integer(2, -1)));
}

Value join(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("join", {"iterable"}, 1, args);
  const SeqRef items = in.iterate(*bound[0]);
  Text out(in.heap());
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    if (i > 0) out.append(self.text());
    if (!items->items[i].is_string()) fail("join: expected strings, found {}", type_name(items->items[i]));
    out.append(items->items[i].text());
  }
  return like(in, self, out.take());
}

enum class Side { Left, Right, Both };
template <Side Where>
Value justified(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("justify", {"width", "fillchar"}, 1, args);
  const std::string_view fill = bound.text(1, " ");
  if (count_chars(fill) != 1) fail("justify: expected one character to fill with");
  return like(in, self,
              pad(in.heap(), self.text(), bound.integer(0, 0), fill,
                  Where == Side::Left    ? '<'
                  : Where == Side::Right ? '>'
                                         : '='));
}

Value zfill(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("zfill", {"width"}, 1, args);
  std::string_view text = self.text();
  const bool sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  Text out(in.heap());
  if (sign) out.append(text[0]);
  out.append(pad(in.heap(), text.substr(sign ? 1 : 0), bound.integer(0, 0) - (sign ? 1 : 0), "0", '>'));
  return like(in, self, out.take());
}

template <bool Prefix>
Value without_affix(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound(Prefix ? "removeprefix" : "removesuffix", {"affix"}, 1, args);
  std::string_view text = self.text();
  const std::string_view affix = bound.text(0, "");
  if (Prefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!Prefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return like(in, self, std::string(text));
}

template <bool Last>
Value partition(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("partition", {"sep"}, 1, args);
  const std::string_view text = self.text(), separator = bound.text(0, "");
  if (separator.empty()) fail("partition: expected a separator that is not empty");
  in.heap().step(Last && separator.size() > 32 ? text.size() / 32 * separator.size() : 0);
  const std::size_t at = Last ? text.rfind(separator) : find_text(text, separator);
  std::array<std::string_view, 3> parts = {Last ? "" : text, "", Last ? text : ""};
  if (at != kNone) parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(in.heap().string(std::string(part)));
  return in.heap().tuple(std::move(items));
}

template <CharClass Class>
Value of_class(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("str method", {}, 0, args);
  in.heap().step(self.text().size() / 8);
  return Value(all_of_class(self.text(), Class));
}

Value format(Interpreter& in, const Value& self, const Args& args) {
  return like(in, self, brace_format(in, self.text(), args));
}

constexpr Named kStringMethods[] = {
    {"capitalize", mapped<capitalize>},
    {"casefold", mapped<to_lower>},
    {"center", justified<Side::Both>},
    {"count", count_text},
    {"endswith", affixed<false>},
    {"find", found<false, false>},
    {"format", format},
    {"index", found<false, true>},
    {"isalnum", of_class<CharClass::Alnum>},
    {"isalpha", of_class<CharClass::Alpha>},
    {"isdecimal", of_class<CharClass::Digit>},
    {"isdigit", of_class<CharClass::Digit>},
    {"islower", of_class<CharClass::Lower>},
    {"isnumeric", of_class<CharClass::Digit>},
    {"isspace", of_class<CharClass::Space>},
    {"isupper", of_class<CharClass::Upper>},
    {"join", join},
    {"ljust", justified<Side::Left>},
    {"lower", mapped<to_lower>},
    {"lstrip", stripped<true, false>},
    {"partition", partition<false>},
    {"removeprefix", without_affix<true>},
    {"removesuffix", without_affix<false>},
    {"replace", replace},
    {"rfind", found<true, false>},
    {"rindex", found<true, true>},
    {"rjust", justified<Side::Right>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", stripped<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", affixed<true>},
    {"strip", stripped<true, true>},
    {"title", mapped<title_case>},
    {"upper", mapped<to_upper>},
    {"zfill", zfill},
};

// ---- lists, tuples, ranges ----

Value count_item(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("count", {"value"}, 1, args);
  std::int64_t count = 0;
  for (const Value& item : self.seq()->items) count += equal(in.heap(), item, *bound[0]) ? 1 : 0;
  return Value(count);
}

Value index_item(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("index", {"value"}, 1, args);
  const auto& items = self.seq()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(in.heap(), items[i], *bound[0])) return Value(static_cast<std::int64_t>(i));
  }
  fail("index: expected the value within the {}", type_name(self));
}

Value copy(Interpreter&, const Value& self, const Args& args) {
  const Bound bound("copy", {}, 0, args);
  return self;
}

constexpr Named kSequenceMethods[] = {{"count", count_item}, {"index", index_item}};
constexpr Named kListMethods[] = {{"copy", copy}};

// ---- dicts ----

Value get(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound("get", {"key", "default"}, 1, args);
  if (!args.named.empty()) fail("get: expected positional arguments only");
  if (const Value* value = find(in.heap(), *self.dict(), *bound[0])) return *value;
  return bound.given(1) ? *bound[1] : Value(None{});
}

template <bool Keys, bool Values>
Value view(Interpreter& in, const Value& self, const Args& args) {
  const Bound bound(Keys && Values ? "items" : Keys ? "keys" : "values", {}, 0, args);
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->entries) {
    items.push_back(Keys && Values ? in.heap().tuple({key, value}) : Keys ? key : value);
  }
  return in.heap().sequence(SeqKind::View, std::move(items),
                            Keys && Values ? "dict_items"
                            : Keys         ? "dict_keys"
                                           : "dict_values");
}

constexpr Named kDictMethods[] = {{"copy", copy},
                                  {"get", get},
                                  {"items", view<true, true>},
                                  {"keys", view<true, false>},
                                  {"values", view<false, true>}};

}  // namespace

MethodBody find_method(const Value& value, std::string_view name) {
  if (value.is_string()) return look_up(kStringMethods, name);
  if (value.dict()) return look_up(kDictMethods, name);
  const Seq* seq = value.seq();
  if (!seq || !seq->indexable()) return nullptr;
  if (const MethodBody body = look_up(kSequenceMethods, name)) return body;
  return seq->kind == SeqKind::List ? look_up(kListMethods, name) : nullptr;
}

bool is_mutating_method(const Value& value, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                        "pop",    "remove", "reverse", "sort"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto is_name = [&](std::string_view known) { return known == name; };
  if (value.dict()) return std::any_of(std::begin(kDict), std::end(kDict), is_name);
  return value.seq() && value.seq()->kind == SeqKind::List &&
         std::any_of(std::begin(kList), std::end(kList), is_name);
}

}  // namespace narrows::jinja
