#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/output_file.h"
#include "formats/gguf.h"
#include "formats/gguf_format.h"

namespace narrows {
namespace {

using gguf::printable;

// The little-endian bytes of header, keys and values.
class Bytes {
 public:
  template <typename T>
  void put(T value) {
    data_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void put_string(std::string_view s) {
    put(std::uint64_t{s.size()});
    data_.append(s);
  }
  void append(std::string_view bytes) { data_.append(bytes); }
  std::string&& take() { return std::move(data_); }

 private:
  std::string data_;
};

// One number as a T; throws if it does not fit.
template <typename T, typename Wide>
void put_number(Bytes& out, Wide value, GgufType type, std::string_view key) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isfinite(value) && std::fabs(value) > std::numeric_limits<T>::max())
      fail("key {}: {} does not fit in {}", printable(key), value, gguf::type_name(type));
  } else {
    if (!std::in_range<T>(value))
      fail("key {}: {} does not fit in {}", printable(key), value, gguf::type_name(type));
  }
  out.put(static_cast<T>(value));
}

template <typename Wide>
void put_integer(Bytes& out, Wide value, GgufType type, std::string_view key) {
  switch (type) {
    case GgufType::U8:
      return put_number<std::uint8_t>(out, value, type, key);
    case GgufType::I8:
      return put_number<std::int8_t>(out, value, type, key);
    case GgufType::U16:
      return put_number<std::uint16_t>(out, value, type, key);
    case GgufType::I16:
      return put_number<std::int16_t>(out, value, type, key);
    case GgufType::U32:
      return put_number<std::uint32_t>(out, value, type, key);
    case GgufType::I32:
      return put_number<std::int32_t>(out, value, type, key);
    case GgufType::U64:
      return put_number<std::uint64_t>(out, value, type, key);
    case GgufType::I64:
      return put_number<std::int64_t>(out, value, type, key);
    default:
      fail("key {}: an integer cannot be of type {}", printable(key), gguf::type_name(type));
  }
}

void put_float(Bytes& out, double value, GgufType type, std::string_view key) {
  switch (type) {
    case GgufType::F32:
      return put_number<float>(out, value, type, key);
    case GgufType::F64:
      return put_number<double>(out, value, type, key);
    default:
      fail("key {}: a real number cannot be of type {}", printable(key), gguf::type_name(type));
  }
}

void put_array(Bytes& out, const GgufArray& array, std::string_view key) {
  const bool strings = array.element == GgufType::String;
  const bool floats = array.element == GgufType::F32 || array.element == GgufType::F64;
  if ((!strings && !array.strings.empty()) || (!floats && !array.floats.empty()) ||
      ((strings || floats) && !array.integers.empty()))
    fail("key {}: expected an array of {} only", printable(key), gguf::type_name(array.element));
  out.put(static_cast<std::uint32_t>(array.element));
  out.put(std::uint64_t{array.size()});
  for (const std::string& s : array.strings) out.put_string(s);
  for (const double d : array.floats) put_float(out, d, array.element, key);
  for (const std::int64_t i : array.integers) {
    if (array.element == GgufType::Bool)
      out.put(static_cast<std::uint8_t>(i != 0));
    else
      put_integer(out, i, array.element, key);
  }
}

std::string encode(const GgufEntry& entry, std::string_view key) {
  Bytes out;
  out.put(static_cast<std::uint32_t>(entry.type));
  const auto expect = [&](GgufType type) {
    if (entry.type != type)
      fail("key {}: expected a value of type {}, found one of type {}", printable(key),
           gguf::type_name(entry.type), gguf::type_name(type));
  };
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>) {
          expect(GgufType::Bool);
          out.put(static_cast<std::uint8_t>(value));
        } else if constexpr (std::is_same_v<T, std::string>) {
          expect(GgufType::String);
          out.put_string(value);
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          expect(GgufType::Array);
          put_array(out, value, key);
        } else if constexpr (std::is_same_v<T, double>) {
          put_float(out, value, entry.type, key);
        } else {
          put_integer(out, value, entry.type, key);
        }
      },
      entry.value);
  return out.take();
}

// Counts what a producer delivers for one tensor.
struct Delivery {
  OutputFile& file;
  const std::string& path;
  const GgufTensor& tensor;
  std::size_t received = 0;

  static void accept(void* self, std::span<const std::byte> bytes) {
    auto& d = *static_cast<Delivery*>(self);
    if (bytes.size() > d.tensor.bytes - d.received)
      fail("{}: tensor {}: expected {} bytes of data, found more", d.path, printable(d.tensor.name),
           d.tensor.bytes);
    d.received += bytes.size();
    d.file.write(bytes);
  }
};

void pad(OutputFile& file, std::uint64_t alignment) {
  const std::string zeros(gguf::align(file.written(), alignment) - file.written(), '\0');
  file.write(zeros.data(), zeros.size());
}

}  // namespace

GgufWriter::GgufWriter(std::uint32_t alignment) : alignment_(alignment) {
  if (alignment < gguf::kLeastAlignment || !std::has_single_bit(alignment))
    fail("alignment {}: expected a power of two of at least {}", alignment, gguf::kLeastAlignment);
  if (alignment != gguf::kDefaultAlignment) set_u32("general.alignment", alignment);
}

void GgufWriter::set(const std::string& key, const GgufEntry& entry) {
  if (key.empty() || key.size() > gguf::kLongestKey)
    fail("key {}: expected 1 to {} bytes, found {}", printable(key), gguf::kLongestKey, key.size());
  std::string value = encode(entry, key);
  if (key == "general.alignment" && value != encode({GgufType::U32, std::uint64_t{alignment_}}, key))
    fail("key {}: expected {} as u32, the alignment of the writer", key, alignment_);
  const auto found = std::ranges::find(metadata_, key, &std::pair<std::string, std::string>::first);
  if (found != metadata_.end())
    found->second = std::move(value);
  else
    metadata_.emplace_back(key, std::move(value));
}

void GgufWriter::set_u32(const std::string& key, std::uint32_t value) {
  set(key, {GgufType::U32, std::uint64_t{value}});
}
void GgufWriter::set_f32(const std::string& key, float value) { set(key, {GgufType::F32, double{value}}); }
void GgufWriter::set_string(const std::string& key, std::string value) {
  set(key, {GgufType::String, std::move(value)});
}

void GgufWriter::add_tensor(const std::string& name, DType dtype, std::span<const std::int64_t> shape) {
  const std::string where = "tensor " + printable(name);
  if (name.empty() || name.size() > gguf::kLongestTensorName)
    fail("{}: expected a name of 1 to {} bytes, found {}", where, gguf::kLongestTensorName, name.size());
  GgufTensor tensor;
  if (shape.empty() || shape.size() > tensor.shape.size())
    fail("{}: expected 1 to 4 dimensions, found {}", where, shape.size());
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.dims = static_cast<int>(shape.size());
  std::ranges::copy(shape, tensor.shape.begin());
  gguf::set_bytes(tensor, where);
  if (!names_.insert(name).second) fail("{}: added twice", where);
  tensors_.push_back(std::move(tensor));
}

void GgufWriter::write_with(const std::string& path, ProduceFn produce, void* self) const {
  Bytes header;
  header.put(gguf::kMagic);
  header.put(std::uint32_t{3});
  header.put(std::uint64_t{tensors_.size()});
  header.put(std::uint64_t{metadata_.size()});
  for (const auto& [key, value] : metadata_) {
    header.put_string(key);
    header.append(value);
  }
  std::uint64_t offset = 0;
  for (const GgufTensor& t : tensors_) {
    header.put_string(t.name);
    header.put(static_cast<std::uint32_t>(t.dims));
    for (int d = 0; d < t.dims; ++d) header.put(t.shape[d]);
    header.put(static_cast<std::uint32_t>(t.dtype));
    header.put(offset);
    if (__builtin_add_overflow(gguf::align(t.bytes, alignment_), offset, &offset))
      fail("{}: tensor {}: expected fewer than 2^64 bytes of tensor data", path, printable(t.name));
  }

  OutputFile file(path);
  const std::string bytes = header.take();
  file.write(bytes.data(), bytes.size());
  pad(file, alignment_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    Delivery delivery{file, path, tensors_[i]};
    produce(self, i, &Delivery::accept, &delivery);
    if (delivery.received != tensors_[i].bytes)
      fail("{}: tensor {}: expected {} bytes of data, found {}", path, printable(tensors_[i].name),
           tensors_[i].bytes, delivery.received);
    pad(file, alignment_);
  }
  file.commit();
}

}  // namespace narrows
