// What a packed tile's codes and scales mean, type by type. Included once for each target, by Highway's
// rules.
#if defined(NARROWS_KERNELS_QUANTIZED_KINDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWS_KERNELS_QUANTIZED_KINDS_INL_H_
#undef NARROWS_KERNELS_QUANTIZED_KINDS_INL_H_
#else
#define NARROWS_KERNELS_QUANTIZED_KINDS_INL_H_
#endif

#include <cstring>

#include "kernels/activations.h"
#include "kernels/dot4-inl.h"
#include "kernels/packed_layout.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

// How a type's codes become weights: w = scale · (value(code) - kOffset) ± minimum, where value is the code
// itself or an entry of IQ4's table (stored + 128, so that it is unsigned).
template <int bits, int sub, bool scales, bool minima, int d_block, int offset, bool table = false>
struct Kind {
  static constexpr PackedLayout kLayout{bits, sub, scales, minima, d_block};
  static constexpr int kOffset = offset;
  static constexpr bool kTable = table;
  static constexpr bool kWide = bits == 8 || table;  // values above 127
};
using KindQ4_0 = Kind<4, 32, false, false, 32, 8>;
using KindQ4_1 = Kind<4, 32, false, true, 32, 0>;
using KindQ5_0 = Kind<5, 32, false, false, 32, 16>;
using KindQ5_1 = Kind<5, 32, false, true, 32, 0>;
using KindQ8_0 = Kind<8, 32, false, false, 32, 128>;
using KindQ2_K = Kind<2, 16, true, true, 256, 0>;
using KindQ3_K = Kind<3, 16, true, false, 256, 4>;
using KindQ4_K = Kind<4, 32, true, true, 256, 0>;
using KindQ5_K = Kind<5, 32, true, true, 256, 0>;
using KindQ6_K = Kind<6, 16, true, false, 256, 32>;
using KindIQ4_NL = Kind<4, 32, false, false, 32, 128, true>;
using KindIQ4_XS = Kind<4, 32, true, false, 256, 128, true>;

// Bytes (plane >> shift) & mask; `plane` points at this vector's part of a line.
template <int kShift, int kMask>
HWY_INLINE VU8 Bits(const std::uint8_t* plane) {
  const DU8 d8;
  const auto du16 = hn::RebindToUnsigned<DI16>();
  const VU8 line = hn::Load(d8, plane);
  if constexpr (kShift > 0)
    return hn::And(hn::BitCast(d8, hn::ShiftRight<kShift>(hn::BitCast(du16, line))), hn::Set(d8, kMask));
  else
    return hn::And(line, hn::Set(d8, kMask));
}

template <int kShift>
HWY_INLINE VU8 ShiftUp(VU8 v) {  // of bytes whose set bits stay inside
  const DU8 d8;
  const auto du16 = hn::RebindToUnsigned<DI16>();
  return hn::BitCast(d8, hn::ShiftLeft<kShift>(hn::BitCast(du16, v)));
}

HWY_ALIGN constexpr std::uint8_t kIQ4Values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                   129, 141, 153, 166, 181, 197, 217, 241};

// Values of quad c of a block whose planes begin at `planes` (already advanced to this vector's rows).
template <class K, int c>
HWY_INLINE VU8 Quad(const std::uint8_t* planes) {
  const DU8 d8;
  constexpr int bits = K::kLayout.bits;
  if constexpr (bits == 8) {
    return hn::Load(d8, planes + c * 64);
  } else if constexpr (bits >= 4) {
    VU8 code = Bits<c % 2 * 4, 15>(planes + c / 2 * 64);
    if constexpr (bits == 5) code = hn::Or(code, ShiftUp<4>(Bits<c, 1>(planes + 256)));
    if constexpr (bits == 6) code = hn::Or(code, ShiftUp<4>(Bits<c % 4 * 2, 3>(planes + 256 + c / 4 * 64)));
    if constexpr (K::kTable) code = hn::TableLookupBytes(hn::LoadDup128(d8, kIQ4Values), code);
    return code;
  } else {
    VU8 code = Bits<c % 4 * 2, 3>(planes + c / 4 * 64);
    if constexpr (bits == 3) code = hn::Or(code, ShiftUp<2>(Bits<c, 1>(planes + 128)));
    return code;
  }
}

constexpr int Log2(int n) { return n <= 1 ? 0 : 1 + Log2(n / 2); }

template <int kTokens>
HWY_INLINE bool AnySet(const std::uint8_t* flags) {
  std::uint64_t bits[2] = {0, 0};
  std::memcpy(bits, flags, kTokens);
  return (bits[0] | bits[1]) != 0;
}

HWY_INLINE VF LoadF16(const std::uint8_t* p) {
  const hn::Rebind<hwy::float16_t, DF> d16;
  return hn::PromoteTo(DF(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE VF LoadU8(const std::uint8_t* p) {
  const hn::Rebind<std::uint8_t, DF> d8;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d8, p)));
}
HWY_INLINE VF LoadI8(const std::uint8_t* p) {
  const hn::Rebind<std::int8_t, DF> d8;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(p))));
}

// Where the products of rows of a tile go: y[token · stride + row].
struct Output {
  const float* bias;
  float* y;
  std::int64_t stride;
};

// Stores a vector of rows, from `at` on, for each token; rows beyond the matrix are dropped.
template <int kTokens>
HWY_INLINE void StoreRows(VF (&acc)[kTokens], std::int64_t at, std::int64_t rows, std::int64_t token,
                          const Output& out) {
  const DF df;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df)), count = HWY_MIN(lanes, rows - at);
  for (int t = 0; t < kTokens; ++t) {
    float* y = out.y + (token + t) * out.stride + at;
    if (count == lanes) {
      if (out.bias) acc[t] = hn::Add(acc[t], hn::LoadU(df, out.bias + at));
      hn::StoreU(acc[t], df, y);
    } else {
      alignas(64) float row[16];
      hn::Store(acc[t], df, row);
      for (std::int64_t r = 0; r < count; ++r) y[r] = out.bias ? row[r] + out.bias[at + r] : row[r];
    }
  }
}

// What scales a sub-block: d · scale and dmin · minimum, where the type has them.
struct SubScale {
  VF weight, minimum;
};
template <class K>
HWY_INLINE SubScale LoadSubScale(const std::uint8_t* scales, VF d, VF dmin, int part, int sub,
                                 int first_row) {
  constexpr PackedLayout layout = K::kLayout;
  SubScale s{d, dmin};
  if constexpr (layout.has_scales) {
    const std::uint8_t* own =
        scales + layout.d_bytes() + part * layout.sub_scale_bytes() + sub * 16 + first_row;
    if constexpr (layout.has_minima) {
      s.weight = hn::Mul(d, LoadU8(own));
      s.minimum = hn::Mul(dmin, LoadU8(own + layout.subs() * 16));
    } else {
      s.weight = hn::Mul(d, LoadI8(own));
    }
  }
  return s;
}

// acc + one sub-block's product: its integer sum, the scales of weights and activations, and what the minimum
// takes.
template <class K>
HWY_INLINE VF AddScaled(VF acc, VI sum, const SubScale& s, float scale, float scaled_sum) {
  const DF df;
  acc = hn::MulAdd(hn::ConvertTo(df, sum), hn::Mul(s.weight, hn::Set(df, scale)), acc);
  if constexpr (K::kLayout.has_minima &&
                K::kLayout.has_scales)  // K types subtract their minimum, Q4_1 and Q5_1 add it
    acc = hn::NegMulAdd(s.minimum, hn::Set(df, scaled_sum), acc);
  else if constexpr (K::kLayout.has_minima)
    acc = hn::MulAdd(s.minimum, hn::Set(df, scaled_sum), acc);
  return acc;
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
