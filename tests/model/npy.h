// Reads what numpy.save() writes, as far as golden files need it: float32, C order, two dimensions.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace narrows {

struct NpyMatrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values;  // [rows][cols]
};

inline NpyMatrix read_npy(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const auto refuse = [&](const char* what) { throw std::runtime_error(path + ": " + what); };
  constexpr std::size_t kPrefix = 10;  // magic, version, length of the header
  if (bytes.size() < kPrefix || bytes.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) != 0)
    refuse("not an .npy file of version 1.0");
  const std::size_t header =
      static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  const std::string text = bytes.substr(kPrefix, header);
  NpyMatrix matrix;
  long long rows = 0, cols = 0;
  const std::size_t shape = text.find("'shape'");
  if (text.find("'<f4'") == std::string::npos || text.find("'fortran_order': False") == std::string::npos ||
      shape == std::string::npos ||
      std::sscanf(text.c_str() + shape, "'shape': (%lld, %lld)", &rows, &cols) != 2)
    refuse("expected a float32 matrix in C order");
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.values.resize(static_cast<std::size_t>(rows * cols));
  if (bytes.size() != kPrefix + header + 4 * matrix.values.size())
    refuse("data of another size than its shape");
  std::memcpy(matrix.values.data(), bytes.data() + kPrefix + header, 4 * matrix.values.size());
  return matrix;
}

}  // namespace narrows
