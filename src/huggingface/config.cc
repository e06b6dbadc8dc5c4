#include "huggingface/config.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace narrows::hf {

Config::Config(std::string path, Json json) : path_(std::move(path)), json_(std::move(json)) {
  if (!json_.is_object()) fail("{}: expected an object, found {}", path_, json_excerpt(json_));
}

const Json* Config::find(Names names) const {
  for (const std::string_view name : names) {
    const auto found = json_.find(name);
    if (found != json_.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

void Config::refuse(Names names, std::string_view expected) const {
  for (const std::string_view name : names)
    if (const Json* value = find({name})) fail("{}: {}: expected {}, found {}", path_, name, expected, json_excerpt(*value));
  fail("{}: {} is missing: expected {}", path_, *names.begin(), expected);
}

std::optional<std::int64_t> Config::find_integer(Names names, std::int64_t least, std::int64_t most) const {
  const Json* value = find(names);
  if (!value) return std::nullopt;
  std::optional<std::int64_t> number;
  if (value->is_number_unsigned() && value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    number = static_cast<std::int64_t>(value->get<std::uint64_t>());
  else if (value->is_number_integer() && !value->is_number_unsigned())
    number = value->get<std::int64_t>();
  if (!number || *number < least || *number > most)
    refuse(names, fmt::format("a whole number of {} to {}", least, most));
  return number;
}

std::int64_t Config::integer(Names names, std::int64_t least, std::int64_t most) const {
  const auto found = find_integer(names, least, most);
  if (!found) refuse(names, "a whole number");
  return *found;
}

std::int64_t Config::integer_or(Names names, std::int64_t otherwise, std::int64_t least, std::int64_t most) const {
  return find_integer(names, least, most).value_or(otherwise);
}

std::optional<double> Config::find_number(Names names) const {
  const Json* value = find(names);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(names, "a number");
  return value->get<double>();
}

double Config::number(Names names) const {
  const auto found = find_number(names);
  if (!found) refuse(names, "a number");
  return *found;
}

double Config::number_or(Names names, double otherwise) const { return find_number(names).value_or(otherwise); }

bool Config::flag_or(Names names, bool otherwise) const {
  const Json* value = find(names);
  if (!value) return otherwise;
  if (!value->is_boolean()) refuse(names, "true or false");
  return value->get<bool>();
}

std::string Config::text_or(Names names, std::string otherwise) const {
  const Json* value = find(names);
  if (!value) return otherwise;
  if (!value->is_string()) refuse(names, "a string");
  return value->get<std::string>();
}

Config Config::object_or_empty(Names names) const {
  const Json* value = find(names);
  if (!value) return {path_, Json::object()};
  if (!value->is_object()) refuse(names, "an object");
  for (const std::string_view name : names)
    if (find({name}) == value) return {path_ + ": " + std::string(name), *value};
  return {path_, *value};
}

}  // namespace narrows::hf
