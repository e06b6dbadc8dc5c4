// Products of graded precision, against sums in double of the weights that grades stand for.
#include "kernels/graded.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/on_targets.h"

namespace narrows {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct Type {
  DType dtype;
  GradedSplit split;
  std::string name() const {
    return fmt::format("{}{}", dtype_info(dtype).name, split == GradedSplit::Whole ? "_whole" : "");
  }
};

std::vector<Type> types() {
  std::vector<Type> found;
  for (const DType dtype : {DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q2_K,
                            DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K})
    for (const GradedSplit split : {GradedSplit::Halves, GradedSplit::Whole})
      if (graded_layout(dtype, split)) found.push_back({dtype, split});
  return found;
}

std::vector<std::byte> random_blocks(DType dtype, std::int64_t rows, std::int64_t cols) {
  const DTypeInfo& info = dtype_info(dtype);
  std::mt19937 bits(static_cast<std::uint32_t>(rows * 1000 + cols));
  std::uniform_real_distribution<float> factor(-0.1f, 0.1f);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * row_bytes(dtype, cols));
  for (std::byte& b : bytes) b = static_cast<std::byte>(bits());
  std::vector<int> factors = {0};
  if (dtype == DType::Q4_1 || dtype == DType::Q5_1 || dtype == DType::Q4_K || dtype == DType::Q5_K)
    factors = {0, 2};
  if (dtype == DType::Q2_K) factors = {80, 82};
  if (dtype == DType::Q3_K) factors = {108};
  if (dtype == DType::Q6_K) factors = {208};
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(info.block_bytes))
    for (const int offset : factors) {
      const std::uint16_t half = f32_to_f16(factor(bits));
      std::memcpy(bytes.data() + at + offset, &half, 2);
    }
  return bytes;
}

// A matrix of random blocks, and what its grades mean.
struct Weights {
  std::vector<std::byte> bytes;
  AlignedVector<std::byte> packed;
  WeightMatrix stored;
  GradedMatrix graded;

  Weights(const Type& type, std::int64_t rows, std::int64_t cols)
      : bytes(random_blocks(type.dtype, rows, cols)), graded(type.dtype, type.split, rows, cols) {
    stored = {type.dtype, rows, cols, bytes.data(), nullptr};
    packed.resize(graded.bytes());
    pack_graded(stored, graded, {0, graded.strips()}, packed.data());
    graded.data = packed.data();
  }
  std::vector<float> dense() const {
    std::vector<float> w(static_cast<std::size_t>(stored.rows * stored.cols));
    dequantize(stored.dtype, bytes.data(), w.data(), std::ssize(w));
    return w;
  }
};

// Limits that give each column its grade (0, 1, 2; others: at random), where x ≠ 0.
struct Limits {
  std::vector<float> coarse, fine;
  Limits(std::int64_t cols, int grade) {
    std::mt19937 bits(5);
    for (std::int64_t c = 0; c < cols; ++c) {
      const int g = grade > 2 ? static_cast<int>(bits() % 3) : grade;
      coarse.push_back(g > 0 ? kInf : 0.0f);
      fine.push_back(g > 1 ? kInf : 0.0f);
    }
  }
};

GradedTokens chosen(const std::vector<float>& x, std::int64_t tokens, std::int64_t cols,
                    const Limits& limits) {
  GradedTokens g;
  g.resize(tokens, cols);
  choose_grades(x.data(), cols, {0, tokens}, limits.coarse.data(), limits.fine.data(), g);
  return g;
}

std::vector<float> product(const GradedMatrix& m, const GradedTokens& x, const float* bias) {
  std::vector<float> partials(static_cast<std::size_t>(x.tokens * m.partials()), kNaN);
  std::vector<float> y(static_cast<std::size_t>(x.tokens * m.rows), kNaN);
  graded_units(m, {0, m.units()}, x, {0, x.tokens}, partials.data());
  graded_sum(m, {0, m.rows}, {0, x.tokens}, partials.data(), bias, y.data(), m.rows);
  return y;
}

std::vector<std::string> targets() {
  std::vector<std::string> found = dispatch_targets();
  std::erase(found, "AMX");  // is AVX3_DL here
  return found;
}

class Graded : public testing::TestWithParam<std::tuple<std::string, Type>> {
 protected:
  Type type() const { return std::get<1>(GetParam()); }

 private:
  WithTarget target_{std::get<0>(GetParam())};
};

TEST_P(Graded, IsTheSumOfTheWeightsThatGradesStandFor) {
  const bool wide = dtype_info(type().dtype).block_size == 256;
  constexpr std::array<std::int64_t, 3> kShapes[] = {{1, 32, 256},     {17, 256, 768},  {64, 576, 256},
                                                     {65, 32, 256},    {576, 576, 768}, {960, 256, 256},
                                                     {2049, 256, 256}, {5000, 32, 256}};
  for (const auto& [rows, narrow_cols, wide_cols] : kShapes) {
    const std::int64_t cols = wide ? wide_cols : narrow_cols;
    const Weights w(type(), rows, cols);
    const std::vector<float> of_grade[3] = {dequantize_graded(w.graded, 0), dequantize_graded(w.graded, 1),
                                            dequantize_graded(w.graded, 2)};
    const std::vector<float> x = gaussian(static_cast<std::size_t>(cols), 2);
    const std::vector<float> bias = gaussian(static_cast<std::size_t>(rows), 3);
    std::vector<double> unit(static_cast<std::size_t>(cols / 32), 0.0);
    for (std::size_t c = 0; c < x.size(); ++c)
      unit[c / 32] = std::max(unit[c / 32], static_cast<double>(std::fabs(x[c])) / GradedTokens::kMost);
    for (int grade = 0; grade <= 3; ++grade) {
      SCOPED_TRACE(fmt::format("{} rows, {} columns, grade {}", rows, cols, grade));
      const Limits limits(cols, grade);
      const std::vector<float> y = product(w.graded, chosen(x, 1, cols, limits), bias.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        // Activations are rounded to 1/16256 of their block's largest, or half of that.
        double sum = bias[static_cast<std::size_t>(r)], size = 1e-5 * std::fabs(sum);
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto at = static_cast<std::size_t>(r * cols + c), i = static_cast<std::size_t>(c);
          const int g = limits.fine[i] > 0 ? 2 : limits.coarse[i] > 0 ? 1 : 0;
          const double term = static_cast<double>(of_grade[g][at]) * x[i];
          sum += term;
          size +=
              g == 0 ? 0
                     : std::fabs(of_grade[g][at]) * unit[i / 32] + 1e-5 * (std::fabs(term) + std::fabs(x[i]));
        }
        ASSERT_NEAR(y[static_cast<std::size_t>(r)], sum, size) << "row " << r;
      }
    }
  }
}

// The largest codes with the largest activations.
TEST_P(Graded, DoesNotSaturate) {
  const std::int64_t rows = 128, cols = 256;
  Weights w(type(), rows, cols);
  AlignedVector<std::byte> planes = w.packed;
  std::fill(planes.begin(), planes.begin() + w.graded.scales_at(0), std::byte{0xff});
  w.graded.data = planes.data();
  const std::vector<float> exact = dequantize_graded(w.graded, 2);
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> y =
        product(w.graded, chosen(std::vector<float>(cols, sign), 1, cols, Limits(cols, 2)), nullptr);
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0, size = 0;
      for (std::int64_t c = 0; c < cols; ++c) {
        sum += sign * static_cast<double>(exact[static_cast<std::size_t>(r * cols + c)]);
        size += std::fabs(exact[static_cast<std::size_t>(r * cols + c)]);
      }
      ASSERT_NEAR(y[static_cast<std::size_t>(r)], sum, 1e-5 * size);
    }
  }
}

TEST_P(Graded, KeepsItsBitsHoweverTheWorkIsSplit) {
  for (const std::int64_t rows : {200, 2300}) {
    const std::int64_t cols = 768, tokens = 5;
    const Weights w(type(), rows, cols);
    const GradedMatrix& m = w.graded;
    const std::vector<float> x = gaussian(static_cast<std::size_t>(tokens * cols), 4);
    const std::vector<float> bias = gaussian(static_cast<std::size_t>(rows), 5);
    const Limits limits(cols, 3);
    const GradedTokens all = chosen(x, tokens, cols, limits);
    const std::vector<float> expected = product(m, all, bias.data());

    std::vector<float> partials(static_cast<std::size_t>(tokens * m.partials())), y(expected.size());
    for (std::int64_t unit = m.units(); unit-- > 0;)
      for (const Range& t : {Range{0, 2}, Range{2, 3}, Range{3, 5}})
        graded_units(m, {unit, unit + 1}, all, t, partials.data());
    for (const Range& r : {Range{0, 7}, Range{7, 150}, Range{150, rows}})
      for (const Range& t : {Range{0, 1}, Range{1, 5}})
        graded_sum(m, r, t, partials.data(), bias.data(), y.data(), rows);
    EXPECT_TRUE(same_bits(y, expected)) << "by units, rows and tokens";

    for (std::int64_t t = 0; t < tokens; ++t) {
      const GradedTokens one = chosen({x.begin() + t * cols, x.begin() + (t + 1) * cols}, 1, cols, limits);
      const std::vector<float> row = product(m, one, bias.data());
      std::ranges::copy(row, y.begin() + t * rows);
    }
    EXPECT_TRUE(same_bits(y, expected)) << "one token at a time";
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Graded,
                         testing::Combine(testing::ValuesIn(targets()), testing::ValuesIn(types())),
                         [](const auto& p) {
                           return fmt::format("{}_{}", std::get<0>(p.param), std::get<1>(p.param).name());
                         });

TEST(GradedTargets, AgreeToTheBit) {
  for (const Type& type : types()) {
    const Weights w(type, 205, 512);
    const std::vector<float> x = gaussian(3 * 512, 7), bias = gaussian(205, 8);
    std::vector<float> expected;
    for (const std::string& name : fma_targets()) {
      const WithTarget target(name);
      const std::vector<float> y = product(w.graded, chosen(x, 3, 512, Limits(512, 3)), bias.data());
      if (expected.empty()) expected = y;
      EXPECT_TRUE(same_bits(y, expected)) << type.name() << " on " << name;
    }
  }
}

TEST(GradedMatrix, HoldsTheStoredWeights) {
  for (const Type& type : types()) {
    const Weights w(type, 2177, 256);
    const std::vector<float> dense = w.dense(), exact = dequantize_graded(w.graded, 2),
                             coarse = dequantize_graded(w.graded, 1);
    const bool folded = dtype_info(type.dtype).block_size == 256;
    const float half_step = static_cast<float>((1 << w.graded.layout.fine_bits) - 1) / 2;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      // Scale · code is at most 0.1 · 63 · 31 and the minimum 0.1 · 63 in these matrices.
      const float most = folded ? 0.1f * 128 * 32 / 2048 : 1e-6f;
      ASSERT_NEAR(exact[i], dense[i], most) << type.name() << " at " << i;
      ASSERT_NEAR(coarse[i], exact[i], (folded ? 0.1f * 128 : 0.1f) * half_step)
          << type.name() << " at " << i;
    }
    double error = 0, size = 0;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      error += std::pow(exact[i] - dense[i], 2);
      size += std::pow(dense[i], 2);
    }
    EXPECT_LE(std::sqrt(error / size), folded ? 4e-4 : 1e-7) << type.name();
  }
}

TEST(GradedMatrix, CutsIntoPanelsAndUnitsByShape) {
  for (const std::int64_t rows : {1, 64, 65, 576, 2048, 2049, 2112, 4096, 5000, 11008, 49152, 67649})
    for (const std::int64_t cols : {32, 576, 4096}) {
      const GradedMatrix m(DType::Q4_0, GradedSplit::Halves, rows, cols);
      std::int64_t at = 0;
      for (std::int64_t p = 0; p < m.panels(); ++p) {
        EXPECT_EQ(m.panel(p).begin, at);
        EXPECT_EQ(at % GradedMatrix::kStripRows, 0);
        at = m.panel(p).end;
        EXPECT_GT(at, m.panel(p).begin);
        EXPECT_LE(at - m.panel(p).begin, GradedMatrix::kPanelRows);
      }
      EXPECT_EQ(at, m.padded_rows());
      at = 0;
      for (std::int64_t s = 0; s < m.segments(); ++s) {
        EXPECT_EQ(m.segment_blocks(s).begin, at);
        at = m.segment_blocks(s).end;
        EXPECT_GE(at - m.segment_blocks(s).begin, std::min<std::int64_t>(m.blocks(), 4));
      }
      EXPECT_EQ(at, m.blocks());
    }
  // Everything read of rows that fill their strips is everything stored.
  const GradedMatrix m(DType::Q8_0, GradedSplit::Halves, 4096, 4096);
  EXPECT_EQ(graded_bytes(m, 4096, 4096), m.bytes());
  EXPECT_EQ(graded_bytes(m, 4096, 4096), 4096 * row_bytes(DType::Q8_0, 4096));
  EXPECT_EQ(graded_bytes(m, 2048, 1024), 4096u * (2048 / 2 + 1024 / 2 + 4096 / 32 * 2));
}

TEST(GradedMatrix, RefusesWhatItCannotHold) {
  EXPECT_THROW(GradedMatrix(DType::F16, GradedSplit::Halves, 64, 64), Error);
  EXPECT_THROW(GradedMatrix(DType::IQ4_NL, GradedSplit::Halves, 64, 64), Error);
  EXPECT_THROW(GradedMatrix(DType::Q8_0, GradedSplit::Whole, 64, 64), Error);
  EXPECT_THROW(GradedMatrix(DType::Q4_K, GradedSplit::Halves, 64, 64), Error);
  EXPECT_THROW(GradedMatrix(DType::Q4_0, GradedSplit::Halves, 0, 64), Error);
}

using ChooseGrades = OnTargets;
NARROWS_ON_TARGETS(ChooseGrades);

TEST_P(ChooseGrades, FollowsTheLimits) {
  const std::int64_t cols = 96, tokens = 3, stride = 100;
  std::vector<float> x = gaussian(tokens * stride, 7), coarse(cols, 1.5f), fine(cols, 0.75f);
  const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -2.0f, kInf, -kInf, kNaN, 1e-40f};
  const float limits[] = {0.0f, 1.0f, 2.0f, 0.5f, kInf, kNaN};
  std::size_t at = 3;  // token 0
  for (const float v : special)
    for (const float l : limits) {
      x[at] = v;
      coarse[at] = l;
      fine[at] = limits[at % 6];
      ++at;
    }
  GradedTokens g;
  g.resize(tokens, cols);
  choose_grades(x.data(), stride, {0, 2}, coarse.data(), fine.data(), g);
  choose_grades(x.data(), stride, {2, 3}, coarse.data(), fine.data(), g);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::int64_t coarse_columns = 0, fine_columns = 0;
    for (std::int64_t b = 0; b < cols / 32; ++b) {
      const GradedTokens::Block& block = g.of_block[static_cast<std::size_t>(t * g.blocks + b)];
      std::vector<std::uint32_t> columns[2];
      std::int32_t sums[2][2] = {};
      int in_half[2] = {};
      float most = 0;
      bool finite = true;
      for (std::uint32_t c = static_cast<std::uint32_t>(32 * b); c < 32 * b + 32; ++c) {
        const float v = x[static_cast<std::size_t>(t * stride + c)], size = std::fabs(v);
        if (size * coarse[c] <= 1 || v == 0) continue;
        const int exact = size * fine[c] <= 1 ? 0 : 1;
        columns[exact].push_back(c);
        in_half[exact] += c % 32 < 16;
        most = std::max(most, size);
        finite = finite && std::isfinite(v);
      }
      EXPECT_EQ(block.coarse, columns[0].size());
      EXPECT_EQ(block.fine, columns[1].size());
      EXPECT_EQ(block.coarse_half, in_half[0]);
      EXPECT_EQ(block.fine_half, in_half[1]);
      EXPECT_EQ(std::isfinite(block.scale), finite);
      coarse_columns += block.coarse + block.fine;
      fine_columns += block.fine;
      std::size_t slot = static_cast<std::size_t>(t * g.stride + b * GradedTokens::kSlots);
      for (const int exact : {0, 1}) {
        const std::size_t first = slot;
        for (const std::uint32_t c : columns[exact]) {
          ASSERT_EQ(g.column[slot], c);
          const int q = 128 * g.high[slot] + g.low[slot];
          sums[exact][c % 32 / 16] += q;
          if (!exact) {
            EXPECT_EQ(q % 2, 0);
          }
          if (finite) {
            EXPECT_NEAR(block.scale * static_cast<float>(q), x[static_cast<std::size_t>(t * stride + c)],
                        (exact ? 0.51f : 1.01f) * most / GradedTokens::kMost);
          }
          ++slot;
        }
        for (; (slot - first) % 4 != 0; ++slot) {
          EXPECT_EQ(g.column[slot], columns[exact][0]);
          EXPECT_EQ(g.high[slot], 0);
          EXPECT_EQ(g.low[slot], 0);
        }
      }
      for (int h = 0; h < 2; ++h) {
        EXPECT_EQ(block.coarse_sum[h], sums[0][h]);
        EXPECT_EQ(block.fine_sum[h], sums[1][h]);
      }
    }
    EXPECT_EQ(g.coarse_columns(t), coarse_columns);
    EXPECT_EQ(g.fine_columns(t), fine_columns);
  }
}

TEST_P(ChooseGrades, LetsNaNsThrough) {
  for (const Type& type : types()) {
    const std::int64_t rows = 70, cols = 256;
    const Weights w(type, rows, cols);
    for (const float limit : {0.0f, 1e-3f}) {
      Limits limits(cols, 0);
      std::ranges::fill(limits.coarse, limit);
      std::vector<float> x(cols, 0.0f);
      x[130] = kNaN;
      for (const float y : product(w.graded, chosen(x, 1, cols, limits), nullptr))
        ASSERT_TRUE(std::isnan(y)) << type.name();
    }
  }
}

}  // namespace
}  // namespace narrows
