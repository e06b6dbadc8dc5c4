// Storage types of tensors: plain floats and ggml's block quantizations.
//
// Block layouts are those of GGUF files, little-endian; the gguf Python package's quants.py is the reference
// for decoding, to the bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace narrows {

// Values are ggml's type numbers, as stored in GGUF files.
enum class DType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  BF16 = 30,
};

struct DTypeInfo {
  std::string_view name;  // ggml's spelling, e.g. "Q4_K"
  int block_size;         // elements a block
  int block_bytes;
};

// nullptr if `dtype` is not one of the types above.
const DTypeInfo* find_dtype(std::uint32_t dtype);
const DTypeInfo& dtype_info(DType dtype);
std::optional<DType> dtype_by_name(std::string_view name);  // case-insensitive

// Bytes of a row of n elements; n must be a multiple of the block size.
std::size_t row_bytes(DType dtype, std::int64_t n);

// Whether dequantize() / quantize() know the type (integer types and F64 are storage only).
bool can_dequantize(DType dtype);
bool can_quantize(DType dtype);

// Decodes n elements (a multiple of the block size). dst is f32. Exact to the bit against gguf's dequantize.
void dequantize(DType dtype, const std::byte* src, float* dst, std::int64_t n);

// Encodes n finite elements (a multiple of the block size). Deterministic. Rounds to the nearest code; scales
// of Q4_K and Q6_K minimise the weighted squared error, as llama.cpp's reference quantizers do.
void quantize(DType dtype, const float* src, std::byte* dst, std::int64_t n);

// Scalar conversions: round to nearest even; infinities and NaNs kept.
float f16_to_f32(std::uint16_t h);
std::uint16_t f32_to_f16(float f);
float bf16_to_f32(std::uint16_t h);
std::uint16_t f32_to_bf16(float f);

}  // namespace narrows
