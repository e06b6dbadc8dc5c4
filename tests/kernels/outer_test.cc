#include "kernels/outer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/on_targets.h"

namespace narrows {
namespace {

class Outer : public OnTargets {};
NARROWS_ON_TARGETS(Outer);

TEST_P(Outer, SumsProducts) {
  for (const std::int64_t columns : {16, 48, 64, 80, 144})
    for (const std::int64_t rows : {1, 5, 6, 7, 13})
      for (const std::int64_t k : {0, 1, 70}) {
        const std::vector<float> a = gaussian(static_cast<std::size_t>(k * rows), 1),
                                 b = gaussian(static_cast<std::size_t>(k * columns), 2);
        std::vector<float> out(static_cast<std::size_t>(rows * columns), 7), again = out;
        outer_products({a.data(), rows, 1}, b.data(), columns, k, rows, columns, out.data(), columns);
        std::vector<float> transposed(a.size());
        for (std::int64_t i = 0; i < k; ++i)
          for (std::int64_t r = 0; r < rows; ++r)
            transposed[static_cast<std::size_t>(r * k + i)] = a[static_cast<std::size_t>(i * rows + r)];
        outer_products({transposed.data(), 1, k}, b.data(), columns, k, rows, columns, again.data(), columns);
        EXPECT_TRUE(same_bits(again, out));
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < columns; ++c) {
            double sum = 0;
            for (std::int64_t i = 0; i < k; ++i)
              sum += static_cast<double>(a[static_cast<std::size_t>(i * rows + r)]) *
                     b[static_cast<std::size_t>(i * columns + c)];
            ASSERT_NEAR(out[static_cast<std::size_t>(r * columns + c)], sum, 1e-4);
          }
      }
}

}  // namespace
}  // namespace narrows
