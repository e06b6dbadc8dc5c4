// Products with packed tiles: lanes are rows, columns advance four at a time.
#include <cstring>

#include "kernels/matmul.h"
#include "kernels/packed_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_quantized.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

// How a type's codes become weights: w = scale · (value(code) - kOffset) ± minimum, where value is the code itself or
// an entry of IQ4's table (stored + 128, so that it is unsigned).
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

HWY_ALIGN constexpr std::uint8_t kIQ4Values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

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

template <class K, int c, int kTokens>
HWY_INLINE void DotQuad(const std::uint8_t* planes, const std::int8_t* q, std::int64_t stride, VI (&sums)[kTokens]) {
  const VU8 values = Quad<K, c>(planes);
  for (int t = 0; t < kTokens; ++t) sums[t] = Dot4<K::kWide>(sums[t], values, Broadcast4(q + t * stride + c * 4));
}

constexpr int Log2(int n) { return n <= 1 ? 0 : 1 + Log2(n / 2); }

// Integer products of one sub-block: Σ (code - offset) · q, for the token codes at q and their sums at code_sum.
template <class K, int kTokens>
HWY_INLINE void DotBlock(const std::uint8_t* planes, int sub, const std::int8_t* q, std::int64_t stride,
                         const std::int32_t* code_sum, std::int64_t sums_step, VI (&sums)[kTokens]) {
  const DI di;
  constexpr int kSubs = K::kLayout.subs();
  for (int t = 0; t < kTokens; ++t) sums[t] = hn::Zero(di);
  if (sub == 0) {
    DotQuad<K, 0>(planes, q, stride, sums);
    DotQuad<K, 1>(planes, q, stride, sums);
    DotQuad<K, 2>(planes, q, stride, sums);
    DotQuad<K, 3>(planes, q, stride, sums);
  }
  if (kSubs == 1 || sub == 1) {
    DotQuad<K, 4>(planes, q, stride, sums);
    DotQuad<K, 5>(planes, q, stride, sums);
    DotQuad<K, 6>(planes, q, stride, sums);
    DotQuad<K, 7>(planes, q, stride, sums);
  }
  if constexpr (K::kOffset > 0)
    for (int t = 0; t < kTokens; ++t)
      sums[t] = hn::Sub(sums[t], hn::ShiftLeft<Log2(K::kOffset)>(hn::Set(di, code_sum[t * sums_step])));
}

template <int kTokens>
HWY_INLINE bool AnySet(const std::uint8_t* flags) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, flags, kTokens);
  return bits != 0;
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

// One vector's rows of a tile with kTokens tokens.
template <class K, int kTokens>
HWY_INLINE void TilePart(const std::uint8_t* HWY_RESTRICT planes, const std::uint8_t* HWY_RESTRICT scales,
                         int first_row, std::int64_t blocks, const QuantizedRows& x, std::int64_t token,
                         VF (&acc)[kTokens]) {
  const DF df;
  constexpr PackedLayout layout = K::kLayout;
  constexpr int kParts = layout.d_block / 32, kSubs = layout.subs();
  const float* scale[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    acc[t] = hn::Zero(df);
    scale[t] = x.scale.data() + (token + t) * x.blocks;
  }
  // Sums over each sub-block of what the offset and the minimum multiply.
  const std::int64_t sums_at = token * x.blocks * kSubs, sums_step = x.blocks * kSubs;
  const std::int32_t* code_sum = (kSubs == 1 ? x.sum32.data() : x.sum16.data()) + sums_at;
  const std::int32_t* low_sum = (kSubs == 1 ? x.low_sum32.data() : x.low_sum16.data()) + sums_at;
  const float* scaled_sum = (kSubs == 1 ? x.scaled_sum32.data() : x.scaled_sum16.data()) + sums_at;

  planes += first_row * 4;
  for (std::int64_t group = 0; group < blocks / kParts; ++group, scales += layout.scale_bytes()) {
    const VF d = LoadF16(scales + 2 * first_row);
    VF dmin = d;
    if constexpr (layout.has_minima) dmin = LoadF16(scales + 32 + 2 * first_row);
    for (int part = 0; part < kParts; ++part, planes += layout.plane_bytes()) {
      const std::int64_t b = group * kParts + part;
      // Where no token's block is fine the second product would add zeros: left out, it changes no bit.
      const bool fine = AnySet<kTokens>(x.fine.data() + b * x.rows + token);
      for (int sub = 0; sub < kSubs; ++sub) {
        VF weight_scale = d, minimum = dmin;
        if constexpr (layout.has_scales) {
          const std::uint8_t* own = scales + layout.d_bytes() + part * layout.sub_scale_bytes() + sub * 16 + first_row;
          if constexpr (layout.has_minima) {
            weight_scale = hn::Mul(d, LoadU8(own));
            minimum = hn::Mul(dmin, LoadU8(own + kSubs * 16));
          } else {
            weight_scale = hn::Mul(d, LoadI8(own));
          }
        }
        VI sums[kTokens];
        DotBlock<K, kTokens>(planes, sub, x.q.data() + token * x.stride + b * 32, x.stride, code_sum + b * kSubs + sub,
                             sums_step, sums);
        float unit = 1;
        if (fine) {  // the codes' remainders, in units of 1/128
          VI low[kTokens];
          DotBlock<K, kTokens>(planes, sub, x.low.data() + token * x.stride + b * 32, x.stride,
                               low_sum + b * kSubs + sub, sums_step, low);
          for (int t = 0; t < kTokens; ++t) sums[t] = hn::Add(hn::ShiftLeft<7>(sums[t]), low[t]);
          unit = 1.0f / 128;
        }
        for (int t = 0; t < kTokens; ++t) {
          const std::int64_t s = t * sums_step + b * kSubs + sub;
          const VF scaled = hn::Mul(weight_scale, hn::Set(df, scale[t][b] * unit));
          acc[t] = hn::MulAdd(hn::ConvertTo(df, sums[t]), scaled, acc[t]);
          if constexpr (layout.has_minima && layout.has_scales)  // K types subtract their minimum, Q4_1 and Q5_1 add it
            acc[t] = hn::NegMulAdd(minimum, hn::Set(df, scaled_sum[s]), acc[t]);
          else if constexpr (layout.has_minima)
            acc[t] = hn::MulAdd(minimum, hn::Set(df, scaled_sum[s]), acc[t]);
        }
      }
    }
  }
}

struct Output {
  const float* bias;
  float* y;
  std::int64_t stride;
};

template <class K, int kTokens>
HWY_NOINLINE void Tile(const WeightMatrix& w, const std::uint8_t* packed, std::int64_t tile, const QuantizedRows& x,
                       std::int64_t token, const Output& out) {
  const DF df;
  const int lanes = static_cast<int>(hn::Lanes(df));
  const std::int64_t blocks = w.cols / 32, row = tile * kTileRows;
  const std::uint8_t* scales = packed + blocks * K::kLayout.plane_bytes();
  for (int first = 0; first < kTileRows && row + first < w.rows; first += lanes) {
    VF acc[kTokens];
    TilePart<K, kTokens>(packed, scales, first, blocks, x, token, acc);
    const std::int64_t at = row + first, count = HWY_MIN(lanes, w.rows - at);
    for (int t = 0; t < kTokens; ++t) {
      float* y = out.y + (token + t) * out.stride + at;
      if (count == lanes) {
        if (out.bias) acc[t] = hn::Add(acc[t], hn::LoadU(df, out.bias + at));
        hn::StoreU(acc[t], df, y);
      } else {
        alignas(64) float rows[16];
        hn::Store(acc[t], df, rows);
        for (std::int64_t r = 0; r < count; ++r) y[r] = out.bias ? rows[r] + out.bias[at + r] : rows[r];
      }
    }
  }
}

// Tokens per pass over a tile: as many as keep the accumulators in registers.
constexpr int kMostTokens = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

template <class K>
void Tiles(const WeightMatrix& w, Range tiles, const QuantizedRows& x, Range tokens, const Output& out,
           TileScratch& scratch) {
  const std::size_t bytes = packed_tile_bytes(w.dtype, w.cols);
  if (!w.packed && scratch.size() < bytes) scratch.resize(bytes);
  for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    if (!w.packed) pack_tile(w, tile, scratch.data());
    const std::uint8_t* packed = reinterpret_cast<const std::uint8_t*>(
        w.packed ? w.packed + static_cast<std::size_t>(tile) * bytes : scratch.data());
    std::int64_t t = tokens.begin;
    for (; t + kMostTokens <= tokens.end; t += kMostTokens) Tile<K, kMostTokens>(w, packed, tile, x, t, out);
    if constexpr (kMostTokens > 4)
      for (; t + 4 <= tokens.end; t += 4) Tile<K, 4>(w, packed, tile, x, t, out);
    for (; t + 2 <= tokens.end; t += 2) Tile<K, 2>(w, packed, tile, x, t, out);
    for (; t < tokens.end; ++t) Tile<K, 1>(w, packed, tile, x, t, out);
  }
}

void MatmulQuantized(const WeightMatrix& w, Range tiles, const QuantizedRows& x, Range tokens, const float* bias,
                     float* y, std::int64_t y_stride, TileScratch& scratch) {
  const Output out{bias, y, y_stride};
  switch (w.dtype) {
    case DType::Q4_0: return Tiles<KindQ4_0>(w, tiles, x, tokens, out, scratch);
    case DType::Q4_1: return Tiles<KindQ4_1>(w, tiles, x, tokens, out, scratch);
    case DType::Q5_0: return Tiles<KindQ5_0>(w, tiles, x, tokens, out, scratch);
    case DType::Q5_1: return Tiles<KindQ5_1>(w, tiles, x, tokens, out, scratch);
    case DType::Q8_0: return Tiles<KindQ8_0>(w, tiles, x, tokens, out, scratch);
    case DType::Q2_K: return Tiles<KindQ2_K>(w, tiles, x, tokens, out, scratch);
    case DType::Q3_K: return Tiles<KindQ3_K>(w, tiles, x, tokens, out, scratch);
    case DType::Q4_K: return Tiles<KindQ4_K>(w, tiles, x, tokens, out, scratch);
    case DType::Q5_K: return Tiles<KindQ5_K>(w, tiles, x, tokens, out, scratch);
    case DType::Q6_K: return Tiles<KindQ6_K>(w, tiles, x, tokens, out, scratch);
    case DType::IQ4_NL: return Tiles<KindIQ4_NL>(w, tiles, x, tokens, out, scratch);
    case DType::IQ4_XS: return Tiles<KindIQ4_XS>(w, tiles, x, tokens, out, scratch);
    default: return;  // callers ask is_packed_type() first
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(MatmulQuantized);

void matmul_quantized(const WeightMatrix& w, Range tiles, const QuantizedRows& x, Range tokens, const float* bias,
                      float* y, std::int64_t y_stride, TileScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(MatmulQuantized)(w, tiles, x, tokens, bias, y, y_stride, scratch);
}

}  // namespace narrows
#endif
