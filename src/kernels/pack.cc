// Packing of block quantized matrices into tiles: see packed_layout.h.
#include <cstring>

#include "base/error.h"
#include "kernels/matmul.h"
#include "kernels/packed_layout.h"
#include "kernels/read_block.h"

namespace narrows {
namespace {

// Spreads 32 codes of `row` into a block's planes, a quad (four codes in an integer) at a time.
[[gnu::always_inline]] inline void write_codes(const PackedLayout& layout, const Byte* codes, int row, Byte* planes) {
  std::uint32_t quads[8];
  std::memcpy(quads, codes, 32);
  const auto put = [&](int line, std::uint32_t four) { std::memcpy(planes + line * 64 + row * 4, &four, 4); };
  // Bits `mask` (in each byte) of the codes shifted down by `down`, from quads at `step` bits of a line each.
  const auto spread = [&](int first_line, int down, std::uint32_t mask, int step) {
    const int per_line = 8 / step;
    for (int line = 0; line < 8 / per_line; ++line) {
      std::uint32_t four = 0;
      for (int i = 0; i < per_line; ++i) four |= (quads[line * per_line + i] >> down & mask) << (i * step);
      put(first_line + line, four);
    }
  };
  constexpr std::uint32_t kOne = 0x01010101, kTwo = 0x03030303, kFour = 0x0f0f0f0f;
  switch (layout.bits) {
    case 8:
      for (int quad = 0; quad < 8; ++quad) put(quad, quads[quad]);
      break;
    case 4:
    case 5:
    case 6:
      spread(0, 0, kFour, 4);
      if (layout.bits == 5) spread(4, 4, kOne, 1);
      if (layout.bits == 6) spread(4, 4, kTwo, 2);
      break;
    default:  // 2, 3
      spread(0, 0, kTwo, 2);
      if (layout.bits == 3) spread(2, 2, kOne, 1);
  }
}

}  // namespace

std::optional<PackedLayout> packed_layout(DType dtype) {
  // bits, sub-block, scale bytes, has dmin, block of d
  switch (dtype) {
    case DType::Q4_0:
    case DType::IQ4_NL: return PackedLayout{4, 32, false, false, 32};
    case DType::Q4_1: return PackedLayout{4, 32, false, true, 32};
    case DType::Q5_0: return PackedLayout{5, 32, false, false, 32};
    case DType::Q5_1: return PackedLayout{5, 32, false, true, 32};
    case DType::Q8_0: return PackedLayout{8, 32, false, false, 32};
    case DType::Q2_K: return PackedLayout{2, 16, true, true, 256};
    case DType::Q3_K: return PackedLayout{3, 16, true, false, 256};
    case DType::Q4_K: return PackedLayout{4, 32, true, true, 256};
    case DType::Q5_K: return PackedLayout{5, 32, true, true, 256};
    case DType::Q6_K: return PackedLayout{6, 16, true, false, 256};
    case DType::IQ4_XS: return PackedLayout{4, 32, true, false, 256};
    default: return std::nullopt;
  }
}

bool is_packed_type(DType dtype) { return packed_layout(dtype).has_value(); }

std::size_t packed_tile_bytes(DType dtype, std::int64_t cols) {
  const PackedLayout layout = *packed_layout(dtype);
  const std::size_t bytes =
      static_cast<std::size_t>(cols / 32 * layout.plane_bytes() + cols / layout.d_block * layout.scale_bytes());
  return (bytes + 63) / 64 * 64;
}

std::size_t WeightMatrix::bytes_read() const {
  if (packed) return static_cast<std::size_t>(tiles()) * packed_tile_bytes(dtype, cols);
  return static_cast<std::size_t>(rows) * row_bytes(dtype, cols);
}

namespace {

template <DType kType>
void pack(const WeightMatrix& w, std::int64_t tile, Byte* planes) {
  const PackedLayout layout = *packed_layout(kType);
  const DTypeInfo& info = dtype_info(kType);
  const std::size_t stride = row_bytes(kType, w.cols);
  const int parts = static_cast<int>(info.block_size / 32);
  const std::int64_t first = tile * kTileRows;
  const int rows = static_cast<int>(std::min<std::int64_t>(kTileRows, w.rows - first));
  const Byte* source = reinterpret_cast<const Byte*>(w.data) + static_cast<std::size_t>(first) * stride;
  Byte* scales = planes + w.cols / 32 * layout.plane_bytes();
  for (std::int64_t group = 0; group < w.cols / info.block_size; ++group, scales += layout.scale_bytes()) {
    for (int part = 0; part < parts; ++part, planes += layout.plane_bytes()) {
      Byte* sub = scales + layout.d_bytes() + part * layout.sub_scale_bytes();
      for (int r = 0; r < rows; ++r) {
        const Byte* row = source + static_cast<std::size_t>(r) * stride;
        const Block block = read_block(kType, row + group * info.block_bytes, part);
        write_codes(layout, block.codes, r, planes);
        if (part == 0) {
          std::memcpy(scales + 2 * r, &block.d, 2);
          if (layout.has_minima) std::memcpy(scales + 32 + 2 * r, &block.dmin, 2);
        }
        if (layout.has_scales)
          for (int s = 0; s < layout.subs(); ++s) {
            sub[s * 16 + r] = block.scales[s];
            if (layout.has_minima) sub[(layout.subs() + s) * 16 + r] = block.minima[s];
          }
      }
    }
  }
}

}  // namespace

void pack_tile(const WeightMatrix& w, std::int64_t tile, std::byte* to) {
  if ((tile + 1) * kTileRows > w.rows) std::memset(to, 0, packed_tile_bytes(w.dtype, w.cols));
  Byte* bytes = reinterpret_cast<Byte*>(to);
  switch (w.dtype) {
    case DType::Q4_0: return pack<DType::Q4_0>(w, tile, bytes);
    case DType::Q4_1: return pack<DType::Q4_1>(w, tile, bytes);
    case DType::Q5_0: return pack<DType::Q5_0>(w, tile, bytes);
    case DType::Q5_1: return pack<DType::Q5_1>(w, tile, bytes);
    case DType::Q8_0: return pack<DType::Q8_0>(w, tile, bytes);
    case DType::Q2_K: return pack<DType::Q2_K>(w, tile, bytes);
    case DType::Q3_K: return pack<DType::Q3_K>(w, tile, bytes);
    case DType::Q4_K: return pack<DType::Q4_K>(w, tile, bytes);
    case DType::Q5_K: return pack<DType::Q5_K>(w, tile, bytes);
    case DType::Q6_K: return pack<DType::Q6_K>(w, tile, bytes);
    case DType::IQ4_NL: return pack<DType::IQ4_NL>(w, tile, bytes);
    case DType::IQ4_XS: return pack<DType::IQ4_XS>(w, tile, bytes);
    default: fail("{}: not a type that is packed", dtype_info(w.dtype).name);
  }
}

}  // namespace narrows
