// Products of packed tiles with five tokens or more on AMX's tile registers. Their integer sums are exact and
// the rest is the arithmetic of matmul_quantized.cc, so the bits of a result are the same. Included once for
// each target, by Highway's rules; holds something for AVX3_DL only, since every machine with AMX has that.
#if defined(NARROWS_KERNELS_MATMUL_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWS_KERNELS_MATMUL_AMX_INL_H_
#undef NARROWS_KERNELS_MATMUL_AMX_INL_H_
#else
#define NARROWS_KERNELS_MATMUL_AMX_INL_H_
#endif

#include "kernels/dispatch.h"
#include "kernels/matmul.h"
#include "kernels/quantized_kinds-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

// Tile registers, two of each so that one product can begin while another ends: sums are tokens × 16 rows of
// int32, activations tokens × a sub-block of int8, weights the sub-block's quads: 4 or 8 lines of 16 rows × 4
// columns.
constexpr int kSumTile = 0, kActivationTile = 2, kWeightTile = 4;

template <int kTile>
HWY_INLINE void TileLoad(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile));
}
template <int kTile, class T>
HWY_INLINE void TileStore(T& to) {
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(to) : "r"(&to), "r"(std::int64_t{64}), "i"(kTile));
}

// Shapes the tile registers while it lives. A thread's tile state is part of every context switch until
// released.
class TileShapes {
 public:
  TileShapes(int tokens, int sub_block) {
    alignas(64) struct {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } shapes;
    const auto set = [&](int tile, int rows, int bytes) {
      for (int slot = 0; slot < 2; ++slot) {
        shapes.rows[tile + slot] = static_cast<std::uint8_t>(rows);
        shapes.row_bytes[tile + slot] = static_cast<std::uint16_t>(bytes);
      }
    };
    set(kSumTile, tokens, 64);
    set(kActivationTile, tokens, sub_block);
    set(kWeightTile, sub_block / 4, 64);
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;
  ~TileShapes() { asm volatile("tilerelease"); }
};

template <class K, int c>
HWY_INLINE void UnpackQuad(const std::uint8_t* planes, std::uint8_t* to) {
  const DU8 d8;
  hn::Store(hn::Sub(Quad<K, c>(planes), hn::Set(d8, K::kOffset)), d8, to + c * 64);
}

// A tile's codes less their offset: signed bytes, a line a quad.
template <class K>
void UnpackTile(const std::uint8_t* planes, std::int64_t blocks, std::uint8_t* to) {
  for (std::int64_t b = 0; b < blocks; ++b, planes += K::kLayout.plane_bytes(), to += 512) {
    UnpackQuad<K, 0>(planes, to);
    UnpackQuad<K, 1>(planes, to);
    UnpackQuad<K, 2>(planes, to);
    UnpackQuad<K, 3>(planes, to);
    UnpackQuad<K, 4>(planes, to);
    UnpackQuad<K, 5>(planes, to);
    UnpackQuad<K, 6>(planes, to);
    UnpackQuad<K, 7>(planes, to);
  }
  asm volatile("" : : : "memory");  // tile loads name no memory: what they read must be stored by now
}

template <int kTokens>
struct alignas(64) AmxSums {
  std::int32_t sum[kTokens][16], low[kTokens][16];
};

// sums = activations [tokens][32] · the weights that the slot's tile holds.
template <int kSlot, class Sums>
HWY_INLINE void AmxProduct(const std::int8_t* activations, Sums& sums) {
  constexpr int kSum = kSumTile + kSlot, kActivation = kActivationTile + kSlot, kWeight = kWeightTile + kSlot;
  TileLoad<kActivation>(activations, 32);
  asm volatile("tilezero %%tmm%c0" : : "i"(kSum));
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kActivation), "i"(kWeight));
  TileStore<kSum>(sums);
}

// One sub-block's integer sums: codes [rows of 4 columns], q and low [tokens][32].
template <int kSlot, int kTokens>
HWY_INLINE void AmxDot(const std::uint8_t* codes, const std::int8_t* q, const std::int8_t* low, bool fine,
                       AmxSums<kTokens>& out) {
  TileLoad<kWeightTile + kSlot>(codes, 64);
  AmxProduct<kSlot>(q, out.sum);
  if (fine) AmxProduct<kSlot>(low, out.low);
}

// acc + one sub-block's products. Not a lambda: the accumulators must stay in registers.
template <class K, int kTokens>
HWY_INLINE void AmxAdd(const AmxSums<kTokens>& sums, bool fine, const SubScale& scale,
                       const float* HWY_RESTRICT block_scale, const float* HWY_RESTRICT block_sum,
                       VF (&acc)[kTokens]) {
  const DI di;
  if (fine) {
    HWY_UNROLL(16) for (int t = 0; t < kTokens; ++t) {
      const VI sum = hn::Add(hn::ShiftLeft<7>(hn::Load(di, sums.sum[t])), hn::Load(di, sums.low[t]));
      acc[t] = AddScaled<K>(acc[t], sum, scale, block_scale[t] * (1.0f / 128), block_sum[t]);
    }
  } else {
    HWY_UNROLL(16)
    for (int t = 0; t < kTokens; ++t)
      acc[t] = AddScaled<K>(acc[t], hn::Load(di, sums.sum[t]), scale, block_scale[t], block_sum[t]);
  }
}

// A tile's products with a group of kTokens tokens, of which `tokens` are wanted.
template <class K, int kTokens>
HWY_NOINLINE void AmxTile(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t blocks,
                          const QuantizedRows& x, Range tokens, std::int64_t row, std::int64_t rows,
                          const Output& out) {
  const DF df;
  constexpr PackedLayout layout = K::kLayout;
  constexpr int kParts = layout.d_block / 32, kSubs = layout.subs(), kCodes = layout.sub_block * 16;
  const std::int64_t group = tokens.begin / kTokens * kTokens, at = x.first_block(group);
  const std::int8_t *q = x.q.data() + at * 32, *low = x.low.data() + at * 32;
  const std::uint8_t* fine_flags = x.fine.data() + at;
  const float* scale = x.scale.data() + at;
  const float* scaled_sum =
      (kSubs == 1 ? x.scaled_sum32.data() : x.scaled_sum16.data()) + x.first_block(group, kSubs);

  VF acc[kTokens], d = hn::Zero(df), dmin = d;
  HWY_UNROLL(16) for (int t = 0; t < kTokens; ++t) acc[t] = hn::Zero(df);
  AmxSums<kTokens> even, odd;
  // The tile registers are one sub-block ahead of the vectors.
  bool fine = AnySet<kTokens>(fine_flags);
  AmxDot<0, kTokens>(codes, q, low, fine, even);
  const std::int64_t count = blocks * kSubs;
  for (std::int64_t s = 0; s < count; s += 2) {
    bool fine_odd = false, fine_next = false;
    const std::int64_t block = s / kSubs * kTokens, odd_block = (s + 1) / kSubs * kTokens,
                       next_block = (s + 2) / kSubs * kTokens;
    constexpr int kWithin = kSubs == 2 ? 16 : 0;
    if (s + 1 < count) {
      fine_odd = AnySet<kTokens>(fine_flags + odd_block);
      AmxDot<1, kTokens>(codes + (s + 1) * kCodes, q + odd_block * 32 + kWithin,
                         low + odd_block * 32 + kWithin, fine_odd, odd);
    }
    const int part = static_cast<int>(s / kSubs % kParts),
              odd_part = static_cast<int>((s + 1) / kSubs % kParts);
    if (part == 0) {
      d = LoadF16(scales);
      if constexpr (layout.has_minima) dmin = LoadF16(scales + 32);
    }
    AmxAdd<K, kTokens>(even, fine, LoadSubScale<K>(scales, d, dmin, part, 0, 0), scale + block,
                       scaled_sum + s * kTokens, acc);
    if (kSubs == 1 && part == kParts - 1) scales += layout.scale_bytes();
    if (s + 2 < count) {
      fine_next = AnySet<kTokens>(fine_flags + next_block);
      AmxDot<0, kTokens>(codes + (s + 2) * kCodes, q + next_block * 32, low + next_block * 32, fine_next,
                         even);
    }
    if (s + 1 < count) {
      if (kParts == 1 && kSubs == 1) {
        d = LoadF16(scales);
        if constexpr (layout.has_minima) dmin = LoadF16(scales + 32);
      }
      AmxAdd<K, kTokens>(odd, fine_odd, LoadSubScale<K>(scales, d, dmin, odd_part, kSubs - 1, 0),
                         scale + odd_block, scaled_sum + (s + 1) * kTokens, acc);
      if (odd_part == kParts - 1) scales += layout.scale_bytes();
    }
    fine = fine_next;
  }
  if (tokens.begin == group && tokens.end == group + kTokens)
    return StoreRows<kTokens>(acc, row, rows, group, out);
  alignas(64) float sums[kTokens][16];
  HWY_UNROLL(16) for (int t = 0; t < kTokens; ++t) hn::Store(acc[t], df, sums[t]);
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
    VF one[1] = {hn::Load(df, sums[t - group])};
    StoreRows<1>(one, row, rows, t, out);
  }
}

template <class K, int kTokens, class Packed>
void AmxGroups(const WeightMatrix& w, Range tiles, const QuantizedRows& x, Range tokens, const Output& out,
               const Packed& packed, std::uint8_t* codes) {
  const std::int64_t blocks = w.cols / 32;
  const TileShapes shapes(kTokens, K::kLayout.sub_block);
  for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const std::uint8_t* planes = packed(tile);
    const std::uint8_t* scales = planes + blocks * K::kLayout.plane_bytes();
    UnpackTile<K>(planes, blocks, codes);
    for (std::int64_t t = tokens.begin; t < tokens.end;) {
      const std::int64_t end = HWY_MIN(tokens.end, (t / kTokens + 1) * kTokens);
      AmxTile<K, kTokens>(codes, scales, blocks, x, {t, end}, tile * kTileRows, w.rows, out);
      t = end;
    }
  }
}

// Products of tiles with tokens whose groups are of 8 or 16. packed(tile) are a tile's bytes, codes is room
// for UnpackTile(). A group that is not full is computed as if it were.
template <class K, class Packed>
void AmxTiles(const WeightMatrix& w, Range tiles, const QuantizedRows& x, Range tokens, const Output& out,
              const Packed& packed, std::uint8_t* codes) {
  if (x.together == 16)
    AmxGroups<K, 16>(w, tiles, x, tokens, out, packed, codes);
  else
    AmxGroups<K, 8>(w, tiles, x, tokens, out, packed, codes);
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3_DL
#endif
