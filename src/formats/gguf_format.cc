#include "formats/gguf_format.h"

#include <fmt/format.h>

namespace narrows::gguf {

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
