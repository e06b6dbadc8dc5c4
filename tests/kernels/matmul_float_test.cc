// Products with float weights, against sums in double.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/matmul.h"
#include "kernels/on_targets.h"

namespace narrows {
namespace {

constexpr std::int64_t kWidths[] = {1, 8, 15, 16, 17, 48, 576};
constexpr DType kTypes[] = {DType::F32, DType::F16, DType::BF16};

struct Weights {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  WeightMatrix matrix;

  Weights(DType dtype, std::int64_t rows, std::int64_t cols) {
    const std::vector<float> x = gaussian(static_cast<std::size_t>(rows * cols), 1);
    bytes.resize(static_cast<std::size_t>(rows) * row_bytes(dtype, cols));
    quantize(dtype, x.data(), bytes.data(), rows * cols);
    values.resize(x.size());
    dequantize(dtype, bytes.data(), values.data(), rows * cols);
    matrix = {dtype, rows, cols, bytes.data(), nullptr};
  }
};

std::vector<float> product(const WeightMatrix& w, const std::vector<float>& x, const float* bias) {
  const std::int64_t tokens = std::ssize(x) / w.cols;
  std::vector<float> y(static_cast<std::size_t>(tokens * w.rows), -1e30f);
  matmul_float(w, {0, w.rows}, x.data(), w.cols, {0, tokens}, bias, y.data(), w.rows);
  return y;
}

class MatmulFloat : public OnTargets {};
NARROWS_ON_TARGETS(MatmulFloat);

TEST_P(MatmulFloat, IsTheSumOfProducts) {
  for (const DType dtype : kTypes)
    for (const std::int64_t cols : kWidths)
      for (const std::int64_t rows : {1, 4, 7, 33})
        for (const std::int64_t tokens : {1, 2, 5, 8, 13}) {
          const Weights w(dtype, rows, cols);
          const std::vector<float> x = gaussian(static_cast<std::size_t>(tokens * cols), 2);
          const std::vector<float> bias = gaussian(static_cast<std::size_t>(rows), 3);
          for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
            const std::vector<float> y = product(w.matrix, x, b);
            for (std::int64_t t = 0; t < tokens; ++t)
              for (std::int64_t r = 0; r < rows; ++r) {
                double sum = b ? b[r] : 0, size = std::fabs(sum);
                for (std::int64_t k = 0; k < cols; ++k) {
                  const double term = static_cast<double>(w.values[static_cast<std::size_t>(r * cols + k)]) *
                                      x[static_cast<std::size_t>(t * cols + k)];
                  sum += term;
                  size += std::fabs(term);
                }
                ASSERT_NEAR(y[static_cast<std::size_t>(t * rows + r)], sum, 2e-6 * size)
                    << dtype_info(dtype).name << ", " << rows << " × " << cols << ", row " << r << ", token "
                    << t;
              }
          }
        }
}

TEST_P(MatmulFloat, KeepsItsBitsHoweverTheWorkIsSplit) {
  const std::int64_t rows = 23, tokens = 13;
  for (const DType dtype : kTypes)
    for (const std::int64_t cols : kWidths) {
      const Weights w(dtype, rows, cols);
      const std::vector<float> x = gaussian(static_cast<std::size_t>(tokens * cols), 4);
      const std::vector<float> bias = gaussian(static_cast<std::size_t>(rows), 5);
      const std::vector<float> expected = product(w.matrix, x, bias.data());
      std::vector<float> y(expected.size());
      for (const Range r : {Range{0, 1}, Range{1, 6}, Range{6, 20}, Range{20, 23}})
        for (const Range t : {Range{0, 6}, Range{6, 7}, Range{7, 13}})
          matmul_float(w.matrix, r, x.data(), cols, t, bias.data(), y.data(), rows);
      EXPECT_TRUE(same_bits(y, expected)) << dtype_info(dtype).name << ", " << cols << " columns";
    }
}

TEST_P(MatmulFloat, TakesAndLeavesStrides) {
  const Weights w(DType::F16, 5, 20);
  const std::vector<float> x = gaussian(3 * 27, 6);
  std::vector<float> y(3 * 9, 7.0f);
  matmul_float(w.matrix, {1, 4}, x.data(), 27, {1, 3}, nullptr, y.data(), 9);
  for (std::int64_t t = 0; t < 3; ++t) {
    const std::vector<float> expected =
        product(w.matrix, {x.begin() + t * 27, x.begin() + t * 27 + 20}, nullptr);
    for (std::int64_t i = 0; i < 9; ++i) {
      const bool written = t >= 1 && i >= 1 && i < 4;
      EXPECT_EQ(y[static_cast<std::size_t>(t * 9 + i)],
                written ? expected[static_cast<std::size_t>(i)] : 7.0f);
    }
  }
}

// Every finite f16 and bf16 number, subnormals included, goes through the kernels unchanged. (Highway's SSE4
// decodes f16 infinities as 65536.)
TEST_P(MatmulFloat, DecodesEveryHalf) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    const WeightMatrix w{dtype, 65536, 1, reinterpret_cast<const std::byte*>(halves.data()), nullptr};
    const std::vector<float> y = product(w, {1.0f}, nullptr);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      float expected;
      dequantize(dtype, w.data + 2 * i, &expected, 1);
      EXPECT_TRUE(!std::isfinite(expected) || y[i] == expected) << i << ": " << y[i];
    }
  }
}

TEST(MatmulFloatTargets, AgreeToTheBit) {
  if (fma_targets().size() < 2) GTEST_SKIP() << "one instruction set with fused multiply-add";
  for (const DType dtype : kTypes)
    for (const std::int64_t cols : kWidths) {
      const Weights w(dtype, 23, cols);
      const std::vector<float> x = gaussian(static_cast<std::size_t>(9 * cols), 7);
      std::vector<float> expected;
      for (const std::string& name : fma_targets()) {
        const WithTarget target(name);
        const std::vector<float> y = product(w.matrix, x, nullptr);
        if (expected.empty()) expected = y;
        EXPECT_TRUE(same_bits(y, expected))
            << dtype_info(dtype).name << ", " << cols << " columns on " << name;
      }
    }
}

}  // namespace
}  // namespace narrows
