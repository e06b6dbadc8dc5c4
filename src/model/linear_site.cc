#include "model/linear_site.h"

#include <algorithm>

namespace narrows {
namespace {

constexpr std::int64_t kRowsTogether = 8;  // rows that a thread quantizes at a time

}  // namespace

DenseSite::DenseSite(std::vector<Linear> maps) : maps_(std::move(maps)) {
  for (const Linear& map : maps_) {
    out_ += map.weight.rows;
    units_ += map.weight.tiles();
    quantize_ |= is_packed_type(map.weight.dtype);
  }
}

std::size_t DenseSite::bytes_read() const {
  std::size_t bytes = 0;
  for (const Linear& map : maps_) bytes += map.weight.bytes_read() + (map.bias ? 4 * map.weight.rows : 0);
  return bytes;
}

void DenseSite::apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) {
  if (quantize_) scratch.quantized.resize(rows, in());
  scratch.tiles.resize(std::max(scratch.tiles.size(), static_cast<std::size_t>(pool.size())));
  if (quantize_)
    pool.share(rows, kRowsTogether, [&](int, Range range) { quantize_rows(x, in(), range, scratch.quantized); });
  // Few tokens: memory sets the pace, a range should be long enough to be read at full speed.
  const std::int64_t grain = rows < 16 ? 4 : 1;
  pool.share(units_, grain, [&](int thread, Range mine) {
    std::int64_t first_unit = 0, first_row = 0;
    for (const Linear& map : maps_) {
      const std::int64_t tiles = map.weight.tiles();
      const Range part{std::clamp(mine.begin - first_unit, std::int64_t{0}, tiles),
                       std::clamp(mine.end - first_unit, std::int64_t{0}, tiles)};
      if (part.begin < part.end) {
        if (is_packed_type(map.weight.dtype))
          matmul_quantized(map.weight, part, scratch.quantized, {0, rows}, map.bias, y + first_row, out_,
                           scratch.tiles[static_cast<std::size_t>(thread)]);
        else
          matmul_float(map.weight, {part.begin * kTileRows, std::min(part.end * kTileRows, map.weight.rows)}, x, in(),
                       {0, rows}, map.bias, y + first_row, out_);
      }
      first_unit += tiles;
      first_row += map.weight.rows;
    }
  });
}

}  // namespace narrows
