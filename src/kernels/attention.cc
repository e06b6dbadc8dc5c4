#include "kernels/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

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
      for (int v = 0; v < kVectors; ++v) k[v] = E::Load(at[v] + i * 16);
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
                         float* scores) {
  // Enough chains to hide the latency of multiply-add, few enough for the registers.
  constexpr int kVectors = kRows >= 6 ? 1 : kRows >= 3 ? 2 : 4;
  constexpr int kStep = kVectors * kLanes;  // divides kPageTokens: a step begun at a multiple of it ends in the page
  for (int key = begin / kStep * kStep; key < end; key += kStep)
    ScoreKeys<E, kRows, kVectors>(keys, group_bytes, d, q, key, scores);
}

// Turns a row's scores into exp(score - max), 0 for positions not seen. Positions are relative to the page.
HWY_INLINE void Softmax(float* scores, int first, int end, const ScoreRule& rule, float slope, int last,
                        AttentionState& state) {
  const DF df;
  const DI di;
  const int from = first / 16 * 16, to = (end + 15) / 16 * 16;
  const VF scale = hn::Set(df, rule.scale);
  const auto seen = [&](int at) HWY_ATTR {
    const VI position = hn::Iota(di, at);
    return hn::RebindMask(df, hn::And(hn::Gt(position, hn::Set(di, first - 1)), hn::Lt(position, hn::Set(di, end))));
  };
  VF most = hn::Set(df, -kInfinity);
  for (int at = from; at < to; at += kLanes) {
    VF s = hn::Mul(hn::Load(df, scores + at), scale);
    if (rule.soft_cap > 0) {
      const VF cap = hn::Set(df, rule.soft_cap);
      s = hn::Mul(cap, hn::Tanh(df, hn::Div(s, cap)));
    }
    if (slope != 0)
      s = hn::MulAdd(hn::Set(df, slope), hn::ConvertTo(df, hn::Sub(hn::Iota(di, at), hn::Set(di, last))), s);
    s = hn::IfThenElse(seen(at), s, hn::Set(df, -kInfinity));
    most = hn::Max(most, s);
    hn::Store(s, df, scores + at);
  }
  state.max = hn::GetLane(hn::MaxOfLanes(df, most));
  const VF max = hn::Set(df, state.max);
  constexpr int kParts = 16 / kLanes;
  VF sums[kParts];
  for (auto& sum : sums) sum = hn::Zero(df);
  for (int at = 0; at < kPageTokens; at += 16)
    for (int p = 0; p < kParts; ++p) {
      const int i = at + p * kLanes;
      VF e = hn::Zero(df);
      if (at >= from && at < to)
        e = hn::IfThenElseZero(seen(i), hn::Exp(df, hn::Sub(hn::Load(df, scores + i), max)));
      sums[p] = hn::Add(sums[p], e);
      hn::Store(e, df, scores + i);
    }
  state.sum = Reduce16(sums);
}

// out[r][dimension …] = Σ weight[r][key] · value[key][dimension …] over keys in ascending order.
template <class E, int kRows, int kVectors>
HWY_INLINE void ValueSlice(const typename E::Stored* values, int stride, const std::byte* scales, int blocks,
                           const float* weights, int begin, int end, int dimension, AttentionState* states) {
  const DF df;
  VF acc[kRows][kVectors];
  for (auto& row : acc)
    for (auto& part : row) part = hn::Zero(df);
  for (int key = begin; key < end; ++key) {
    VF v[kVectors];
    for (int i = 0; i < kVectors; ++i) v[i] = E::Load(values + key * stride + dimension + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const VF weight = hn::Set(df, weights[r * kPageTokens + key]);
      for (int i = 0; i < kVectors; ++i) {
        VF w = weight;
        if constexpr (E::kBlock > 0) {
          const int block = (dimension + i * kLanes) / E::kBlock;
          std::uint16_t half;
          std::memcpy(&half, scales + (static_cast<std::size_t>(key) * blocks + block) * 2, 2);
          w = hn::Mul(weight, hn::Set(df, f16_to_f32(half)));
        }
        acc[r][i] = hn::MulAdd(w, v[i], acc[r][i]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVectors; ++i) hn::Store(acc[r][i], df, states[r].out + dimension + i * kLanes);
}

template <class E, int kRows>
HWY_NOINLINE void Values(const std::byte* values, int padded, int blocks, const float* weights, int begin, int end,
                         AttentionState* states) {
  constexpr int kVectors = kRows >= 6 ? 1 : kRows >= 3 ? 2 : 4;
  const auto* data = reinterpret_cast<const typename E::Stored*>(values);
  const std::byte* scales = values + static_cast<std::size_t>(kPageTokens) * padded * sizeof(typename E::Stored);
  int dimension = 0;
  for (; dimension + kVectors * kLanes <= padded; dimension += kVectors * kLanes)
    ValueSlice<E, kRows, kVectors>(data, padded, scales, blocks, weights, begin, end, dimension, states);
  for (; dimension < padded; dimension += kLanes)
    ValueSlice<E, kRows, 1>(data, padded, scales, blocks, weights, begin, end, dimension, states);
}

template <class E, int kRows>
void AttendRows(const KvShape& shape, const std::byte* head, std::int64_t page_start, const ScoreRule& rule,
                const QueryRow* rows, AttentionState* states) {
  alignas(64) float scores[kRows * kPageTokens];
  ScoreRows q{};
  int begin = kPageTokens, end = 0, firsts[kRows], ends[kRows];
  for (int r = 0; r < kRows; ++r) {
    q[static_cast<std::size_t>(r)] = rows[r].q;
    const auto clamp = [&](std::int64_t position) {
      return static_cast<int>(std::clamp<std::int64_t>(position - page_start, 0, kPageTokens));
    };
    firsts[r] = clamp(rows[r].first_key);
    ends[r] = clamp(rows[r].end_key);
    if (firsts[r] >= ends[r]) continue;
    begin = std::min(begin, firsts[r]);
    end = std::max(end, ends[r]);
  }
  if (begin >= end) {
    for (int r = 0; r < kRows; ++r) states[r].sum = 0;
    return;
  }
  Scores<E, kRows>(head, shape.key_group_bytes(), shape.d_qk, q, begin, end, scores);
  for (int r = 0; r < kRows; ++r) {
    if (firsts[r] < ends[r]) {
      Softmax(scores + r * kPageTokens, firsts[r], ends[r], rule, rows[r].alibi_slope,
              static_cast<int>(rows[r].end_key - 1 - page_start), states[r]);
    } else {
      std::fill_n(scores + r * kPageTokens, kPageTokens, 0.0f);
      states[r].sum = 0;
    }
  }
  const std::byte* values = head + kPageTokens / kKeyGroup * shape.key_group_bytes();
  Values<E, kRows>(values, shape.padded_d_vo(), (shape.d_vo + 31) / 32, scores, begin, end, states);
}

template <class E>
void AttendAs(const KvShape& shape, const std::byte* head, std::int64_t page_start, const ScoreRule& rule,
              std::span<const QueryRow> rows, std::span<AttentionState> states) {
  const QueryRow* row = rows.data();
  AttentionState* state = states.data();
  for (std::size_t left = rows.size(); left > 0;) {
    const std::size_t n = left >= 8 ? 8 : left >= 6 ? 6 : left >= 4 ? 4 : left;
    switch (n) {
      case 8: AttendRows<E, 8>(shape, head, page_start, rule, row, state); break;
      case 6: AttendRows<E, 6>(shape, head, page_start, rule, row, state); break;
      case 4: AttendRows<E, 4>(shape, head, page_start, rule, row, state); break;
      case 3: AttendRows<E, 3>(shape, head, page_start, rule, row, state); break;
      case 2: AttendRows<E, 2>(shape, head, page_start, rule, row, state); break;
      default: AttendRows<E, 1>(shape, head, page_start, rule, row, state); break;
    }
    row += n;
    state += n;
    left -= n;
  }
}

void AttendPage(const KvShape& shape, const std::byte* page, int kv_head, std::int64_t page_start,
                const ScoreRule& rule, std::span<const QueryRow> rows, std::span<AttentionState> states) {
  const std::byte* head = page + static_cast<std::size_t>(kv_head) * shape.head_bytes();
  switch (shape.format) {
    case KvFormat::F16: return AttendAs<ElementF16>(shape, head, page_start, rule, rows, states);
    case KvFormat::F32: return AttendAs<ElementF32>(shape, head, page_start, rule, rows, states);
    case KvFormat::Q8_0: return AttendAs<ElementQ8>(shape, head, page_start, rule, rows, states);
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(AttendPage);

void attend_page(const KvShape& shape, const std::byte* page, int kv_head, std::int64_t page_start,
                 const ScoreRule& rule, std::span<const QueryRow> rows, std::span<AttentionState> states) {
  HWY_DYNAMIC_DISPATCH(AttendPage)(shape, page, kv_head, page_start, rule, rows, states);
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
  return kPageTokens * (static_cast<std::size_t>(padded_d_vo()) * element_bytes() + scales);
}

namespace {

// Writes n floats at element stride `step`, and for Q8_0 one f16 scale for each 32 at scale stride `scale_step`.
void store_elements(KvFormat format, const float* x, int n, std::byte* to, int step, std::byte* scales, int scale_step) {
  for (int first = 0; first < n; first += 32) {
    const int end = std::min(first + 32, n);
    if (format == KvFormat::F32) {
      for (int i = first; i < end; ++i) std::memcpy(to + static_cast<std::size_t>(i) * step * 4, x + i, 4);
    } else if (format == KvFormat::F16) {
      for (int i = first; i < end; ++i) {
        const std::uint16_t half = f32_to_f16(x[i]);
        std::memcpy(to + static_cast<std::size_t>(i) * step * 2, &half, 2);
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

}  // namespace

void store_kv(const KvShape& shape, std::byte* page, std::int64_t slot, const float* keys, const float* values) {
  const std::size_t element = shape.element_bytes();
  for (int h = 0; h < shape.kv_heads; ++h) {
    std::byte* head = page + static_cast<std::size_t>(h) * shape.head_bytes();
    std::byte* group = head + static_cast<std::size_t>(slot / kKeyGroup) * shape.key_group_bytes();
    const std::size_t lane = static_cast<std::size_t>(slot % kKeyGroup);
    store_elements(shape.format, keys + h * shape.d_qk, shape.d_qk, group + lane * element, kKeyGroup,
                   group + static_cast<std::size_t>(shape.d_qk) * 16 * element + lane * 2, kKeyGroup);
    std::byte* rows = head + kPageTokens / kKeyGroup * shape.key_group_bytes();
    const std::size_t padded = static_cast<std::size_t>(shape.padded_d_vo());
    store_elements(shape.format, values + h * shape.d_vo, shape.d_vo,
                   rows + static_cast<std::size_t>(slot) * padded * element, 1,
                   rows + kPageTokens * padded * element +
                       static_cast<std::size_t>(slot) * static_cast<std::size_t>((shape.d_vo + 31) / 32) * 2,
                   1);
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
  const float max = std::max(running.max, page.max);
  const float mine = std::exp(running.max - max), theirs = std::exp(page.max - max);
  running.max = max;
  running.sum = running.sum * mine + page.sum * theirs;
  for (int i = 0; i < d_vo; ++i) running.out[i] = running.out[i] * mine + page.out[i] * theirs;
}

void finish_attention(const AttentionState& running, float* out, int d_vo) {
  const float inverse = 1.0f / running.sum;
  for (int i = 0; i < d_vo; ++i) out[i] = running.out[i] * inverse;
}

}  // namespace narrows
#endif
