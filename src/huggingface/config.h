// config.json: settings by name, each checked when it is read.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "formats/json_file.h"

namespace narrows::hf {

// One object of it. Names are tried in order: publishers spell them differently. A value of null counts as absent.
class Config {
 public:
  using Names = std::initializer_list<std::string_view>;
  Config(std::string path, Json json);

  // Whole numbers of [least, most]; numbers; all throw Error for values of another kind or outside.
  std::int64_t integer(Names names, std::int64_t least = 1, std::int64_t most = 1 << 20) const;
  std::int64_t integer_or(Names names, std::int64_t otherwise, std::int64_t least = 1, std::int64_t most = 1 << 20) const;
  std::optional<std::int64_t> find_integer(Names names, std::int64_t least = 1, std::int64_t most = 1 << 20) const;
  double number(Names names) const;
  double number_or(Names names, double otherwise) const;
  std::optional<double> find_number(Names names) const;
  bool flag_or(Names names, bool otherwise) const;
  std::string text_or(Names names, std::string otherwise) const;
  Config object_or_empty(Names names) const;
  const Json* find(Names names) const;  // nullptr if absent or null

  const std::string& path() const { return path_; }
  // Throws Error: "<path>: <name>: expected …, found …".
  [[noreturn]] void refuse(Names names, std::string_view expected) const;

 private:
  std::string path_;  // of the file, and of this object inside it
  Json json_;
};

}  // namespace narrows::hf
