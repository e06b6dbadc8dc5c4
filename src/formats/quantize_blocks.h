// Parts of quantize().
#pragma once
#include <cstdint>
#include <string_view>

namespace narrows {

// 256 finite values to a block of 144 or 210 bytes. Throws if a scale is beyond the range of f16.
void quantize_q4_k(const float* x, std::uint8_t* block);
void quantize_q6_k(const float* x, std::uint8_t* block);

// Stores a value or a scale as f16; throws if it would become infinite.
void store_f16(std::uint8_t* p, float value, std::string_view type);

// Throws if one of n values is not finite.
void check_finite(const float* x, std::int64_t n);

}  // namespace narrows
