#include "formats/gguf_format.h"

#include "base/error.h"

namespace narrows::gguf {

void set_bytes(GgufTensor& tensor, const std::string& where) {
  std::int64_t elements = 1;
  for (int d = 0; d < tensor.dims; ++d) {
    if (tensor.shape[d] < 1)
      fail("{}: dimension {}: expected a size of at least 1, found {}", where, d, tensor.shape[d]);
    if (__builtin_mul_overflow(elements, tensor.shape[d], &elements))
      fail("{}: expected fewer than 2^63 elements", where);
  }
  const DTypeInfo& info = dtype_info(tensor.dtype);
  if (tensor.shape[0] % info.block_size != 0)
    fail("{}: expected rows of a multiple of {} elements for type {}, found {}", where, info.block_size,
         info.name, tensor.shape[0]);
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements / info.block_size),
                             static_cast<std::uint64_t>(info.block_bytes), &tensor.bytes))
    fail("{}: expected fewer than 2^64 bytes", where);
}

std::string_view type_name(GgufType type) {
  switch (type) {
    case GgufType::U8:
      return "u8";
    case GgufType::I8:
      return "i8";
    case GgufType::U16:
      return "u16";
    case GgufType::I16:
      return "i16";
    case GgufType::U32:
      return "u32";
    case GgufType::I32:
      return "i32";
    case GgufType::F32:
      return "f32";
    case GgufType::Bool:
      return "bool";
    case GgufType::String:
      return "string";
    case GgufType::Array:
      return "array";
    case GgufType::U64:
      return "u64";
    case GgufType::I64:
      return "i64";
    case GgufType::F64:
      return "f64";
  }
  return "unknown";
}

std::string printable(std::string_view name) {
  constexpr std::size_t kMost = 100;
  std::string out;
  for (const char c : name.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || byte == '\\')
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  if (name.size() > kMost) out += "…";
  return out;
}

}  // namespace narrows::gguf
