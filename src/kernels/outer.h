// Products summed as outer products: each sum runs over k in ascending order with fused multiply-add, so its bits
// depend neither on how many rows or columns are computed together nor on the instruction set.
#pragma once
#include <cstdint>

namespace narrows {

// The elements of a matrix a[k][row], at any distances.
struct Strided {
  const float* data;
  std::int64_t of_k, of_row;
};

// out[row][column] = Σ_k a[k][row] · b[k][column]; columns a multiple of 16. Leading dimensions in elements.
void outer_products(const Strided& a, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t rows,
                    std::int64_t columns, float* out, std::int64_t ld_out);

}  // namespace narrows
