// Graded and rescored sites.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "kernels/dispatch.h"
#include "narrows/error.h"
#include "subspace/graded_site.h"

namespace narrows {
namespace {

using Floats = AlignedVector<float>;

struct Site {
  std::int64_t d;
  DType type;
  std::vector<std::int64_t> rows;
  std::vector<AlignedVector<std::byte>> stored;
  std::vector<Floats> biases;
  ThreadPool pool{2};
  SiteScratch scratch;
  std::mt19937 random{11};

  Site(std::int64_t d_, DType type_, std::vector<std::int64_t> rows_) : d(d_), type(type_), rows(std::move(rows_)) {
    for (const std::int64_t r : rows) {
      const Floats w = floats(r * d);
      stored.emplace_back(static_cast<std::size_t>(r) * row_bytes(type, d));
      quantize(type, w.data(), stored.back().data(), r * d);
      biases.push_back(floats(r));
    }
  }
  Floats floats(std::int64_t n) {
    std::normal_distribution<float> normal;
    Floats values(static_cast<std::size_t>(n));
    for (float& v : values) v = normal(random);
    return values;
  }
  std::unique_ptr<DenseSite> dense() const {
    std::vector<Linear> maps;
    for (std::size_t i = 0; i < rows.size(); ++i)
      maps.push_back({{type, rows[i], d, stored[i].data(), nullptr}, biases[i].data()});
    return std::make_unique<DenseSite>(std::move(maps));
  }
  std::unique_ptr<GradedSite> graded(double threshold) { return std::make_unique<GradedSite>(dense(), threshold, pool); }
  Floats apply(LinearSite& site, const Floats& x) {
    const std::int64_t count = static_cast<std::int64_t>(x.size()) / d;
    Floats y(static_cast<std::size_t>(count * site.out()));
    site.apply(pool, scratch, x.data(), count, y.data());
    return y;
  }
};

double distance(const Floats& a, const Floats& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

TEST(GradedSite, EverythingReadIsTheDenseProduct) {
  for (const DType type : {DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q4_K, DType::Q6_K}) {
    Site s(256, type, {70, 33});
    const auto graded = s.graded(0);
    const Floats x = s.floats(5 * s.d);
    EXPECT_LT(distance(s.apply(*graded, x), s.apply(*s.dense(), x)), 1e-2) << dtype_info(type).name;
    EXPECT_EQ(graded->coarse_share(), 1);
  }
}

// A higher price reads less and errs more, as the estimate of the error that it is chosen by says.
TEST(GradedSite, PriceBuysAccuracy) {
  Site s(512, DType::Q8_0, {256});
  const Floats x = s.floats(20 * s.d), dense = s.apply(*s.dense(), x);
  const auto graded = s.graded(0);
  double last_error = 0;
  std::size_t last_bytes = SIZE_MAX;
  for (const double threshold : {1e-6, 1e-4, 1e-2, 3e-2, 0.1}) {
    graded->set_threshold(threshold);
    const double error = distance(s.apply(*graded, x), dense);
    EXPECT_GE(error, 0.9 * last_error) << threshold;
    EXPECT_LE(graded->bytes_read(), last_bytes) << threshold;
    EXPECT_GE(graded->coarse_share(), graded->fine_share());
    last_error = error;
    last_bytes = graded->bytes_read();
  }
  EXPECT_GT(last_error, 0.05);
  EXPECT_LT(last_bytes, s.dense()->bytes_read() * 2 / 3);
  EXPECT_THROW(graded->set_threshold(-1), Error);
}

TEST(GradedSite, BitsDependOnTheTokenAlone) {
  for (const std::string& target : dispatch_targets()) {
    set_dispatch_target(target);
    for (const DType type : {DType::Q8_0, DType::Q4_1}) {
      Site s(320, type, {200, 40});
      const auto graded = s.graded(1e-2);
      const Floats x = s.floats(37 * s.d), together = s.apply(*graded, x);
      for (std::int64_t t = 0; t < 37; ++t)
        EXPECT_EQ(s.apply(*graded, Floats(x.begin() + t * s.d, x.begin() + (t + 1) * s.d)),
                  Floats(together.begin() + t * 240, together.begin() + (t + 1) * 240))
            << target << " token " << t;
      EXPECT_LT(graded->coarse_share(), 1);
    }
  }
  set_dispatch_target("");
}

TEST(GradedSite, CountsEveryByte) {
  Site s(64, DType::Q8_0, {128});
  const auto graded = s.graded(0);
  const std::size_t scales = 128 * 2 * 2, columns = 128 * 64, bias = 4 * 128;
  EXPECT_EQ(graded->bytes_read(), scales + columns + bias);
  Floats x(64);
  x[3] = 1;
  s.apply(*graded, x);
  EXPECT_EQ(graded->bytes_read(), scales + 128 + bias);  // one column
}

TEST(GradedSite, FloatsCannotBeGraded) {
  Site s(64, DType::F16, {16});
  EXPECT_FALSE(can_grade(*s.dense()));
  EXPECT_THROW(s.graded(0), Error);
}

// A random rotation, as a file of bases would hold it.
struct Rotation {
  GsiSite site;
  AlignedVector<std::byte> basis;
  std::vector<AlignedVector<std::byte>> images;

  Rotation(Site& s, DType type) {
    const std::int64_t d = s.d;
    std::vector<double> v(static_cast<std::size_t>(d * d));  // orthonormal rows, by Gram and Schmidt
    const Floats start = s.floats(d * d);
    for (std::int64_t i = 0; i < d; ++i) {
      double* row = v.data() + i * d;
      std::copy_n(start.data() + i * d, d, row);
      for (int twice = 0; twice < 2; ++twice)
        for (std::int64_t j = 0; j < i; ++j) {
          const double* other = v.data() + j * d;
          const double along = std::inner_product(row, row + d, other, 0.0);
          for (std::int64_t c = 0; c < d; ++c) row[c] -= along * other[c];
        }
      const double norm = std::sqrt(std::inner_product(row, row + d, row, 0.0));
      for (std::int64_t c = 0; c < d; ++c) row[c] /= norm;
    }
    const Floats rows(v.begin(), v.end());
    basis.resize(static_cast<std::size_t>(d) * row_bytes(type, d));
    quantize(type, rows.data(), basis.data(), d * d);
    site.basis = {type, d, d, basis.data(), nullptr};
    for (std::size_t i = 0; i < s.rows.size(); ++i) {
      const std::int64_t n = s.rows[i];
      Floats w(static_cast<std::size_t>(n * d)), image(w.size());
      dequantize(s.type, s.stored[i].data(), w.data(), n * d);
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t j = 0; j < d; ++j)
          image[static_cast<std::size_t>(r * d + j)] = static_cast<float>(std::inner_product(w.data() + r * d, w.data() + (r + 1) * d, v.data() + j * d, 0.0));
      images.emplace_back(static_cast<std::size_t>(n) * row_bytes(type, d));
      quantize(type, image.data(), images.back().data(), n * d);
      site.images.push_back({type, n, d, images.back().data(), nullptr});
    }
  }
};

TEST(GradedSite, Rotated) {
  for (const std::string& target : dispatch_targets()) {
    set_dispatch_target(target);
    Site s(160, DType::F16, {70, 33});  // floats cannot be graded, their images can
    const Rotation rotation(s, DType::Q8_0);
    ASSERT_TRUE(can_rotate(*s.dense(), rotation.site));
    GradedSite site(s.dense(), 0, s.pool, &rotation.site);
    const Floats x = s.floats(21 * s.d), dense = s.apply(*s.dense(), x), all = s.apply(site, x);
    EXPECT_LT(distance(all, dense), 2e-2);
    EXPECT_EQ(site.bytes_read(), 160 * row_bytes(DType::Q8_0, 160) + (128 + 64) * (160 + 160 / 32 * 2) + 4 * (70 + 33));
    for (std::int64_t t = 0; t < 21; ++t)
      EXPECT_EQ(s.apply(site, Floats(x.begin() + t * s.d, x.begin() + (t + 1) * s.d)),
                Floats(all.begin() + t * 103, all.begin() + (t + 1) * 103));
    // One direction alone: its column alone is read.
    site.set_threshold(1e-3);
    Floats along(160);
    dequantize(DType::Q8_0, rotation.basis.data(), along.data(), 160);
    EXPECT_LT(distance(s.apply(site, along), s.apply(*s.dense(), along)), 3e-2);
    EXPECT_LT(site.coarse_share(), 0.02);
  }
  set_dispatch_target("");
  Site s(160, DType::F16, {70}), narrow(64, DType::F16, {70});
  const Rotation other(narrow, DType::Q8_0);
  EXPECT_FALSE(can_rotate(*s.dense(), other.site));
  EXPECT_FALSE(can_rotate(*s.dense(), Rotation(s, DType::F16).site));
  EXPECT_THROW(GradedSite(s.dense(), 0, s.pool, &other.site), Error);
}

TEST(RescoredSite, RotatedToo) {
  Site s(256, DType::Q8_0, {5000});
  const Rotation rotation(s, DType::Q8_0);
  RescoredSite site(std::make_unique<GradedSite>(s.dense(), 1e-2, s.pool, &rotation.site), 40);
  const Floats x = s.floats(3 * s.d), y = s.apply(site, x), dense = s.apply(*s.dense(), x);
  for (std::int64_t t = 0; t < 3; ++t) {
    std::int64_t same = 0;
    for (std::size_t r = 0; r < 5000; ++r) same += y[static_cast<std::size_t>(t) * 5000 + r] == dense[static_cast<std::size_t>(t) * 5000 + r];
    EXPECT_GE(same, 40);
    EXPECT_LT(same, 100);
  }
}

TEST(RescoredSite, TheBestHaveTheDenseBits) {
  for (const DType type : {DType::Q8_0, DType::Q4_1}) {
    Site s(256, type, {5000});
    RescoredSite site(s.graded(1e-2), 40);
    const Floats x = s.floats(3 * s.d), y = s.apply(site, x), dense = s.apply(*s.dense(), x);
    const Floats approximate = s.apply(site.approximate(), x);
    EXPECT_NE(approximate, dense);
    for (std::int64_t t = 0; t < 3; ++t) {
      const float lowered = static_cast<float>(site.approximate().error_variance(x.data() + t * s.d) / 2);
      EXPECT_GT(lowered, 0);
      const auto best = largest(approximate.data() + t * 5000, 5000, 40);
      std::size_t next = 0;
      for (std::int64_t r = 0; r < 5000; ++r) {
        const auto i = static_cast<std::size_t>(t * 5000 + r);
        const bool rescored = next < best.size() && best[next] == r;
        EXPECT_EQ(y[i], rescored ? dense[i] : approximate[i] - lowered) << r;
        next += rescored;
      }
      EXPECT_EQ(next, 40u);
    }
    EXPECT_EQ(site.bytes_read(), site.approximate().bytes_read() + 40 * row_bytes(type, 256));
  }
}

TEST(Largest, IsWhatSortingFinds) {
  std::mt19937 random(5);
  for (const std::int64_t n : {1, 2, 100, 5000, 70000}) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& v : values) v = static_cast<float>(random() % 1000);
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}}) {
      std::vector<std::int64_t> expected(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) expected[static_cast<std::size_t>(i)] = i;
      std::stable_sort(expected.begin(), expected.end(), [&](std::int64_t a, std::int64_t b) {
        return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
      });
      expected.resize(static_cast<std::size_t>(std::min(n, count)));
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(largest(values.data(), n, count), expected) << n << " " << count;
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(largest(std::vector<float>{nan, 1, nan}.data(), 3, 2), std::vector<std::int64_t>{1});
}

}  // namespace
}  // namespace narrows
