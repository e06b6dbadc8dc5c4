#include "lowrank/linear.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "lowrank/covariance.h"
#include "lowrank/roots.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

struct Map {
  std::span<const double> w;
  std::int64_t d_out, d_in;
  std::span<const double> r;

  void check(std::int64_t rank) const {
    if (d_out < 1 || d_in < 1)
      fail("linear map: expected at least 1 output and input, found {} and {}", d_out, d_in);
    expect_size(w, d_out * d_in, "linear map");
    expect_size(r, d_in * d_in, "autocorrelation of the input");
    const std::int64_t most = std::min(d_out, d_in);
    if (rank < 1 || rank > most)
      fail("rank of a {} × {} map: expected 1 to {}, found {}", d_out, d_in, most, rank);
  }
};

double loss_of(const Map& map, const LinearFactors& f) {
  std::vector<double> error(map.w.begin(), map.w.end());
  gemm(Transpose::No, Transpose::No, map.d_out, map.d_in, f.rank, -1.0, f.a.data(), f.rank, f.b.data(),
       map.d_in, 1.0, error.data(), map.d_in);
  std::vector<double> weighted(error.size());
  rows_times_symmetric(error.data(), map.d_out, map.r.data(), map.d_in, weighted.data());
  const double loss = dot(error, weighted);
  if (!std::isfinite(loss))
    fail("loss of a linear map: expected finite weights and statistics, found {}", loss);
  return std::max(loss, 0.0);
}

// A = Uᵀ, B = U W: `products` [d_out][d_out] is W S Sᵀ Wᵀ.
LinearFactors from_outputs(const Map& map, const std::vector<double>& products, std::int64_t rank) {
  const Spectrum spectrum = symmetric_eigen(products.data(), map.d_out);
  LinearFactors f;
  f.rank = rank;
  f.a.resize(map.d_out * rank);
  for (std::int64_t i = 0; i < map.d_out; ++i)
    for (std::int64_t j = 0; j < rank; ++j) f.a[i * rank + j] = spectrum.vectors[j * map.d_out + i];
  f.b = product(spectrum.vectors.data(), rank, map.d_out, map.w.data(), map.d_in);
  f.loss = loss_of(map, f);
  return f;
}

// A = W S Vᵀ, B = V S⁻¹: ws [d_out][d_in] is W S; `unweigh` multiplies the columns of V [rank][d_in] by S⁻¹.
template <typename Unweigh>
LinearFactors from_inputs(const Map& map, const std::vector<double>& ws, std::int64_t rank,
                          const Unweigh& unweigh) {
  std::vector<double> products(map.d_in * map.d_in);
  symmetric_rank_k(Transpose::Yes, map.d_in, map.d_out, 1.0, ws.data(), map.d_in, 0.0, products.data(),
                   map.d_in);
  Spectrum spectrum = symmetric_eigen(products.data(), map.d_in);
  LinearFactors f;
  f.rank = rank;
  f.a.resize(map.d_out * rank);
  gemm(Transpose::No, Transpose::Yes, map.d_out, rank, map.d_in, 1.0, ws.data(), map.d_in,
       spectrum.vectors.data(), map.d_in, 0.0, f.a.data(), rank);
  spectrum.vectors.resize(rank * map.d_in);
  f.b = unweigh(std::move(spectrum.vectors));
  f.loss = loss_of(map, f);
  return f;
}

LinearFactors diagonal_svd(const Map& map, const std::vector<double>& s, std::int64_t rank) {
  std::vector<double> ws(map.w.begin(), map.w.end());
  for (std::size_t i = 0; i < ws.size(); ++i) ws[i] *= s[i % map.d_in];
  if (map.d_out <= map.d_in) {
    std::vector<double> products(map.d_out * map.d_out);
    symmetric_rank_k(Transpose::No, map.d_out, map.d_in, 1.0, ws.data(), map.d_in, 0.0, products.data(),
                     map.d_out);
    return from_outputs(map, products, rank);
  }
  return from_inputs(map, ws, rank, [&](std::vector<double> v) {
    for (std::size_t i = 0; i < v.size(); ++i) v[i] /= s[i % map.d_in];
    return v;
  });
}

}  // namespace

LinearFactors truncated_svd(std::span<const double> w, std::int64_t d_out, std::int64_t d_in,
                            std::span<const double> r, std::int64_t rank) {
  const Map map{w, d_out, d_in, r};
  map.check(rank);
  return diagonal_svd(map, std::vector<double>(d_in, 1.0), rank);
}

LinearFactors activation_aware_svd(std::span<const double> w, std::int64_t d_out, std::int64_t d_in,
                                   std::span<const double> r, std::span<const double> mean_abs,
                                   std::int64_t rank, double alpha) {
  const Map map{w, d_out, d_in, r};
  map.check(rank);
  expect_size(mean_abs, d_in, "mean magnitudes of the input");
  std::vector<double> s;
  for (const double m : mean_abs) {
    if (!(m >= 0 && std::isfinite(m))) fail("mean magnitudes of the input: expected 0 or more, found {}", m);
    s.push_back(std::pow(m, alpha));
  }
  const double most = *std::max_element(s.begin(), s.end());
  if (!(most > 0 && std::isfinite(most)))
    fail("mean magnitudes of the input to the power {}: expected one above 0, all finite", alpha);
  for (double& v : s) v = std::max(v, 1e-6 * most);
  return diagonal_svd(map, s, rank);
}

LinearFactors whitened_svd(std::span<const double> w, std::int64_t d_out, std::int64_t d_in,
                           std::span<const double> r, std::int64_t rank) {
  const Map map{w, d_out, d_in, r};
  map.check(rank);
  if (d_out <= d_in)
    return from_outputs(map, covariance(w.data(), d_out, r.data(), d_in, w.data(), d_out, "outputs"), rank);
  const Roots roots = symmetric_roots(r.data(), d_in);
  return from_inputs(map, product(w.data(), d_out, d_in, roots.root.data(), d_in), rank,
                     [&](const std::vector<double>& v) {
                       return product(v.data(), rank, d_in, roots.inverse.data(), d_in);
                     });
}

}  // namespace narrows
