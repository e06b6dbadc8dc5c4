#include "formats/json_file.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/gguf_format.h"

namespace narrows {
namespace {

constexpr int kDeepest = 64;
constexpr std::size_t kLargestFile = std::size_t{256} << 20, kExcerpt = 60;

}  // namespace

Json parse_json(const std::string& path, std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth > kDeepest) fail("{}: expected JSON nested up to {} deep, found more", path, kDeepest);
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
        fail("{}: key {}: found twice", path, gguf::printable(parsed.get<std::string>()));
      return true;
    });
  } catch (const Json::parse_error& error) {
    fail("{}: expected JSON, found an error at byte {}", path, error.byte);
  } catch (const Json::exception& error) {
    fail("{}: expected JSON: {}", path, error.what());
  }
}

Json read_json_file(const std::string& path) {
  const MappedFile file(path);
  if (file.bytes().size() > kLargestFile)
    fail("{}: expected at most {} bytes, found {}", path, kLargestFile, file.bytes().size());
  return parse_json(path, {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

std::string json_excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kExcerpt) text = text.substr(0, kExcerpt) + "…";
  return text;
}

}  // namespace narrows
