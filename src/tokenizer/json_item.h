// A value of a JSON document with its place in it, for checked reading: everything unexpected becomes one
// line that names the file and the item ("tokenizer.json: model.merges[3]: expected …").
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

class JsonItem {
 public:
  // Refers to `document`, which must outlive it.
  JsonItem(const nlohmann::json& document, std::string source)
      : value_(&document), source_(std::move(source)) {}

  const nlohmann::json& json() const { return *value_; }
  std::string where() const { return path_.empty() ? source_ : source_ + ": " + path_; }

  // A member of an object. `find` gives nullopt if it is absent or null, `get` throws.
  std::optional<JsonItem> find(std::string_view key) const;
  JsonItem get(std::string_view key) const;
  // An element of an array, or a member's value, of which the caller has the iterator.
  JsonItem element(std::size_t index) const;
  JsonItem member(std::string_view key, const nlohmann::json& value) const;

  // All throw Error if the value is of another type.
  const std::string& string() const;
  bool boolean() const;
  double number() const;
  std::int64_t integer(std::int64_t lowest, std::int64_t highest) const;
  std::size_t array_size() const;
  const nlohmann::json& object() const;

  // Of an optional member.
  std::string string_or(std::string_view key, std::string_view fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;

  [[noreturn]] void expected(std::string_view what) const;  // "…: expected {what}, found {the value}"

 private:
  JsonItem(const nlohmann::json& value, std::string source, std::string path)
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  const nlohmann::json* value_;
  std::string source_, path_;
};

// The parts of a component of a tokenizer.json: those that its type "Sequence" has under `members`, and theirs, in order;
// of another type itself. Throws Error if sequences nest too deep.
std::vector<JsonItem> sequence_parts(const JsonItem& component, std::string_view members);

// Throws Error naming `source` and the place if `text` is not JSON.
nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& source);

}  // namespace narrows
