// Products that read, for each token, only the columns that matter, and of those only as many bits as matter:
//   y[t][r] = Σ_c w_grade(t, c)[r][c] · x[t][c] (+ bias[r])
// A column's grade is 0: not read; 1: the coarse plane of its codes, whose missing low bits are taken to be
// in the middle of what they can be; 2: coarse and fine planes, the exact code. Scales are always read.
//
// Skipping pays only where what is read is contiguous, so a matrix is stored by columns: rows (padded with
// zeros to a multiple of 64) are cut into panels of up to kPanelRows, and a panel's column is one run of
// bytes in each plane.
//
//   coarse plane  [panel][column][run of coarse bits]
//   fine plane    [panel][column][run of fine bits]
//   scales        [panel][sub-block][rows of the panel] f16, then as many minima if the type has them
//
// A run of b bits is made of strips of 128 rows; the last may have 64. The byte of row 16·i + 4·g + j of a
// strip (j < 4, g < 4) is j of dword i / F of group g, where F = 8 / b is the number of fields of a byte; its
// bits are field i mod F. Groups follow each other; one has 4·b bytes, in strips of 64 rows half as many, but
// at least 4. So four columns' bytes, interleaved in 128-bit blocks of vectors, are the operands of integer
// dot products.
//
// Weights are scale · (code - offset) + minimum. Of K types the products of d with a sub-block's scale and of
// dmin with its minimum are rounded to f16: a relative error of at most 2^-11 in each (0.05 %; at most 2^-25
// where f16 is subnormal; beyond 65504 they become 65504). Other types are stored as they are.
//
// Dot products of a block of 32 columns (16, if that is a sub-block) are exact integers; one fused
// multiply-add a sub-block follows (two with minima), in ascending order within a segment of blocks, then the
// segments' sums are added in ascending order. Segments depend on the matrix's shape alone: neither threads
// nor the tokens computed together change a result's bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/aligned.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "kernels/matmul.h"

namespace narrows {

// How many of a code's bits are coarse: about half of them, or all (4-bit types only), so that a column is
// read or not.
enum class GradedSplit { Halves, Whole };

struct GradedLayout {
  int coarse_bits, fine_bits;
  int sub_block;  // columns that share a scale: 16 or 32
  int offset;
  bool has_minima;
};

// nullopt if there is no such layout. Types: Q8_0 and the 4-bit ones 4 + 4, 2 + 2 bits; Q5_0, Q5_1, Q5_K 4 +
// 1; Q6_K 4 + 2; Q3_K 2 + 1; Q2_K 2 + 0.
std::optional<GradedLayout> graded_layout(DType dtype, GradedSplit split);

// A view of a matrix packed by pack_graded().
struct GradedMatrix {
  static constexpr std::int64_t kPanelRows = 2048, kStripRows = 128;

  DType dtype = DType::F32;
  GradedSplit split = GradedSplit::Halves;
  std::int64_t rows = 0, cols = 0;
  GradedLayout layout{};
  const std::byte* data = nullptr;  // [bytes()], aligned to 64

  GradedMatrix() = default;
  // Without data. Throws Error if the type has no such layout.
  GradedMatrix(DType dtype, GradedSplit split, std::int64_t rows, std::int64_t cols);

  std::int64_t padded_rows() const { return (rows + 63) / 64 * 64; }
  std::int64_t blocks() const { return cols / 32; }  // of 32 columns
  std::int64_t strips() const { return (padded_rows() + kStripRows - 1) / kStripRows; }
  std::int64_t panels() const { return (padded_rows() + kPanelRows - 1) / kPanelRows; }
  std::int64_t panel_rows() const;    // of each panel but the last: a multiple of kStripRows
  Range panel(std::int64_t p) const;  // its padded rows
  std::int64_t run_bytes(int bits, std::int64_t p) const;
  std::int64_t scale_bytes(std::int64_t p) const;  // of one sub-block: scales and minima
  // Where panel p begins in data.
  std::int64_t coarse_at(std::int64_t p) const;
  std::int64_t fine_at(std::int64_t p) const;
  std::int64_t scales_at(std::int64_t p) const;
  std::size_t bytes() const;

  // A product is cut into units, panel by panel and in each by segments of blocks of columns.
  std::int64_t segments() const;
  std::int64_t units() const { return panels() * segments(); }
  Range segment_blocks(std::int64_t segment) const {
    return share_of(blocks(), static_cast<int>(segment), static_cast<int>(segments()));
  }
  // Floats that graded_units() writes for one token: [segments()][padded_rows()].
  std::int64_t partials() const { return segments() * padded_rows(); }
};

// Bytes that a product reads for one token with so many columns of grade 1 or 2 and so many of grade 2.
std::size_t graded_bytes(const GradedMatrix& m, std::int64_t coarse_columns, std::int64_t fine_columns);

// Packs the rows of strips [strips.begin, strips.end) of w (as stored: w.data) into `to`, which has
// m.bytes().
void pack_graded(const WeightMatrix& w, const GradedMatrix& m, Range strips, std::byte* to);

// Adds, for each column, Σ over rows [rows.begin, rows.end) of w² to whole and of (w - w at grade 1)² to missed: [cols].
void add_column_energies(const WeightMatrix& w, const GradedMatrix& m, Range rows, float* whole, float* missed);

// The weights that a grade stands for, [rows][cols]; for tests and measurements.
std::vector<float> dequantize_graded(const GradedMatrix& m, int grade);

// The columns that tokens read, for all matrices that share an input, and their activations: in a block of 32
// columns x ≈ scale · q with integers |q| ≤ kMost (even ones for grade 1, so that half steps of codes are
// whole), and q = 128 · high + low for products of bytes.
struct GradedTokens {
  static constexpr std::int64_t kSlots = 40;
  static constexpr float kMost = 127 * 128;
  struct Block {
    // How many columns have grade 1 and 2, in the whole block and in its first half.
    std::uint8_t coarse, fine, coarse_half, fine_half;
    float scale;                              // NaN if a value is not finite
    std::int32_t coarse_sum[2], fine_sum[2];  // Σ q over the columns of grade 1 and 2 in each half
  };
  std::int64_t tokens = 0, cols = 0, blocks = 0, stride = 0;
  // [tokens][stride], block b from kSlots · b on: first the columns of grade 1, ascending, then, from the
  // next multiple of 4 on, those of grade 2. Slots between hold zeros of a column that is read anyway.
  AlignedVector<std::uint32_t> column;
  AlignedVector<std::int8_t> high, low;
  AlignedVector<Block> of_block;  // [tokens][blocks]

  // cols: a multiple of 32.
  void resize(std::int64_t tokens, std::int64_t cols);
  std::int64_t coarse_columns(std::int64_t token) const;  // of grade 1 or 2
  std::int64_t fine_columns(std::int64_t token) const;    // of grade 2
};

// Grades of rows [tokens.begin, tokens.end) of x (row t at x + t · stride): column c is read if
// |x[c]| · coarse_limit[c] > 1, exactly if also |x[c]| · fine_limit[c] > 1. Zeros are never read; NaNs always
// are, and where a product above is NaN it counts as more than 1. An infinite limit reads whatever is not
// zero.
void choose_grades(const float* x, std::int64_t stride, Range tokens, const float* coarse_limit,
                   const float* fine_limit, GradedTokens& out);

// Computes units [units.begin, units.end) for tokens [tokens.begin, tokens.end): partials[t · m.partials()
// …].
void graded_units(const GradedMatrix& m, Range units, const GradedTokens& x, Range tokens, float* partials);

// Adds up the segments of rows [rows.begin, rows.end): y[t · y_stride + r]. bias may be nullptr.
void graded_sum(const GradedMatrix& m, Range rows, Range tokens, const float* partials, const float* bias,
                float* y, std::int64_t y_stride);

}  // namespace narrows
