// Reading of GGUF files. Nothing in the file is trusted: every count is compared with what the rest of the
// file can hold before memory is taken for it.
#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/gguf_format.h"
#include "formats/load.h"

namespace narrows {
namespace {

using gguf::printable;

// Types of ggml that narrows does not run, for messages.
std::string_view unsupported_name(std::uint32_t dtype) {
  switch (dtype) {
    case 9:
      return "Q8_1";
    case 15:
      return "Q8_K";
    case 16:
      return "IQ2_XXS";
    case 17:
      return "IQ2_XS";
    case 18:
      return "IQ3_XXS";
    case 19:
      return "IQ1_S";
    case 21:
      return "IQ3_S";
    case 22:
      return "IQ2_S";
    case 29:
      return "IQ1_M";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 39:
      return "MXFP4";
    case 40:
      return "NVFP4";
    default:
      return "unknown to narrows";
  }
}

// A position in the mapped bytes of one file.
class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : path_(file.path()), bytes_(file.bytes()) {}

  const std::string& path() const { return path_; }
  std::size_t offset() const { return offset_; }
  std::size_t left() const { return bytes_.size() - offset_; }

  template <typename T>
  T take(std::string_view what) {
    need(sizeof(T), what);
    const T value = load<T>(bytes_.data() + offset_);
    offset_ += sizeof(T);
    return value;
  }

  // A length of 64 bits, then so many bytes.
  std::string_view string(std::string_view what,
                          std::size_t longest = std::numeric_limits<std::size_t>::max()) {
    const auto length = take<std::uint64_t>(what);
    if (length > longest)
      fail("{}: {}: expected at most {} bytes, found a length of {}", path_, what, longest, length);
    need(length, what);
    const auto* start = reinterpret_cast<const char*>(bytes_.data() + offset_);
    offset_ += length;
    return {start, static_cast<std::size_t>(length)};
  }

  // A count of items that take at least `item_bytes` each.
  std::uint64_t count(std::string_view what, std::size_t item_bytes) {
    const auto n = take<std::uint64_t>(what);
    check_count(n, what, item_bytes);
    return n;
  }
  void check_count(std::uint64_t n, std::string_view what, std::size_t item_bytes) const {
    if (n > left() / item_bytes)
      fail("{}: {}: {} of at least {} bytes each do not fit in the {} bytes left of the file", path_, what, n,
           item_bytes, left());
  }

 private:
  void need(std::uint64_t size, std::string_view what) const {
    if (size > left())
      fail("{}: the file is truncated: expected {} bytes of {} at offset {}, found {}", path_, size, what,
           offset_, left());
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
};

bool read_bool(Cursor& in, const std::string& what) {
  const auto value = in.take<std::uint8_t>(what);
  if (value > 1) fail("{}: {}: expected a bool of 0 or 1, found {}", in.path(), what, value);
  return value == 1;
}

template <typename T>
void read_numbers(Cursor& in, std::uint64_t n, const std::string& what, GgufArray& array) {
  in.check_count(n, what, sizeof(T));
  if constexpr (std::is_floating_point_v<T>) {
    array.floats.reserve(n);
    for (std::uint64_t i = 0; i < n; ++i) array.floats.push_back(in.take<T>(what));
  } else {
    array.integers.reserve(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const T value = in.take<T>(what);
      if (!std::in_range<std::int64_t>(value))
        fail("{}: {}: element {}: expected at most 2^63 - 1, found {}", in.path(), what, i, value);
      array.integers.push_back(static_cast<std::int64_t>(value));
    }
  }
}

GgufArray read_array(Cursor& in, const std::string& what) {
  GgufArray array;
  const auto element = in.take<std::uint32_t>(what);
  const auto n = in.take<std::uint64_t>(what);
  array.element = static_cast<GgufType>(element);
  switch (array.element) {
    case GgufType::U8:
      read_numbers<std::uint8_t>(in, n, what, array);
      break;
    case GgufType::I8:
      read_numbers<std::int8_t>(in, n, what, array);
      break;
    case GgufType::U16:
      read_numbers<std::uint16_t>(in, n, what, array);
      break;
    case GgufType::I16:
      read_numbers<std::int16_t>(in, n, what, array);
      break;
    case GgufType::U32:
      read_numbers<std::uint32_t>(in, n, what, array);
      break;
    case GgufType::I32:
      read_numbers<std::int32_t>(in, n, what, array);
      break;
    case GgufType::U64:
      read_numbers<std::uint64_t>(in, n, what, array);
      break;
    case GgufType::I64:
      read_numbers<std::int64_t>(in, n, what, array);
      break;
    case GgufType::F32:
      read_numbers<float>(in, n, what, array);
      break;
    case GgufType::F64:
      read_numbers<double>(in, n, what, array);
      break;
    case GgufType::Bool:
      in.check_count(n, what, 1);
      array.integers.reserve(n);
      for (std::uint64_t i = 0; i < n; ++i) array.integers.push_back(read_bool(in, what));
      break;
    case GgufType::String:
      in.check_count(n, what, sizeof(std::uint64_t));
      array.strings.reserve(n);
      for (std::uint64_t i = 0; i < n; ++i) array.strings.emplace_back(in.string(what));
      break;
    case GgufType::Array:
      fail("{}: {}: arrays of arrays are not supported", in.path(), what);
    default:
      fail("{}: {}: expected an element type of 0 to 12, found {}", in.path(), what, element);
  }
  return array;
}

GgufEntry read_entry(Cursor& in, const std::string& what) {
  const auto type = in.take<std::uint32_t>(what);
  GgufEntry entry{static_cast<GgufType>(type), std::uint64_t{0}};
  switch (entry.type) {
    case GgufType::U8:
      entry.value = std::uint64_t{in.take<std::uint8_t>(what)};
      break;
    case GgufType::U16:
      entry.value = std::uint64_t{in.take<std::uint16_t>(what)};
      break;
    case GgufType::U32:
      entry.value = std::uint64_t{in.take<std::uint32_t>(what)};
      break;
    case GgufType::U64:
      entry.value = in.take<std::uint64_t>(what);
      break;
    case GgufType::I8:
      entry.value = std::int64_t{in.take<std::int8_t>(what)};
      break;
    case GgufType::I16:
      entry.value = std::int64_t{in.take<std::int16_t>(what)};
      break;
    case GgufType::I32:
      entry.value = std::int64_t{in.take<std::int32_t>(what)};
      break;
    case GgufType::I64:
      entry.value = in.take<std::int64_t>(what);
      break;
    case GgufType::F32:
      entry.value = double{in.take<float>(what)};
      break;
    case GgufType::F64:
      entry.value = in.take<double>(what);
      break;
    case GgufType::Bool:
      entry.value = read_bool(in, what);
      break;
    case GgufType::String:
      entry.value = std::string(in.string(what));
      break;
    case GgufType::Array:
      entry.value = read_array(in, what);
      break;
    default:
      fail("{}: {}: expected a value type of 0 to 12, found {}", in.path(), what, type);
  }
  return entry;
}

using Metadata = std::map<std::string, GgufEntry, std::less<>>;

[[noreturn]] void wrong_kind(const std::string& path, std::string_view key, std::string_view expected,
                             const GgufEntry& entry) {
  fail("{}: key {}: expected {}, found {}", path, printable(key), expected, gguf::type_name(entry.type));
}

std::optional<std::int64_t> integer(const std::string& path, const Metadata& metadata, std::string_view key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  if (const auto* i = std::get_if<std::int64_t>(&found->second.value)) return *i;
  const auto* u = std::get_if<std::uint64_t>(&found->second.value);
  if (!u) wrong_kind(path, key, "an integer", found->second);
  if (!std::in_range<std::int64_t>(*u))
    fail("{}: key {}: expected an integer below 2^63, found {}", path, printable(key), *u);
  return static_cast<std::int64_t>(*u);
}

// Everything in one file; `tensors` point into it.
struct Part {
  std::uint32_t version = 0;
  Metadata metadata;
  std::vector<GgufTensor> tensors;
};

std::uint32_t read_version(Cursor& in) {
  const auto magic = in.take<std::uint32_t>("the GGUF header");
  if (magic == gguf::kMagicSwapped)
    fail("{}: the file is big-endian (magic FUGG): expected a little-endian GGUF file", in.path());
  if (magic != gguf::kMagic)
    fail("{}: not a GGUF file: expected it to begin with GGUF, found the bytes {:02x} {:02x} {:02x} {:02x}",
         in.path(), magic & 255, magic >> 8 & 255, magic >> 16 & 255, magic >> 24);
  const auto version = in.take<std::uint32_t>("the GGUF header");
  if (version != 0 && (version & 0xffff) == 0)
    fail("{}: the file is big-endian (its version reads as {:#x}): expected a little-endian GGUF file",
         in.path(), version);
  if (version == 1)
    fail("{}: GGUF version 1 is obsolete: expected version 2 or 3; convert the model anew", in.path());
  if (version != 2 && version != 3) fail("{}: expected GGUF version 2 or 3, found {}", in.path(), version);
  return version;
}

GgufTensor read_tensor_info(Cursor& in, std::uint64_t index, std::uint64_t& offset) {
  const std::string at = fmt::format("the description of tensor {}", index);
  GgufTensor tensor;
  tensor.name = in.string(at, gguf::kLongestTensorName);
  if (tensor.name.empty()) fail("{}: tensor {}: expected a name, found an empty one", in.path(), index);
  const std::string name = printable(tensor.name);
  const auto dims = in.take<std::uint32_t>(at);
  if (dims < 1 || dims > tensor.shape.size())
    fail("{}: tensor {}: expected 1 to 4 dimensions, found {}", in.path(), name, dims);
  tensor.dims = static_cast<int>(dims);
  for (std::uint32_t d = 0; d < dims; ++d) tensor.shape[d] = in.take<std::int64_t>(at);
  const auto type = in.take<std::uint32_t>(at);
  if (!find_dtype(type))
    fail("{}: tensor {}: type {} ({}) is not supported", in.path(), name, type, unsupported_name(type));
  tensor.dtype = static_cast<DType>(type);
  gguf::set_bytes(tensor, fmt::format("{}: tensor {}", in.path(), name));
  offset = in.take<std::uint64_t>(at);
  return tensor;
}

void check_overlaps(const std::string& path, const std::vector<GgufTensor>& tensors) {
  std::vector<const GgufTensor*> order;
  order.reserve(tensors.size());
  for (const GgufTensor& t : tensors) order.push_back(&t);
  std::ranges::sort(order, {}, &GgufTensor::data);
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
      fail("{}: tensor {}: its data overlaps that of tensor {}", path, printable(order[i]->name),
           printable(order[i - 1]->name));
}

std::uint64_t read_alignment(const std::string& path, const Metadata& metadata) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return gguf::kDefaultAlignment;
  const auto* value = std::get_if<std::uint64_t>(&found->second.value);
  if (!value || found->second.type != GgufType::U32)
    wrong_kind(path, "general.alignment", "a u32", found->second);
  if (*value < gguf::kLeastAlignment || !std::has_single_bit(*value))
    fail("{}: key general.alignment: expected a power of two of at least {}, found {}", path,
         gguf::kLeastAlignment, *value);
  return *value;
}

Part read_part(const MappedFile& file) {
  Cursor in(file);
  Part part;
  part.version = read_version(in);
  // The least a description takes: name length, one character, dimensions, one size, type, offset; and the
  // least an entry takes: key length, one character, type, one byte.
  const auto tensor_count = in.count("the number of tensors", 8 + 1 + 4 + 8 + 4 + 8);
  const auto entry_count = in.count("the number of metadata entries", 8 + 1 + 4 + 1);

  for (std::uint64_t i = 0; i < entry_count; ++i) {
    const std::string_view key = in.string(fmt::format("the key of metadata entry {}", i), gguf::kLongestKey);
    if (key.empty()) fail("{}: metadata entry {}: expected a key, found an empty one", in.path(), i);
    const auto [at, added] = part.metadata.try_emplace(std::string(key));
    if (!added) fail("{}: key {}: found twice", in.path(), printable(key));
    at->second = read_entry(in, "key " + printable(key));
  }

  std::vector<std::uint64_t> offsets(tensor_count);
  part.tensors.reserve(tensor_count);
  for (std::uint64_t i = 0; i < tensor_count; ++i)
    part.tensors.push_back(read_tensor_info(in, i, offsets[i]));

  const std::uint64_t alignment = read_alignment(in.path(), part.metadata);
  const std::uint64_t size = file.bytes().size();
  const std::uint64_t start = std::min(gguf::align(in.offset(), alignment), size), room = size - start;
  for (std::size_t i = 0; i < part.tensors.size(); ++i) {
    GgufTensor& t = part.tensors[i];
    if (offsets[i] % alignment != 0)
      fail("{}: tensor {}: expected an offset that is a multiple of {}, found {}", in.path(),
           printable(t.name), alignment, offsets[i]);
    if (offsets[i] > room || t.bytes > room - offsets[i])
      fail(
          "{}: tensor {}: its {} bytes at offset {} lie outside the file, which has {} bytes of tensor data; "
          "the file "
          "may be truncated",
          in.path(), printable(t.name), t.bytes, offsets[i], room);
    t.data = file.bytes().data() + start + offsets[i];
  }
  check_overlaps(in.path(), part.tensors);
  return part;
}

// The path of part `number` (from 0) of a split whose first part is `first`; checks the name of `first`.
std::string split_path(const std::string& first, std::int64_t number, std::int64_t count) {
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", 1, count);
  if (!first.ends_with(suffix))
    fail("{}: the first of a split into {} files: expected a name that ends in {}", first, count, suffix);
  return fmt::format("{}-{:05}-of-{:05}.gguf", first.substr(0, first.size() - suffix.size()), number + 1,
                     count);
}

constexpr std::int64_t kMostParts = 65535;

// What a file says of its place in a split; count 0 if it is no part of one.
struct Place {
  std::int64_t number = 0, count = 0;
};
Place place_in_split(const std::string& path, const Metadata& metadata) {
  const Place place{integer(path, metadata, "split.no").value_or(0),
                    integer(path, metadata, "split.count").value_or(0)};
  if (place.count < 0 || place.count > kMostParts)
    fail("{}: key split.count: expected 0 to {}, found {}", path, kMostParts, place.count);
  if (place.count > 0 && (place.number < 0 || place.number >= place.count))
    fail("{}: key split.no: expected 0 to {}, found {}", path, place.count - 1, place.number);
  return place;
}

template <typename T>
T required(std::optional<T> value, const std::string& path, std::string_view key) {
  if (!value) fail("{}: key {} is missing", path, printable(key));
  return *std::move(value);
}

}  // namespace

void GgufFile::open_other_parts() {
  const auto [number, count] = place_in_split(path_, metadata_);
  if (number != 0)
    fail(
        "{}: this is file {} of a split into {}: expected the first, whose name ends in -{:05}-of-{:05}.gguf",
        path_, number + 1, count, 1, count);
  for (std::int64_t i = 1; i < count; ++i) {
    const std::string name = split_path(path_, i, count);
    try {
      files_.emplace_back(name);
    } catch (const Error& error) {
      fail("{}: file {} of {} of the split cannot be read: {}", path_, i + 1, count, error.what());
    }
    Part part = read_part(files_.back());
    const Place place = place_in_split(name, part.metadata);
    if (place.count == 0)
      fail("{}: expected file {} of a split into {}, found a file that is no part of one", name, i + 1,
           count);
    if (place.count != count || place.number != i)
      fail("{}: expected file {} of a split into {}, found file {} of {}", name, i + 1, count,
           place.number + 1, place.count);
    std::ranges::move(part.tensors, std::back_inserter(tensors_));
  }
  const auto total = integer(path_, metadata_, "split.tensors.count");
  if (total && !std::cmp_equal(*total, tensors_.size()))
    fail("{}: key split.tensors.count: expected {}, as its files hold, found {}", path_, tensors_.size(),
         *total);
}

GgufFile GgufFile::open(const std::string& path) {
  GgufFile file;
  file.path_ = path;
  file.files_.emplace_back(path);
  Part first = read_part(file.files_.front());
  file.version_ = first.version;
  file.metadata_ = std::move(first.metadata);
  file.tensors_ = std::move(first.tensors);

  if (place_in_split(path, file.metadata_).count > 1) file.open_other_parts();
  file.index_tensors();
  return file;
}

GgufFile GgufFile::assemble(std::string path, Metadata metadata, std::vector<GgufTensor> tensors,
                            std::vector<MappedFile> parts) {
  GgufFile file;
  file.path_ = std::move(path);
  file.metadata_ = std::move(metadata);
  file.tensors_ = std::move(tensors);
  file.files_ = std::move(parts);
  file.index_tensors();
  return file;
}

void GgufFile::index_tensors() {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!by_name_.emplace(tensors_[i].name, i).second)
      fail("{}: tensor {}: found twice", path_, printable(tensors_[i].name));
}

const std::byte* GgufTensor::rows(std::int64_t first, std::int64_t count, std::vector<std::byte>& room) const {
  const std::size_t row = row_bytes(dtype, shape[0]);
  if (data) return data + static_cast<std::size_t>(first) * row;
  room.resize(static_cast<std::size_t>(count) * row);
  make_rows(first, count, room.data());
  return room.data();
}

void GgufTensor::dequantize_to(float* to) const {
  std::vector<std::byte> room;
  dequantize(dtype, rows(0, rows(), room), to, elements());
}

std::size_t GgufFile::file_bytes() const {
  std::size_t sum = 0;
  for (const MappedFile& f : files_) sum += f.bytes().size();
  return sum;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  const GgufTensor* t = find_tensor(name);
  if (!t) fail("{}: tensor {} is missing", path_, printable(name));
  return *t;
}

bool GgufFile::has(std::string_view key) const { return metadata_.contains(key); }

const GgufEntry* GgufFile::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> GgufFile::find_int(std::string_view key) const {
  return integer(path_, metadata_, key);
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (!entry) return std::nullopt;
  if (const auto* d = std::get_if<double>(&entry->value)) return *d;
  if (const auto* u = std::get_if<std::uint64_t>(&entry->value)) return static_cast<double>(*u);
  if (const auto* i = std::get_if<std::int64_t>(&entry->value)) return static_cast<double>(*i);
  wrong_kind(path_, key, "a number", *entry);
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (!entry) return std::nullopt;
  if (const auto* b = std::get_if<bool>(&entry->value)) return *b;
  wrong_kind(path_, key, "a bool", *entry);
}

std::optional<std::string> GgufFile::find_string(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (!entry) return std::nullopt;
  if (const auto* s = std::get_if<std::string>(&entry->value)) return *s;
  wrong_kind(path_, key, "a string", *entry);
}

const GgufArray* GgufFile::find_array(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (!entry) return nullptr;
  if (const auto* a = std::get_if<GgufArray>(&entry->value)) return a;
  wrong_kind(path_, key, "an array", *entry);
}

std::int64_t GgufFile::get_int(std::string_view key) const { return required(find_int(key), path_, key); }
double GgufFile::get_float(std::string_view key) const { return required(find_float(key), path_, key); }

const std::string& GgufFile::get_string(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (!entry) fail("{}: key {} is missing", path_, printable(key));
  if (const auto* s = std::get_if<std::string>(&entry->value)) return *s;
  wrong_kind(path_, key, "a string", *entry);
}

const GgufArray& GgufFile::get_array(std::string_view key) const {
  const GgufArray* array = find_array(key);
  if (!array) fail("{}: key {} is missing", path_, printable(key));
  return *array;
}

}  // namespace narrows
