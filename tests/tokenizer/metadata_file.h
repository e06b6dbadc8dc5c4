// Writes GGUF files without tensors, byte by byte, so that tests and fuzzers can put anything into the
// metadata.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

class MetadataFile {
 public:
  MetadataFile& text(std::string_view key, std::string_view value) { return entry(key, 8).string(value); }
  MetadataFile& u32(std::string_view key, std::uint32_t value) { return entry(key, 4).number(value); }
  MetadataFile& boolean(std::string_view key, bool value) {
    return entry(key, 7).number(std::uint8_t{value});
  }
  MetadataFile& texts(std::string_view key, const std::vector<std::string>& values) {
    array(key, 8, values.size());
    for (const std::string& value : values) string(value);
    return *this;
  }
  MetadataFile& i32s(std::string_view key, const std::vector<std::int32_t>& values) {
    array(key, 5, values.size());
    for (const std::int32_t value : values) number(value);
    return *this;
  }
  MetadataFile& f32s(std::string_view key, const std::vector<float>& values) {
    array(key, 6, values.size());
    for (const float value : values) number(value);
    return *this;
  }

  std::string bytes() const {
    MetadataFile file;
    file.body_ = "GGUF";
    file.number(std::uint32_t{3}).number(std::uint64_t{0}).number(count_);
    return file.body_ + body_;
  }

 private:
  MetadataFile& entry(std::string_view key, std::uint32_t type) {
    ++count_;
    return string(key).number(type);
  }
  MetadataFile& array(std::string_view key, std::uint32_t type, std::uint64_t count) {
    return entry(key, 9).number(type).number(count);
  }
  MetadataFile& string(std::string_view value) {
    number(std::uint64_t{value.size()});
    body_ += value;
    return *this;
  }
  template <typename Number>
  MetadataFile& number(Number value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }

  std::string body_;
  std::uint64_t count_ = 0;
};

}  // namespace narrows
