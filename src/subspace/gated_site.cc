#include "subspace/gated_site.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/projection.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

constexpr std::int64_t kTokensTogether = 64;  // whose spans are held at once

std::size_t rounded(std::size_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

// A bound of ‖VᵀV - I‖₂, from above: the eighth root of the sum of its eigenvalues' eighth powers; and what single precision
// does to norms.
double orthogonality_defect(const WeightMatrix& basis) {
  constexpr double kRounding = 2e-5;
  const std::int64_t k = basis.rows, d = basis.cols;
  const auto square = static_cast<std::size_t>(k * k);
  std::vector<float> v(static_cast<std::size_t>(k * d)), defect(square), second(square);
  dequantize(basis.dtype, basis.data, v.data(), k * d);
  gemm(Transpose::No, Transpose::Yes, k, k, d, 1.0f, v.data(), d, v.data(), d, 0.0f, defect.data(), k);
  for (std::int64_t j = 0; j < k; ++j) defect[static_cast<std::size_t>(j * k + j)] -= 1;
  for (int twice = 0; twice < 2; ++twice) {
    gemm(Transpose::No, Transpose::No, k, k, k, 1.0f, defect.data(), k, defect.data(), k, 0.0f, second.data(), k);
    defect.swap(second);
  }
  double sum = 0;
  for (const float e : defect) sum += double{e} * e;
  const double bound = std::pow(sum, 1.0 / 8) + kRounding;
  return std::isfinite(bound) ? bound : std::numeric_limits<double>::infinity();
}

}  // namespace

void check_gate(const LinearSite& dense, const WeightMatrix& basis, std::span<const WeightMatrix> images, std::int64_t k) {
  const std::vector<Linear>& maps = dense.maps();
  if (!can_project(basis.dtype))
    fail("basis: expected F32, F16, BF16 or Q8_0, found {}", dtype_info(basis.dtype).name);
  if (basis.cols != dense.in()) fail("basis: expected vectors of {} elements, found {}", dense.in(), basis.cols);
  if (k < 1 || k > basis.rows) fail("k: expected 1 to the {} directions of the basis, found {}", basis.rows, k);
  if (images.size() != maps.size()) fail("images: expected one for each of {} maps, found {}", maps.size(), images.size());
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const WeightMatrix& image = images[i];
    if (image.rows != maps[i].weight.rows || image.cols < k)
      fail("image {}: expected {} rows of at least {} columns, found {} × {}", i, maps[i].weight.rows, k, image.rows,
           image.cols);
    if (k % dtype_info(image.dtype).block_size != 0)
      fail("k: expected a multiple of {} with images in {}, found {}", dtype_info(image.dtype).block_size,
           dtype_info(image.dtype).name, k);
  }
}

GatedSite::GatedSite(std::unique_ptr<LinearSite> dense, const WeightMatrix& basis, std::span<const WeightMatrix> images,
                     std::int64_t k, float epsilon, ThreadPool& pool)
    : WrappedSite(std::move(dense)), epsilon_(epsilon) {
  check_gate(inner(), basis, images, k);
  const std::size_t basis_bytes = static_cast<std::size_t>(k) * row_bytes(basis.dtype, basis.cols);
  std::size_t bytes = rounded(basis_bytes);
  const auto image_bytes = [&](const WeightMatrix& image) {
    return is_packed_type(image.dtype) ? static_cast<std::size_t>(image.tiles()) * packed_tile_bytes(image.dtype, k)
                                       : static_cast<std::size_t>(image.rows) * row_bytes(image.dtype, k);
  };
  for (const WeightMatrix& image : images) bytes += rounded(image_bytes(image));
  storage_ = LargeBuffer(bytes);
  std::byte* to = storage_.data();
  std::memcpy(to, basis.data, basis_bytes);
  basis_ = {basis.dtype, k, basis.cols, to, nullptr};
  to += rounded(basis_bytes);

  std::vector<Linear> made;
  AlignedVector<std::byte> cut;  // a quantized image's first k columns, row by row
  for (std::size_t i = 0; i < images.size(); ++i) {
    const WeightMatrix& image = images[i];
    const std::size_t from = row_bytes(image.dtype, image.cols), row = row_bytes(image.dtype, k);
    const bool packs = is_packed_type(image.dtype);
    cut.resize(packs ? static_cast<std::size_t>(image.rows) * row : 0);
    std::byte* rows = packs ? cut.data() : to;
    for (std::int64_t r = 0; r < image.rows; ++r)
      std::memcpy(rows + static_cast<std::size_t>(r) * row, image.data + static_cast<std::size_t>(r) * from, row);
    WeightMatrix own{image.dtype, image.rows, k, rows, nullptr};
    if (packs) {
      const std::size_t tile = packed_tile_bytes(image.dtype, k);
      pool.share(own.tiles(), 1, [&](int, Range range) {
        for (std::int64_t t = range.begin; t < range.end; ++t) pack_tile(own, t, to + static_cast<std::size_t>(t) * tile);
      });
      own.packed = to;
      own.data = nullptr;
    }
    made.push_back({own, maps()[i].bias});
    to += rounded(image_bytes(image));
  }
  images_ = std::make_unique<DenseSite>(std::move(made));
  defect_ = epsilon > 0 ? orthogonality_defect(basis_) : 0;
}

void GatedSite::set_epsilon(float epsilon) {
  epsilon_ = epsilon;
  counts_.clear();
  again_ = 0;
}

std::size_t GatedSite::bytes_read() const {
  if (epsilon_ <= 0) return dense_bytes();
  const double fast = counts_.fast_fraction();
  const double again = static_cast<double>(again_) / static_cast<double>(std::max<std::int64_t>(counts_.tokens(), 1));
  return static_cast<std::size_t>(std::llround((1 + again) * static_cast<double>(basis_bytes()) +
                                               fast * static_cast<double>(image_bytes()) +
                                               (1 - fast) * static_cast<double>(dense_bytes())));
}

// g and ρ of tokens, with r computed.
void GatedSite::explicit_ratios(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* g,
                                float* ratios) {
  const std::int64_t d = in(), groups = projection_groups(k());
  float* span = room(scratch.span, groups * std::min(rows, kTokensTogether) * d);
  for (std::int64_t first = 0; first < rows; first += kTokensTogether) {
    const std::int64_t count = std::min(kTokensTogether, rows - first);
    project(basis_, pool, x + first * d, count, g + first * k(), span);
    pool.share(count, 4, [&](int, Range range) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        const ResidualNorms norms = residual_norms(x + (first + t) * d, span + t * d, count * d, groups, d);
        ratios[first + t] = norms.whole > 0 ? std::sqrt(norms.residual / norms.whole) : norms.residual;  // x = 0: 0; NaN stays
      }
    });
  }
}

// g of every token in scratch.projected, ρ in ratios_.
void GatedSite::project_tokens(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows) {
  const std::int64_t d = in();
  float* g = room(scratch.projected, rows * k());
  ratios_.resize(static_cast<std::size_t>(rows));
  const double wanted = double{epsilon_} * epsilon_;
  if (measured_ || wanted <= defect_) return explicit_ratios(pool, scratch, x, rows, g, ratios_.data());
  project(basis_, pool, x, rows, g, nullptr);
  pool.share(rows, 4, [&](int, Range range) {
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      const double whole = residual_norms(x + t * d, nullptr, 0, 0, d).whole;
      const double inside = residual_norms(g + t * k(), nullptr, 0, 0, k()).whole / whole;
      const double square = 1 - inside, doubt = defect_ * inside;
      const bool sure = square + doubt < wanted || square - doubt >= wanted;  // neither if NaN
      ratios_[static_cast<std::size_t>(t)] =
          sure ? static_cast<float>(std::sqrt(std::max(square, 0.0))) : std::numeric_limits<float>::quiet_NaN();
    }
  });
  unsure_.clear();
  for (std::int64_t t = 0; t < rows; ++t)
    if (std::isnan(ratios_[static_cast<std::size_t>(t)])) unsure_.push_back(t);
  if (unsure_.empty()) return;
  const std::int64_t count = std::ssize(unsure_);
  again_ += count;
  float* gathered = room(scratch.gathered, count * d);
  for (std::int64_t i = 0; i < count; ++i) std::copy_n(x + unsure_[static_cast<std::size_t>(i)] * d, d, gathered + i * d);
  std::vector<float> ratios(unsure_.size());
  explicit_ratios(pool, scratch, gathered, count, room(scratch.outputs, count * k()), ratios.data());
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios_[static_cast<std::size_t>(unsure_[i])] = ratios[i];
}

void GatedSite::apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) {
  if (epsilon_ <= 0) return inner().apply(pool, scratch, x, rows, y);
  project_tokens(pool, scratch, x, rows);
  fast_.clear();
  slow_.clear();
  for (std::int64_t t = 0; t < rows; ++t) {
    const float ratio = ratios_[static_cast<std::size_t>(t)];
    const bool fast = ratio < epsilon_;  // NaN is slow
    counts_.add(ratio, fast);
    (fast ? fast_ : slow_).push_back(t);
  }
  if (slow_.empty()) return images_->apply(pool, scratch, scratch.projected.data(), rows, y);
  if (fast_.empty()) return inner().apply(pool, scratch, x, rows, y);

  // Both paths: each on its tokens alone.
  const auto divide = [&](LinearSite& site, const std::vector<std::int64_t>& tokens, const float* from) {
    const std::int64_t width = site.in(), count = static_cast<std::int64_t>(tokens.size());
    float* gathered = room(scratch.gathered, count * width);
    float* outputs = room(scratch.outputs, count * out());
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(from + tokens[static_cast<std::size_t>(i)] * width, width, gathered + i * width);
    site.apply(pool, scratch, gathered, count, outputs);
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(outputs + i * out(), out(), y + tokens[static_cast<std::size_t>(i)] * out());
  };
  divide(*images_, fast_, scratch.projected.data());
  divide(inner(), slow_, x);
}

}  // namespace narrows
