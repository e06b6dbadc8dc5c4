// Writes safetensors files, sound ones and others.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace narrows {

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The header and the data of a file.
struct SafetensorsFile {
  nlohmann::ordered_json header;
  std::string data;

  static SafetensorsFile read(const std::string& path) {
    const std::string bytes = read_bytes(path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    return {nlohmann::ordered_json::parse(bytes.substr(sizeof(length), length)), bytes.substr(sizeof(length) + length)};
  }
  void write(const std::string& path) const { write_bytes(path, safetensors_bytes(header.dump(), data)); }
};

}  // namespace narrows
