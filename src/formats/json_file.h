// JSON of files that somebody else wrote.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace narrows {

using Json = nlohmann::json;

// Throws Error naming `path` and the byte where the text is no JSON, where a key is found twice in an object, or where it
// is nested more than 64 deep.
Json parse_json(const std::string& path, std::string_view text);

// A whole file, up to 256 MB. Throws Error if it cannot be read.
Json read_json_file(const std::string& path);

// The value as a short text, for messages.
std::string json_excerpt(const Json& value);

}  // namespace narrows
