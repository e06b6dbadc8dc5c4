#include "kernels/gram.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gram.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

constexpr std::int64_t kGramLanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
constexpr std::size_t kGramParts = 16 / hn::MaxLanes(DF());

// Shapes that keep the sums in registers: 24 of 32 with AVX-512, 12 of 16 with AVX2.
constexpr int kRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 6 : HWY_TARGET <= HWY_AVX2 ? 3 : 1;
constexpr int kColumnsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

#if HWY_TARGET <= HWY_AVX3
// Reduce16 of four vectors at once: the same tree for each.
HWY_INLINE void StoreReduced4(const VF& a, const VF& b, const VF& c, const VF& d, float* to) {
  const auto eight = [](const VF& v) HWY_ATTR {
    return _mm256_add_ps(_mm512_castps512_ps256(v.raw),
                         _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v.raw), 1)));
  };
  const auto four = [](__m256 v, __m256 w) HWY_ATTR {
    return _mm256_add_ps(_mm256_permute2f128_ps(v, w, 0x20), _mm256_permute2f128_ps(v, w, 0x31));
  };
  const __m256 ac = four(eight(a), eight(c)), bd = four(eight(b), eight(d));
  // In each half, of the first and of the second: elements 0 and 1 plus elements 2 and 3.
  const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xEE));
  const __m128 ab = _mm256_castps256_ps128(two), cd = _mm256_extractf128_ps(two, 1);
  _mm_storeu_ps(to, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xDD)));
}
#endif

template <int kRows, int kColumns>
HWY_NOINLINE void GramTile(const float* HWY_RESTRICT x, std::int64_t stride, const std::int32_t* rows,
                           const std::int32_t* columns, float* HWY_RESTRICT out) {
  const DF df;
  const float *row[kRows], *column[kColumns];
  for (int r = 0; r < kRows; ++r) row[r] = x + rows[r] * stride;
  for (int c = 0; c < kColumns; ++c) column[c] = x + columns[c] * stride;
  VF acc[kRows][kColumns][kGramParts];
  for (auto& r : acc)
    for (auto& c : r)
      for (auto& part : c) part = hn::Zero(df);
  for (std::int64_t k = 0; k < stride; k += 16)
    for (std::size_t p = 0; p < kGramParts; ++p) {
      const std::int64_t at = k + static_cast<std::int64_t>(p) * kGramLanes;
      VF values[kColumns];
      for (int c = 0; c < kColumns; ++c) values[c] = hn::LoadU(df, column[c] + at);
      for (int r = 0; r < kRows; ++r) {
        const VF v = hn::LoadU(df, row[r] + at);
        for (int c = 0; c < kColumns; ++c) acc[r][c][p] = hn::MulAdd(v, values[c], acc[r][c][p]);
      }
    }
  for (int r = 0; r < kRows; ++r) {
    float* to = out + r * kGramColumns;
#if HWY_TARGET <= HWY_AVX3
    if constexpr (kColumns == 4) {
      StoreReduced4(acc[r][0][0], acc[r][1][0], acc[r][2][0], acc[r][3][0], to);
      continue;
    }
#endif
    for (int c = 0; c < kColumns; ++c) to[c] = Reduce16(acc[r][c]);
  }
}

template <int kRows>
void GramRows(const float* x, std::int64_t stride, const std::int32_t* rows,
              std::span<const std::int32_t> columns, float* out) {
  std::size_t c = 0;
  for (; c + kColumnsAtOnce <= columns.size(); c += kColumnsAtOnce)
    GramTile<kRows, kColumnsAtOnce>(x, stride, rows, columns.data() + c, out + c);
  for (; c < columns.size(); ++c) GramTile<kRows, 1>(x, stride, rows, columns.data() + c, out + c);
}

void GramBlock(const float* x, std::int64_t stride, std::span<const std::int32_t> rows,
               std::span<const std::int32_t> columns, float* out) {
  std::size_t r = 0;
  for (; r + kRowsAtOnce <= rows.size(); r += kRowsAtOnce)
    GramRows<kRowsAtOnce>(x, stride, rows.data() + r, columns, out + r * kGramColumns);
  if constexpr (kRowsAtOnce > 3)
    for (; r + 3 <= rows.size(); r += 3)
      GramRows<3>(x, stride, rows.data() + r, columns, out + r * kGramColumns);
  for (; r < rows.size(); ++r) GramRows<1>(x, stride, rows.data() + r, columns, out + r * kGramColumns);
}

float Largest(const float* values, std::int64_t n, float best) {
  const DF df;
  std::int64_t i = 0;
  if (n >= kGramLanes) {
    VF most = hn::LoadU(df, values);
    for (i = kGramLanes; i + kGramLanes <= n; i += kGramLanes)
      most = hn::Max(most, hn::LoadU(df, values + i));
    best = HWY_MAX(best, hn::GetLane(hn::MaxOfLanes(df, most)));
  }
  for (; i < n; ++i) best = HWY_MAX(best, values[i]);
  return best;
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(GramBlock);
HWY_EXPORT(Largest);

void gram_block(const float* x, std::int64_t stride, std::span<const std::int32_t> rows,
                std::span<const std::int32_t> columns, float* out) {
  HWY_DYNAMIC_DISPATCH(GramBlock)(x, stride, rows, columns, out);
}

float largest(const float* values, std::int64_t n, float best) {
  return HWY_DYNAMIC_DISPATCH(Largest)(values, n, best);
}

}  // namespace narrows
#endif
