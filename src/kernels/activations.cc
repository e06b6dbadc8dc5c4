#include "kernels/activations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activations.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

// Root mean square, with 16 partial sums.
HWY_INLINE float RootMeanSquare(const float* x, std::int64_t n) {
  const DF df;
  constexpr std::int64_t lanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  VF sums[16 / lanes];
  for (auto& sum : sums) sum = hn::Zero(df);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (std::int64_t p = 0; p < 16 / lanes; ++p) {
      const VF v = hn::LoadU(df, x + i + p * lanes);
      sums[p] = hn::MulAdd(v, v, sums[p]);
    }
  float rest = 0;
  for (; i < n; ++i) rest += x[i] * x[i];
  return std::sqrt((Reduce16(sums) + rest) / static_cast<float>(n));
}

// One block of 32: codes of x at `scale`, and of what they leave over where the block is fine.
HWY_INLINE void QuantizeBlock(const float* x, float scale, bool fine, std::int8_t* q, std::int8_t* low,
                              std::int32_t (&sums)[2], std::int32_t (&low_sums)[2]) {
  const DF df;
  const DI di;
  const hn::Rebind<std::int8_t, DF> d8;
  constexpr std::int64_t lanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  const VF inverse = hn::Set(df, scale > 0 ? 1.0f / scale : 0.0f), step = hn::Set(df, scale);
  const VF low_inverse = hn::Mul(inverse, hn::Set(df, 128.0f));
  const VI most = hn::Set(di, 127);
  for (std::int64_t i = 0; i < 32; i += lanes) {
    const VF v = hn::LoadU(df, x + i);
    const VI codes = hn::Max(hn::Min(hn::NearestInt(hn::Mul(v, inverse)), most), hn::Neg(most));
    hn::Store(hn::DemoteTo(d8, codes), d8, q + i);
    sums[i / 16] += hn::GetLane(hn::SumOfLanes(di, codes));
    if (!fine) continue;
    VI rest = hn::NearestInt(hn::Mul(hn::NegMulAdd(hn::ConvertTo(df, codes), step, v), low_inverse));
    rest = hn::Max(hn::Min(rest, most), hn::Neg(most));
    hn::Store(hn::DemoteTo(d8, rest), d8, low + i);
    low_sums[i / 16] += hn::GetLane(hn::SumOfLanes(di, rest));
  }
  if (!fine) std::memset(low, 0, 32);
}

void QuantizeRows(const float* x, std::int64_t stride, Range range, QuantizedRows& out) {
  const DF df;
  constexpr std::int64_t lanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const float threshold = kFineThreshold * RootMeanSquare(x + t * stride, out.k);
    std::int64_t at = out.first_block(t), at16 = out.first_block(t, 2);
    for (std::int64_t b = 0; b < out.blocks; ++b, at += out.together, at16 += 2 * out.together) {
      const float* source = x + t * stride + b * 32;
      alignas(64) float last[32] = {};
      if (const std::int64_t left = out.k - b * 32; left < 32) {
        std::copy(source, source + left, last);
        source = last;
      }
      VF most = hn::Zero(df);
      for (std::int64_t i = 0; i < 32; i += lanes) most = hn::Max(most, hn::Abs(hn::LoadU(df, source + i)));
      const float largest = hn::GetLane(hn::MaxOfLanes(df, most));
      // Smaller blocks are as good as zero, and their scales would become subnormal.
      const float scale = largest > 1e-30f ? largest / 127.0f : 0.0f;
      const bool fine = largest > threshold && scale > 0;
      std::int32_t sums[2] = {0, 0}, low_sums[2] = {0, 0};
      QuantizeBlock(source, scale, fine, out.q.data() + at * 32, out.low.data() + at * 32, sums, low_sums);
      out.fine[at] = fine;
      out.scale[at] = scale;
      const auto scaled = [&](std::int32_t sum, std::int32_t low_sum) {
        return scale * (static_cast<float>(sum) + static_cast<float>(low_sum) / 128.0f);
      };
      out.sum32[at] = sums[0] + sums[1];
      out.low_sum32[at] = low_sums[0] + low_sums[1];
      out.scaled_sum32[at] = scaled(sums[0] + sums[1], low_sums[0] + low_sums[1]);
      for (int s = 0; s < 2; ++s) {
        const std::int64_t half = at16 + s * out.together;
        out.sum16[half] = sums[s];
        out.low_sum16[half] = low_sums[s];
        out.scaled_sum16[half] = scaled(sums[s], low_sums[s]);
      }
    }
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(QuantizeRows);

void QuantizedRows::resize(std::int64_t new_rows, std::int64_t new_k) {
  rows = new_rows;
  k = new_k;
  blocks = (k + 31) / 32;
  together = rows > 8 ? 16 : rows > 4 ? 8 : std::max<std::int64_t>(rows, 1);
  const std::int64_t n = (rows + together - 1) / together * together * blocks;
  const auto grow = [](auto& v, std::int64_t size) {
    if (static_cast<std::int64_t>(v.size()) < size) v.resize(static_cast<std::size_t>(size));
  };
  grow(q, n * 32);
  grow(low, n * 32);
  grow(fine, n);
  grow(scale, n);
  grow(sum32, n);
  grow(low_sum32, n);
  grow(scaled_sum32, n);
  grow(sum16, n * 2);
  grow(low_sum16, n * 2);
  grow(scaled_sum16, n * 2);
}

void quantize_rows(const float* x, std::int64_t stride, Range range, QuantizedRows& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeRows)(x, stride, range, out);
}

}  // namespace narrows
#endif
