#include "tokenizer/json_item.h"

#include <cmath>

#include "base/error.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

namespace {

std::string describe(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return "null";
    case nlohmann::json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case nlohmann::json::value_t::string:
      return narrows::quoted(value.get_ref<const std::string&>());
    case nlohmann::json::value_t::array:
      return fmt::format("an array of {}", value.size());
    case nlohmann::json::value_t::object:
      return "an object";
    default:
      return value.dump();
  }
}

}  // namespace

void JsonItem::expected(std::string_view what) const {
  fail("{}: expected {}, found {}", where(), what, describe(*value_));
}

JsonItem JsonItem::member(std::string_view key, const nlohmann::json& value) const {
  std::string path = path_;
  if (!path.empty()) path += '.';
  // A key that is a token may hold anything.
  const std::string shown = narrows::quoted(key);
  path += shown.size() == key.size() + 2 && key.find_first_of(" .'") == key.npos ? std::string(key) : shown;
  return {value, source_, std::move(path)};
}

std::optional<JsonItem> JsonItem::find(std::string_view key) const {
  const auto& members = object();
  const auto it = members.find(key);
  if (it == members.end() || it->is_null()) return std::nullopt;
  return member(key, *it);
}

JsonItem JsonItem::get(std::string_view key) const {
  const auto& members = object();
  const auto it = members.find(key);
  if (it == members.end()) fail("{}: expected a member {}, found none", where(), narrows::quoted(key));
  return member(key, *it);
}

JsonItem JsonItem::element(std::size_t index) const {
  return {(*value_)[index], source_, fmt::format("{}[{}]", path_, index)};
}

const std::string& JsonItem::string() const {
  if (!value_->is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonItem::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

double JsonItem::number() const {
  if (!value_->is_number()) expected("a number");
  const double number = value_->get<double>();
  if (!std::isfinite(number)) expected("a finite number");
  return number;
}

std::int64_t JsonItem::integer(std::int64_t lowest, std::int64_t highest) const {
  const auto what = [&] { return fmt::format("an integer from {} to {}", lowest, highest); };
  if (!value_->is_number_integer()) expected(what());
  // An unsigned value that does not fit is above every bound.
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    expected(what());
  }
  const auto number = value_->get<std::int64_t>();
  if (number < lowest || number > highest) expected(what());
  return number;
}

std::size_t JsonItem::array_size() const {
  if (!value_->is_array()) expected("an array");
  return value_->size();
}

const nlohmann::json& JsonItem::object() const {
  if (!value_->is_object()) expected("an object");
  return *value_;
}

std::string JsonItem::string_or(std::string_view key, std::string_view fallback) const {
  const auto item = find(key);
  return item ? item->string() : std::string(fallback);
}

bool JsonItem::boolean_or(std::string_view key, bool fallback) const {
  const auto item = find(key);
  return item ? item->boolean() : fallback;
}

namespace {

void add_parts(const JsonItem& component, std::string_view members, std::vector<JsonItem>& parts, int depth) {
  constexpr int kDeepest = 16;
  if (component.get("type").string() != "Sequence") {
    parts.push_back(component);
    return;
  }
  if (depth >= kDeepest) fail("{}: sequences nest more than {} deep", component.where(), kDeepest);
  const JsonItem list = component.get(members);
  for (std::size_t i = 0; i < list.array_size(); ++i) add_parts(list.element(i), members, parts, depth + 1);
}

}  // namespace

std::vector<JsonItem> sequence_parts(const JsonItem& component, std::string_view members) {
  std::vector<JsonItem> parts;
  add_parts(component, members, parts, 0);
  return parts;
}

nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& source) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    std::string_view what = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    if (const std::size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    std::string line;
    for (const char c : what) line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    fail("{}: expected JSON: {}", source, line);
  }
}

}  // namespace narrows
