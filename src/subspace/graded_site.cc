#include "subspace/graded_site.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/projection.h"
#include "subspace/gated_site.h"

namespace narrows {
namespace {

constexpr std::int64_t kPartialBytes = 4 << 20;  // of tokens computed together

GradedSplit split_of(DType dtype) {
  // Two bits of four say too little: columns of 4-bit types are read whole (docs/gsi.md has the figures).
  switch (dtype) {
    case DType::Q4_0:
    case DType::Q4_1:
    case DType::Q4_K: return GradedSplit::Whole;
    default: return GradedSplit::Halves;
  }
}

bool is_gradable(const WeightMatrix& w) { return graded_layout(w.dtype, split_of(w.dtype)).has_value(); }

// Adds Σ over rows of w² - (w - coarse)² and of (w - coarse)² to the columns' gains. Parts are fixed and added in order:
// limits do not depend on threads.
void add_gains(const WeightMatrix& w, const GradedMatrix& m, std::vector<double>& coarse, std::vector<double>& fine,
               ThreadPool& pool) {
  constexpr std::int64_t kPart = 1024;
  const std::size_t cols = static_cast<std::size_t>(w.cols);
  const std::int64_t parts = (w.rows + kPart - 1) / kPart;
  std::vector<float> sums(static_cast<std::size_t>(parts) * 2 * cols);
  pool.share(parts, 1, [&](int, Range range) {
    for (std::int64_t p = range.begin; p < range.end; ++p) {
      float* whole = sums.data() + static_cast<std::size_t>(p) * 2 * cols;
      add_column_energies(w, m, {p * kPart, std::min((p + 1) * kPart, w.rows)}, whole, whole + cols);
    }
  });
  for (std::int64_t p = 0; p < parts; ++p)
    for (std::size_t c = 0; c < cols; ++c) {
      const float* whole = sums.data() + static_cast<std::size_t>(p) * 2 * cols;
      coarse[c] += double{whole[c]} - whole[cols + c];
      fine[c] += whole[cols + c];
    }
}

}  // namespace

bool can_grade(const LinearSite& site) {
  return std::all_of(site.maps().begin(), site.maps().end(), [](const Linear& map) { return is_gradable(map.weight); });
}

bool can_rotate(const LinearSite& site, const GsiSite& basis) {
  return basis.basis.rows == site.in() && basis.basis.cols == site.in() && basis.images.size() == site.maps().size() &&
         std::all_of(basis.images.begin(), basis.images.end(), is_gradable);
}

GradedSite::GradedSite(std::unique_ptr<LinearSite> dense, double threshold, ThreadPool& pool, const GsiSite* rotated)
    : WrappedSite(std::move(dense)),
      coarse_gain_(static_cast<std::size_t>(in())),
      fine_gain_(coarse_gain_.size()),
      coarse_limit_(coarse_gain_.size()),
      fine_limit_(coarse_gain_.size()) {
  if (rotated) {
    check_gate(inner(), rotated->basis, rotated->images, in());
    const std::size_t bytes = static_cast<std::size_t>(in()) * row_bytes(rotated->basis.dtype, in());
    basis_storage_ = LargeBuffer(bytes);
    std::memcpy(basis_storage_.data(), rotated->basis.data, bytes);
    basis_ = {rotated->basis.dtype, in(), in(), basis_storage_.data(), nullptr};
  }
  for (std::size_t i = 0; i < maps().size(); ++i) {
    const WeightMatrix& w = rotated ? rotated->images[i] : maps()[i].weight;
    GradedMatrix& m = matrices_.emplace_back(w.dtype, split_of(w.dtype), w.rows, w.cols);
    LargeBuffer& planes = planes_.emplace_back(m.bytes());
    m.data = planes.data();
    pool.share(m.strips(), 1, [&](int, Range range) { pack_graded(w, m, range, planes.data()); });
    add_gains(w, m, coarse_gain_, fine_gain_, pool);
    coarse_bits_ += static_cast<double>(m.layout.coarse_bits) * static_cast<double>(w.rows);
    fine_bits_ += static_cast<double>(m.layout.fine_bits) * static_cast<double>(w.rows);
  }
  for (std::size_t c = 0; c < coarse_gain_.size(); ++c) {
    double &coarse = coarse_gain_[c], &fine = fine_gain_[c];
    const double both = std::max(coarse + fine, 0.0) / (coarse_bits_ + fine_bits_);
    coarse /= coarse_bits_;
    fine = fine_bits_ > 0 ? fine / fine_bits_ : 0;
    // Small codes are worth little in half their bits: such a column is read exactly or not at all.
    if (fine > coarse) coarse = fine = both;
  }
  set_threshold(threshold);
}

void GradedSite::set_threshold(double threshold) {
  if (!(threshold >= 0)) fail("threshold: expected 0 or more, found {}", threshold);
  threshold_ = threshold;
  const auto limit = [&](double gain) {
    if (threshold == 0) return std::numeric_limits<float>::infinity();
    return static_cast<float>(std::min(std::sqrt(gain / threshold), double{std::numeric_limits<float>::max()}));
  };
  std::transform(coarse_gain_.begin(), coarse_gain_.end(), coarse_limit_.begin(), limit);
  std::transform(fine_gain_.begin(), fine_gain_.end(), fine_limit_.begin(), limit);
  tokens_ = coarse_ = fine_ = 0;
}

double GradedSite::error_variance(const float* coordinates) const {
  double error = 0;
  for (std::size_t c = 0; c < coarse_gain_.size(); ++c) {
    const double x = coordinates[c], square = x * x, missed = fine_gain_[c] * fine_bits_;
    if (!(std::abs(coordinates[c]) * coarse_limit_[c] > 1))
      error += square * (missed + coarse_gain_[c] * coarse_bits_);
    else if (!(std::abs(coordinates[c]) * fine_limit_[c] > 1))
      error += square * missed;
  }
  return error / static_cast<double>(out());
}

double GradedSite::coarse_share() const {
  return tokens_ > 0 ? static_cast<double>(coarse_) / static_cast<double>(tokens_ * columns()) : 1;
}
double GradedSite::fine_share() const {
  return tokens_ > 0 ? static_cast<double>(fine_) / static_cast<double>(tokens_ * columns()) : 1;
}

std::size_t GradedSite::bytes_read() const {
  double bytes = static_cast<double>(basis_.bytes_read());
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const GradedMatrix& m = matrices_[i];
    // Linear in the columns: of the mean, the mean.
    const double scales = static_cast<double>(graded_bytes(m, 0, 0));
    const double all = static_cast<double>(graded_bytes(m, m.cols, 0)) - scales;
    const double exact = static_cast<double>(graded_bytes(m, m.cols, m.cols)) - scales - all;
    bytes += scales + coarse_share() * all + fine_share() * exact;
    if (maps()[i].bias) bytes += 4.0 * static_cast<double>(m.rows);
  }
  return static_cast<std::size_t>(std::llround(bytes));
}

void GradedSite::apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) {
  if (rotated()) project(basis_, pool, x, rows, room(scratch.projected, rows * columns()), nullptr);
  std::int64_t partials = 0, units = 0, strips = 0;
  for (const GradedMatrix& m : matrices_) {
    partials += m.partials();
    units += m.units();
    strips += m.strips();
  }
  const std::int64_t together = std::max<std::int64_t>(kPartialBytes / (partials * 4), 1);
  float* sums = room(scratch.outputs, partials * std::min(together, rows));
  GradedTokens& tokens = scratch.graded;
  for (std::int64_t first = 0; first < rows; first += together) {
    const std::int64_t count = std::min(together, rows - first);
    const float* from = coordinates(scratch, x, first);
    tokens.resize(count, columns());
    if (count == 1)
      choose_grades(from, columns(), {0, 1}, coarse_limit_.data(), fine_limit_.data(), tokens);
    else
      pool.share(count, 1, [&](int, Range range) {
        choose_grades(from, columns(), range, coarse_limit_.data(), fine_limit_.data(), tokens);
      });
    for (std::int64_t t = 0; t < count; ++t) {
      coarse_ += tokens.coarse_columns(t);
      fine_ += tokens.fine_columns(t);
    }
    // The parts of `items` of each matrix in turn that a range of all of them holds.
    const auto for_matrices = [&](Range range, auto&& items, auto&& body) {
      std::int64_t before = 0, at = 0, row = 0;
      for (std::size_t i = 0; i < matrices_.size(); ++i) {
        const GradedMatrix& m = matrices_[i];
        const std::int64_t n = items(m);
        const Range part{std::clamp(range.begin - before, std::int64_t{0}, n), std::clamp(range.end - before, std::int64_t{0}, n)};
        if (part.begin < part.end) body(i, part, sums + at * count, row);
        before += n;
        at += m.partials();
        row += m.rows;
      }
    };
    pool.share(units, 1, [&](int, Range range) {
      for_matrices(range, [](const GradedMatrix& m) { return m.units(); },
                   [&](std::size_t i, Range part, float* own, std::int64_t) {
                     graded_units(matrices_[i], part, tokens, {0, count}, own);
                   });
    });
    pool.share(strips, count == 1 ? 16 : 1, [&](int, Range range) {
      for_matrices(range, [](const GradedMatrix& m) { return m.strips(); },
                   [&](std::size_t i, Range part, float* own, std::int64_t row) {
                     const GradedMatrix& m = matrices_[i];
                     graded_sum(m, {part.begin * GradedMatrix::kStripRows, std::min(part.end * GradedMatrix::kStripRows, m.rows)},
                                {0, count}, own, maps()[i].bias, y + first * out() + row, out());
                   });
    });
  }
  tokens_ += rows;
}

RescoredSite::RescoredSite(std::unique_ptr<GradedSite> approximate, std::int64_t best)
    : WrappedSite(std::move(approximate)), best_(best) {
  if (maps().size() != 1) fail("rescoring: expected a site of one map, found {}", maps().size());
  if (best < 1) fail("rescoring: expected at least 1 output, found {}", best);
  best_ = std::min(best, out());
}

std::size_t RescoredSite::bytes_read() const {
  const WeightMatrix& w = maps().front().weight;
  return inner().bytes_read() + static_cast<std::size_t>(best_) * row_bytes(w.dtype, w.cols);
}

void RescoredSite::apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) {
  inner().apply(pool, scratch, x, rows, y);
  const Linear& map = maps().front();
  const std::size_t stride = row_bytes(map.weight.dtype, in());
  gathered_.resize(static_cast<std::size_t>(best_) * stride);
  std::vector<float> exact(static_cast<std::size_t>(best_)), bias(map.bias ? exact.size() : 0);
  for (std::int64_t t = 0; t < rows; ++t) {
    float* outputs = y + t * out();
    const std::vector<std::int64_t> chosen = largest(outputs, out(), best_);
    const float lowered = static_cast<float>(approximate().error_variance(approximate().coordinates(scratch, x, t)) / 2);
    if (lowered > 0)
      for (std::int64_t i = 0; i < out(); ++i) outputs[i] -= lowered;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      std::memcpy(gathered_.data() + i * stride, map.weight.data + static_cast<std::size_t>(chosen[i]) * stride, stride);
      if (map.bias) bias[i] = map.bias[chosen[i]];
    }
    DenseSite site({{{map.weight.dtype, static_cast<std::int64_t>(chosen.size()), in(), gathered_.data(), nullptr},
                     map.bias ? bias.data() : nullptr}});
    site.apply(pool, scratch, x + t * in(), 1, exact.data());
    for (std::size_t i = 0; i < chosen.size(); ++i) outputs[chosen[i]] = exact[i];
  }
}

std::vector<std::int64_t> largest(const float* values, std::int64_t n, std::int64_t count) {
  count = std::min(count, n);
  std::vector<std::int64_t> chosen;
  // A bound from a sample leaves few candidates of many.
  float bound = -std::numeric_limits<float>::infinity();
  constexpr std::int64_t kStep = 61;
  if (n > 64 * count && n > 4096) {
    std::vector<float> sample;
    for (std::int64_t i = 0; i < n; i += kStep) sample.push_back(values[i]);
    const auto rank = std::min<std::size_t>(static_cast<std::size_t>(4 * count / kStep + 8), sample.size() - 1);
    std::nth_element(sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(rank), sample.end(), std::greater<>());
    bound = sample[rank];
  }
  const auto collect = [&](float least) {
    chosen.clear();
    for (std::int64_t i = 0; i < n; ++i)
      if (values[i] >= least) chosen.push_back(i);
  };
  collect(bound);
  if (static_cast<std::int64_t>(chosen.size()) < count) collect(-std::numeric_limits<float>::infinity());
  count = std::min<std::int64_t>(count, static_cast<std::int64_t>(chosen.size()));
  const auto larger = [&](std::int64_t a, std::int64_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; };
  std::nth_element(chosen.begin(), chosen.begin() + count, chosen.end(), larger);
  chosen.resize(static_cast<std::size_t>(count));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace narrows
