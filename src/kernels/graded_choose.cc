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

constexpr int kSlots = GradedTokens::kSlots;

// The columns of one block of 32, whose first is `first`.
HWY_INLINE void ChooseBlock(const float* HWY_RESTRICT x, const float* HWY_RESTRICT coarse_limit,
                            const float* HWY_RESTRICT fine_limit, std::uint32_t first, std::uint32_t* columns,
                            std::int8_t* high, std::int8_t* low, GradedTokens::Block& block) {
  const DF df;
  const DI di;
  const DU du;
  constexpr std::size_t kLanes = hn::MaxLanes(DF()), kParts = 32 / kLanes, kHalf = kParts / 2;
  const VF one = hn::Set(df, 1.0f);
  VF value[kParts], largest = hn::Zero(df), finite = hn::Zero(df);
  hn::Mask<DF> coarse[kParts], fine[kParts];
  for (std::size_t p = 0; p < kParts; ++p) {
    const std::size_t at = p * kLanes;
    const VF v = hn::LoadU(df, x + at), size = hn::Abs(v);
    // Not "at most 1" rather than "above 1": NaNs are read.
    const auto skipped =
        hn::Or(hn::Le(hn::Mul(size, hn::LoadU(df, coarse_limit + at)), one), hn::Eq(v, hn::Zero(df)));
    const auto inexact = hn::Le(hn::Mul(size, hn::LoadU(df, fine_limit + at)), one);
    coarse[p] = hn::AndNot(skipped, inexact);
    fine[p] = hn::Not(hn::Or(skipped, inexact));
    value[p] = hn::IfThenZeroElse(skipped, v);
    largest = hn::Max(largest, hn::Abs(value[p]));
    finite = hn::MulAdd(value[p], hn::Zero(df), finite);  // NaN where a value is NaN or infinite
  }
  const float most = hn::GetLane(hn::MaxOfLanes(df, largest));
  block.scale = most / GradedTokens::kMost + hn::GetLane(hn::SumOfLanes(df, finite));
  const VF inverse = hn::Set(df, most > 0 ? GradedTokens::kMost / most : 0.0f),
           bound = hn::Set(df, GradedTokens::kMost);

  alignas(64) std::int32_t q[kSlots + 32];  // whole vectors are stored past what is chosen, and overwritten
  std::size_t n = 0;
  const hn::CappedTag<std::int32_t, 4> four;
  const auto store = [&](const hn::Mask<DF>(&chosen)[kParts], bool exact, std::uint8_t& count,
                         std::uint8_t& half, std::int32_t(&sum)[2]) HWY_ATTR {
    const std::size_t begin = n;
    VI sums[2] = {hn::Zero(di), hn::Zero(di)};
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto mask = hn::RebindMask(di, chosen[p]);
      const VF scaled = hn::Max(hn::Min(hn::Mul(value[p], inverse), bound), hn::Neg(bound));
      const VI code = hn::IfThenElseZero(
          mask, exact ? hn::NearestInt(scaled)
                      : hn::ShiftLeft<1>(hn::NearestInt(hn::Mul(scaled, hn::Set(df, 0.5f)))));
      sums[p / kHalf] = hn::Add(sums[p / kHalf], code);
      const auto column = hn::Iota(du, first + static_cast<std::uint32_t>(p * kLanes));
      hn::CompressStore(column, hn::RebindMask(du, chosen[p]), du, columns + n);
      n += hn::CompressStore(code, mask, di, q + n);
      if (p + 1 == kHalf) half = static_cast<std::uint8_t>(n - begin);
    }
    count = static_cast<std::uint8_t>(n - begin);
    // Up to three slots of nothing, of a column that is read anyway.
    hn::StoreU(hn::Zero(four), four, q + n);
    hn::StoreU(hn::Set(four, static_cast<std::int32_t>(columns[begin])), four,
               reinterpret_cast<std::int32_t*>(columns + n));
    n = (n + 3) / 4 * 4;
    for (int h = 0; h < 2; ++h) sum[h] = hn::GetLane(hn::SumOfLanes(di, sums[h]));
  };
  store(coarse, false, block.coarse, block.coarse_half, block.coarse_sum);
  store(fine, true, block.fine, block.fine_half, block.fine_sum);

  const hn::Rebind<std::int8_t, DI> d8;
  for (std::size_t i = 0; i < kSlots; i += kLanes) {
    const VI code = hn::LoadU(di, q + i), upper = hn::ShiftRight<7>(hn::Add(code, hn::Set(di, 64)));
    hn::StoreU(hn::DemoteTo(d8, upper), d8, high + i);
    hn::StoreU(hn::DemoteTo(d8, hn::Sub(code, hn::ShiftLeft<7>(upper))), d8, low + i);
  }
}

void ChooseGrades(const float* x, std::int64_t stride, Range tokens, const float* coarse_limit,
                  const float* fine_limit, GradedTokens& out) {
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t)
    for (std::int64_t b = 0; b < out.blocks; ++b) {
      const std::int64_t to = t * out.stride + b * kSlots;
      ChooseBlock(x + t * stride + b * 32, coarse_limit + b * 32, fine_limit + b * 32,
                  static_cast<std::uint32_t>(b * 32), out.column.data() + to, out.high.data() + to,
                  out.low.data() + to, out.of_block[static_cast<std::size_t>(t * out.blocks + b)]);
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
  stride = blocks * kSlots + 24;  // whole vectors are stored past the last block's lists
  const auto slots = static_cast<std::size_t>(tokens * stride);
  column.resize(slots);
  high.resize(slots);
  low.resize(slots);
  of_block.resize(static_cast<std::size_t>(tokens * blocks));
}

std::int64_t GradedTokens::coarse_columns(std::int64_t token) const {
  std::int64_t sum = 0;
  for (std::int64_t b = token * blocks; b < (token + 1) * blocks; ++b)
    sum += of_block[static_cast<std::size_t>(b)].coarse + of_block[static_cast<std::size_t>(b)].fine;
  return sum;
}

std::int64_t GradedTokens::fine_columns(std::int64_t token) const {
  std::int64_t sum = 0;
  for (std::int64_t b = token * blocks; b < (token + 1) * blocks; ++b)
    sum += of_block[static_cast<std::size_t>(b)].fine;
  return sum;
}

void choose_grades(const float* x, std::int64_t stride, Range tokens, const float* coarse_limit,
                   const float* fine_limit, GradedTokens& out) {
  HWY_DYNAMIC_DISPATCH(ChooseGrades)(x, stride, tokens, coarse_limit, fine_limit, out);
}

}  // namespace narrows
#endif
