// Products with float matrices as they lie in the file: lanes are columns.
#include "kernels/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_float.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

struct LoadF32Weights {
  using Stored = float;
  static HWY_INLINE VF Load(const Stored* p) { return hn::LoadU(DF(), p); }
};
struct LoadF16Weights {
  using Stored = hwy::float16_t;
  static HWY_INLINE VF Load(const Stored* p) { return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<Stored, DF>(), p)); }
};
struct LoadBF16Weights {
  using Stored = hwy::bfloat16_t;
  static HWY_INLINE VF Load(const Stored* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    const auto bits = hn::PromoteTo(hn::RebindToUnsigned<DF>(), hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
    return hn::BitCast(DF(), hn::ShiftLeft<16>(bits));
  }
};

constexpr std::int64_t kAhead = 768;  // elements

// kRows × kTokens products. Each keeps 16 partial sums, in kParts vectors.
template <class W, int kRows, int kTokens>
HWY_NOINLINE void Block(const typename W::Stored* HWY_RESTRICT w, std::int64_t cols, const float* HWY_RESTRICT x,
                        std::int64_t x_stride, const float* bias, float* HWY_RESTRICT y, std::int64_t y_stride) {
  using Stored = typename W::Stored;
  const DF df;
  constexpr std::size_t kLanes = hn::MaxLanes(DF()), kParts = 16 / kLanes;
  VF acc[kRows][kTokens][kParts];
  for (auto& row : acc)
    for (auto& token : row)
      for (auto& part : token) part = hn::Zero(df);

  const auto add = [&](const Stored* const (&rows)[kRows], const float* const (&tokens)[kTokens]) HWY_ATTR {
    for (std::size_t p = 0; p < kParts; ++p) {
      VF weights[kRows];
      for (int r = 0; r < kRows; ++r) weights[r] = W::Load(rows[r] + p * kLanes);
      for (int t = 0; t < kTokens; ++t) {
        const VF values = hn::LoadU(df, tokens[t] + p * kLanes);
        for (int r = 0; r < kRows; ++r) acc[r][t][p] = hn::MulAdd(weights[r], values, acc[r][t][p]);
      }
    }
  };
  const Stored* rows[kRows];
  const float* tokens[kTokens];
  std::int64_t k = 0;
  for (; k + 16 <= cols; k += 16) {
    for (int r = 0; r < kRows; ++r) rows[r] = w + r * cols + k;
    for (int t = 0; t < kTokens; ++t) tokens[t] = x + t * x_stride + k;
    // Memory sets the pace of one token: what is read next, later in these rows or in the next ones, is asked for ahead
    // of the hardware's own guess.
    if constexpr (kTokens == 1)
      if (k * sizeof(Stored) % 64 == 0) {
        const std::int64_t ahead = k + kAhead < cols ? k + kAhead : k + kAhead + (kRows - 1) * cols;
        for (int r = 0; r < kRows; ++r) __builtin_prefetch(w + r * cols + ahead);
      }
    add(rows, tokens);
  }
  if (k < cols) {
    Stored last_rows[kRows][16] = {};
    float last_tokens[kTokens][16] = {};
    for (int r = 0; r < kRows; ++r) {
      for (std::int64_t i = k; i < cols; ++i) last_rows[r][i - k] = w[r * cols + i];
      rows[r] = last_rows[r];
    }
    for (int t = 0; t < kTokens; ++t) {
      for (std::int64_t i = k; i < cols; ++i) last_tokens[t][i - k] = x[t * x_stride + i];
      tokens[t] = last_tokens[t];
    }
    add(rows, tokens);
  }
  for (int r = 0; r < kRows; ++r)
    for (int t = 0; t < kTokens; ++t) {
      const float sum = Reduce16(acc[r][t]);
      y[t * y_stride + r] = bias ? sum + bias[r] : sum;
    }
}

// Shapes that keep the accumulators in registers: 16 of 32 with AVX-512, fewer elsewhere.
template <class W>
void Rows(const WeightMatrix& w, Range rows, const float* x, std::int64_t x_stride, Range tokens, const float* bias,
          float* y, std::int64_t y_stride) {
  constexpr int kWide = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  const auto* data = reinterpret_cast<const typename W::Stored*>(w.data);
  for (std::int64_t r = rows.begin; r < rows.end;) {
    const bool many = r + kWide <= rows.end;
    const auto* row = data + r * w.cols;
    const float* row_bias = bias ? bias + r : nullptr;
    std::int64_t t = tokens.begin;
    for (; t + kWide <= tokens.end; t += kWide) {
      if (many)
        Block<W, kWide, kWide>(row, w.cols, x + t * x_stride, x_stride, row_bias, y + t * y_stride + r, y_stride);
      else
        Block<W, 1, kWide>(row, w.cols, x + t * x_stride, x_stride, row_bias, y + t * y_stride + r, y_stride);
    }
    for (; t < tokens.end; ++t) {
      if (many)
        Block<W, kWide, 1>(row, w.cols, x + t * x_stride, x_stride, row_bias, y + t * y_stride + r, y_stride);
      else
        Block<W, 1, 1>(row, w.cols, x + t * x_stride, x_stride, row_bias, y + t * y_stride + r, y_stride);
    }
    r += many ? kWide : 1;
  }
}

void MatmulFloat(const WeightMatrix& w, Range rows, const float* x, std::int64_t x_stride, Range tokens,
                 const float* bias, float* y, std::int64_t y_stride) {
  switch (w.dtype) {
    case DType::F32: return Rows<LoadF32Weights>(w, rows, x, x_stride, tokens, bias, y, y_stride);
    case DType::F16: return Rows<LoadF16Weights>(w, rows, x, x_stride, tokens, bias, y, y_stride);
    case DType::BF16: return Rows<LoadBF16Weights>(w, rows, x, x_stride, tokens, bias, y, y_stride);
    default: return;  // callers ask is_packed_type() first
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(MatmulFloat);

void matmul_float(const WeightMatrix& w, Range rows, const float* x, std::int64_t x_stride, Range tokens,
                  const float* bias, float* y, std::int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(MatmulFloat)(w, rows, x, x_stride, tokens, bias, y, y_stride);
}

}  // namespace narrows
#endif
