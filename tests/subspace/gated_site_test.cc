// Gated sites: the two paths, the bound on the fast one, and bits that depend on the token alone.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/dispatch.h"
#include "narrows/error.h"
#include "subspace/basis.h"
#include "subspace/gated_site.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

using Floats = AlignedVector<float>;

Floats random_floats(std::int64_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

double norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

// A site of two maps with biases, and a subspace of k directions that most tokens lie near.
struct Fixture {
  std::int64_t d, k;
  std::vector<std::int64_t> rows;
  DType weight_type, type;
  std::mt19937 random{7};
  std::vector<AlignedVector<std::byte>> stored;
  std::vector<Floats> weights, biases;
  Floats v;                       // [k][d] as stored
  std::vector<Floats> m;          // [rows][k] as stored
  std::vector<double> image_error;  // ‖M - W V‖₂
  ThreadPool pool{2};

  Fixture(std::int64_t d_, std::int64_t k_, std::vector<std::int64_t> rows_, DType weight_type_, DType type_)
      : d(d_), k(k_), rows(std::move(rows_)), weight_type(weight_type_), type(type_) {
    for (const std::int64_t r : rows) {
      weights.push_back(random_floats(r * d, random));
      stored.push_back(store(weight_type, weights.back(), r, d));
      biases.push_back(random_floats(r, random));
    }
    const Floats directions = random_floats(k * d, random);
    std::vector<double> basis(directions.begin(), directions.end());
    orthonormalize_rows(basis.data(), k, d);
    v.assign(basis.begin(), basis.end());
    basis_bytes = store(type, v, k, d);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Floats& image = m.emplace_back(static_cast<std::size_t>(rows[i] * k));
      gemm(Transpose::No, Transpose::Yes, rows[i], k, d, 1.0f, weights[i].data(), d, v.data(), d, 0.0f, image.data(), k);
      Floats error = image;
      image_bytes.push_back(store(type, image, rows[i], k));
      for (std::size_t j = 0; j < error.size(); ++j) error[j] -= image[j];
      image_error.push_back(spectral_norm(error.data(), rows[i], k) * 1.05);
    }
  }

  // Stores the values and reads them back.
  static AlignedVector<std::byte> store(DType dtype, Floats& values, std::int64_t rows, std::int64_t cols) {
    AlignedVector<std::byte> bytes(static_cast<std::size_t>(rows) * row_bytes(dtype, cols));
    quantize(dtype, values.data(), bytes.data(), rows * cols);
    dequantize(dtype, bytes.data(), values.data(), rows * cols);
    return bytes;
  }
  std::unique_ptr<DenseSite> dense() const {
    std::vector<Linear> maps;
    for (std::size_t i = 0; i < rows.size(); ++i)
      maps.push_back({{weight_type, rows[i], d, stored[i].data(), nullptr}, biases[i].data()});
    return std::make_unique<DenseSite>(std::move(maps));
  }
  std::unique_ptr<GatedSite> gated(float epsilon, std::int64_t use = 0) {
    std::vector<WeightMatrix> images;
    for (std::size_t i = 0; i < rows.size(); ++i) images.push_back({type, rows[i], k, image_bytes[i].data(), nullptr});
    return std::make_unique<GatedSite>(dense(), WeightMatrix{type, k, d, basis_bytes.data(), nullptr}, images,
                                       use > 0 ? use : k, epsilon, pool);
  }
  // Tokens in the subspace but for a part of relative length `outside`.
  Floats tokens(std::int64_t count, double outside) {
    Floats x = random_floats(count * d, random);
    for (std::int64_t t = 0; t < count; ++t) {
      const Floats g = random_floats(k, random);
      const double inside = norm(g), scale = outside * inside / std::sqrt(static_cast<double>(d));
      for (std::int64_t i = 0; i < d; ++i) {
        double sum = scale * x[static_cast<std::size_t>(t * d + i)];
        for (std::int64_t j = 0; j < k; ++j) sum += double{g[static_cast<std::size_t>(j)]} * v[static_cast<std::size_t>(j * d + i)];
        x[static_cast<std::size_t>(t * d + i)] = static_cast<float>(sum);
      }
    }
    return x;
  }
  Floats apply(LinearSite& site, const Floats& x) {
    const std::int64_t count = static_cast<std::int64_t>(x.size()) / d;
    Floats y(static_cast<std::size_t>(count * site.out()));
    site.apply(pool, scratch, x.data(), count, y.data());
    return y;
  }

  AlignedVector<std::byte> basis_bytes;
  std::vector<AlignedVector<std::byte>> image_bytes;
  SiteScratch scratch;
};

class OnTypes : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, OnTypes, testing::Values(DType::F32, DType::F16, DType::BF16, DType::Q8_0),
                         [](const auto& t) { return std::string(dtype_info(t.param).name); });

// Theorem 4 on every token of the fast path: ‖y - ŷ‖ ≤ ‖W‖₂ ρ ‖x‖ + ‖M - W V‖₂ ‖g‖ + rounding.
TEST_P(OnTypes, FastPathKeepsItsBound) {
  Fixture f(160, 64, {96, 33}, DType::F32, GetParam());
  const auto site = f.gated(std::numeric_limits<float>::infinity());
  for (const double outside : {0.0, 0.01, 0.1, 0.5, 2.0}) {
    const Floats x = f.tokens(40, outside), y = f.apply(*site, x);
    for (std::int64_t t = 0; t < 40; ++t) {
      const float* token = x.data() + t * f.d;
      std::vector<double> g(static_cast<std::size_t>(f.k)), r(token, token + f.d);
      double g_norm = 0, r_norm = 0;
      for (std::int64_t j = 0; j < f.k; ++j) {
        double& coordinate = g[static_cast<std::size_t>(j)];
        for (std::int64_t i = 0; i < f.d; ++i) coordinate += double{token[i]} * f.v[static_cast<std::size_t>(j * f.d + i)];
        g_norm += coordinate * coordinate;
      }
      for (std::int64_t j = 0; j < f.k; ++j)
        for (std::int64_t i = 0; i < f.d; ++i)
          r[static_cast<std::size_t>(i)] -= g[static_cast<std::size_t>(j)] * f.v[static_cast<std::size_t>(j * f.d + i)];
      for (const double value : r) r_norm += value * value;
      r_norm = std::sqrt(r_norm);
      g_norm = std::sqrt(g_norm);
      std::int64_t first = 0;
      for (std::size_t map = 0; map < f.rows.size(); ++map) {
        const double w_norm = 1.01 * spectral_norm(f.weights[map].data(), f.rows[map], f.d);
        double error = 0, size = 0;
        for (std::int64_t o = 0; o < f.rows[map]; ++o) {
          double exact = f.biases[map][static_cast<std::size_t>(o)];
          for (std::int64_t i = 0; i < f.d; ++i)
            exact += double{f.weights[map][static_cast<std::size_t>(o * f.d + i)]} * token[i];
          const double found = y[static_cast<std::size_t>(t * site->out() + first + o)];
          error += (exact - found) * (exact - found);
          size += exact * exact;
        }
        // Q8_0 images multiply activations of 8 bits: their rounding is part of the product.
        const double rounding = (GetParam() == DType::Q8_0 ? 6e-3 : 1e-5) * (std::sqrt(size) + w_norm * g_norm / 8);
        EXPECT_LE(std::sqrt(error), w_norm * r_norm + f.image_error[map] * g_norm + rounding)
            << "outside " << outside << " token " << t << " map " << map;
        first += f.rows[map];
      }
    }
  }
}

TEST_P(OnTypes, RatioIsThatOfTheStoredBasis) {
  Fixture f(96, 32, {16}, DType::F32, GetParam());
  const auto site = f.gated(0.05f);
  f.apply(*site, f.tokens(50, 0.001));
  EXPECT_EQ(site->counts().fast(), 50);
  f.apply(*site, f.tokens(50, 0.3));
  EXPECT_EQ(site->counts().fast(), 50);
  EXPECT_EQ(site->counts().tokens(), 100);
  EXPECT_NEAR(site->counts().quantile(0.9), 0.25, 0.08);
}

TEST_P(OnTypes, WholeSpaceIsTheDenseProduct) {
  Fixture f(64, 64, {48, 80}, DType::F32, GetParam());
  const auto site = f.gated(1);
  const Floats x = f.tokens(9, 0), y = f.apply(*site, x), dense = f.apply(*f.dense(), x);
  EXPECT_EQ(site->counts().fast(), 9);
  const double tolerance = GetParam() == DType::F32 ? 2e-6 : GetParam() == DType::F16 ? 2e-3 : 2e-2;
  Floats difference = y;
  for (std::size_t i = 0; i < y.size(); ++i) difference[i] -= dense[i];
  EXPECT_LT(norm(difference), tolerance * norm(dense));
}

TEST(GatedSite, ZeroIsTheDenseBits) {
  for (const DType weight : {DType::F32, DType::Q4_0, DType::Q8_0}) {
    Fixture f(96, 32, {40, 17}, weight, DType::F16);
    const auto site = f.gated(0);
    const Floats x = f.tokens(21, 0);
    EXPECT_EQ(f.apply(*site, x), f.apply(*f.dense(), x));
    EXPECT_EQ(site->bytes_read(), f.dense()->bytes_read());
  }
}

// What a token gives does not depend on its neighbours, and slow tokens have the dense site's bits.
TEST(GatedSite, BitsDependOnTheTokenAlone) {
  for (const std::string& target : dispatch_targets()) {
    set_dispatch_target(target);
    for (const DType type : {DType::F16, DType::Q8_0}) {
      Fixture f(224, 64, {50, 33}, DType::Q8_0, type);
      const auto site = f.gated(0.1f);
      Floats x;
      for (int i = 0; i < 75; ++i) {
        const Floats token = f.tokens(1, i % 3 == 0 ? 0.5 : 0.02);
        x.insert(x.end(), token.begin(), token.end());
      }
      const Floats together = f.apply(*site, x), dense = f.apply(*f.dense(), x);
      EXPECT_EQ(site->counts().fast(), 50) << target;
      for (std::int64_t t = 0; t < 75; ++t) {
        const Floats alone = f.apply(*site, Floats(x.begin() + t * f.d, x.begin() + (t + 1) * f.d));
        const auto row = [&](const Floats& y) { return Floats(y.begin() + t * site->out(), y.begin() + (t + 1) * site->out()); };
        EXPECT_EQ(alone, row(together)) << target << " token " << t;
        if (t % 3 == 0) {
          EXPECT_EQ(alone, row(dense)) << target << " token " << t;
        }
      }
    }
  }
  set_dispatch_target("");
}

TEST(GatedSite, FewerDirectionsThanStored) {
  Fixture f(96, 64, {40}, DType::F32, DType::Q8_0);
  const auto whole = f.gated(1e9f), part = f.gated(1e9f, 32);
  EXPECT_EQ(part->k(), 32);
  EXPECT_LT(part->bytes_read() + 1, whole->bytes_read() + part->image_bytes());
  const Floats x = f.tokens(3, 0);
  EXPECT_NE(f.apply(*part, x), f.apply(*whole, x));
  EXPECT_THROW(f.gated(1, 33), Error);
  EXPECT_THROW(f.gated(1, 65), Error);
}

TEST(GatedSite, NotANumberIsSlow) {
  Fixture f(64, 32, {20}, DType::F32, DType::F32);
  const auto site = f.gated(std::numeric_limits<float>::infinity());
  Floats x = f.tokens(2, 0);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  const Floats y = f.apply(*site, x);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_FALSE(std::isnan(y[20]));
  EXPECT_EQ(site->counts().fast(), 1);
}

TEST(GatedSite, ZerosAreFast) {
  Fixture f(64, 32, {20}, DType::F32, DType::F32);
  const auto site = f.gated(0.1f);
  const Floats y = f.apply(*site, Floats(64));
  EXPECT_EQ(site->counts().fast(), 1);
  EXPECT_EQ(y[5], f.biases[0][5]);
}

TEST(GatedSite, CountsEveryByte) {
  Fixture f(64, 32, {20, 12}, DType::F16, DType::BF16);
  const auto site = f.gated(0.1f);
  const std::size_t v = 32 * 64 * 2, w = 32 * 64 * 2 + 32 * 4, m = 32 * 32 * 2 + 32 * 4;
  EXPECT_EQ(site->bytes_read(), v + w);
  f.apply(*site, f.tokens(3, 0));
  EXPECT_EQ(site->bytes_read(), v + m);
  f.apply(*site, f.tokens(1, 3));
  EXPECT_EQ(site->bytes_read(), v + (3 * m + w) / 4);
}

}  // namespace
}  // namespace narrows
