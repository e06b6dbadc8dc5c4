#include "tokenizer/jinja_sequences.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {
namespace {

Value generator(Interpreter& in, std::vector<Value> items, std::string_view name) {
  return in.heap().sequence(SeqKind::Generator, std::move(items), fmt::format("<generator object {}>", name));
}

// What map and select see: values that do not hold count as empty, whatever their type.
SeqRef items_if_any(Interpreter& in, const Value& value) {
  return in.iterate(truth(value) ? value : Value());
}

// The attribute argument of map, sort and others: "a.b.0", or an index.
Value look_up(Interpreter& in, Value value, const Value& path, const Value* otherwise = nullptr) {
  if (!path.is_string()) {
    value = in.item(value, path);
    return value.is_undefined() && otherwise ? *otherwise : value;
  }
  std::string_view rest = path.text();
  while (true) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    std::int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && part[0] != '-' && parsed.ec == std::errc() &&
                        parsed.ptr == part.data() + part.size();
    value = in.item(value, number ? Value(index) : in.string(std::string(part)));
    if (value.is_undefined() && otherwise) value = *otherwise;
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

Value without_case(Interpreter& in, const Value& value) {
  return value.is_string() ? in.string(to_lower(value.text())) : value;
}

Value length(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("length", {}, 0, args);
  return Value(in.length(value));
}

Value list(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("list", {}, 0, args);
  return in.heap().list(in.iterate(value)->items);
}

Value first(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("first", {}, 0, args);
  const SeqRef items = in.iterate(value);
  return items->items.empty() ? undefined("no first item, the sequence was empty") : items->items.front();
}

Value last(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("last", {}, 0, args);
  if (value.seq() && !value.seq()->sized()) fail("last: expected a sequence, found {}", type_name(value));
  const SeqRef items = in.iterate(value);
  return items->items.empty() ? undefined("no last item, the sequence was empty") : items->items.back();
}

Value join(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("join", {"d", "attribute"}, 0, args);
  const std::string between = bound.given(0) ? in.text_of(*bound[0]) : "";
  const SeqRef items = in.iterate(value);
  Text out(in.heap());
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    if (i > 0) out.append(between);
    const bool attribute = bound.given(1) && !bound[1]->is_none();
    print(out, attribute ? look_up(in, items->items[i], *bound[1]) : items->items[i]);
  }
  return in.string(out.take());
}

Value reverse(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("reverse", {}, 0, args);
  if (value.is_string()) {
    std::string out;
    out.reserve(value.text().size());
    std::string_view rest = value.text();
    in.heap().step(rest.size() / 4);
    std::vector<Value> chars = in.iterate(value)->items;
    for (auto c = chars.rbegin(); c != chars.rend(); ++c) out += c->text();
    return in.string(std::move(out));
  }
  std::vector<Value> items = in.iterate(value)->items;
  std::reverse(items.begin(), items.end());
  return generator(in, std::move(items), "reversed");
}

Value items(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("items", {}, 0, args);
  std::vector<Value> pairs;
  if (value.dict()) {
    for (const auto& [key, entry] : value.dict()->entries) pairs.push_back(in.heap().tuple({key, entry}));
  } else if (!value.is_undefined()) {
    fail("items: expected a dict, found {}", type_name(value));
  }
  return generator(in, std::move(pairs), "do_items");
}

// Sorted by the keys given beside the values; keeps the order of equals, also when reversed.
std::vector<Value> sorted(Interpreter& in, std::vector<std::pair<Value, Value>> keyed, bool reversed) {
  if (reversed) std::reverse(keyed.begin(), keyed.end());
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return less(in.heap(), a.first, b.first); });
  if (reversed) std::reverse(keyed.begin(), keyed.end());
  std::vector<Value> out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return out;
}

Value sort(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("sort", {"reverse", "case_sensitive", "attribute"}, 0, args);
  const bool as_is = bound.flag(1, false);
  // Several attributes may be named, with commas between.
  std::vector<Value> paths;
  if (bound.given(2) && !bound[2]->is_none()) {
    std::string_view rest = bound[2]->is_string() ? bound[2]->text() : std::string_view();
    if (!bound[2]->is_string()) paths.push_back(*bound[2]);
    while (bound[2]->is_string()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      paths.push_back(in.string(std::string(rest.substr(0, comma))));
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
  }
  std::vector<std::pair<Value, Value>> keyed;
  const SeqRef source_items = in.iterate(value);
  for (const Value& item : source_items->items) {
    std::vector<Value> keys;
    for (const Value& path : paths) {
      const Value key = look_up(in, item, path);
      keys.push_back(as_is ? key : without_case(in, key));
    }
    if (paths.empty()) keys.push_back(as_is ? item : without_case(in, item));
    keyed.emplace_back(in.heap().list(std::move(keys)), item);
  }
  return in.heap().list(sorted(in, std::move(keyed), bound.flag(0, false)));
}

Value dictsort(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("dictsort", {"case_sensitive", "by", "reverse"}, 0, args);
  const std::string_view by = bound.text(1, "key");
  if (by != "key" && by != "value") fail("dictsort: expected by to be key or value, found '{}'", by);
  if (!value.dict()) fail("dictsort: expected a dict, found {}", type_name(value));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, entry] : value.dict()->entries) {
    const Value& sort_key = by == "key" ? key : entry;
    keyed.emplace_back(bound.flag(0, false) ? sort_key : without_case(in, sort_key),
                       in.heap().tuple({key, entry}));
  }
  return in.heap().list(sorted(in, std::move(keyed), bound.flag(2, false)));
}

Value unique(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("unique", {"case_sensitive", "attribute"}, 0, args);
  std::vector<Value> kept, keys;
  const SeqRef source_items = in.iterate(value);
  for (const Value& item : source_items->items) {
    Value key = bound.given(1) && !bound[1]->is_none() ? look_up(in, item, *bound[1]) : item;
    if (!bound.flag(0, false)) key = without_case(in, key);
    if (!hashable(key)) fail("unique: expected items of an unchanging type, found {}", type_name(key));
    const auto same = [&](const Value& other) { return equal(in.heap(), other, key); };
    if (std::any_of(keys.begin(), keys.end(), same)) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return generator(in, std::move(kept), "do_unique");
}

template <bool Greatest>
Value extreme(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(Greatest ? "max" : "min", {"case_sensitive", "attribute"}, 0, args);
  Value best, best_key;
  bool any = false;
  const SeqRef source_items = in.iterate(value);
  for (const Value& item : source_items->items) {
    Value key = bound.given(1) && !bound[1]->is_none() ? look_up(in, item, *bound[1]) : item;
    if (!bound.flag(0, false)) key = without_case(in, key);
    if (any && !(Greatest ? less(in.heap(), best_key, key) : less(in.heap(), key, best_key))) continue;
    any = true;
    best = item;
    best_key = std::move(key);
  }
  return any ? best : undefined("no aggregated item, the sequence was empty");
}

Value sum(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("sum", {"attribute", "start"}, 0, args);
  Value total = bound.given(1) ? *bound[1] : Value(std::int64_t{0});
  if (total.is_string()) fail("sum: expected numbers, found a string to start with");
  const SeqRef source_items = in.iterate(value);
  for (const Value& item : source_items->items) {
    const bool attribute = bound.given(0) && !bound[0]->is_none();
    total = binary(in.heap(), BinaryOp::Add, total, attribute ? look_up(in, item, *bound[0]) : item);
  }
  return total;
}

Value batch(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("batch", {"linecount", "fill_with"}, 1, args);
  const std::int64_t size = bound.integer(0, 1);
  std::vector<Value> batches, current;
  const SeqRef source_items = in.iterate(value);
  for (const Value& item : source_items->items) {
    if (!current.empty() && static_cast<std::int64_t>(current.size()) == size) {
      batches.push_back(in.heap().list(std::exchange(current, {})));
    }
    current.push_back(item);
  }
  if (!current.empty()) {
    const std::int64_t missing =
        bound.given(1) && !bound[1]->is_none() ? size - static_cast<std::int64_t>(current.size()) : 0;
    if (missing > static_cast<std::int64_t>(kMaxSteps))
      fail("batch: expected a line of at most {} items", kMaxSteps);
    if (missing > 0) {
      const Charge charge(&in.heap(),
                          static_cast<std::size_t>(missing) * sizeof(Value));  // before it is built
      current.insert(current.end(), static_cast<std::size_t>(missing), *bound[1]);
    }
    batches.push_back(in.heap().list(std::move(current)));
  }
  return generator(in, std::move(batches), "do_batch");
}

Args rest_of(const Args& args, std::size_t from) {
  return {{args.positional.begin() + static_cast<std::ptrdiff_t>(from), args.positional.end()}, args.named};
}

Value map(Interpreter& in, const Value& value, const Args& args) {
  std::vector<Value> out;
  if (!args.positional.empty()) {
    const std::string_view name = args.positional[0].text();
    const Args rest = rest_of(args, 1);
    const SeqRef source_items = items_if_any(in, value);
    for (const Value& item : source_items->items) out.push_back(in.filter(name, item, rest));
    return generator(in, std::move(out), "sync_do_map");
  }
  const Value *path = nullptr, *otherwise = nullptr;
  for (const auto& [name, argument] : args.named) {
    if (name != "attribute" && name != "default") fail("map: expected no argument named '{}'", name);
    (name == "attribute" ? path : otherwise) = &argument;
  }
  if (!path) fail("map: expected a filter's name or an attribute");
  if (otherwise && otherwise->is_none()) otherwise = nullptr;
  const SeqRef source_items = items_if_any(in, value);
  for (const Value& item : source_items->items) out.push_back(look_up(in, item, *path, otherwise));
  return generator(in, std::move(out), "sync_do_map");
}

// select, reject, selectattr, rejectattr: by a test of the item or of its attribute, or by truth.
template <bool Keep, bool ByAttribute>
Value select(Interpreter& in, const Value& value, const Args& args) {
  constexpr std::size_t kFirst = ByAttribute ? 1 : 0;
  if (args.positional.size() < kFirst) fail("selectattr: expected an attribute");
  const bool tested = args.positional.size() > kFirst;
  const std::string_view name = tested ? args.positional[kFirst].text() : std::string_view();
  const Args rest = tested ? rest_of(args, kFirst + 1) : Args{};
  std::vector<Value> kept;
  const SeqRef source_items = items_if_any(in, value);
  for (const Value& item : source_items->items) {
    const Value subject = ByAttribute ? look_up(in, item, args.positional[0]) : item;
    if ((tested ? in.test(name, subject, rest) : truth(subject)) == Keep) kept.push_back(item);
  }
  return generator(in, std::move(kept), "select_or_reject");
}

Value groupby(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound("groupby", {"attribute", "default", "case_sensitive"}, 1, args);
  const bool as_is = bound.flag(2, false);
  std::vector<std::pair<Value, Value>> keyed;
  const SeqRef source_items = in.iterate(value);
  for (const Value& item : source_items->items) {
    Value key = look_up(in, item, *bound[0], bound.given(1) && !bound[1]->is_none() ? bound[1] : nullptr);
    keyed.emplace_back(as_is ? key : without_case(in, key), in.heap().tuple({key, item}));
  }
  std::vector<Value> groups, members;
  Value group_key, compared;
  const auto finish = [&] {
    if (!members.empty())
      groups.push_back(in.heap().tuple({group_key, in.heap().list(std::exchange(members, {}))}));
  };
  for (const Value& pair : sorted(in, std::move(keyed), false)) {
    const Value& key = pair.seq()->items[0];
    const Value folded = as_is ? key : without_case(in, key);
    if (members.empty() || !equal(in.heap(), folded, compared)) {
      finish();
      group_key = key;
      compared = folded;
    }
    members.push_back(pair.seq()->items[1]);
  }
  finish();
  return in.heap().list(std::move(groups));
}

struct NamedFilter {
  std::string_view name;
  FilterBody body;
};
constexpr NamedFilter kFilters[] = {
    {"batch", batch},
    {"count", length},
    {"dictsort", dictsort},
    {"first", first},
    {"groupby", groupby},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"reverse", reverse},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

FilterBody find_sequence_filter(std::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.body;
  }
  return nullptr;
}

}  // namespace narrows::jinja
