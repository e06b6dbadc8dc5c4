// Integer dot products of four neighbouring bytes. Included once for each target, by Highway's rules.
#if defined(NARROWS_KERNELS_DOT4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWS_KERNELS_DOT4_INL_H_
#undef NARROWS_KERNELS_DOT4_INL_H_
#else
#define NARROWS_KERNELS_DOT4_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

// Highway 1.0.3 names AVX-VNNI, not AVX512-VNNI, among the features of this target; every machine that passes its
// run-time test for the target has AVX512-VNNI. AMX is used where use_amx() says so.
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR                                                                    \
  HWY_TARGET_STR_AVX3                                                                     \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq,avx512vnni" \
  ",amx-tile,amx-int8"
#endif

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One vector holds up to 16 floats: the rows of a tile, or a part of them.
using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU8 = hn::Repartition<std::uint8_t, DF>;
using DI16 = hn::Repartition<std::int16_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU8 = hn::Vec<DU8>;
using VI16 = hn::Vec<DI16>;

// Each 32-bit lane: the sum of products of its two 16-bit lanes.
HWY_INLINE VI MaddI16(VI16 a, VI16 b) {
#if HWY_TARGET <= HWY_AVX3
  return VI{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_madd_epi16(a.raw, b.raw)};
#else
  return VI{_mm_madd_epi16(a.raw, b.raw)};
#endif
}

// sum + the dot product, in each 32-bit lane, of four unsigned codes and four signed activations. Exact.
// kWide: codes may exceed 127.
template <bool kWide>
HWY_INLINE VI Dot4(VI sum, VU8 codes, VI x) {
#if HWY_TARGET == HWY_AVX3_DL
  return VI{_mm512_dpbusd_epi32(sum.raw, codes.raw, x.raw)};
#else
  const DI16 d16;
  if constexpr (!kWide) {
#if HWY_TARGET == HWY_AVX3
    const VI16 pairs{_mm512_maddubs_epi16(codes.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX2
    const VI16 pairs{_mm256_maddubs_epi16(codes.raw, x.raw)};
#else
    const VI16 pairs{_mm_maddubs_epi16(codes.raw, x.raw)};
#endif
    return hn::Add(sum, MaddI16(pairs, hn::Set(d16, std::int16_t{1})));
  }
  // maddubs would saturate: widen even and odd bytes to 16 bits.
  const VI16 x16 = hn::BitCast(d16, x), codes16 = hn::BitCast(d16, codes);
  const VI16 x_even = hn::ShiftRight<8>(hn::ShiftLeft<8>(x16)), x_odd = hn::ShiftRight<8>(x16);
  const auto du16 = hn::RebindToUnsigned<DI16>();
  const VI16 even = hn::And(codes16, hn::Set(d16, std::int16_t{0xff}));
  const VI16 odd = hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(du16, codes16)));
  return hn::Add(sum, hn::Add(MaddI16(even, x_even), MaddI16(odd, x_odd)));
#endif
}

// The four activations at q, in every lane.
HWY_INLINE VI Broadcast4(const std::int8_t* q) {
  std::int32_t four;
  std::memcpy(&four, q, 4);
  return hn::Set(DI(), four);
}

// Sixteen partial sums (in one, two or four vectors) added up by a fixed tree: i with i + 8, + 4, + 2, + 1.
template <std::size_t kParts>
HWY_INLINE float Reduce16(const VF (&parts)[kParts]) {
#if HWY_TARGET <= HWY_AVX2  // the same tree in registers
#if HWY_TARGET <= HWY_AVX3
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(parts[0].raw),
                                     _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(parts[0].raw), 1)));
#else
  const __m256 eight = _mm256_add_ps(parts[0].raw, parts[1].raw);
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#endif
  alignas(64) float lanes[16];
  for (std::size_t i = 0; i < kParts; ++i) hn::Store(parts[i], DF(), lanes + i * (16 / kParts));
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
