// GGUF files made byte by byte, valid or not.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"

namespace narrows {

class GgufBytes {
 public:
  std::uint32_t magic = 0x46554747, version = 3;
  std::uint64_t extra_tensors = 0, extra_entries = 0;  // claimed by the header but absent
  std::uint64_t alignment = 32;
  bool cut_padding = false;  // end right after the descriptions

  template <typename T>
  static std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
  }
  static std::string text(std::string_view s) { return raw(std::uint64_t{s.size()}).append(s); }

  // A metadata entry: the value's bytes follow key and type.
  GgufBytes& entry(std::string_view key, std::uint32_t type, const std::string& value) {
    entries_.push_back(text(key) + raw(type) + value);
    return *this;
  }
  GgufBytes& u32(std::string_view key, std::uint32_t v) { return entry(key, 4, raw(v)); }
  GgufBytes& u16(std::string_view key, std::uint16_t v) { return entry(key, 2, raw(v)); }
  GgufBytes& string(std::string_view key, std::string_view v) { return entry(key, 8, text(v)); }
  GgufBytes& array(std::string_view key, std::uint32_t element, std::uint64_t count,
                   const std::string& values) {
    return entry(key, 9, raw(element) + raw(count) + values);
  }
  GgufBytes& tensor(std::string_view name, const std::vector<std::int64_t>& shape, std::uint32_t type,
                    std::uint64_t offset) {
    std::string s = text(name) + raw(static_cast<std::uint32_t>(shape.size()));
    for (const std::int64_t d : shape) s += raw(d);
    tensors_.push_back(s + raw(type) + raw(offset));
    return *this;
  }
  GgufBytes& data(const std::string& bytes) {
    data_ = bytes;
    return *this;
  }

  std::string str() const {
    std::string s = raw(magic) + raw(version) + raw(tensors_.size() + extra_tensors) +
                    raw(entries_.size() + extra_entries);
    for (const auto& e : entries_) s += e;
    for (const auto& t : tensors_) s += t;
    if (!cut_padding) s.resize((s.size() + alignment - 1) / alignment * alignment);
    return s + data_;
  }

 private:
  std::vector<std::string> entries_, tensors_;
  std::string data_;
};

}  // namespace narrows
