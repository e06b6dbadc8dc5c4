// Products with block quantized weights, against sums in double of the same codes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/matmul.h"
#include "kernels/on_targets.h"

namespace narrows {
namespace {

constexpr std::array kTypes = {DType::Q4_0, DType::Q4_1, DType::Q5_0,   DType::Q5_1,
                               DType::Q8_0, DType::Q2_K, DType::Q3_K,   DType::Q4_K,
                               DType::Q5_K, DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS};
constexpr std::int64_t kTokens[] = {1, 2, 3, 5, 8, 13, 16, 37};
constexpr std::int64_t kRows[] = {1, 7, 16, 33};

std::vector<std::int64_t> widths(DType dtype) {
  if (dtype_info(dtype).block_size == 256) return {256, 512};
  return {32, 64, 576};
}

// Where a block keeps its f16 factors.
std::vector<int> factor_offsets(DType dtype) {
  switch (dtype) {
    case DType::Q4_1:
    case DType::Q5_1:
    case DType::Q4_K:
    case DType::Q5_K:
      return {0, 2};
    case DType::Q2_K:
      return {80, 82};
    case DType::Q3_K:
      return {108};
    case DType::Q6_K:
      return {208};
    default:
      return {0};
  }
}

// Blocks of random bytes: every code, scale and bit of the layout occurs. Only the f16 factors are kept sane.
struct Weights {
  std::vector<std::byte> bytes;
  AlignedVector<std::byte> tiles;
  WeightMatrix matrix, packed;

  Weights(DType dtype, std::int64_t rows, std::int64_t cols) {
    const DTypeInfo& info = dtype_info(dtype);
    std::mt19937 bits(static_cast<std::uint32_t>(rows * 1000 + cols));
    std::uniform_real_distribution<float> factor(-0.1f, 0.1f);
    bytes.resize(static_cast<std::size_t>(rows) * row_bytes(dtype, cols));
    for (std::byte& b : bytes) b = static_cast<std::byte>(bits());
    for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(info.block_bytes))
      for (const int offset : factor_offsets(dtype)) {
        const std::uint16_t half = f32_to_f16(factor(bits));
        std::memcpy(bytes.data() + at + offset, &half, 2);
      }
    matrix = {dtype, rows, cols, bytes.data(), nullptr};
    tiles.resize(static_cast<std::size_t>(matrix.tiles()) * packed_tile_bytes(dtype, cols));
    for (std::int64_t t = 0; t < matrix.tiles(); ++t)
      pack_tile(matrix, t, tiles.data() + static_cast<std::size_t>(t) * packed_tile_bytes(dtype, cols));
    packed = matrix;
    packed.packed = tiles.data();
  }
};

// Every third row gets an outlier, so that fine blocks and plain ones meet in one pass over a tile.
std::vector<float> with_outliers(std::vector<float> x, std::int64_t rows, std::int64_t k) {
  for (std::int64_t t = 0; t < rows; t += 3) x[static_cast<std::size_t>(t * k + (t * 7 + 3) % k)] = 50;
  return x;
}

QuantizedRows quantized(const std::vector<float>& x, std::int64_t rows, std::int64_t k) {
  QuantizedRows q;
  q.resize(rows, k);
  quantize_rows(x.data(), k, {0, rows}, q);
  return q;
}

std::vector<float> product(const WeightMatrix& w, const QuantizedRows& x, const float* bias) {
  std::vector<float> y(static_cast<std::size_t>(x.rows * w.rows), -1e30f);
  TileScratch scratch;
  matmul_quantized(w, {0, w.tiles()}, x, {0, x.rows}, bias, y.data(), w.rows, scratch);
  return y;
}

// Expects y within 1e-5 · Σ |terms| of the sum in double of decoded weights and decoded activations.
void expect_close(const WeightMatrix& w, const QuantizedRows& x, const float* bias,
                  const std::vector<float>& y) {
  std::vector<float> row(static_cast<std::size_t>(w.cols));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    dequantize(w.dtype, w.data + static_cast<std::size_t>(r) * row_bytes(w.dtype, w.cols), row.data(),
               w.cols);
    for (std::int64_t t = 0; t < x.rows; ++t) {
      double sum = bias ? bias[r] : 0, size = std::fabs(sum);
      for (std::int64_t k = 0; k < w.cols; ++k) {
        const double value = static_cast<double>(x.scale[block_at(x, t, k / 32)]) *
                             (x.q[code_at(x, t, k)] +
                              x.low[code_at(x, t, k)] / 128.0);
        sum += row[static_cast<std::size_t>(k)] * value;
        size += std::fabs(row[static_cast<std::size_t>(k)] * value);
      }
      ASSERT_NEAR(y[static_cast<std::size_t>(t * w.rows + r)], sum, 1e-5 * size)
          << "row " << r << ", token " << t;
    }
  }
}

class MatmulQuantized : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }

 private:
  WithTarget target_{std::get<0>(GetParam())};
};

TEST_P(MatmulQuantized, IsTheSumOfProducts) {
  for (const std::int64_t rows : kRows)
    for (const std::int64_t cols : widths(dtype()))
      for (const std::int64_t tokens : kTokens) {
        SCOPED_TRACE(fmt::format("{} rows, {} columns, {} tokens", rows, cols, tokens));
        const Weights w(dtype(), rows, cols);
        const auto x = quantized(
            with_outliers(gaussian(static_cast<std::size_t>(tokens * cols), 2), tokens, cols), tokens, cols);
        const std::vector<float> bias = gaussian(static_cast<std::size_t>(rows), 3);
        for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
          const std::vector<float> y = product(w.packed, x, b);
          ASSERT_NO_FATAL_FAILURE(expect_close(w.matrix, x, b, y));
          ASSERT_TRUE(same_bits(y, product(w.matrix, x, b))) << "packed as it is used";
        }
      }
}

TEST_P(MatmulQuantized, KeepsItsBitsHoweverTheWorkIsSplit) {
  const std::int64_t rows = 41, cols = 512, tokens = 45;
  const Weights w(dtype(), rows, cols);
  const std::vector<float> x = with_outliers(gaussian(static_cast<std::size_t>(tokens * cols), 4), tokens, cols);
  const std::vector<float> bias = gaussian(static_cast<std::size_t>(rows), 5);
  const QuantizedRows together = quantized(x, tokens, cols);
  const std::vector<float> expected = product(w.packed, together, bias.data());
  TileScratch scratch;

  std::vector<float> y(expected.size());
  for (std::int64_t tile = 0; tile < w.packed.tiles(); ++tile)
    for (const auto& [begin, end] : {Range{0, 6}, Range{6, 7}, Range{7, 45}})
      matmul_quantized(w.packed, {tile, tile + 1}, together, {begin, end}, bias.data(), y.data(), rows,
                       scratch);
  EXPECT_TRUE(same_bits(y, expected)) << "by tiles and tokens";

  for (std::int64_t t = 0; t < tokens; ++t) {
    const QuantizedRows one = quantized({x.begin() + t * cols, x.begin() + (t + 1) * cols}, 1, cols);
    matmul_quantized(w.packed, {0, w.packed.tiles()}, one, {0, 1}, bias.data(), y.data() + t * rows, rows,
                     scratch);
  }
  EXPECT_TRUE(same_bits(y, expected)) << "one token at a time";
}

TEST_P(MatmulQuantized, WritesNothingElse) {
  const std::int64_t rows = 18, cols = 256, stride = 30;
  const Weights w(dtype(), rows, cols);
  const auto x = quantized(gaussian(3 * cols, 6), 3, cols);
  std::vector<float> y(3 * stride, 7.0f);
  TileScratch scratch;
  matmul_quantized(w.packed, {1, 2}, x, {1, 2}, nullptr, y.data(), stride, scratch);
  for (std::int64_t i = 0; i < std::ssize(y); ++i)
    if (i != stride + 16 && i != stride + 17) {
      EXPECT_EQ(y[static_cast<std::size_t>(i)], 7.0f) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, MatmulQuantized,
                         testing::Combine(testing::ValuesIn(dispatch_targets()), testing::ValuesIn(kTypes)),
                         [](const auto& p) {
                           return fmt::format("{}_{}", std::get<0>(p.param),
                                              dtype_info(std::get<1>(p.param)).name);
                         });

TEST(MatmulQuantizedTargets, AgreeToTheBit) {
  if (fma_targets().size() < 2) GTEST_SKIP() << "one instruction set with fused multiply-add";
  for (const DType dtype : kTypes) {
    const Weights w(dtype, 33, 512);
    const std::vector<float> x = gaussian(13 * 512, 7), bias = gaussian(33, 8);
    std::vector<float> expected;
    for (const std::string& name : fma_targets()) {
      const WithTarget target(name);
      const std::vector<float> y = product(w.packed, quantized(x, 13, 512), bias.data());
      if (expected.empty()) expected = y;
      EXPECT_TRUE(same_bits(y, expected)) << dtype_info(dtype).name << " on " << name;
    }
  }
}

// The most that codes and activations can add up to in 16-bit steps.
TEST_P(MatmulQuantized, DoesNotSaturate) {
  const std::int64_t cols = 256;
  Weights w(dtype(), 16, cols);
  for (const auto byte : {std::byte{0xff}, std::byte{0x7f}, std::byte{0x80}, std::byte{0}}) {
    const DTypeInfo& info = dtype_info(dtype());
    std::ranges::fill(w.bytes, byte);
    for (std::size_t at = 0; at < w.bytes.size(); at += static_cast<std::size_t>(info.block_bytes))
      for (const int offset : factor_offsets(dtype())) {
        const std::uint16_t one = f32_to_f16(1);
        std::memcpy(w.bytes.data() + at + offset, &one, 2);
      }
    for (const float sign : {1.0f, -1.0f}) {
      const auto x = quantized(std::vector<float>(cols, sign), 1, cols);
      expect_close(w.matrix, x, nullptr, product(w.matrix, x, nullptr));
    }
  }
}

TEST(PackTile, CountsTheBytesItReads) {
  for (const DType dtype : kTypes) {
    const Weights w(dtype, 33, 512);
    EXPECT_EQ(w.packed.tiles(), 3);
    EXPECT_EQ(packed_tile_bytes(dtype, 512) % 64, 0u);
    EXPECT_EQ(w.packed.bytes_read(), w.tiles.size());
    EXPECT_EQ(w.matrix.bytes_read(), w.bytes.size());
    EXPECT_TRUE(is_packed_type(dtype));
    // Packing may not make a product read much more than the file holds.
    EXPECT_LE(packed_tile_bytes(dtype, 4096), 1.2 * 16 * static_cast<double>(row_bytes(dtype, 4096)));
  }
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) EXPECT_FALSE(is_packed_type(dtype));
}

}  // namespace
}  // namespace narrows
