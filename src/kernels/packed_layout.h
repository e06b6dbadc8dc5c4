// The layout of a packed tile: 16 rows of a block quantized matrix.
//
// First the codes, 32 columns after 32 columns; then the scales, d_block columns after d_block columns.
// Codes of 32 columns are eight quads: quad c is the 64 bytes code[row][4c + j] at byte 4 · row + j. They are spread
// over planes of 64-byte lines, so that one load feeds a full vector:
//   8 bits      quads 0…7, a line each
//   4, 5, 6     four lines of nibbles (line i: quad 2i low, 2i + 1 high), then for 5 bits one line whose bit c is the
//               fifth bit of quad c, for 6 bits two lines of bit pairs (line i: quads 4i … 4i + 3)
//   2, 3        two lines of bit pairs, then for 3 bits one line whose bit c is the third bit of quad c
// Scales: f16 d[16], f16 dmin[16] if there are minima; then, if blocks have scales of their own, for each 32 columns
// a byte scale[sub][16] and, if there are minima, minimum[sub][16], with sub-blocks of 16 or 32 columns.
#pragma once
#include <optional>

#include "formats/dtype.h"

namespace narrows {

struct PackedLayout {
  int bits;
  int sub_block;     // columns that share a scale: 16 or 32
  bool has_scales;   // a byte for each sub-block, beside d
  bool has_minima;
  int d_block;       // columns that share d: 32 or 256

  constexpr int plane_bytes() const { return bits * 64; }
  constexpr int subs() const { return 32 / sub_block; }
  constexpr int d_bytes() const { return has_minima ? 64 : 32; }
  constexpr int sub_scale_bytes() const { return has_scales ? subs() * 16 * (has_minima ? 2 : 1) : 0; }
  constexpr int scale_bytes() const { return d_bytes() + d_block / 32 * sub_scale_bytes(); }
};

std::optional<PackedLayout> packed_layout(DType dtype);

}  // namespace narrows
