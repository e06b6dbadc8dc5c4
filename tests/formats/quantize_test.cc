#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/error.h"
#include "formats/dtype.h"
#include "formats/gguf.h"

namespace narrows {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr DType kEncoded[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q4_0, DType::Q4_1,
                              DType::Q5_0, DType::Q8_0, DType::Q4_K, DType::Q6_K};

std::vector<std::byte> encode(DType dtype, const std::vector<float>& x) {
  std::vector<std::byte> bytes(row_bytes(dtype, static_cast<std::int64_t>(x.size())));
  quantize(dtype, x.data(), bytes.data(), static_cast<std::int64_t>(x.size()));
  return bytes;
}

std::vector<float> there_and_back(DType dtype, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  dequantize(dtype, encode(dtype, x).data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

// Root mean square error as a share of the values' root mean square.
double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, square = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    square += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / square);
}

std::vector<float> gaussian(std::size_t n, float scale) {
  std::mt19937 bits(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(bits);
  return x;
}

// What the gguf Python package encodes.
TEST(Quantize, AgreesToTheByte) {
  const GgufFile golden = GgufFile::open(NARROWS_TEST_DATA "/formats/quantize.gguf");
  const GgufTensor& values = golden.tensor("values");
  std::vector<float> x(static_cast<std::size_t>(values.elements()));
  std::memcpy(x.data(), values.data, values.bytes);
  int types = 0;
  for (const GgufTensor& t : golden.tensors()) {
    if (t.name == "values") continue;
    ++types;
    ASSERT_TRUE(can_quantize(t.dtype));
    const std::vector<std::byte> bytes = encode(t.dtype, x);
    ASSERT_EQ(bytes.size(), t.bytes);
    const auto block = static_cast<std::size_t>(dtype_info(t.dtype).block_bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      ASSERT_EQ(bytes[i], t.data[i]) << t.name << " block " << i / block << " byte " << i % block;
  }
  EXPECT_EQ(types, 6);
}

// ggml's reference quantizers reach 0.0712 for Q4_K and 0.0177 for Q6_K on such data.
TEST(Quantize, ErrorOnGaussians) {
  const std::vector<float> x = gaussian(1 << 16, 0.02f);
  const std::pair<DType, double> bounds[] = {
      {DType::F32, 0},       {DType::F16, 0.0003},  {DType::BF16, 0.002},
      {DType::Q8_0, 0.0062}, {DType::Q6_K, 0.0178}, {DType::Q5_0, 0.045},
      {DType::Q4_K, 0.0712}, {DType::Q4_1, 0.08},   {DType::Q4_0, 0.092}};
  for (const auto& [dtype, bound] : bounds)
    EXPECT_LE(relative_error(x, there_and_back(dtype, x)), bound) << dtype_info(dtype).name;
}

TEST(Quantize, KeepsZeros) {
  for (const DType dtype : kEncoded)
    for (const float v : there_and_back(dtype, std::vector<float>(512)))
      EXPECT_EQ(v, 0) << dtype_info(dtype).name;
}

// A group of zeros beside others; a group of one value; one value alone in its block.
TEST(Quantize, UnevenGroups) {
  std::vector<float> x(512, 0.0f);
  for (int i = 32; i < 64; ++i) x[i] = -0.25f;
  for (int i = 64; i < 96; ++i) x[i] = 0.5f;
  x[300] = -1;
  x[400] = 1;
  for (const DType dtype : kEncoded) {
    const std::vector<float> y = there_and_back(dtype, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Zero is not on the grid of types with a minimum, only near it.
      EXPECT_NEAR(y[i], x[i], std::max(1e-3, 0.14 * std::fabs(x[i]))) << dtype_info(dtype).name << " " << i;
    }
  }
}

TEST(Quantize, EverySizeOfValue) {
  const std::vector<float> unit = gaussian(512, 1);
  for (const DType dtype : kEncoded) {
    for (int exponent = -149; exponent <= 15; ++exponent) {
      std::vector<float> x = unit;
      for (float& v : x) v = std::ldexp(std::fabs(v) > 2 ? 2 : v, exponent - 1);
      const std::vector<float> y = there_and_back(dtype, x);
      const double largest = std::ldexp(1.0, exponent);
      for (const float v : y)
        ASSERT_LE(std::fabs(v), 1.2 * largest + 0x1p-14) << dtype_info(dtype).name << " " << exponent;
      // While the scales are normal f16 numbers, relative errors do not depend on the size.
      if (exponent >= -1) {
        EXPECT_LE(relative_error(x, y), 0.12) << dtype_info(dtype).name << " " << exponent;
      }
    }
  }
}

TEST(Quantize, NoScaleIsInfinite) {
  const std::pair<DType, float> within[] = {{DType::F16, 65504},           {DType::BF16, 3.3e38f},
                                            {DType::Q8_0, 65504 * 127.0f}, {DType::Q4_0, 65504 * 8},
                                            {DType::Q5_0, 65504 * 16},     {DType::Q4_1, 65504},
                                            {DType::Q4_K, 5e7f},           {DType::Q6_K, 2e8f}};
  for (const auto& pair : within) {
    const DType dtype = pair.first;
    const float most = pair.second;
    std::vector<float> x(256, 0.0f);
    x[7] = most;
    const std::vector<float> y = there_and_back(dtype, x);
    EXPECT_NEAR(y[7], most, 0.01 * most) << dtype_info(dtype).name;
    x[7] = std::min(most * 20, std::numeric_limits<float>::max());
    EXPECT_THAT([&] { encode(dtype, x); }, ThrowsMessage<Error>(HasSubstr("beyond the range of")))
        << dtype_info(dtype).name;
  }
}

TEST(Quantize, RefusesWhatIsNotFinite) {
  for (const DType dtype : kEncoded)
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x(256, 1.0f);
      x[200] = bad;
      EXPECT_THAT([&] { encode(dtype, x); },
                  ThrowsMessage<Error>(HasSubstr("element 200: expected a finite value, found")));
    }
  const float x[256] = {};
  std::byte y[256];
  EXPECT_THAT([&] { quantize(DType::Q2_K, x, y, 256); },
              ThrowsMessage<Error>("tensor type Q2_K: expected a type that narrows can encode"));
}

TEST(Quantize, ValuesOfTheGridStay) {
  // What one round trip gives, a second one keeps.
  const std::vector<float> x = gaussian(4096, 1);
  for (const DType dtype : {DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0}) {
    const std::vector<float> once = there_and_back(dtype, x);
    EXPECT_LE(relative_error(once, there_and_back(dtype, once)), 1e-3) << dtype_info(dtype).name;
  }
}

}  // namespace
}  // namespace narrows
