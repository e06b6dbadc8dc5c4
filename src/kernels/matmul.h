// Products of a weight matrix with activations: y[t][r] = Σ_k W[r][k] · x[t][k] (+ bias[r]).
//
// The order of every floating-point reduction depends on the number of columns alone, so a result's bits do not
// depend on how many rows or tokens are computed together, nor on which thread computes them, nor on repacking:
//   float weights      16 partial sums, over k mod 16 in ascending order, then a fixed tree; fused multiply-add
//   quantized weights  exact integer dot products over a block's 16 or 32 columns, then one fused multiply-add a
//                      block in ascending order
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "kernels/activations.h"

namespace narrows {

inline constexpr std::int64_t kTileRows = 16;

// A view of a row-major matrix as stored in a model file, and, for quantized types, a copy laid out for SIMD: tiles of
// 16 rows whose codes are interleaved so that one vector holds four columns of every row.
struct WeightMatrix {
  DType dtype = DType::F32;
  std::int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;  // [rows][row_bytes(dtype, cols)]
  const std::byte* packed = nullptr;  // [tiles()][packed_tile_bytes()], or nullptr: tiles are packed as they are used

  std::int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  // Bytes that one product with a single token reads.
  std::size_t bytes_read() const;
};

// Whether products with this type go through 8-bit activations and packed tiles (block quantized types), or read the
// matrix where it lies, with f32 activations (F32, F16, BF16).
bool is_packed_type(DType dtype);

// Bytes of one packed tile of `cols` columns; a multiple of 64.
std::size_t packed_tile_bytes(DType dtype, std::int64_t cols);

// Packs one tile; rows beyond the matrix become zeros. `to` is 64-byte aligned.
void pack_tile(const WeightMatrix& w, std::int64_t tile, std::byte* to);

// Scratch that one thread needs for matmul() with an unpacked matrix.
using TileScratch = AlignedVector<std::byte>;

// Quantized types. Computes the rows of tiles [tiles.begin, tiles.end) for tokens [tokens.begin, tokens.end):
// y[t · y_stride + r]. bias may be nullptr.
void matmul_quantized(const WeightMatrix& w, Range tiles, const QuantizedRows& x, Range tokens, const float* bias,
                      float* y, std::int64_t y_stride, TileScratch& scratch);

// Float types. Rows [rows.begin, rows.end); x[t · x_stride + k].
void matmul_float(const WeightMatrix& w, Range rows, const float* x, std::int64_t x_stride, Range tokens,
                  const float* bias, float* y, std::int64_t y_stride);

}  // namespace narrows
