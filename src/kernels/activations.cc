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

void QuantizeRows(const float* x, std::int64_t stride, Range range, QuantizedRows& out) {
  const DF df;
  const DI di;
  const hn::Rebind<std::int8_t, DF> d8;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df));
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    for (std::int64_t b = 0; b < out.blocks; ++b) {
      const float* source = x + t * stride + b * 32;
      alignas(64) float last[32] = {};
      if (const std::int64_t left = out.k - b * 32; left < 32) {
        std::copy(source, source + left, last);
        source = last;
      }
      VF most = hn::Zero(df);
      for (std::int64_t i = 0; i < 32; i += lanes) most = hn::Max(most, hn::Abs(hn::LoadU(df, source + i)));
      const float largest = hn::GetLane(hn::MaxOfLanes(df, most));
      // Below this the reciprocal would overflow; such a block is as good as zero.
      const float inverse = largest > 1e-36f ? 127.0f / largest : 0.0f;
      const float scale = largest > 1e-36f ? largest / 127.0f : 0.0f;
      std::int8_t* q = out.q.data() + t * out.stride + b * 32;
      std::int32_t sums[2] = {0, 0};
      for (std::int64_t i = 0; i < 32; i += lanes) {
        const VI codes = hn::NearestInt(hn::Mul(hn::LoadU(df, source + i), hn::Set(df, inverse)));
        hn::Store(hn::DemoteTo(d8, codes), d8, q + i);
        sums[i / 16] += hn::GetLane(hn::SumOfLanes(di, codes));
      }
      const std::int64_t at = t * out.blocks + b;
      out.scale[at] = scale;
      out.sum32[at] = sums[0] + sums[1];
      out.scaled_sum32[at] = scale * static_cast<float>(sums[0] + sums[1]);
      for (int s = 0; s < 2; ++s) {
        out.sum16[2 * at + s] = sums[s];
        out.scaled_sum16[2 * at + s] = scale * static_cast<float>(sums[s]);
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
  stride = blocks * 32 + 64;
  const auto grow = [](auto& v, std::int64_t n) {
    if (static_cast<std::int64_t>(v.size()) < n) v.resize(static_cast<std::size_t>(n));
  };
  grow(q, rows * stride);
  grow(scale, rows * blocks);
  grow(sum32, rows * blocks);
  grow(scaled_sum32, rows * blocks);
  grow(sum16, rows * blocks * 2);
  grow(scaled_sum16, rows * blocks * 2);
}

void quantize_rows(const float* x, std::int64_t stride, Range range, QuantizedRows& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeRows)(x, stride, range, out);
}

}  // namespace narrows
#endif
