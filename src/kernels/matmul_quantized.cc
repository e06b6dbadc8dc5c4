// Products with packed tiles: lanes are rows, columns advance four at a time.
#include "kernels/dispatch.h"
#include "kernels/matmul.h"
#include "kernels/packed_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_quantized.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/quantized_kinds-inl.h"
// After quantized_kinds-inl.h.
#include "kernels/matmul_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

template <class K, int c, int kTokens>
HWY_INLINE void DotQuad(const std::uint8_t* planes, const std::int8_t* q, VI (&sums)[kTokens]) {
  const VU8 values = Quad<K, c>(planes);
  for (int t = 0; t < kTokens; ++t) sums[t] = Dot4<K::kWide>(sums[t], values, Broadcast4(q + t * 32 + c * 4));
}

// Integer products of one sub-block: Σ (code - offset) · q, for the token codes at q and their sums at code_sum.
template <class K, int kTokens>
HWY_INLINE void DotBlock(const std::uint8_t* planes, int sub, const std::int8_t* q, const std::int32_t* code_sum,
                         VI (&sums)[kTokens]) {
  const DI di;
  constexpr int kSubs = K::kLayout.subs();
  for (int t = 0; t < kTokens; ++t) sums[t] = hn::Zero(di);
  if (sub == 0) {
    DotQuad<K, 0>(planes, q, sums);
    DotQuad<K, 1>(planes, q, sums);
    DotQuad<K, 2>(planes, q, sums);
    DotQuad<K, 3>(planes, q, sums);
  }
  if (kSubs == 1 || sub == 1) {
    DotQuad<K, 4>(planes, q, sums);
    DotQuad<K, 5>(planes, q, sums);
    DotQuad<K, 6>(planes, q, sums);
    DotQuad<K, 7>(planes, q, sums);
  }
  if constexpr (K::kOffset > 0)
    for (int t = 0; t < kTokens; ++t)
      sums[t] = hn::Sub(sums[t], hn::ShiftLeft<Log2(K::kOffset)>(hn::Set(di, code_sum[t])));
}

// One vector's rows of a tile with kTokens tokens.
template <class K, int kTokens>
HWY_INLINE void TilePart(const std::uint8_t* HWY_RESTRICT planes, const std::uint8_t* HWY_RESTRICT scales,
                         int first_row, std::int64_t blocks, const QuantizedRows& x, std::int64_t token,
                         VF (&acc)[kTokens]) {
  const DF df;
  constexpr PackedLayout layout = K::kLayout;
  constexpr int kParts = layout.d_block / 32, kSubs = layout.subs();
  for (int t = 0; t < kTokens; ++t) acc[t] = hn::Zero(df);
  const std::int64_t at = x.first_block(token), sums_at = x.first_block(token, kSubs), step = x.together;
  const std::int8_t *q = x.q.data() + at * 32, *low = x.low.data() + at * 32;
  const std::uint8_t* fine_flags = x.fine.data() + at;
  const float* scale = x.scale.data() + at;
  // Sums over each sub-block of what the offset and the minimum multiply.
  const std::int32_t* code_sum = (kSubs == 1 ? x.sum32.data() : x.sum16.data()) + sums_at;
  const std::int32_t* low_sum = (kSubs == 1 ? x.low_sum32.data() : x.low_sum16.data()) + sums_at;
  const float* scaled_sum = (kSubs == 1 ? x.scaled_sum32.data() : x.scaled_sum16.data()) + sums_at;

  planes += first_row * 4;
  for (std::int64_t group = 0; group < blocks / kParts; ++group, scales += layout.scale_bytes()) {
    const VF d = LoadF16(scales + 2 * first_row);
    VF dmin = d;
    if constexpr (layout.has_minima) dmin = LoadF16(scales + 32 + 2 * first_row);
    for (int part = 0; part < kParts; ++part, planes += layout.plane_bytes()) {
      // Memory sets the pace of few tokens: what is read next is asked for ahead of the hardware's own guess.
      if constexpr (kTokens <= 2)
        for (int line = 0; line < layout.plane_bytes(); line += 64) __builtin_prefetch(planes + kPrefetchBytes + line);
      // Where no token's block is fine the second product would add zeros: left out, it changes no bit.
      const bool fine = AnySet<kTokens>(fine_flags);
      for (int sub = 0; sub < kSubs; ++sub) {
        const SubScale scale_here = LoadSubScale<K>(scales, d, dmin, part, sub, first_row);
        VI sums[kTokens];
        DotBlock<K, kTokens>(planes, sub, q, code_sum, sums);
        float unit = 1;
        if (fine) {  // the codes' remainders, in units of 1/128
          VI low_sums[kTokens];
          DotBlock<K, kTokens>(planes, sub, low, low_sum, low_sums);
          for (int t = 0; t < kTokens; ++t) sums[t] = hn::Add(hn::ShiftLeft<7>(sums[t]), low_sums[t]);
          unit = 1.0f / 128;
        }
        for (int t = 0; t < kTokens; ++t)
          acc[t] = AddScaled<K>(acc[t], sums[t], scale_here, scale[t] * unit, scaled_sum[t]);
        code_sum += step;
        low_sum += step;
        scaled_sum += step;
      }
      q += 32 * step;
      low += 32 * step;
      fine_flags += step;
      scale += step;
    }
  }
}

template <class K, int kTokens>
HWY_NOINLINE void Tile(const WeightMatrix& w, const std::uint8_t* packed, std::int64_t tile, const QuantizedRows& x,
                       std::int64_t token, const Output& out) {
  const int lanes = static_cast<int>(hn::Lanes(DF()));
  const std::int64_t blocks = w.cols / 32, row = tile * kTileRows;
  const std::uint8_t* scales = packed + blocks * K::kLayout.plane_bytes();
  for (int first = 0; first < kTileRows && row + first < w.rows; first += lanes) {
    VF acc[kTokens];
    TilePart<K, kTokens>(packed, scales, first, blocks, x, token, acc);
    StoreRows<kTokens>(acc, row + first, w.rows, token, out);
  }
}

// Tokens per pass over a tile: as many as keep the accumulators in registers.
constexpr int kMostTokens = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

// Tokens whose activations and outputs stay in the second-level cache while the tiles pass by.
std::int64_t TokensPerPass(const QuantizedRows& x, const WeightMatrix& w) {
  constexpr std::int64_t kBytes = 1 << 20, kLeast = 64;
  return HWY_MAX(kBytes / (x.blocks * 32 + w.rows * 4) / 16 * 16, kLeast);
}

// Products of a tile with tokens [begin, end) of one group.
template <class K>
void TileTokens(const WeightMatrix& w, const std::uint8_t* packed, std::int64_t tile, const QuantizedRows& x, Range tokens,
                const Output& out) {
  std::int64_t t = tokens.begin;
  for (; t + kMostTokens <= tokens.end; t += kMostTokens) Tile<K, kMostTokens>(w, packed, tile, x, t, out);
  if constexpr (kMostTokens > 4)
    for (; t + 4 <= tokens.end; t += 4) Tile<K, 4>(w, packed, tile, x, t, out);
  for (; t + 2 <= tokens.end; t += 2) Tile<K, 2>(w, packed, tile, x, t, out);
  for (; t < tokens.end; ++t) Tile<K, 1>(w, packed, tile, x, t, out);
}

template <class K>
void Tiles(const WeightMatrix& w, Range tiles, const QuantizedRows& x, Range tokens, const Output& out,
           TileScratch& scratch) {
  const std::size_t bytes = packed_tile_bytes(w.dtype, w.cols), codes = static_cast<std::size_t>(w.cols) * kTileRows;
  if (scratch.size() < bytes + codes) scratch.resize(bytes + codes);  // a packed tile and an unpacked one
  const auto packed = [&](std::int64_t tile) {
    if (!w.packed) pack_tile(w, tile, scratch.data());
    return reinterpret_cast<const std::uint8_t*>(w.packed ? w.packed + static_cast<std::size_t>(tile) * bytes
                                                          : scratch.data());
  };
  const std::int64_t step = w.packed ? TokensPerPass(x, w) : tokens.end - tokens.begin;
  for (std::int64_t first = tokens.begin; first < tokens.end; first += step) {
    const std::int64_t end = HWY_MIN(first + step, tokens.end);
#if HWY_TARGET == HWY_AVX3_DL
    if (use_amx() && (x.together == 8 || x.together == 16) && end - first >= 4) {
      AmxTiles<K>(w, tiles, x, {first, end}, out, packed, reinterpret_cast<std::uint8_t*>(scratch.data() + bytes));
      continue;
    }
#endif
    for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const std::uint8_t* at = packed(tile);
      for (std::int64_t t = first; t < end;) {
        const std::int64_t group_end = HWY_MIN(end, (t / x.together + 1) * x.together);
        TileTokens<K>(w, at, tile, x, {t, group_end}, out);
        t = group_end;
      }
    }
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
