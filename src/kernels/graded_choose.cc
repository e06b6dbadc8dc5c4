// Which columns tokens read.
#include <cstring>

#include "kernels/graded.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/graded_choose.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

using DU = hn::RebindToUnsigned<DF>;

// A block's columns of grade 1, then of grade 2: 32 columns of `x` from `first` on.
HWY_INLINE void ChooseBlock(const float* HWY_RESTRICT x, const float* HWY_RESTRICT coarse_limit,
                            const float* HWY_RESTRICT fine_limit, std::uint32_t first, std::uint32_t* columns,
                            float* values, GradedTokens::Counts& counts, float* coarse_sum, float* fine_sum) {
  const DF df;
  const DU du;
  constexpr std::size_t kLanes = hn::MaxLanes(DF()), kParts = 32 / kLanes, kHalf = kParts / 2;
  const VF one = hn::Set(df, 1.0f);
  VF value[kParts];
  hn::Mask<DF> coarse[kParts], fine[kParts];
  for (std::size_t p = 0; p < kParts; ++p) {
    const std::size_t at = p * kLanes;
    value[p] = hn::LoadU(df, x + at);
    const VF size = hn::Abs(value[p]);
    // Not "at most 1" rather than "above 1": NaNs are read.
    const auto skipped = hn::Or(hn::Le(hn::Mul(size, hn::LoadU(df, coarse_limit + at)), one), hn::Eq(size, hn::Zero(df)));
    const auto inexact = hn::Le(hn::Mul(size, hn::LoadU(df, fine_limit + at)), one);
    coarse[p] = hn::AndNot(skipped, inexact);
    fine[p] = hn::Not(hn::Or(skipped, inexact));
  }
  std::size_t n = 0;
  const auto store = [&](const hn::Mask<DF>(&chosen)[kParts], std::uint8_t& count, std::uint8_t& half, float* sum) HWY_ATTR {
    const std::size_t begin = n;
    VF sums[2] = {hn::Zero(df), hn::Zero(df)};
    for (std::size_t p = 0; p < kParts; ++p) {
      sums[p / kHalf] = hn::Add(sums[p / kHalf], hn::IfThenElseZero(chosen[p], value[p]));
      const auto column = hn::Iota(du, first + static_cast<std::uint32_t>(p * kLanes));
      hn::CompressStore(column, hn::RebindMask(du, chosen[p]), du, columns + n);
      n += hn::CompressStore(value[p], chosen[p], df, values + n);
      if (p + 1 == kHalf) half = static_cast<std::uint8_t>(n - begin);
    }
    count = static_cast<std::uint8_t>(n - begin);
    for (int h = 0; h < 2; ++h) sum[h] = hn::GetLane(hn::SumOfLanes(df, sums[h]));
  };
  store(coarse, counts.coarse, counts.coarse_half, coarse_sum);
  store(fine, counts.fine, counts.fine_half, fine_sum);
}

void ChooseGrades(const float* x, std::int64_t stride, Range tokens, const float* coarse_limit, const float* fine_limit,
                  GradedTokens& out) {
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
    const float* row = x + t * stride;
    std::uint32_t* columns = out.column.data() + t * out.stride;
    float* values = out.x.data() + t * out.stride;
    GradedTokens::Counts* counts = out.counts.data() + t * out.blocks;
    float *coarse_sum = out.coarse_sum.data() + t * 2 * out.blocks, *fine_sum = out.fine_sum.data() + t * 2 * out.blocks;
    for (std::int64_t b = 0; b < out.blocks; ++b)
      ChooseBlock(row + b * 32, coarse_limit + b * 32, fine_limit + b * 32, static_cast<std::uint32_t>(b * 32),
                  columns + b * 32, values + b * 32, counts[b], coarse_sum + 2 * b, fine_sum + 2 * b);
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(ChooseGrades);

void GradedTokens::resize(std::int64_t tokens_, std::int64_t cols_) {
  tokens = tokens_;
  cols = cols_;
  blocks = cols / 32;
  stride = cols + 32;  // whole vectors are stored past the last block's list
  const auto size = [&](std::int64_t n) { return static_cast<std::size_t>(tokens * n); };
  column.resize(size(stride));
  x.resize(size(stride));
  counts.resize(size(blocks));
  coarse_sum.resize(size(2 * blocks));
  fine_sum.resize(size(2 * blocks));
}

std::int64_t GradedTokens::coarse_columns(std::int64_t token) const {
  std::int64_t sum = 0;
  for (std::int64_t b = token * blocks; b < (token + 1) * blocks; ++b)
    sum += counts[static_cast<std::size_t>(b)].coarse + counts[static_cast<std::size_t>(b)].fine;
  return sum;
}

std::int64_t GradedTokens::fine_columns(std::int64_t token) const {
  std::int64_t sum = 0;
  for (std::int64_t b = token * blocks; b < (token + 1) * blocks; ++b) sum += counts[static_cast<std::size_t>(b)].fine;
  return sum;
}

void choose_grades(const float* x, std::int64_t stride, Range tokens, const float* coarse_limit,
                   const float* fine_limit, GradedTokens& out) {
  HWY_DYNAMIC_DISPATCH(ChooseGrades)(x, stride, tokens, coarse_limit, fine_limit, out);
}

}  // namespace narrows
#endif
