// Packing of block quantized matrices by columns: see graded.h.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/graded.h"
#include "kernels/read_block.h"

namespace narrows {
namespace {

constexpr std::int64_t kStrip = GradedMatrix::kStripRows;

std::int64_t up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Bytes of a group in strips of 16 · fields rows.
int group_bytes(int bits, int fields) { return bits > 0 ? std::max(bits * fields / 2, 4) : 0; }

// f16 of a product, kept finite if its factors are.
std::uint16_t folded(float d, int scale) {
  const float value = d * static_cast<float>(scale);
  return f32_to_f16(std::isfinite(value) ? std::clamp(value, -65504.0f, 65504.0f) : value);
}

struct Scale {
  std::uint16_t weight, minimum;
};

// The f16 scale and minimum of half `sub` (of all, for sub-blocks of 32) of a block's part.
[[gnu::always_inline]] inline Scale scale_of(DType dtype, const Block& block, int sub) {
  switch (dtype) {
    case DType::Q2_K:
    case DType::Q4_K:
    case DType::Q5_K:
      return {folded(f16_to_f32(block.d), block.scales[sub]),
              folded(-f16_to_f32(block.dmin), block.minima[sub])};
    case DType::Q3_K:
    case DType::Q6_K:
      return {folded(f16_to_f32(block.d), static_cast<std::int8_t>(block.scales[sub])), 0};
    default:
      return {block.d, block.dmin};
  }
}

// Writes bits [down, down + bits) of the codes of 32 columns of a strip with 16 · fields rows.
void write_plane(const Byte (&codes)[kStrip][32], int fields, int down, int bits, Byte* to,
                 std::int64_t run) {
  const int mask = (1 << bits) - 1, in_byte = std::min(8 / bits, fields), group = group_bytes(bits, fields);
  for (int at = 0; at < 4 * group; ++at) {
    const int row = at % group / 4 * in_byte * 16 + at / group * 4 + at % 4;
    Byte bytes[32] = {};
    for (int i = 0; i < in_byte; ++i)
      for (int c = 0; c < 32; ++c)
        bytes[c] |= static_cast<Byte>((codes[row + 16 * i][c] >> down & mask) << (bits * i));
    for (int c = 0; c < 32; ++c) to[c * run + at] = bytes[c];
  }
}

// Where a strip is.
struct Place {
  std::int64_t panel, row, first,
      rows;  // its panel and row in it; its first row and their number, both padded
};
Place place_of(const GradedMatrix& m, std::int64_t strip) {
  const std::int64_t first = strip * kStrip, panel = first / m.panel_rows(), row = first % m.panel_rows();
  return {panel, row, first, std::min(kStrip, m.padded_rows() - first)};
}

template <DType kType>
void pack(const WeightMatrix& w, const GradedMatrix& m, Range strips, Byte* to) {
  const DTypeInfo& info = dtype_info(kType);
  const int parts = info.block_size / 32;
  const std::size_t stride = row_bytes(kType, w.cols);
  const int coarse = m.layout.coarse_bits, fine = m.layout.fine_bits, subs = 32 / m.layout.sub_block;
  for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
    const Place at = place_of(m, strip);
    const int fields = static_cast<int>(at.rows / 16);
    const std::int64_t panel_rows = m.panel(at.panel).end - m.panel(at.panel).begin;
    const std::int64_t coarse_run = m.run_bytes(coarse, at.panel), fine_run = m.run_bytes(fine, at.panel);
    Byte* coarse_to = to + m.coarse_at(at.panel) + at.row * coarse / 8;
    Byte* fine_to = to + m.fine_at(at.panel) + at.row * fine / 8;
    const int rows = static_cast<int>(std::clamp<std::int64_t>(w.rows - at.first, 0, at.rows));
    const Byte* source = reinterpret_cast<const Byte*>(w.data) + static_cast<std::size_t>(at.first) * stride;
    Byte codes[kStrip][32] = {};
    std::uint16_t scales[2][kStrip] = {}, minima[2][kStrip] = {};
    for (std::int64_t b = 0; b < m.blocks(); ++b) {
      for (int r = 0; r < rows; ++r) {
        const Byte* row = source + static_cast<std::size_t>(r) * stride;
        const Block block =
            read_block(kType, row + b / parts * info.block_bytes, static_cast<int>(b % parts));
        std::memcpy(codes[r], block.codes, 32);
        for (int s = 0; s < subs; ++s) {
          const Scale scale = scale_of(kType, block, s);
          scales[s][r] = scale.weight;
          minima[s][r] = scale.minimum;
        }
      }
      write_plane(codes, fields, fine, coarse, coarse_to + b * 32 * coarse_run, coarse_run);
      if (fine > 0) write_plane(codes, fields, 0, fine, fine_to + b * 32 * fine_run, fine_run);
      for (int s = 0; s < subs; ++s) {
        Byte* scale_to = to + m.scales_at(at.panel) + (b * subs + s) * m.scale_bytes(at.panel) + 2 * at.row;
        std::memcpy(scale_to, scales[s], static_cast<std::size_t>(2 * at.rows));
        if (m.layout.has_minima)
          std::memcpy(scale_to + 2 * panel_rows, minima[s], static_cast<std::size_t>(2 * at.rows));
      }
    }
  }
}

template <DType kType>
void add_energies(const WeightMatrix& w, const GradedMatrix& m, Range rows, float* whole, float* missed) {
  const DTypeInfo& info = dtype_info(kType);
  const int parts = info.block_size / 32, sub_block = m.layout.sub_block, fine = m.layout.fine_bits;
  const float offset = static_cast<float>(m.layout.offset), middle = static_cast<float>((1 << fine) - 1) / 2;
  const std::size_t stride = row_bytes(kType, w.cols);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const Byte* row = reinterpret_cast<const Byte*>(w.data) + static_cast<std::size_t>(r) * stride;
    for (std::int64_t b = 0; b < m.blocks(); ++b) {
      const Block block = read_block(kType, row + b / parts * info.block_bytes, static_cast<int>(b % parts));
      for (int first = 0; first < 32; first += sub_block) {
        const Scale stored = scale_of(kType, block, first / sub_block);
        const float scale = f16_to_f32(stored.weight), minimum = m.layout.has_minima ? f16_to_f32(stored.minimum) : 0;
        for (int c = first; c < first + sub_block; ++c) {
          const float weight = scale * (static_cast<float>(block.codes[c]) - offset) + minimum;
          const float miss = scale * (static_cast<float>(block.codes[c] & ((1 << fine) - 1)) - middle);
          whole[b * 32 + c] += weight * weight;
          missed[b * 32 + c] += miss * miss;
        }
      }
    }
  }
}

// Calls work with the type as a constant.
template <typename Work>
void with_type(DType dtype, Work&& work) {
  switch (dtype) {
    case DType::Q4_0: return work.template operator()<DType::Q4_0>();
    case DType::Q4_1: return work.template operator()<DType::Q4_1>();
    case DType::Q5_0: return work.template operator()<DType::Q5_0>();
    case DType::Q5_1: return work.template operator()<DType::Q5_1>();
    case DType::Q8_0: return work.template operator()<DType::Q8_0>();
    case DType::Q2_K: return work.template operator()<DType::Q2_K>();
    case DType::Q3_K: return work.template operator()<DType::Q3_K>();
    case DType::Q4_K: return work.template operator()<DType::Q4_K>();
    case DType::Q5_K: return work.template operator()<DType::Q5_K>();
    case DType::Q6_K: return work.template operator()<DType::Q6_K>();
    default: fail("{}: not a type whose columns can be graded", dtype_info(dtype).name);
  }
}

}  // namespace

std::optional<GradedLayout> graded_layout(DType dtype, GradedSplit split) {
  // coarse bits, fine bits, sub-block, offset, minima
  if (split == GradedSplit::Whole) switch (dtype) {
      case DType::Q4_0:
        return GradedLayout{4, 0, 32, 8, false};
      case DType::Q4_1:
      case DType::Q4_K:
        return GradedLayout{4, 0, 32, 0, true};
      default:
        return std::nullopt;
    }
  switch (dtype) {
    case DType::Q8_0:
      return GradedLayout{4, 4, 32, 128, false};
    case DType::Q4_0:
      return GradedLayout{2, 2, 32, 8, false};
    case DType::Q4_1:
    case DType::Q4_K:
      return GradedLayout{2, 2, 32, 0, true};
    case DType::Q5_0:
      return GradedLayout{4, 1, 32, 16, false};
    case DType::Q5_1:
    case DType::Q5_K:
      return GradedLayout{4, 1, 32, 0, true};
    case DType::Q6_K:
      return GradedLayout{4, 2, 16, 32, false};
    case DType::Q3_K:
      return GradedLayout{2, 1, 16, 4, false};
    case DType::Q2_K:
      return GradedLayout{2, 0, 16, 0, true};
    default:
      return std::nullopt;
  }
}

GradedMatrix::GradedMatrix(DType dtype_, GradedSplit split_, std::int64_t rows_, std::int64_t cols_)
    : dtype(dtype_), split(split_), rows(rows_), cols(cols_) {
  const auto found = graded_layout(dtype, split);
  if (!found)
    fail("{}: not a type whose columns can be graded{}", dtype_info(dtype).name,
         split == GradedSplit::Whole ? " with whole codes" : "");
  if (rows < 1 || cols < 1 || cols % dtype_info(dtype).block_size != 0)
    fail("graded matrix of {} x {}: expected rows, and columns in multiples of {}", rows, cols,
         dtype_info(dtype).block_size);
  layout = *found;
}

std::int64_t GradedMatrix::panel_rows() const {
  return std::min(up((padded_rows() + panels() - 1) / panels(), kStrip), padded_rows());
}

Range GradedMatrix::panel(std::int64_t p) const {
  return {p * panel_rows(), std::min((p + 1) * panel_rows(), padded_rows())};
}

std::int64_t GradedMatrix::run_bytes(int bits, std::int64_t p) const {
  const std::int64_t panel_rows = panel(p).end - panel(p).begin;
  return panel_rows / kStrip * 16 * bits + (panel_rows % kStrip ? 4 * group_bytes(bits, 4) : 0);
}

std::int64_t GradedMatrix::scale_bytes(std::int64_t p) const {
  return (panel(p).end - panel(p).begin) * (layout.has_minima ? 4 : 2);
}

std::int64_t GradedMatrix::coarse_at(std::int64_t p) const {
  return p * cols * run_bytes(layout.coarse_bits, 0);
}

std::int64_t GradedMatrix::fine_at(std::int64_t p) const {
  const std::int64_t last = panels() - 1;
  return up(coarse_at(last) + cols * run_bytes(layout.coarse_bits, last), kCacheLine) +
         p * cols * run_bytes(layout.fine_bits, 0);
}

std::int64_t GradedMatrix::scales_at(std::int64_t p) const {
  const std::int64_t last = panels() - 1;
  return up(fine_at(last) + cols * run_bytes(layout.fine_bits, last), kCacheLine) +
         p * (cols / layout.sub_block) * scale_bytes(0);
}

std::size_t GradedMatrix::bytes() const {
  const std::int64_t last = panels() - 1;
  return static_cast<std::size_t>(
      up(scales_at(last) + cols / layout.sub_block * scale_bytes(last), kCacheLine));
}

std::int64_t GradedMatrix::segments() const {
  // As many units as divide well among threads, but segments so long that their partial results cost little.
  constexpr std::int64_t kUnits = 24, kLeastBlocks = 4;
  return std::clamp<std::int64_t>((kUnits + panels() - 1) / panels(), 1,
                                  std::max<std::int64_t>(blocks() / kLeastBlocks, 1));
}

std::size_t graded_bytes(const GradedMatrix& m, std::int64_t coarse_columns, std::int64_t fine_columns) {
  std::int64_t sum = 0;
  for (std::int64_t p = 0; p < m.panels(); ++p)
    sum += coarse_columns * m.run_bytes(m.layout.coarse_bits, p) +
           fine_columns * m.run_bytes(m.layout.fine_bits, p) + m.cols / m.layout.sub_block * m.scale_bytes(p);
  return static_cast<std::size_t>(sum);
}

void pack_graded(const WeightMatrix& w, const GradedMatrix& m, Range strips, std::byte* to) {
  with_type(w.dtype, [&]<DType kType>() { pack<kType>(w, m, strips, reinterpret_cast<Byte*>(to)); });
}

void add_column_energies(const WeightMatrix& w, const GradedMatrix& m, Range rows, float* whole, float* missed) {
  with_type(w.dtype, [&]<DType kType>() { add_energies<kType>(w, m, rows, whole, missed); });
}

std::vector<float> dequantize_graded(const GradedMatrix& m, int grade) {
  std::vector<float> weights(static_cast<std::size_t>(m.rows * m.cols), 0.0f);
  if (grade == 0) return weights;
  const Byte* data = reinterpret_cast<const Byte*>(m.data);
  const int coarse = m.layout.coarse_bits, fine = m.layout.fine_bits;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const Place at = place_of(m, r / kStrip);
    const std::int64_t row = at.row + r % kStrip,
                       panel_rows = m.panel(at.panel).end - m.panel(at.panel).begin;
    const int fields = static_cast<int>(at.rows / 16), i = static_cast<int>(r % kStrip / 16), lane = r % 16;
    const auto field = [&, fields, i, lane](std::int64_t plane, int bits, std::int64_t run, std::int64_t c) {
      const int in_byte = 8 / bits, byte = lane / 4 * group_bytes(bits, fields) + i / in_byte * 4 + lane % 4;
      return static_cast<float>(data[plane + c * run + at.row * bits / 8 + byte] >> (bits * (i % in_byte)) &
                                ((1 << bits) - 1));
    };
    const std::int64_t coarse_run = m.run_bytes(coarse, at.panel), fine_run = m.run_bytes(fine, at.panel);
    const std::int64_t coarse_at = m.coarse_at(at.panel), fine_at = m.fine_at(at.panel);
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const float step = static_cast<float>(1 << fine);
      float code = field(coarse_at, coarse, coarse_run, c) * step;
      if (fine > 0) code += grade == 1 ? (step - 1) / 2 : field(fine_at, fine, fine_run, c);
      const Byte* scale =
          data + m.scales_at(at.panel) + c / m.layout.sub_block * m.scale_bytes(at.panel) + 2 * row;
      float& weight = weights[static_cast<std::size_t>(r * m.cols + c)];
      weight = f16_to_f32(u16_at(scale)) * (code - static_cast<float>(m.layout.offset));
      if (m.layout.has_minima) weight += f16_to_f32(u16_at(scale + 2 * panel_rows));
    }
  }
  return weights;
}

}  // namespace narrows
