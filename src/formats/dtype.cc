#include "formats/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>

#include "base/error.h"

namespace narrows {
namespace {

struct Row {
  DType dtype;
  DTypeInfo info;
  bool decodes, encodes;
};

constexpr std::array kTypes = {
    Row{DType::F32, {"F32", 1, 4}, true, true},
    Row{DType::F16, {"F16", 1, 2}, true, true},
    Row{DType::Q4_0, {"Q4_0", 32, 18}, true, true},
    Row{DType::Q4_1, {"Q4_1", 32, 20}, true, true},
    Row{DType::Q5_0, {"Q5_0", 32, 22}, true, true},
    Row{DType::Q5_1, {"Q5_1", 32, 24}, true, false},
    Row{DType::Q8_0, {"Q8_0", 32, 34}, true, true},
    Row{DType::Q2_K, {"Q2_K", 256, 84}, true, false},
    Row{DType::Q3_K, {"Q3_K", 256, 110}, true, false},
    Row{DType::Q4_K, {"Q4_K", 256, 144}, true, true},
    Row{DType::Q5_K, {"Q5_K", 256, 176}, true, false},
    Row{DType::Q6_K, {"Q6_K", 256, 210}, true, true},
    Row{DType::IQ4_NL, {"IQ4_NL", 32, 18}, true, false},
    Row{DType::IQ4_XS, {"IQ4_XS", 256, 136}, true, false},
    Row{DType::I8, {"I8", 1, 1}, false, false},
    Row{DType::I16, {"I16", 1, 2}, false, false},
    Row{DType::I32, {"I32", 1, 4}, false, false},
    Row{DType::I64, {"I64", 1, 8}, false, false},
    Row{DType::F64, {"F64", 1, 8}, false, false},
    Row{DType::BF16, {"BF16", 1, 2}, true, true},
};

const Row* find_row(std::uint32_t dtype) {
  const auto row = std::ranges::find(kTypes, static_cast<DType>(dtype), &Row::dtype);
  return row == kTypes.end() ? nullptr : &*row;
}

const Row& row_of(DType dtype) {
  const Row* row = find_row(static_cast<std::uint32_t>(dtype));
  if (!row)
    fail("tensor type {}: expected one of ggml's types that narrows knows",
         static_cast<std::uint32_t>(dtype));
  return *row;
}

bool same_letters(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::toupper(x) == std::toupper(y); });
}

constexpr std::uint32_t kExponentShift = 112u << 23;  // f32's exponent bias less f16's, in place

}  // namespace

const DTypeInfo* find_dtype(std::uint32_t dtype) {
  const Row* row = find_row(dtype);
  return row ? &row->info : nullptr;
}

const DTypeInfo& dtype_info(DType dtype) { return row_of(dtype).info; }

std::optional<DType> dtype_by_name(std::string_view name) {
  for (const Row& row : kTypes)
    if (same_letters(row.info.name, name)) return row.dtype;
  return std::nullopt;
}

std::size_t row_bytes(DType dtype, std::int64_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  if (n < 0 || n % info.block_size != 0)
    fail("a row of {} elements of type {}: expected a multiple of {}", n, info.name, info.block_size);
  return static_cast<std::size_t>(n / info.block_size) * static_cast<std::size_t>(info.block_bytes);
}

bool can_dequantize(DType dtype) { return row_of(dtype).decodes; }
bool can_quantize(DType dtype) { return row_of(dtype).encodes; }

float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  std::uint32_t bits;
  if (magnitude < 0x0400u)  // zero or subnormal: a small integer times 2^-24, exact in f32
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  else if (magnitude >= 0x7c00u)
    bits = magnitude << 13 | 0x7f800000u;
  else
    bits = (magnitude << 13) + kExponentShift;
  return std::bit_cast<float>(sign | bits);
}

std::uint16_t f32_to_f16(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f), sign = bits >> 16 & 0x8000u,
                      magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);  // quiet, payload kept
  } else if (magnitude >= 0x477ff000u) {          // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal. The f32 numbers in [0.5, 1) are 2^-24 apart, as f16 subnormals
    // are: the addition rounds, and the difference of the bits is the code.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
           std::bit_cast<std::uint32_t>(0.5f);
  } else {
    half = (magnitude - kExponentShift + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

float bf16_to_f32(std::uint16_t h) { return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16); }

std::uint16_t f32_to_bf16(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace narrows
