#include "kernels/outer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/outer.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

constexpr std::int64_t kOuterLanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
// Sums that stay in registers: 24 of 32 with AVX-512, 12 of 16 before.
constexpr int kOuterRows = 6, kOuterVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

template <int kRows, int kVectors>
HWY_INLINE void OuterTile(const Strided& a, const float* HWY_RESTRICT b, std::int64_t ldb, std::int64_t k,
                          std::int64_t row, std::int64_t column, float* HWY_RESTRICT out, std::int64_t ld_out) {
  const DF df;
  VF acc[kRows][kVectors];
  for (auto& r : acc)
    for (auto& v : r) v = hn::Zero(df);
  const float* x = a.data + row * a.of_row;
  for (std::int64_t i = 0; i < k; ++i) {
    VF values[kVectors];
    for (int v = 0; v < kVectors; ++v) values[v] = hn::LoadU(df, b + i * ldb + column + v * kOuterLanes);
    for (int r = 0; r < kRows; ++r) {
      const VF factor = hn::Set(df, x[i * a.of_k + r * a.of_row]);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(factor, values[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(acc[r][v], df, out + (row + r) * ld_out + column + v * kOuterLanes);
}

template <int kVectors>
HWY_NOINLINE void OuterColumns(const Strided& a, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t rows,
                               std::int64_t column, float* out, std::int64_t ld_out) {
  std::int64_t row = 0;
  for (; row + kOuterRows <= rows; row += kOuterRows)
    OuterTile<kOuterRows, kVectors>(a, b, ldb, k, row, column, out, ld_out);
  for (; row < rows; ++row) OuterTile<1, kVectors>(a, b, ldb, k, row, column, out, ld_out);
}

void OuterProducts(const Strided& a, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t rows,
                   std::int64_t columns, float* out, std::int64_t ld_out) {
  std::int64_t column = 0;
  for (; column + kOuterVectors * kOuterLanes <= columns; column += kOuterVectors * kOuterLanes)
    OuterColumns<kOuterVectors>(a, b, ldb, k, rows, column, out, ld_out);
  for (; column < columns; column += kOuterLanes) OuterColumns<1>(a, b, ldb, k, rows, column, out, ld_out);
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(OuterProducts);

void outer_products(const Strided& a, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t rows,
                    std::int64_t columns, float* out, std::int64_t ld_out) {
  HWY_DYNAMIC_DISPATCH(OuterProducts)(a, b, ldb, k, rows, columns, out, ld_out);
}

}  // namespace narrows
#endif
