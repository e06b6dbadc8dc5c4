#include "formats/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/gguf.h"

namespace narrows {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::uint32_t kAllTypes[] = {0,  1,  2,  3,  6,  7,  8,  10, 11, 12,
                                       13, 14, 20, 23, 24, 25, 26, 27, 28, 30};

TEST(DType, TableIsConsistent) {
  for (const std::uint32_t number : kAllTypes) {
    const DTypeInfo* info = find_dtype(number);
    ASSERT_NE(info, nullptr) << number;
    EXPECT_EQ(dtype_by_name(info->name), static_cast<DType>(number));
    EXPECT_EQ(row_bytes(static_cast<DType>(number), 256) % static_cast<std::size_t>(info->block_bytes), 0u);
  }
  EXPECT_EQ(find_dtype(4), nullptr);
  EXPECT_EQ(find_dtype(16), nullptr);
  EXPECT_EQ(find_dtype(~0u), nullptr);
  EXPECT_EQ(dtype_by_name("q4_k"), DType::Q4_K);
  EXPECT_EQ(dtype_by_name("Q4_K_M"), std::nullopt);
  EXPECT_EQ(row_bytes(DType::Q4_K, 512), 288u);
}

TEST(DType, RowsMustBeWholeBlocks) {
  EXPECT_THAT([] { row_bytes(DType::Q4_K, 300); },
              ThrowsMessage<Error>("a row of 300 elements of type Q4_K: expected a multiple of 256"));
  float y[32];
  EXPECT_THAT([&] { dequantize(DType::I32, nullptr, y, 32); }, ThrowsMessage<Error>(HasSubstr("I32")));
}

TEST(DType, HalvesRoundTrip) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const float f = f16_to_f32(static_cast<std::uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
      continue;
    }
    ASSERT_EQ(f32_to_f16(f), h);
    // The midpoint to the next number rounds to the even one; a hair above it, up; a hair below it, down.
    const float next = f16_to_f32(static_cast<std::uint16_t>(h + 1));
    if ((h & 0x7fff) >= 0x7bff) continue;
    const float middle = (f + next) / 2;
    ASSERT_EQ(f32_to_f16(middle), (h & 1) ? h + 1 : h);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, next)), h + 1);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, f)), h);
  }
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(DType, Bf16RoundTrips) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const float f = bf16_to_f32(static_cast<std::uint16_t>(h));
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f))));
    else
      ASSERT_EQ(f32_to_bf16(f), h);
  }
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // ties to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
}

// Random blocks, each decoded as the gguf Python package does.
TEST(DType, DecodesToTheBit) {
  const GgufFile golden = GgufFile::open(NARROWS_TEST_DATA "/formats/dequantize.gguf");
  int types = 0;
  for (const GgufTensor& tensor : golden.tensors()) {
    const GgufTensor* expected = golden.find_tensor(tensor.name + ".f32");
    if (!expected) continue;
    ++types;
    ASSERT_EQ(tensor.name, dtype_info(tensor.dtype).name);
    ASSERT_TRUE(can_dequantize(tensor.dtype));
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    dequantize(tensor.dtype, tensor.data, values.data(), tensor.elements());
    ASSERT_EQ(expected->elements(), tensor.elements());
    const auto* want = reinterpret_cast<const float*>(expected->data);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(want[i]))
          << tensor.name << " element " << i << ": " << values[i] << " instead of " << want[i];
  }
  EXPECT_EQ(types, 14);
}

}  // namespace
}  // namespace narrows
