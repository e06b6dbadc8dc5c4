#include "kernels/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/aligned.h"
#include "formats/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"
// After dot4-inl.h, which may widen the target.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How cache elements become floats. kBlock: dimensions that share a scale (0: none).
struct ElementF32 {
  using Stored = float;
  static constexpr int kBlock = 0;
  static HWY_INLINE VF Load(const Stored* p) { return hn::LoadU(DF(), p); }
};
struct ElementF16 {
  using Stored = hwy::float16_t;
  static constexpr int kBlock = 0;
  static HWY_INLINE VF Load(const Stored* p) { return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<Stored, DF>(), p)); }
};
struct ElementQ8 {
  using Stored = std::int8_t;
  static constexpr int kBlock = 32;
  static HWY_INLINE VF Load(const Stored* p) {
    return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<Stored, DF>(), p)));
  }
};

constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
using ScoreRows = std::array<const float*, kMostQueryRows>;

// Vectors computed together: enough chains to hide the latency of multiply-add, few enough for the registers.
template <int kRows>
constexpr int kVectorsFor = HWY_TARGET <= HWY_AVX3 ? (kRows >= 5 ? 2 : 4) : (kRows >= 6 ? 1 : kRows >= 3 ? 2 : 4);

// A page is read once, faster than the hardware foresees.
template <class T>
HWY_INLINE void PrefetchAhead(const T* p) {
  __builtin_prefetch(reinterpret_cast<const std::byte*>(p) + kPrefetchBytes);
}

// scores[r][key] for kVectors vectors of keys that begin at `key`: one chain of multiply-adds over the dimensions.
template <class E, int kRows, int kVectors>
HWY_INLINE void ScoreKeys(const std::byte* keys, std::size_t group_bytes, int d, const ScoreRows& q, int key,
                          float* scores) {
  const DF df;
  const typename E::Stored* at[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int first = key + v * kLanes;
    at[v] = reinterpret_cast<const typename E::Stored*>(keys + first / 16 * group_bytes) + first % 16;
  }
  VF acc[kRows][kVectors];
  for (auto& row : acc)
    for (auto& part : row) part = hn::Zero(df);
  if constexpr (E::kBlock == 0) {
    for (int i = 0; i < d; ++i) {
      VF k[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        k[v] = E::Load(at[v] + i * 16);
        if (v % 2 == i % 2 || sizeof(typename E::Stored) > 2) PrefetchAhead(at[v] + i * 16);
      }
      for (int r = 0; r < kRows; ++r) {
        const VF value = hn::Set(df, q[r][i]);
        for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(value, k[v], acc[r][v]);
      }
    }
  } else {
    for (int first = 0; first < d; first += E::kBlock) {
      VF block[kRows][kVectors];
      for (auto& row : block)
        for (auto& part : row) part = hn::Zero(df);
      for (int i = first; i < std::min(first + E::kBlock, d); ++i) {
        VF k[kVectors];
        for (int v = 0; v < kVectors; ++v) k[v] = E::Load(at[v] + i * 16);
        for (int r = 0; r < kRows; ++r) {
          const VF value = hn::Set(df, q[r][i]);
          for (int v = 0; v < kVectors; ++v) block[r][v] = hn::MulAdd(value, k[v], block[r][v]);
        }
      }
      for (int v = 0; v < kVectors; ++v) {
        const auto* scales = reinterpret_cast<const hwy::float16_t*>(at[v] - (key + v * kLanes) % 16 + d * 16);
        const VF scale = ElementF16::Load(scales + first / E::kBlock * 16 + (key + v * kLanes) % 16);
        for (int r = 0; r < kRows; ++r) acc[r][v] = hn::MulAdd(block[r][v], scale, acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) hn::Store(acc[r][v], df, scores + r * kPageTokens + key + v * kLanes);
}

template <class E, int kRows>
HWY_NOINLINE void Scores(const std::byte* keys, std::size_t group_bytes, int d, const ScoreRows& q, int begin, int end,
                         int capacity, float* scores) {
  constexpr int kVectors = kVectorsFor<kRows>;
  constexpr int kStep = kVectors * kLanes;  // divides kPageTokens: only a shorter page can end within a step
  int key = begin / kStep * kStep;
  for (; key < end && key + kStep <= capacity; key += kStep)
    ScoreKeys<E, kRows, kVectors>(keys, group_bytes, d, q, key, scores);
  for (; key < end; key += kLanes) ScoreKeys<E, kRows, 1>(keys, group_bytes, d, q, key, scores);
}

// 2^x for x ≤ 0, to 1e-7 of its value; 2^-126 below that; NaN for NaN.
HWY_INLINE VF Exp2(VF x) {
  const DF df;
  const DI di;
  x = hn::Max(hn::Set(df, -126.0f), x);  // in this order NaN stays
  const VF shift = hn::Set(df, 12582912.0f), shifted = hn::Add(x, shift);  // 1.5 · 2^23: the last bits hold round(x)
  const VF r = hn::Sub(x, hn::Sub(shifted, shift));
  VF p = hn::Set(df, 0.00015353362f);
  p = hn::MulAdd(p, r, hn::Set(df, 0.0013398875f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.009618437f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.055503324f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.24022648f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.6931472f));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0f));
  return hn::BitCast(df, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

constexpr float kLog2E = 1.44269504f;

// Turns a row's products into 2^(score - max), scores in units of log 2; 0 for positions not seen. Positions are
// relative to the page.
HWY_INLINE void Softmax(float* scores, int first, int end, const ScoreRule& rule, float slope, int last,
                        const float* bias, AttentionState& state) {
  const DF df;
  const DI di;
  constexpr int kParts = 16 / kLanes;
  const VF scale = hn::Set(df, rule.scale * kLog2E);
  VF sums[kParts];
  for (auto& sum : sums) sum = hn::Zero(df);
  if (first == 0 && end == kPageTokens && rule.soft_cap == 0 && slope == 0 && !bias) {
    VF most = hn::Set(df, -kInfinity);
    for (int at = 0; at < kPageTokens; at += kLanes) most = hn::Max(most, hn::Mul(hn::Load(df, scores + at), scale));
    state.max = hn::GetLane(hn::MaxOfLanes(df, most));
    const VF max = hn::Set(df, state.max);
    for (int at = 0; at < kPageTokens; at += 16)
      for (int p = 0; p < kParts; ++p) {
        float* s = scores + at + p * kLanes;
        const VF e = Exp2(hn::Sub(hn::Mul(hn::Load(df, s), scale), max));
        sums[p] = hn::Add(sums[p], e);
        hn::Store(e, df, s);
      }
    state.sum = Reduce16(sums);
    return;
  }
  const int from = first / 16 * 16, to = (end + 15) / 16 * 16;
  const auto seen = [&](int at) HWY_ATTR {
    const VI position = hn::Iota(di, at);
    return hn::RebindMask(df, hn::And(hn::Gt(position, hn::Set(di, first - 1)), hn::Lt(position, hn::Set(di, end))));
  };
  VF most = hn::Set(df, -kInfinity);
  for (int at = from; at < to; at += kLanes) {
    VF s = hn::Load(df, scores + at);
    if (rule.soft_cap > 0) {
      const VF cap = hn::Set(df, rule.soft_cap);
      s = hn::Mul(hn::Mul(cap, hn::Tanh(df, hn::Div(hn::Mul(s, hn::Set(df, rule.scale)), cap))), hn::Set(df, kLog2E));
    } else {
      s = hn::Mul(s, scale);
    }
    if (slope != 0)
      s = hn::MulAdd(hn::Set(df, slope * kLog2E), hn::ConvertTo(df, hn::Sub(hn::Iota(di, at), hn::Set(di, last))), s);
    if (bias) s = hn::Add(s, hn::LoadU(df, bias + at));
    s = hn::IfThenElse(seen(at), s, hn::Set(df, -kInfinity));
    most = hn::Max(most, s);
    hn::Store(s, df, scores + at);
  }
  state.max = hn::GetLane(hn::MaxOfLanes(df, most));
  const VF max = hn::Set(df, state.max);
  for (int at = 0; at < kPageTokens; at += 16)
    for (int p = 0; p < kParts; ++p) {
      const int i = at + p * kLanes;
      VF e = hn::Zero(df);
      if (at >= from && at < to) e = hn::IfThenElseZero(seen(i), Exp2(hn::Sub(hn::Load(df, scores + i), max)));
      sums[p] = hn::Add(sums[p], e);
      hn::Store(e, df, scores + i);
    }
  state.sum = Reduce16(sums);
}

// out[r][dimension …] = Σ weight[r][key] · value[key][dimension …] over keys in ascending order. scales: of each key's
// blocks, for types that have them.
template <class E, int kRows, int kVectors>
HWY_INLINE void ValueSlice(const typename E::Stored* values, int stride, const float* scales, int blocks,
                           const float* weights, int begin, int end, int dimension, AttentionState* states) {
  const DF df;
  VF acc[kRows][kVectors];
  for (auto& row : acc)
    for (auto& part : row) part = hn::Zero(df);
  for (int key = begin; key < end; ++key) {
    VF v[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      v[i] = E::Load(values + key * stride + dimension + i * kLanes);
      if (i * sizeof(v[i]) % 128 == 0) PrefetchAhead(values + key * stride + dimension + i * kLanes);
      if constexpr (E::kBlock > 0)
        v[i] = hn::Mul(v[i], hn::Set(df, scales[key * blocks + (dimension + i * kLanes) / E::kBlock]));
    }
    for (int r = 0; r < kRows; ++r) {
      const VF weight = hn::Set(df, weights[r * kPageTokens + key]);
      for (int i = 0; i < kVectors; ++i) acc[r][i] = hn::MulAdd(weight, v[i], acc[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVectors; ++i) hn::Store(acc[r][i], df, states[r].out + dimension + i * kLanes);
}

template <class E, int kRows>
HWY_NOINLINE void Values(const std::byte* values, int padded, int blocks, int capacity, const float* weights, int begin,
                         int end, AttentionState* states) {
  constexpr int kVectors = kVectorsFor<kRows>;
  const auto* data = reinterpret_cast<const typename E::Stored*>(values);
  const float* scales = nullptr;
  if constexpr (E::kBlock > 0) {
    static thread_local AlignedVector<float> floats;
    const int count = end * blocks, room = kPageTokens * blocks;  // a multiple of every vector
    if (static_cast<int>(floats.size()) < room) floats.resize(static_cast<std::size_t>(room));
    const auto* halves =
        reinterpret_cast<const hwy::float16_t*>(values + static_cast<std::size_t>(capacity) * padded);
    for (int i = 0; i < count; i += kLanes) hn::Store(ElementF16::Load(halves + i), DF(), floats.data() + i);
    scales = floats.data();
  }
  int dimension = 0;
  for (; dimension + kVectors * kLanes <= padded; dimension += kVectors * kLanes)
    ValueSlice<E, kRows, kVectors>(data, padded, scales, blocks, weights, begin, end, dimension, states);
  for (; dimension < padded; dimension += kLanes)
    ValueSlice<E, kRows, 1>(data, padded, scales, blocks, weights, begin, end, dimension, states);
}

template <class E, int kRows>
void AttendRows(const KvShape& shape, const std::byte* head, std::int64_t page_start, const ScoreRule& rule,
                const QueryRow* rows, AttentionState* states, const float* bias, float* weights) {
  alignas(64) float scores[kRows * kPageTokens];
  ScoreRows q{};
  int begin = kPageTokens, end = 0, firsts[kRows], ends[kRows];
  for (int r = 0; r < kRows; ++r) {
    q[static_cast<std::size_t>(r)] = rows[r].q;
    const auto clamp = [&](std::int64_t position) {
      return static_cast<int>(std::clamp<std::int64_t>(position - page_start, 0, shape.page_tokens));
    };
    firsts[r] = clamp(rows[r].first_key);
    ends[r] = clamp(rows[r].end_key);
    if (firsts[r] >= ends[r]) continue;
    begin = std::min(begin, firsts[r]);
    end = std::max(end, ends[r]);
  }
  if (begin >= end) {
    for (int r = 0; r < kRows; ++r) states[r].sum = 0;
    if (weights) std::fill_n(weights, kRows * kPageTokens, 0.0f);
    return;
  }
  const int capacity = static_cast<int>(shape.page_tokens);
  Scores<E, kRows>(head, shape.key_group_bytes(), shape.d_qk, q, begin, end, capacity, scores);
  for (int r = 0; r < kRows; ++r) {
    if (firsts[r] < ends[r]) {
      Softmax(scores + r * kPageTokens, firsts[r], ends[r], rule, rows[r].alibi_slope,
              static_cast<int>(rows[r].end_key - 1 - page_start), bias, states[r]);
    } else {
      std::fill_n(scores + r * kPageTokens, kPageTokens, 0.0f);
      states[r].sum = 0;
    }
  }
  if (weights) std::copy_n(scores, kRows * kPageTokens, weights);
  Values<E, kRows>(head + shape.keys_bytes(), shape.padded_d_vo(), (shape.d_vo + 31) / 32, capacity, scores, begin, end,
                   states);
}

template <class E>
void AttendAs(const KvShape& shape, const std::byte* head, std::int64_t page_start, const ScoreRule& rule,
              std::span<const QueryRow> rows, std::span<AttentionState> states, const PageExtras& extras) {
  float* weights = extras.weights;
  const QueryRow* row = rows.data();
  AttentionState* state = states.data();
  for (std::size_t left = rows.size(); left > 0;) {
    const std::size_t n = left >= 8 ? 8 : left >= 6 ? 6 : left >= 4 ? 4 : left;
    switch (n) {
      case 8: AttendRows<E, 8>(shape, head, page_start, rule, row, state, extras.bias, weights); break;
      case 6: AttendRows<E, 6>(shape, head, page_start, rule, row, state, extras.bias, weights); break;
      case 4: AttendRows<E, 4>(shape, head, page_start, rule, row, state, extras.bias, weights); break;
      case 3: AttendRows<E, 3>(shape, head, page_start, rule, row, state, extras.bias, weights); break;
      case 2: AttendRows<E, 2>(shape, head, page_start, rule, row, state, extras.bias, weights); break;
      default: AttendRows<E, 1>(shape, head, page_start, rule, row, state, extras.bias, weights); break;
    }
    row += n;
    state += n;
    if (weights) weights += n * static_cast<std::size_t>(kPageTokens);
    left -= n;
  }
}

void AttendPage(const KvShape& shape, const std::byte* page, int kv_head, std::int64_t page_start,
                const ScoreRule& rule, std::span<const QueryRow> rows, std::span<AttentionState> states,
                const PageExtras& extras) {
  const std::byte* head = page + static_cast<std::size_t>(kv_head) * shape.head_bytes();
  switch (shape.format) {
    case KvFormat::F16: return AttendAs<ElementF16>(shape, head, page_start, rule, rows, states, extras);
    case KvFormat::F32: return AttendAs<ElementF32>(shape, head, page_start, rule, rows, states, extras);
    case KvFormat::Q8_0: return AttendAs<ElementQ8>(shape, head, page_start, rule, rows, states, extras);
  }
}

void ToHalf(const float* x, std::uint16_t* to, int n) {
  int i = 0;
#if HWY_TARGET != HWY_SSE4  // which has no instruction for it
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), hn::LoadU(DF(), x + i)), hn::Rebind<hwy::float16_t, DF>(),
               reinterpret_cast<hwy::float16_t*>(to + i));
#endif
  for (; i < n; ++i) to[i] = f32_to_f16(x[i]);
}

// One row of values, which lie next to each other.
template <class E>
void LoadRow(const std::byte* row, const std::byte* scales, int n, float* to) {
  const auto* data = reinterpret_cast<const typename E::Stored*>(row);
  for (int i = 0; i < n; i += kLanes) {  // a multiple of 16
    VF v = E::Load(data + i);
    if constexpr (E::kBlock > 0) {
      std::uint16_t scale;
      std::memcpy(&scale, scales + i / E::kBlock * 2, 2);
      v = hn::Mul(v, hn::Set(DF(), f16_to_f32(scale)));
    }
    hn::StoreU(v, DF(), to + i);
  }
}

void LoadValues(const KvShape& shape, const std::byte* values, std::int64_t count, float* to) {
  const std::size_t padded = static_cast<std::size_t>(shape.padded_d_vo()), blocks = static_cast<std::size_t>((shape.d_vo + 31) / 32);
  const std::byte* scales = values + static_cast<std::size_t>(shape.page_tokens) * padded * shape.element_bytes();
  for (std::size_t t = 0; t < static_cast<std::size_t>(count); ++t) {
    const std::byte* row = values + t * padded * shape.element_bytes();
    const int n = static_cast<int>(padded);
    switch (shape.format) {
      case KvFormat::F16: LoadRow<ElementF16>(row, nullptr, n, to + t * padded); break;
      case KvFormat::F32: LoadRow<ElementF32>(row, nullptr, n, to + t * padded); break;
      case KvFormat::Q8_0: LoadRow<ElementQ8>(row, scales + t * blocks * 2, n, to + t * padded); break;
    }
    std::fill(to + t * padded + static_cast<std::size_t>(shape.d_vo), to + (t + 1) * padded, 0.0f);
  }
}

// running · mine + page · theirs, of n elements.
void Blend(float* running, float mine, const float* page, float theirs, int n) {
  const DF df;
  const VF a = hn::Set(df, mine), b = hn::Set(df, theirs);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Add(hn::Mul(hn::LoadU(df, running + i), a), hn::Mul(hn::LoadU(df, page + i), b)), df, running + i);
  for (; i < n; ++i) running[i] = running[i] * mine + page[i] * theirs;
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(AttendPage);
HWY_EXPORT(ToHalf);
HWY_EXPORT(Blend);
HWY_EXPORT(LoadValues);

void attend_page(const KvShape& shape, const std::byte* page, int kv_head, std::int64_t page_start,
                 const ScoreRule& rule, std::span<const QueryRow> rows, std::span<AttentionState> states,
                 const PageExtras& extras) {
  HWY_DYNAMIC_DISPATCH(AttendPage)(shape, page, kv_head, page_start, rule, rows, states, extras);
}

std::size_t KvShape::element_bytes() const {
  return format == KvFormat::F32 ? 4 : format == KvFormat::F16 ? 2 : 1;
}

std::size_t KvShape::key_group_bytes() const {
  const std::size_t scales = format == KvFormat::Q8_0 ? static_cast<std::size_t>((d_qk + 31) / 32) * 16 * 2 : 0;
  return (static_cast<std::size_t>(d_qk) * 16 * element_bytes() + scales + 63) / 64 * 64;
}

std::size_t KvShape::value_bytes() const {
  const std::size_t scales = format == KvFormat::Q8_0 ? static_cast<std::size_t>((d_vo + 31) / 32) * 2 : 0;
  return static_cast<std::size_t>(page_tokens) * (static_cast<std::size_t>(padded_d_vo()) * element_bytes() + scales);
}

namespace {

// Writes n floats at element stride `step`, and for Q8_0 one f16 scale for each 32 at scale stride `scale_step`.
void store_elements(KvFormat format, const float* x, int n, std::byte* to, int step, std::byte* scales, int scale_step) {
  for (int first = 0; first < n; first += 32) {
    const int end = std::min(first + 32, n);
    if (format == KvFormat::F32) {
      for (int i = first; i < end; ++i) std::memcpy(to + static_cast<std::size_t>(i) * step * 4, x + i, 4);
    } else if (format == KvFormat::F16) {
      std::uint16_t halves[32];
      HWY_DYNAMIC_DISPATCH(ToHalf)(x + first, halves, end - first);
      if (step == 1) {
        std::memcpy(to + static_cast<std::size_t>(first) * 2, halves, static_cast<std::size_t>(end - first) * 2);
      } else {
        for (int i = first; i < end; ++i) std::memcpy(to + static_cast<std::size_t>(i) * step * 2, halves + i - first, 2);
      }
    } else {
      float largest = 0;
      bool finite = true;
      for (int i = first; i < end; ++i) {
        largest = std::max(largest, std::fabs(x[i]));
        finite = finite && std::isfinite(x[i]);
      }
      // A block with an infinity or a NaN becomes NaN: the fault stays visible in the logits.
      const std::uint16_t scale = f32_to_f16(finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN());
      const float stored = f16_to_f32(scale), inverse = stored > 0 ? 1 / stored : 0;
      std::memcpy(scales + static_cast<std::size_t>(first / 32) * scale_step * 2, &scale, 2);
      for (int i = first; i < end; ++i) {
        const float code = finite ? std::clamp(std::nearbyint(x[i] * inverse), -127.0f, 127.0f) : 0;
        to[static_cast<std::size_t>(i) * step] = static_cast<std::byte>(static_cast<std::int8_t>(code));
      }
    }
  }
}

// Bytes at `slot` of one head: element i of a key lies at key + i · 16 · element, scale i of a key at
// key_scales + 32 i.
template <typename Byte>
struct Slot {
  Byte *key, *key_scales, *value, *value_scales;
  Slot(const KvShape& shape, Byte* head, std::int64_t slot) {
    const std::size_t element = shape.element_bytes(), lane = static_cast<std::size_t>(slot % kKeyGroup),
                      padded = static_cast<std::size_t>(shape.padded_d_vo());
    Byte* group = head + static_cast<std::size_t>(slot / kKeyGroup) * shape.key_group_bytes();
    key = group + lane * element;
    key_scales = group + static_cast<std::size_t>(shape.d_qk) * 16 * element + lane * 2;
    value = head + shape.keys_bytes() + static_cast<std::size_t>(slot) * padded * element;
    value_scales = head + shape.keys_bytes() + static_cast<std::size_t>(shape.page_tokens) * padded * element +
                   static_cast<std::size_t>(slot) * static_cast<std::size_t>((shape.d_vo + 31) / 32) * 2;
  }
};

}  // namespace

void store_kv(const KvShape& shape, std::byte* page, std::int64_t slot, const float* keys, const float* values) {
  for (int h = 0; h < shape.kv_heads; ++h) {
    const Slot<std::byte> at(shape, page + static_cast<std::size_t>(h) * shape.head_bytes(), slot);
    store_elements(shape.format, keys + h * shape.d_qk, shape.d_qk, at.key, kKeyGroup, at.key_scales, kKeyGroup);
    store_elements(shape.format, values + h * shape.d_vo, shape.d_vo, at.value, 1, at.value_scales, 1);
  }
}

void copy_kv(const KvShape& from_shape, const std::byte* from, std::int64_t from_slot, const KvShape& to_shape,
             std::byte* to, std::int64_t to_slot) {
  const std::size_t element = from_shape.element_bytes();
  for (int h = 0; h < from_shape.kv_heads; ++h) {
    const Slot<const std::byte> a(from_shape, from + static_cast<std::size_t>(h) * from_shape.head_bytes(), from_slot);
    const Slot<std::byte> b(to_shape, to + static_cast<std::size_t>(h) * to_shape.head_bytes(), to_slot);
    for (std::size_t i = 0; i < static_cast<std::size_t>(from_shape.d_qk); ++i)
      std::memcpy(b.key + i * 16 * element, a.key + i * 16 * element, element);
    std::memmove(b.value, a.value, static_cast<std::size_t>(from_shape.padded_d_vo()) * element);
    if (from_shape.format != KvFormat::Q8_0) continue;
    for (std::size_t i = 0; i < static_cast<std::size_t>((from_shape.d_qk + 31) / 32); ++i)
      std::memcpy(b.key_scales + i * 32, a.key_scales + i * 32, 2);
    std::memmove(b.value_scales, a.value_scales, static_cast<std::size_t>((from_shape.d_vo + 31) / 32) * 2);
  }
}

void load_kv(const KvShape& shape, const std::byte* page, int kv_head, std::int64_t count, float* keys, float* values) {
  const std::byte* head = page + static_cast<std::size_t>(kv_head) * shape.head_bytes();
  HWY_DYNAMIC_DISPATCH(LoadValues)(shape, head + shape.keys_bytes(), count, values);
  if (!keys) return;
  const std::size_t d = static_cast<std::size_t>(shape.d_qk), element = shape.element_bytes();
  for (std::int64_t t = 0; t < count; ++t) {
    const Slot<const std::byte> slot(shape, head, t);
    float* key = keys + static_cast<std::size_t>(t) * d;
    for (std::size_t i = 0; i < d; ++i) {
      const std::byte* at = slot.key + i * 16 * element;
      std::uint16_t half;
      if (shape.format == KvFormat::F32) {
        std::memcpy(key + i, at, 4);
      } else if (shape.format == KvFormat::F16) {
        std::memcpy(&half, at, 2);
        key[i] = f16_to_f32(half);
      } else {
        std::memcpy(&half, slot.key_scales + i / 32 * 32, 2);
        key[i] = f16_to_f32(half) * static_cast<float>(static_cast<std::int8_t>(*at));
      }
    }
  }
}

void merge_attention(AttentionState& running, const AttentionState& page, int d_vo) {
  if (page.sum == 0) return;
  if (running.sum == 0) {
    running.max = page.max;
    running.sum = page.sum;
    std::copy_n(page.out, d_vo, running.out);
    return;
  }
  // One of the two factors is 1.
  const float max = std::max(running.max, page.max);
  const float mine = running.max == max ? 1.0f : std::exp2(running.max - max);
  const float theirs = page.max == max ? 1.0f : std::exp2(page.max - max);
  running.max = max;
  running.sum = running.sum * mine + page.sum * theirs;
  HWY_DYNAMIC_DISPATCH(Blend)(running.out, mine, page.out, theirs, d_vo);
}

void finish_attention(const AttentionState& running, float* out, int d_vo) {
  const float inverse = 1.0f / running.sum;
  for (int i = 0; i < d_vo; ++i) out[i] = running.out[i] * inverse;
}

}  // namespace narrows
#endif
