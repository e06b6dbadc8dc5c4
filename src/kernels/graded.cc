// Products by columns, of graded precision: lanes are rows, columns pass one at a time.
#include "kernels/graded.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/graded.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/graded-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

template <int coarse, int fine, int sub_block, bool minima>
struct Kind {
  static constexpr int kCoarse = coarse, kFine = fine, kSubs = 32 / sub_block;
  static constexpr bool kMinima = minima;
};

// One token's columns of a block.
struct Columns {
  const std::uint32_t* column;  // those of grade 1, then those of grade 2
  const float* x;
  GradedTokens::Counts counts;
  float correction[2], sum[2];  // of each sub-block: what codes are too large by, times x; Σ x
};

template <class K>
HWY_INLINE Columns ColumnsOf(const GradedMatrix& m, const GradedTokens& x, std::int64_t token, std::int64_t block) {
  Columns c;
  const std::int64_t at = token * x.stride + block * 32;
  c.column = x.column.data() + at;
  c.x = x.x.data() + at;
  c.counts = x.counts[static_cast<std::size_t>(token * x.blocks + block)];
  const float* coarse = x.coarse_sum.data() + (token * x.blocks + block) * 2;
  const float* fine = x.fine_sum.data() + (token * x.blocks + block) * 2;
  const float offset = static_cast<float>(m.layout.offset), middle = static_cast<float>((1 << K::kFine) - 1) / 2;
  for (int s = 0; s < K::kSubs; ++s) {
    const float coarse_x = K::kSubs == 2 ? coarse[s] : coarse[0] + coarse[1];
    const float fine_x = K::kSubs == 2 ? fine[s] : fine[0] + fine[1];
    c.sum[s] = coarse_x + fine_x;
    c.correction[s] = offset * c.sum[s] - middle * coarse_x;
  }
  return c;
}

// Where a panel lies.
struct Panel {
  const std::uint8_t *coarse, *fine, *scales;
  std::int64_t coarse_run, fine_run, scale_bytes, rows;
};

HWY_INLINE Panel PanelOf(const GradedMatrix& m, std::int64_t p) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(m.data);
  return {data + m.coarse_at(p), data + m.fine_at(p), data + m.scales_at(p), m.run_bytes(m.layout.coarse_bits, p),
          m.run_bytes(m.layout.fine_bits, p), m.scale_bytes(p), m.panel(p).end - m.panel(p).begin};
}

// y[0 … 16 · kFields) += the products of a block's columns with the strip at `row` of the panel.
template <class K, int kFields>
HWY_INLINE void Strip(const Panel& panel, const Columns& c, std::int64_t block, std::int64_t row,
                      float* HWY_RESTRICT y) {
  const DF df;
  const hn::Rebind<hwy::float16_t, DF> d16;
  constexpr int kCoarse = K::kCoarse, kFine = K::kFine;
  constexpr std::size_t kLanes = hn::MaxLanes(DF());
  const std::uint8_t* coarse = panel.coarse + row * kCoarse / 8;
  [[maybe_unused]] const std::uint8_t* fine = panel.fine + row * kFine / 8;
  const VF coarse_table = Table<kCoarse, kFine>();
  const VF exact_table = kTogether<kCoarse, kFine> ? Table<4, 0>() : coarse_table;
  const VF fine_table = Table<(kFine > 0 ? kFine : 1), 0>();
  for (std::size_t first = 0; first < 16; first += kLanes)
    for (int s = 0; s < K::kSubs; ++s) {
      VF acc[kFields];
      for (VF& a : acc) a = hn::Set(df, -c.correction[s]);
      const bool halves = K::kSubs == 2;
      const int coarse_end = halves && s == 0 ? c.counts.coarse_half : c.counts.coarse;
      for (int i = halves && s == 1 ? c.counts.coarse_half : 0; i < coarse_end; ++i)
        AddPlane<kCoarse, kFine>(LoadFields<kCoarse, kFields>(coarse + c.column[i] * panel.coarse_run, first),
                                 hn::Set(df, c.x[i]), coarse_table, acc);
      const int fine_end = c.counts.coarse + (halves && s == 0 ? c.counts.fine_half : c.counts.fine);
      for (int i = c.counts.coarse + (halves && s == 1 ? c.counts.fine_half : 0); i < fine_end; ++i) {
        const VU high = LoadFields<kCoarse, kFields>(coarse + c.column[i] * panel.coarse_run, first);
        VU low = high;
        if constexpr (kFine > 0) low = LoadFields<kFine, kFields>(fine + c.column[i] * panel.fine_run, first);
        AddExact<kCoarse, kFine>(high, low, hn::Set(df, c.x[i]), exact_table, fine_table, acc);
      }
      const auto* scales = reinterpret_cast<const hwy::float16_t*>(
                               panel.scales + (block * K::kSubs + s) * panel.scale_bytes) +
                           row + first;
      for (int i = 0; i < kFields; ++i) {
        float* at = y + 16 * i + first;
        VF sum = hn::MulAdd(hn::PromoteTo(df, hn::LoadU(d16, scales + 16 * i)), acc[i], hn::LoadU(df, at));
        if constexpr (K::kMinima)
          sum = hn::MulAdd(hn::PromoteTo(df, hn::LoadU(d16, scales + panel.rows + 16 * i)), hn::Set(df, c.sum[s]), sum);
        hn::StoreU(sum, df, at);
      }
    }
}

HWY_INLINE void PrefetchLines(const std::uint8_t* p, std::int64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p) / kCacheLine;
  const auto end = (reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes) + kCacheLine - 1) / kCacheLine;
  for (auto line = begin; line < end; ++line)
    __builtin_prefetch(reinterpret_cast<const void*>(line * kCacheLine), 0, 2);
}

// Asks for what the next block reads, in as many steps as this block has strips.
template <class K>
class Ahead {
 public:
  Ahead(const GradedMatrix& m, const Panel& panel, const GradedTokens& x, std::int64_t token, std::int64_t block)
      : panel_(panel), columns_(ColumnsOf<K>(m, x, token, block)), count_(columns_.counts.coarse + columns_.counts.fine),
        scales_(panel.scales + block * K::kSubs * panel.scale_bytes) {}

  HWY_INLINE void Step(std::int64_t step, std::int64_t steps) {
    const int end = static_cast<int>(count_ * (step + 1) / steps);
    for (; done_ < end; ++done_) {
      const std::int64_t column = columns_.column[done_];
      PrefetchLines(panel_.coarse + column * panel_.coarse_run, panel_.coarse_run);
      if (K::kFine > 0 && done_ >= columns_.counts.coarse)
        PrefetchLines(panel_.fine + column * panel_.fine_run, panel_.fine_run);
    }
    const std::int64_t bytes = K::kSubs * panel_.scale_bytes, from = bytes * step / steps;
    PrefetchLines(scales_ + from, bytes * (step + 1) / steps - from);
  }

 private:
  const Panel panel_;
  const Columns columns_;
  const int count_;
  const std::uint8_t* scales_;
  int done_ = 0;
};

// More tokens than these read so much of a block that the hardware's own prefetching serves.
constexpr std::int64_t kFewTokens = 2;

template <class K>
HWY_NOINLINE void Units(const GradedMatrix& m, Range units, const GradedTokens& x, Range tokens, float* partials) {
  const std::int64_t segments = m.segments(), rows = m.padded_rows();
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t p = unit / segments, segment = unit % segments;
    const Range blocks = m.segment_blocks(segment);
    const Panel panel = PanelOf(m, p);
    const std::int64_t steps = (panel.rows + GradedMatrix::kStripRows - 1) / GradedMatrix::kStripRows;
    const auto y_of = [&](std::int64_t t) { return partials + (t * segments + segment) * rows + m.panel(p).begin; };
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) std::fill_n(y_of(t), panel.rows, 0.0f);
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      // The next block of these units: in this segment, in the next one, or in the next panel.
      const bool last = block + 1 == m.blocks();
      const bool any = tokens.end - tokens.begin <= kFewTokens && (block + 1 < blocks.end || unit + 1 < units.end);
      const Panel next_panel = last && p + 1 < m.panels() ? PanelOf(m, p + 1) : panel;
      for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
        const Columns columns = ColumnsOf<K>(m, x, t, block);
        Ahead<K> ahead(m, next_panel, x, t, last ? 0 : block + 1);
        float* y = y_of(t);
        std::int64_t row = 0, step = 0;
        for (; row + GradedMatrix::kStripRows <= panel.rows; row += GradedMatrix::kStripRows) {
          if (any) ahead.Step(step++, steps);
          Strip<K, 8>(panel, columns, block, row, y + row);
        }
        if (row < panel.rows) {
          if (any) ahead.Step(step, steps);
          Strip<K, 4>(panel, columns, block, row, y + row);
        }
      }
    }
  }
}

void GradedUnits(const GradedMatrix& m, Range units, const GradedTokens& x, Range tokens, float* partials) {
  const bool whole = m.split == GradedSplit::Whole;
  switch (m.dtype) {
    case DType::Q8_0: return Units<Kind<4, 4, 32, false>>(m, units, x, tokens, partials);
    case DType::Q4_0:
      return whole ? Units<Kind<4, 0, 32, false>>(m, units, x, tokens, partials)
                   : Units<Kind<2, 2, 32, false>>(m, units, x, tokens, partials);
    case DType::Q4_1:
    case DType::Q4_K:
      return whole ? Units<Kind<4, 0, 32, true>>(m, units, x, tokens, partials)
                   : Units<Kind<2, 2, 32, true>>(m, units, x, tokens, partials);
    case DType::Q5_0: return Units<Kind<4, 1, 32, false>>(m, units, x, tokens, partials);
    case DType::Q5_1:
    case DType::Q5_K: return Units<Kind<4, 1, 32, true>>(m, units, x, tokens, partials);
    case DType::Q6_K: return Units<Kind<4, 2, 16, false>>(m, units, x, tokens, partials);
    case DType::Q3_K: return Units<Kind<2, 1, 16, false>>(m, units, x, tokens, partials);
    case DType::Q2_K: return Units<Kind<2, 0, 16, true>>(m, units, x, tokens, partials);
    default: return;  // GradedMatrix knows its types
  }
}

void GradedSum(const GradedMatrix& m, Range rows, Range tokens, const float* partials, const float* bias, float* y,
               std::int64_t y_stride) {
  const DF df;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df)), segments = m.segments(), stride = m.padded_rows();
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
    const float* from = partials + t * m.partials();
    float* to = y + t * y_stride;
    std::int64_t r = rows.begin;
    for (; r + lanes <= rows.end; r += lanes) {
      VF sum = hn::LoadU(df, from + r);
      for (std::int64_t s = 1; s < segments; ++s) sum = hn::Add(sum, hn::LoadU(df, from + s * stride + r));
      if (bias) sum = hn::Add(sum, hn::LoadU(df, bias + r));
      hn::StoreU(sum, df, to + r);
    }
    for (; r < rows.end; ++r) {
      float sum = from[r];
      for (std::int64_t s = 1; s < segments; ++s) sum += from[s * stride + r];
      to[r] = bias ? sum + bias[r] : sum;
    }
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(GradedUnits);
HWY_EXPORT(GradedSum);

void graded_units(const GradedMatrix& m, Range units, const GradedTokens& x, Range tokens, float* partials) {
  HWY_DYNAMIC_DISPATCH(GradedUnits)(m, units, x, tokens, partials);
}

void graded_sum(const GradedMatrix& m, Range rows, Range tokens, const float* partials, const float* bias, float* y,
                std::int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(GradedSum)(m, rows, tokens, partials, bias, y, y_stride);
}

}  // namespace narrows
#endif
