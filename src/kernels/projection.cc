#include "kernels/projection.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/projection.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

constexpr std::size_t kBasisParts = 16 / hn::MaxLanes(DF());

// Sixteen elements of a stored row, from column c on (a multiple of 16).
struct F32Row {
  static constexpr DType kType = DType::F32;
  static constexpr std::int64_t kStep = 64;  // bytes of sixteen elements
  static HWY_INLINE VF Load(const std::byte* row, std::int64_t c) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(row) + c);
  }
};
struct F16Row {
  static constexpr DType kType = DType::F16;
  static constexpr std::int64_t kStep = 32;  // bytes of sixteen elements
  static HWY_INLINE VF Load(const std::byte* row, std::int64_t c) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DF(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(row) + c));
  }
};
struct BF16Row {
  static constexpr DType kType = DType::BF16;
  static constexpr std::int64_t kStep = 32;  // bytes of sixteen elements
  static HWY_INLINE VF Load(const std::byte* row, std::int64_t c) {
    const hn::Rebind<std::uint16_t, DF> d16;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(row) + c);
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<DF>(), bits)));
  }
};
struct Q8Row {
  static constexpr DType kType = DType::Q8_0;
  static constexpr std::int64_t kStep = 17;  // bytes of sixteen elements
  static HWY_INLINE VF Load(const std::byte* row, std::int64_t c) {
    const std::byte* block = row + c / 32 * 34;
    std::uint16_t bits;
    std::memcpy(&bits, block, 2);
    // The scale in every lane, by the conversion of vectors.
    const hn::Rebind<hwy::float16_t, DF> d16;
    const VF scale = hn::PromoteTo(DF(), hn::BitCast(d16, hn::Set(hn::RebindToUnsigned<decltype(d16)>(), bits)));
    const hn::Rebind<std::int8_t, DF> d8;
    const auto codes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(block + 2) + c % 32);
    return hn::Mul(hn::ConvertTo(DF(), hn::PromoteTo(DI(), codes)), scale);
  }
};

// kRows basis rows with kTokens tokens. Several rows at once keep the sums independent of each other's latency; to each
// element of the span they are added in ascending order, as if one by one.
template <class R, int kRows, int kTokens>
HWY_INLINE void ProjectRows(const std::byte* HWY_RESTRICT row, std::int64_t stride, std::int64_t d,
                            const float* HWY_RESTRICT x, std::int64_t x_stride, float* HWY_RESTRICT g,
                            std::int64_t g_stride, float* HWY_RESTRICT span, std::int64_t next) {
  const DF df;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(16 / kBasisParts);
  const std::int64_t whole = d / 16 * 16;
  VF acc[kRows][kTokens][kBasisParts];
  for (auto& r : acc)
    for (auto& token : r)
      for (auto& part : token) part = hn::Zero(df);
  for (std::int64_t c = 0; c < whole; c += 16) {
    if constexpr (kTokens == 1)
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(row + next + r * stride + c / 16 * R::kStep);
    for (std::size_t p = 0; p < kBasisParts; ++p) {
      const std::int64_t at = c + static_cast<std::int64_t>(p) * kLanes;
      VF v[kRows];
      for (int r = 0; r < kRows; ++r) v[r] = R::Load(row + r * stride, at);
      for (int t = 0; t < kTokens; ++t) {
        const VF values = hn::LoadU(df, x + t * x_stride + at);
        for (int r = 0; r < kRows; ++r) acc[r][t][p] = hn::MulAdd(v[r], values, acc[r][t][p]);
      }
    }
  }
  float tail[kRows][16] = {};  // the last columns, padded with zeros, where d is no multiple of 16
  if (whole < d)
    for (int r = 0; r < kRows; ++r) {
      dequantize(R::kType, row + r * stride + static_cast<std::int64_t>(row_bytes(R::kType, whole)), tail[r], d - whole);
      for (int t = 0; t < kTokens; ++t) {
        float last[16] = {};
        for (std::int64_t i = whole; i < d; ++i) last[i - whole] = x[t * x_stride + i];
        for (std::size_t p = 0; p < kBasisParts; ++p)
          acc[r][t][p] = hn::MulAdd(hn::LoadU(df, tail[r] + p * kLanes), hn::LoadU(df, last + p * kLanes), acc[r][t][p]);
      }
    }
  for (int r = 0; r < kRows; ++r)
    for (int t = 0; t < kTokens; ++t) g[t * g_stride + r] = Reduce16(acc[r][t]);
  if (!span) return;
  VF coefficient[kRows][kTokens];
  for (int r = 0; r < kRows; ++r)
    for (int t = 0; t < kTokens; ++t) coefficient[r][t] = hn::Set(df, g[t * g_stride + r]);
  for (std::int64_t c = 0; c < whole; c += kLanes) {
    VF v[kRows];
    for (int r = 0; r < kRows; ++r) v[r] = R::Load(row + r * stride, c);
    for (int t = 0; t < kTokens; ++t) {
      float* to = span + t * d + c;
      VF sum = hn::LoadU(df, to);
      for (int r = 0; r < kRows; ++r) sum = hn::MulAdd(v[r], coefficient[r][t], sum);
      hn::StoreU(sum, df, to);
    }
  }
  for (std::int64_t i = whole; i < d; ++i)
    for (int t = 0; t < kTokens; ++t)
      for (int r = 0; r < kRows; ++r)
        span[t * d + i] = hn::GetLane(
            hn::MulAdd(hn::Set(df, tail[r][i - whole]), coefficient[r][t], hn::Set(df, span[t * d + i])));
}

template <class R>
void Groups(const WeightMatrix& basis, Range groups, const float* x, std::int64_t x_stride, Range tokens,
            std::int64_t rows, float* g, float* span) {
  const std::int64_t k = basis.rows, d = basis.cols;
  const std::size_t stride = row_bytes(R::kType, d);
  for (std::int64_t group = groups.begin; group < groups.end; ++group) {
    float* sums = span ? span + group * rows * d : nullptr;
    if (span) std::fill(sums + tokens.begin * d, sums + tokens.end * d, 0.0f);
    const std::int64_t end = HWY_MIN((group + 1) * kProjectionGroup, k);
    const auto rows_from = [&]<int kRows>(std::int64_t j) HWY_ATTR {
      const std::int64_t bytes = static_cast<std::int64_t>(stride), next = j + 2 * kRows <= k ? kRows * bytes : 0;
      const std::byte* row = basis.data + j * bytes;
      std::int64_t t = tokens.begin;
      for (; t + 4 <= tokens.end; t += 4)
        ProjectRows<R, kRows, 4>(row, bytes, d, x + t * x_stride, x_stride, g + t * k + j, k, span ? sums + t * d : nullptr, next);
      for (; t < tokens.end; ++t)
        ProjectRows<R, kRows, 1>(row, bytes, d, x + t * x_stride, x_stride, g + t * k + j, k, span ? sums + t * d : nullptr, next);
    };
    std::int64_t j = group * kProjectionGroup;
    for (; j + 4 <= end; j += 4) rows_from.template operator()<4>(j);
    for (; j < end; ++j) rows_from.template operator()<1>(j);
  }
}

void Project(const WeightMatrix& basis, Range groups, const float* x, std::int64_t x_stride, Range tokens,
             std::int64_t rows, float* g, float* span) {
  switch (basis.dtype) {
    case DType::F32: return Groups<F32Row>(basis, groups, x, x_stride, tokens, rows, g, span);
    case DType::F16: return Groups<F16Row>(basis, groups, x, x_stride, tokens, rows, g, span);
    case DType::BF16: return Groups<BF16Row>(basis, groups, x, x_stride, tokens, rows, g, span);
    case DType::Q8_0: return Groups<Q8Row>(basis, groups, x, x_stride, tokens, rows, g, span);
    default: return;  // callers ask can_project() first
  }
}

ResidualNorms Norms(const float* x, const float* span, std::int64_t group_stride, std::int64_t groups, std::int64_t d) {
  const DF df;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(16 / kBasisParts);
  VF residual[kBasisParts], whole[kBasisParts];
  for (std::size_t p = 0; p < kBasisParts; ++p) residual[p] = whole[p] = hn::Zero(df);
  const auto add = [&](std::size_t p, VF value, VF rest) HWY_ATTR {
    whole[p] = hn::MulAdd(value, value, whole[p]);
    residual[p] = hn::MulAdd(rest, rest, residual[p]);
  };
  std::int64_t c = 0;
  for (; c + 16 <= d; c += 16)
    for (std::size_t p = 0; p < kBasisParts; ++p) {
      const std::int64_t at = c + static_cast<std::int64_t>(p) * kLanes;
      const VF value = hn::LoadU(df, x + at);
      VF rest = value;
      for (std::int64_t i = 0; i < groups; ++i) rest = hn::Sub(rest, hn::LoadU(df, span + i * group_stride + at));
      add(p, value, rest);
    }
  if (c < d) {
    float values[16] = {}, rests[16] = {};
    for (std::int64_t i = c; i < d; ++i) {
      values[i - c] = rests[i - c] = x[i];
      for (std::int64_t j = 0; j < groups; ++j) rests[i - c] -= span[j * group_stride + i];
    }
    for (std::size_t p = 0; p < kBasisParts; ++p) add(p, hn::LoadU(df, values + p * kLanes), hn::LoadU(df, rests + p * kLanes));
  }
  return {Reduce16(residual), Reduce16(whole)};
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(Project);
HWY_EXPORT(Norms);

bool can_project(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::Q8_0;
}

void project(const WeightMatrix& basis, Range groups, const float* x, std::int64_t x_stride, Range tokens,
             std::int64_t rows, float* g, float* span) {
  HWY_DYNAMIC_DISPATCH(Project)(basis, groups, x, x_stride, tokens, rows, g, span);
}

void project(const WeightMatrix& basis, ThreadPool& pool, const float* x, std::int64_t rows, float* g, float* span) {
  constexpr std::int64_t kTokenBlock = 16;  // tokens that a thread projects on a group of basis vectors
  const std::int64_t groups = projection_groups(basis.rows), blocks = (rows + kTokenBlock - 1) / kTokenBlock;
  pool.share(groups * blocks, 1, [&](int, Range range) {
    for (std::int64_t unit = range.begin; unit < range.end; ++unit) {
      const std::int64_t block = unit / groups, group = unit % groups;
      project(basis, {group, group + 1}, x, basis.cols, {block * kTokenBlock, std::min((block + 1) * kTokenBlock, rows)}, rows,
              g, span);
    }
  });
}

ResidualNorms residual_norms(const float* x, const float* span, std::int64_t group_stride, std::int64_t groups,
                             std::int64_t d) {
  return HWY_DYNAMIC_DISPATCH(Norms)(x, span, group_stride, groups, d);
}

}  // namespace narrows
#endif
