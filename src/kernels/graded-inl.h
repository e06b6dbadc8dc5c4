// Sums over columns of a strip of rows, straight from the bits of their codes. Included once for each target, by
// Highway's rules.
#if defined(NARROWS_KERNELS_GRADED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWS_KERNELS_GRADED_INL_H_
#undef NARROWS_KERNELS_GRADED_INL_H_
#else
#define NARROWS_KERNELS_GRADED_INL_H_
#endif

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

// Whether a permutation of 16 floats serves as a table.
constexpr bool kTables = HWY_TARGET <= HWY_AVX3;

// Lanes of a strip with kFields fields of kBits bits, from lane `first` on, as 32-bit integers.
template <int kBits, int kFields>
HWY_INLINE VU LoadFields(const std::uint8_t* p, std::size_t first) {
  const DU du;
  constexpr int bits = kBits * kFields;
  if constexpr (bits == 32) return hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(p) + first);
  if constexpr (bits == 16) {
    const hn::Rebind<std::uint16_t, DU> d16;
    return hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p) + first));
  }
  if constexpr (bits <= 8) {
    const hn::Rebind<std::uint8_t, DU> d8;
    return hn::PromoteTo(du, hn::LoadU(d8, p + first));
  }
}

// The values of a field of kBits whatever the bits above it among the low four, times 2^kUp.
struct TableValues {
  alignas(64) float v[16];
};
template <int kBits, int kUp>
inline constexpr TableValues kTableValues = [] {
  TableValues t{};
  for (int i = 0; i < 16; ++i) t.v[i] = static_cast<float>((i & ((1 << kBits) - 1)) << kUp);
  return t;
}();
template <int kBits, int kUp>
HWY_INLINE VF Table() {
  return hn::Load(DF(), kTableValues<kBits, kUp>.v);
}

HWY_INLINE VF Lookup([[maybe_unused]] VF table, VU index) {
#if HWY_TARGET <= HWY_AVX3
  return VF{_mm512_permutexvar_ps(index.raw, table.raw)};
#else
  return hn::BitCast(DF(), index);  // never called
#endif
}

template <int kShift>
HWY_INLINE VU Down(VU v) {
  if constexpr (kShift > 0) return hn::ShiftRight<kShift>(v);
  if constexpr (kShift < 0) return hn::ShiftLeft<-kShift>(v);
  return v;
}

// acc[i] += x · 2^kUp · field i of v. `table`: Table<kBits, kUp>().
template <int kBits, int kUp, int kFields, int i = 0>
HWY_INLINE void AddPlane(VU v, VF x, [[maybe_unused]] VF table, VF (&acc)[kFields]) {
  const DU du;
  if constexpr (kTables && kBits == 1) {
#if HWY_TARGET <= HWY_AVX3
    const __mmask16 set = _mm512_test_epi32_mask(v.raw, hn::Set(du, 1u << i).raw);
    acc[i].raw = _mm512_mask_add_ps(acc[i].raw, set, acc[i].raw, x.raw);
#endif
  } else if constexpr (kTables) {
    acc[i] = hn::MulAdd(Lookup(table, Down<kBits * i>(v)), x, acc[i]);
  } else {
    const VU code = hn::And(Down<kBits * i - kUp>(v), hn::Set(du, ((1u << kBits) - 1) << kUp));
    acc[i] = hn::MulAdd(hn::ConvertTo(DF(), hn::BitCast(DI(), code)), x, acc[i]);
  }
  if constexpr (i + 1 < kFields) AddPlane<kBits, kUp, kFields, i + 1>(v, x, table, acc);
}

// Byte i of each lane.
template <int i>
HWY_INLINE VU ByteOf(VU v) {
  const DU du;
  if constexpr (i == 0) return hn::And(v, hn::Set(du, 0xffu));
  if constexpr (i == 3) return hn::ShiftRight<24>(v);
  if constexpr (i == 1 || i == 2) {  // one permutation of bytes
    const auto from = hn::Set(du, 0x80808000u + i);
    const DU8 d8;
    const auto lane = hn::BitCast(d8, hn::And(hn::Iota(du, 0), hn::Set(du, 3u)));
    return hn::BitCast(du, hn::TableLookupBytesOr0(hn::BitCast(d8, v), hn::BitCast(d8, hn::Add(from, hn::ShiftLeft<2>(hn::BitCast(du, lane))))));
  }
}

// acc[kFirst + 2i] += x · byte i of v.
template <int kFirst, int kFields, int i = 0>
HWY_INLINE void AddBytes(VU v, VF x, VF (&acc)[kFields]) {
  acc[kFirst + 2 * i] =
      hn::MulAdd(hn::ConvertTo(DF(), hn::BitCast(DI(), ByteOf<i>(v))), x, acc[kFirst + 2 * i]);
  if constexpr (2 * i + 2 < kFields) AddBytes<kFirst, kFields, i + 1>(v, x, acc);
}

// acc[kFirst + 2i] += x · nibble i of v. `table`: Table<4, 0>().
template <int kFirst, int kFields, int i = 0>
HWY_INLINE void AddNibbles(VU v, VF x, VF table, VF (&acc)[kFields]) {
  acc[kFirst + 2 * i] = hn::MulAdd(Lookup(table, Down<4 * i>(v)), x, acc[kFirst + 2 * i]);
  if constexpr (2 * i + 2 < kFields) AddNibbles<kFirst, kFields, i + 1>(v, x, table, acc);
}

// Whether the bits of both planes are put together first, which takes fewer steps than two products.
template <int kCoarse, int kFine>
constexpr bool kTogether = kTables && kCoarse == kFine;

// acc[i] += x · code i, from both planes. `table` and `fine_table`: those of the planes; of codes put together, Table<4, 0>().
template <int kCoarse, int kFine, int kFields>
HWY_INLINE void AddExact(VU coarse, VU fine, VF x, [[maybe_unused]] VF table,
                         [[maybe_unused]] VF fine_table, VF (&acc)[kFields]) {
  const DU du;
  if constexpr (kTogether<kCoarse, kFine>) {
    // Codes of even fields in one vector, of odd ones in another: coarse bits over fine ones.
    const VU low = hn::Set(du, kFine == 4 ? 0x0f0f0f0fu : 0x33333333u);
    const VU even = hn::IfVecThenElse(low, fine, hn::ShiftLeft<kFine>(coarse));
    const VU odd = hn::IfVecThenElse(low, hn::ShiftRight<kFine>(fine), coarse);
    if constexpr (kFine == 4) {
      AddBytes<0>(even, x, acc);
      AddBytes<1>(odd, x, acc);
    } else {
      AddNibbles<0>(even, x, table, acc);
      AddNibbles<1>(odd, x, table, acc);
    }
  } else {
    AddPlane<kCoarse, kFine>(coarse, x, table, acc);
    if constexpr (kFine > 0) AddPlane<kFine, 0>(fine, x, fine_table, acc);
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
