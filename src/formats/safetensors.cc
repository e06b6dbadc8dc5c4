#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <set>
#include <span>

#include "base/error.h"
#include "formats/gguf_format.h"
#include "formats/json_file.h"
#include "formats/load.h"

namespace narrows {
namespace {

constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::size_t kMostDimensions = 8;

struct Type {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<Type, 15> kTypes = {{{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4},
                                         {"I16", 2}, {"I8", 1}, {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},
                                         {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}}};

std::uint64_t natural(const Json& value, const std::string& path, const std::string& what) {
  if (!value.is_number_unsigned()) fail("{}: {}: expected a whole number, found {}", path, what, json_excerpt(value));
  return value.get<std::uint64_t>();
}

SafeTensor read_tensor(const std::string& path, const std::string& name, const Json& entry, std::span<const std::byte> data) {
  const std::string label = "tensor " + gguf::printable(name);
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    fail("{}: {}: expected dtype, shape and data_offsets, found {}", path, label, json_excerpt(entry));
  SafeTensor t;
  t.name = name;
  const Json &type = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!type.is_string()) fail("{}: {}: dtype: expected a string, found {}", path, label, json_excerpt(type));
  t.type = type.get<std::string>();
  const auto known = std::ranges::find(kTypes, t.type, &Type::name);
  if (known == kTypes.end()) fail("{}: {}: dtype {} is not known", path, label, gguf::printable(t.type));
  if (!shape.is_array() || shape.size() > kMostDimensions)
    fail("{}: {}: shape: expected up to {} sizes, found {}", path, label, kMostDimensions, json_excerpt(shape));
  std::uint64_t bytes = known->bytes;
  for (const Json& size : shape) {
    const std::uint64_t n = natural(size, path, label + ": shape");
    if (n == 0 || n > std::numeric_limits<std::int64_t>::max() / bytes)
      fail("{}: {}: shape: expected sizes of at least 1 that a file can hold, found {}", path, label, json_excerpt(shape));
    bytes *= n;
    t.shape.push_back(static_cast<std::int64_t>(n));
  }
  if (!offsets.is_array() || offsets.size() != 2)
    fail("{}: {}: data_offsets: expected two numbers, found {}", path, label, json_excerpt(offsets));
  const std::uint64_t begin = natural(offsets[0], path, label + ": data_offsets"),
                      end = natural(offsets[1], path, label + ": data_offsets");
  if (begin > end || end > data.size())
    fail("{}: {}: its bytes {} to {} lie outside the file, which has {} bytes of tensor data; the file may be truncated",
         path, label, begin, end, data.size());
  if (end - begin != bytes)
    fail("{}: {}: expected {} bytes for a shape of {} and {}, found {}", path, label, bytes, t.shape_text(), t.type,
         end - begin);
  t.data = data.data() + begin;
  t.bytes = static_cast<std::size_t>(bytes);
  return t;
}

void check_overlaps(const std::string& path, std::vector<const SafeTensor*> tensors) {
  std::ranges::sort(tensors, {}, [](const SafeTensor* t) { return t->data; });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i - 1]->data + tensors[i - 1]->bytes > tensors[i]->data)
      fail("{}: tensors {} and {} overlap", path, gguf::printable(tensors[i - 1]->name), gguf::printable(tensors[i]->name));
}

// A name that cannot lead out of the folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

}  // namespace

std::optional<DType> dtype_of_safetensor(std::string_view type) {
  if (type == "F32") return DType::F32;
  if (type == "F16") return DType::F16;
  if (type == "BF16") return DType::BF16;
  return std::nullopt;
}

std::int64_t SafeTensor::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

std::string SafeTensor::shape_text() const {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

const SafeTensor* SafeTensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void SafeTensors::add_file(const std::string& path) {
  files_.emplace_back(path);
  const std::span<const std::byte> bytes = files_.back().bytes();
  constexpr std::size_t kLength = sizeof(std::uint64_t);
  if (bytes.size() < kLength) fail("{}: expected a safetensors file, found {} bytes", path, bytes.size());
  const auto length = load<std::uint64_t>(bytes.data());
  if (length > std::min<std::uint64_t>(bytes.size() - kLength, kLongestHeader))
    fail("{}: expected a safetensors header of at most {} bytes, found a length of {}", path,
         std::min<std::uint64_t>(bytes.size() - kLength, kLongestHeader), length);
  const Json header = parse_json(path, {reinterpret_cast<const char*>(bytes.data()) + kLength, static_cast<std::size_t>(length)});
  if (!header.is_object()) fail("{}: header: expected an object, found {}", path, json_excerpt(header));
  std::vector<const SafeTensor*> mine;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    SafeTensor t = read_tensor(path, name, entry, bytes.subspan(kLength + static_cast<std::size_t>(length)));
    t.file = files_.size() - 1;
    const auto [at, added] = tensors_.try_emplace(name, std::move(t));
    if (!added)
      fail("{}: tensor {}: found in {} too", path, gguf::printable(name), files_[at->second.file].path());
    mine.push_back(&at->second);
  }
  check_overlaps(path, std::move(mine));
}

SafeTensors SafeTensors::open(const std::string& folder) {
  namespace fs = std::filesystem;
  SafeTensors all;
  const std::string single = (fs::path(folder) / "model.safetensors").string(), index = single + ".index.json";
  std::error_code absent;
  if (!fs::exists(index, absent)) {
    if (!fs::exists(single, absent))
      fail("{}: expected model.safetensors or model.safetensors.index.json in this folder", folder);
    all.add_file(single);
    return all;
  }
  const Json json = read_json_file(index);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    fail("{}: expected an object with a weight_map", index);
  std::set<std::string> shards;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>()))
      fail("{}: weight_map: {}: expected the name of a file in this folder, found {}", index, gguf::printable(name),
           json_excerpt(file));
    shards.insert(file.get<std::string>());
  }
  for (const std::string& shard : shards) {
    const std::string path = (fs::path(folder) / shard).string();
    if (!fs::exists(path, absent)) fail("{}: weight_map: the file {} is missing", index, gguf::printable(shard));
    all.add_file(path);
  }
  for (const auto& [name, file] : json["weight_map"].items()) {
    const SafeTensor* t = all.find(name);
    if (!t || fs::path(all.files_[t->file].path()).filename() != file.get<std::string>())
      fail("{}: weight_map: expected tensor {} in {}, where it is missing", index, gguf::printable(name),
           gguf::printable(file.get<std::string>()));
  }
  return all;
}

}  // namespace narrows
