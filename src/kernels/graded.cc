// Products by columns, of graded precision: lanes are rows, columns pass four at a time.
#include "kernels/graded.h"

#include <algorithm>
#include <cstring>

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
  static constexpr bool kMinima = minima, kWide = coarse + fine == 8;
};

// One token's columns of a block.
struct Columns {
  const std::uint32_t* column;
  const std::int8_t *high, *low;
  const GradedTokens::Block& block;
};

HWY_INLINE Columns ColumnsOf(const GradedTokens& x, std::int64_t token, std::int64_t block) {
  const std::int64_t at = token * x.stride + block * GradedTokens::kSlots;
  return {x.column.data() + at, x.high.data() + at, x.low.data() + at,
          x.of_block[static_cast<std::size_t>(token * x.blocks + block)]};
}

// Where a panel lies.
struct Panel {
  const std::uint8_t *coarse, *fine, *scales;
  std::int64_t coarse_run, fine_run, scale_bytes, rows;
  int offset;
};

HWY_INLINE Panel PanelOf(const GradedMatrix& m, std::int64_t p) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(m.data);
  return {data + m.coarse_at(p),
          data + m.fine_at(p),
          data + m.scales_at(p),
          m.run_bytes(m.layout.coarse_bits, p),
          m.run_bytes(m.layout.fine_bits, p),
          m.scale_bytes(p),
          m.panel(p).end - m.panel(p).begin,
          m.layout.offset};
}

// Integer products with kCount fields (rows 16 · i …) from kFirst on.
template <int kCount>
struct Sums {
  VI high[kCount], low[kCount];
};

template <class K, bool kExact, int kFirst, int kCount, int n = 0>
HWY_INLINE void AddFields(const FourColumns& coarse, const FourColumns& fine, VI high, VI low,
                          Sums<kCount>& sums) {
  constexpr int i = kFirst + n;
  VU8 codes;
  if constexpr (kExact && K::kFine > 0)
    codes = ExactCodes<K::kCoarse, K::kFine, i>(coarse, fine);
  else
    codes = CoarseCodes<K::kCoarse, K::kFine, i>(coarse);
  sums.high[n] = Dot4<K::kWide>(sums.high[n], codes, high);
  sums.low[n] = Dot4<K::kWide>(sums.low[n], codes, low);
  if constexpr (n + 1 < kCount) AddFields<K, kExact, kFirst, kCount, n + 1>(coarse, fine, high, low, sums);
}

// A strip of a panel with 16 · kFields rows.
template <class K, int kFields_>
struct StripOf {
  static constexpr int kFields = kFields_;
  // Bytes of a group in each plane.
  static constexpr int Group(int bits) { return HWY_MAX(bits * kFields / 2, 4); }
  const std::uint8_t *coarse, *fine;
  std::int64_t coarse_run, fine_run;
};

// Adds the columns in slots [begin, begin + count), of which `half` are in the block's first half. Sub-block
// `sub` alone, where there are two.
template <class K, bool kExact, int kFirst, int kCount, class Strip>
HWY_INLINE void AddColumns(const Strip& strip, const Columns& c, int begin, int count, int half, int sub,
                           std::size_t first_lane, Sums<kCount>& sums) {
  // Four columns at a time; those of the other sub-block count as zeros.
  const std::uint32_t first_half = (1u << (8 * (half % 4))) - 1;
  const int from = K::kSubs == 2 && sub == 1 ? half / 4 : 0;
  const int to = ((K::kSubs == 2 && sub == 0 ? half : count) + 3) / 4;
  for (int four = from; four < to; ++four) {
    const int slot = begin + 4 * four;
    std::uint32_t high, low;
    std::memcpy(&high, c.high + slot, 4);
    std::memcpy(&low, c.low + slot, 4);
    if (K::kSubs == 2 && four == half / 4) {
      const std::uint32_t mask = sub == 0 ? first_half : ~first_half;
      high &= mask;
      low &= mask;
    }
    const FourColumns coarse =
        LoadFour<Strip::Group(K::kCoarse)>(strip.coarse, strip.coarse_run, c.column + slot, first_lane);
    FourColumns fine = coarse;
    if constexpr (kExact && K::kFine > 0)
      fine = LoadFour<Strip::Group(K::kFine)>(strip.fine, strip.fine_run, c.column + slot, first_lane);
    const DI di;
    AddFields<K, kExact, kFirst>(coarse, fine, hn::Set(di, static_cast<std::int32_t>(high)),
                                 hn::Set(di, static_cast<std::int32_t>(low)), sums);
  }
}

// y[16 · kFirst …] += products with kCount fields, of the lanes from `first` on.
template <class K, int kFirst, int kCount, class Strip>
HWY_INLINE void Fields(const Strip& strip, const Panel& panel, const Columns& c, std::int64_t block,
                       std::int64_t row, std::size_t first, float* HWY_RESTRICT y) {
  const DF df;
  const DI di;
  const hn::Rebind<hwy::float16_t, DF> d16;
  const GradedTokens::Block& b = c.block;
  for (int s = 0; s < K::kSubs; ++s) {
    const int coarse_sum = K::kSubs == 2 ? b.coarse_sum[s] : b.coarse_sum[0] + b.coarse_sum[1];
    const int sum = coarse_sum + (K::kSubs == 2 ? b.fine_sum[s] : b.fine_sum[0] + b.fine_sum[1]);
    // What codes are too large by; the fine bits that are not read are taken to be in the middle.
    const int correction = panel.offset * sum - ((1 << K::kFine) - 1) * (coarse_sum / 2);
    Sums<kCount> sums;
    for (int i = 0; i < kCount; ++i) {
      sums.high[i] = hn::Zero(di);
      sums.low[i] = hn::Set(di, -correction);
    }
    AddColumns<K, false, kFirst>(strip, c, 0, b.coarse, b.coarse_half, s, first, sums);
    AddColumns<K, true, kFirst>(strip, c, (b.coarse + 3) / 4 * 4, b.fine, b.fine_half, s, first, sums);
    const auto* scales =
        reinterpret_cast<const hwy::float16_t*>(panel.scales + (block * K::kSubs + s) * panel.scale_bytes) +
        row + first;
    const VF scale = hn::Set(df, b.scale), scaled_sum = hn::Set(df, b.scale * static_cast<float>(sum));
    for (int i = 0; i < kCount; ++i) {
      const int at = 16 * (kFirst + i);
      const VF products = hn::ConvertTo(df, hn::Add(hn::ShiftLeft<7>(sums.high[i]), sums.low[i]));
      VF total = hn::MulAdd(hn::Mul(hn::PromoteTo(df, hn::LoadU(d16, scales + at)), scale), products,
                            hn::LoadU(df, y + first + at));
      if constexpr (K::kMinima)
        total = hn::MulAdd(hn::PromoteTo(df, hn::LoadU(d16, scales + panel.rows + at)), scaled_sum, total);
      hn::StoreU(total, df, y + first + at);
    }
  }
}

// y[0 … 16 · kFields) += the products of a block's columns with the strip at `row` of the panel.
template <class K, int kFields>
HWY_INLINE void Strip(const Panel& panel, const Columns& c, std::int64_t block, std::int64_t row,
                      float* HWY_RESTRICT y) {
  constexpr std::size_t kLanes = hn::MaxLanes(DF());
  const StripOf<K, kFields> strip{panel.coarse + row * K::kCoarse / 8, panel.fine + row * K::kFine / 8,
                                  panel.coarse_run, panel.fine_run};
  for (std::size_t first = 0; first < 16; first += kLanes) {
    if constexpr (HWY_TARGET <= HWY_AVX3 || kFields == 4) {
      Fields<K, 0, kFields>(strip, panel, c, block, row, first, y);
    } else {  // half of the sums fit in registers
      Fields<K, 0, 4>(strip, panel, c, block, row, first, y);
      Fields<K, 4, 4>(strip, panel, c, block, row, first, y);
    }
  }
}

// Into the second-level cache: a block ahead is more than the first one holds.
HWY_INLINE void PrefetchLines(const std::uint8_t* p, std::int64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p) / kCacheLine;
  const auto end =
      (reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes) + kCacheLine - 1) /
      kCacheLine;
  for (auto line = begin; line < end; ++line)
    __builtin_prefetch(reinterpret_cast<const void*>(line * kCacheLine), 0, 2);
}

// Asks for what the next block reads, in as many steps as this block has strips.
template <class K>
class Ahead {
 public:
  Ahead(const Panel& panel, const Columns& columns, std::int64_t block, int steps)
      : panel_(panel), columns_(columns), scales_(panel.scales + block * K::kSubs * panel.scale_bytes) {
    const int count = columns.block.coarse + columns.block.fine;
    count_step_ = (count << 16) / steps + 1;
    scale_step_ = static_cast<int>(K::kSubs * panel.scale_bytes) / steps / 64 * 64 + 64;
  }

  HWY_INLINE void Step() {
    const int coarse = columns_.block.coarse, count = coarse + columns_.block.fine;
    due_ += count_step_;
    for (const int end = HWY_MIN(due_ >> 16, count); done_ < end; ++done_) {
      const bool exact = done_ >= coarse;
      const std::int64_t column = columns_.column[exact ? (coarse + 3) / 4 * 4 + done_ - coarse : done_];
      PrefetchLines(panel_.coarse + column * panel_.coarse_run, panel_.coarse_run);
      if (K::kFine > 0 && exact) PrefetchLines(panel_.fine + column * panel_.fine_run, panel_.fine_run);
    }
    PrefetchLines(scales_, scale_step_);
    scales_ += scale_step_;
  }

 private:
  const Panel panel_;
  const Columns columns_;
  const std::uint8_t* scales_;
  int count_step_, scale_step_, done_ = 0, due_ = 0;
};

// More tokens than these read so much of a block that the hardware's own prefetching serves.
constexpr std::int64_t kFewTokens = 2;

template <class K>
HWY_NOINLINE void Units(const GradedMatrix& m, Range units, const GradedTokens& x, Range tokens,
                        float* partials) {
  const std::int64_t segments = m.segments(), rows = m.padded_rows();
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t p = unit / segments, segment = unit % segments;
    const Range blocks = m.segment_blocks(segment);
    const Panel panel = PanelOf(m, p);
    const int steps =
        static_cast<int>((panel.rows + GradedMatrix::kStripRows - 1) / GradedMatrix::kStripRows);
    const auto y_of = [&](std::int64_t t) {
      return partials + (t * segments + segment) * rows + m.panel(p).begin;
    };
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) std::fill_n(y_of(t), panel.rows, 0.0f);
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      // The next block of these units: in this segment, in the next one, or in the next panel.
      const bool last = block + 1 == m.blocks();
      const bool any =
          tokens.end - tokens.begin <= kFewTokens && (block + 1 < blocks.end || unit + 1 < units.end);
      const Panel next_panel = last && p + 1 < m.panels() ? PanelOf(m, p + 1) : panel;
      for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
        const Columns columns = ColumnsOf(x, t, block);
        const std::int64_t next = last ? 0 : block + 1;
        Ahead<K> ahead(next_panel, ColumnsOf(x, t, next), next, steps);
        float* y = y_of(t);
        std::int64_t row = 0;
        for (; row + GradedMatrix::kStripRows <= panel.rows; row += GradedMatrix::kStripRows) {
          if (any) ahead.Step();
          Strip<K, 8>(panel, columns, block, row, y + row);
        }
        if (row < panel.rows) {
          if (any) ahead.Step();
          Strip<K, 4>(panel, columns, block, row, y + row);
        }
      }
    }
  }
}

void GradedUnits(const GradedMatrix& m, Range units, const GradedTokens& x, Range tokens, float* partials) {
  const bool whole = m.split == GradedSplit::Whole;
  switch (m.dtype) {
    case DType::Q8_0:
      return Units<Kind<4, 4, 32, false>>(m, units, x, tokens, partials);
    case DType::Q4_0:
      return whole ? Units<Kind<4, 0, 32, false>>(m, units, x, tokens, partials)
                   : Units<Kind<2, 2, 32, false>>(m, units, x, tokens, partials);
    case DType::Q4_1:
    case DType::Q4_K:
      return whole ? Units<Kind<4, 0, 32, true>>(m, units, x, tokens, partials)
                   : Units<Kind<2, 2, 32, true>>(m, units, x, tokens, partials);
    case DType::Q5_0:
      return Units<Kind<4, 1, 32, false>>(m, units, x, tokens, partials);
    case DType::Q5_1:
    case DType::Q5_K:
      return Units<Kind<4, 1, 32, true>>(m, units, x, tokens, partials);
    case DType::Q6_K:
      return Units<Kind<4, 2, 16, false>>(m, units, x, tokens, partials);
    case DType::Q3_K:
      return Units<Kind<2, 1, 16, false>>(m, units, x, tokens, partials);
    case DType::Q2_K:
      return Units<Kind<2, 0, 16, true>>(m, units, x, tokens, partials);
    default:
      return;  // GradedMatrix knows its types
  }
}

void GradedSum(const GradedMatrix& m, Range rows, Range tokens, const float* partials, const float* bias,
               float* y, std::int64_t y_stride) {
  const DF df;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df)), segments = m.segments(),
                     stride = m.padded_rows();
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

void graded_sum(const GradedMatrix& m, Range rows, Range tokens, const float* partials, const float* bias,
                float* y, std::int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(GradedSum)(m, rows, tokens, partials, bias, y, y_stride);
}

}  // namespace narrows
#endif
