// Dot products of four columns' codes with four activations, straight from their planes. Included once for
// each target, by Highway's rules.
#if defined(NARROWS_KERNELS_GRADED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWS_KERNELS_GRADED_INL_H_
#undef NARROWS_KERNELS_GRADED_INL_H_
#else
#define NARROWS_KERNELS_GRADED_INL_H_
#endif

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

// The strip at p, kBytes (4, 8 or 16) bytes a group, from lane `first` on: a group's bytes begin each 128-bit
// block of the vector; what follows them is of no account.
template <int kBytes>
HWY_INLINE VU8 LoadGroups(const std::uint8_t* p, std::size_t first) {
  p += first / 4 * kBytes;
  if constexpr (kBytes == 16) return hn::LoadU(DU8(), p);
#if HWY_TARGET <= HWY_AVX3
  const auto* at = reinterpret_cast<const __m256i*>(p);
  if constexpr (kBytes == 8)
    return VU8{_mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0),
                                        _mm512_castsi256_si512(_mm256_loadu_si256(at)))};
  if constexpr (kBytes == 4)
    return VU8{_mm512_permutexvar_epi32(
        _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0),
        _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
#elif HWY_TARGET == HWY_AVX2
  if constexpr (kBytes == 8)
    return VU8{_mm256_permute4x64_epi64(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 0x50)};
  if constexpr (kBytes == 4)
    return VU8{_mm256_permute4x64_epi64(
        _mm256_cvtepu32_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 0x50)};
#else
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, p, kBytes);
  if constexpr (kBytes < 16) return VU8{_mm_set_epi64x(0, static_cast<long long>(bytes))};
#endif
}

// Four columns' bytes: byte j of dword k of each group, of every column, in lane j of that group of part[k].
struct FourColumns {
  VU8 part[4];
};

template <int kBytes>
HWY_INLINE FourColumns LoadFour(const std::uint8_t* plane, std::int64_t run, const std::uint32_t* column,
                                std::size_t first) {
  const DU8 d8;
  const hn::Repartition<std::uint16_t, DF> d16;
  VU8 v[4];
  for (int c = 0; c < 4; ++c) v[c] = LoadGroups<kBytes>(plane + column[c] * run, first);
  const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d8, v[0], v[1]));
  const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d8, v[2], v[3]));
  FourColumns four;
  four.part[0] = hn::BitCast(d8, hn::InterleaveLower(d16, low01, low23));
  four.part[1] = hn::BitCast(d8, hn::InterleaveUpper(d16, low01, low23));
  four.part[2] = four.part[3] = four.part[0];
  if constexpr (kBytes == 16) {
    const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d8, v[0], v[1]));
    const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d8, v[2], v[3]));
    four.part[2] = hn::BitCast(d8, hn::InterleaveLower(d16, high01, high23));
    four.part[3] = hn::BitCast(d8, hn::InterleaveUpper(d16, high01, high23));
  }
  return four;
}

// Bytes shifted down (up, if negative); bits that cross into a neighbour are for the caller to mask.
template <int kShift>
HWY_INLINE VU8 Shifted(VU8 v) {
  const auto wide = hn::BitCast(hn::Repartition<std::uint16_t, DF>(), v);
  if constexpr (kShift > 0) return hn::BitCast(DU8(), hn::ShiftRight<kShift>(wide));
  if constexpr (kShift < 0) return hn::BitCast(DU8(), hn::ShiftLeft<-kShift>(wide));
  return v;
}

// Bit by bit: those of `yes` where mask is set.
HWY_INLINE VU8 Choose(VU8 mask, VU8 yes, VU8 no) {
#if HWY_TARGET <= HWY_AVX3
  return hn::IfVecThenElse(mask, yes, no);
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

// The coarse codes of rows 16 · i …, times 2^kFine.
template <int kCoarse, int kFine, int i>
HWY_INLINE VU8 CoarseCodes(const FourColumns& coarse) {
  constexpr int kFields = 8 / kCoarse;
  constexpr std::uint8_t kMask = ((1 << kCoarse) - 1) << kFine;
  return hn::And(Shifted<kCoarse*(i % kFields) - kFine>(coarse.part[i / kFields]), hn::Set(DU8(), kMask));
}

// Their exact codes.
template <int kCoarse, int kFine, int i>
HWY_INLINE VU8 ExactCodes(const FourColumns& coarse, const FourColumns& fine) {
  constexpr int kFields = 8 / kCoarse, kFineFields = 8 / kFine;
  constexpr std::uint8_t kMask = ((1 << kCoarse) - 1) << kFine, kAll = (1 << (kCoarse + kFine)) - 1;
  const VU8 codes =
      Choose(hn::Set(DU8(), kMask), Shifted<kCoarse*(i % kFields) - kFine>(coarse.part[i / kFields]),
             Shifted<kFine*(i % kFineFields)>(fine.part[i / kFineFields]));
  return kAll == 255 ? codes : hn::And(codes, hn::Set(DU8(), kAll));
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
