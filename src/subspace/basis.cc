#include "subspace/basis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

void check_rank(const SecondMoment& moment, std::int64_t k, std::int64_t most) {
  if (k < 1 || k > most) fail("subspace dimension {}: expected 1 to {}", k, most);
  if (moment.tokens() < k) fail("{} calibration tokens: expected at least {}", moment.tokens(), k);
}

// Energies cannot be negative; rounding leaves crumbs.
std::vector<double> energies_of(const std::vector<double>& eigenvalues) {
  std::vector<double> energies = eigenvalues;
  for (double& e : energies) e = std::max(e, 0.0);
  return energies;
}

double trace_of(const std::vector<double>& a, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i * n + i];
  return sum;
}

// The leading k eigenvectors of W R Wᵀ as rows [k][d_out], W [d_out][d], and its trace.
Spectrum output_spectrum(const SecondMoment& moment, const std::vector<double>& w, std::int64_t d_out,
                         std::int64_t k, double& trace) {
  const std::int64_t d = moment.width();
  if (d_out <= d) {
    std::vector<double> wr(d_out * d), c(d_out * d_out);
    rows_times_symmetric(w.data(), d_out, moment.matrix(), d, wr.data());
    gemm(Transpose::No, Transpose::Yes, d_out, d_out, d, 1.0, wr.data(), d, w.data(), d, 0.0, c.data(),
         d_out);
    trace = trace_of(c, d_out);
    return leading_eigen(c.data(), d_out, k);
  }
  // W R Wᵀ = B Bᵀ with B = W Qᵀ Λ^½, R = Qᵀ Λ Q: its eigenvectors are B v / √λ, v those of the smaller Bᵀ B.
  Spectrum r = symmetric_eigen(moment.matrix(), d);
  for (std::int64_t i = 0; i < d; ++i) {
    const double root = std::sqrt(std::max(r.values[i], 0.0));
    for (std::int64_t j = 0; j < d; ++j) r.vectors[i * d + j] *= root;
  }
  std::vector<double> gram(d * d), half(d * d);
  symmetric_rank_k(Transpose::Yes, d, d_out, 1.0, w.data(), d, 0.0, gram.data(), d);
  rows_times_symmetric(r.vectors.data(), d, gram.data(), d, half.data());
  gemm(Transpose::No, Transpose::Yes, d, d, d, 1.0, half.data(), d, r.vectors.data(), d, 0.0, gram.data(), d);
  trace = trace_of(gram, d);
  const Spectrum inner = leading_eigen(gram.data(), d, k);
  Spectrum s{inner.values, std::vector<double>(k * d_out)};
  gemm(Transpose::No, Transpose::No, k, d, d, 1.0, inner.vectors.data(), d, r.vectors.data(), d, 0.0,
       half.data(), d);
  gemm(Transpose::No, Transpose::Yes, k, d_out, d, 1.0, half.data(), d, w.data(), d, 0.0, s.vectors.data(),
       d_out);
  orthonormalize_rows(s.vectors.data(), k, d_out);  // orthogonal but for rounding, and for eigenvalues of 0
  return s;
}

}  // namespace

void fix_signs(double* rows, std::int64_t k, std::int64_t d) {
  for (std::int64_t i = 0; i < k; ++i, rows += d) {
    const double* largest =
        std::max_element(rows, rows + d, [](double a, double b) { return std::abs(a) < std::abs(b); });
    if (*largest < 0)
      for (std::int64_t j = 0; j < d; ++j) rows[j] = -rows[j];
  }
}

Basis svd_basis(const SecondMoment& moment, std::int64_t k, double tolerance) {
  const std::int64_t d = moment.width();
  check_rank(moment, k, d);
  Spectrum s = leading_eigen(moment.matrix(), d, k);
  Basis basis;
  basis.d = d;
  basis.tokens = moment.tokens();
  basis.total_energy = moment.trace();
  basis.energies = energies_of(s.values);
  if (tolerance > 0) {
    double residual = basis.total_energy;
    for (std::int64_t i = 0; i < k; ++i) {
      residual -= basis.energies[i];
      if (residual < tolerance * tolerance * basis.total_energy) k = i + 1;
    }
  }
  basis.k = k;
  basis.energies.resize(k);
  fix_signs(s.vectors.data(), k, d);
  basis.vectors.assign(s.vectors.begin(), s.vectors.begin() + k * d);
  return basis;
}

double subspace_similarity(const Basis& a, const Basis& b) {
  if (a.d != b.d) fail("subspaces to compare: expected the same width, found {} and {}", a.d, b.d);
  if (a.k < 1 || b.k < 1) fail("subspaces to compare: expected at least one direction in each");
  const std::vector<double> va(a.vectors.begin(), a.vectors.end()), vb(b.vectors.begin(), b.vectors.end());
  std::vector<double> cosines(a.k * b.k);
  gemm(Transpose::No, Transpose::Yes, a.k, b.k, a.d, 1.0, va.data(), a.d, vb.data(), b.d, 0.0, cosines.data(),
       b.k);
  const Svd svd = thin_svd(cosines.data(), a.k, b.k);
  double sum = 0;
  for (const double cosine : svd.values) sum += std::min(cosine, 1.0);
  return sum / static_cast<double>(svd.values.size());
}

double orthogonality_loss(const Basis& basis) {
  const std::vector<double> v(basis.vectors.begin(), basis.vectors.end());
  std::vector<double> gram(basis.k * basis.k);
  symmetric_rank_k(Transpose::No, basis.k, basis.d, 1.0, v.data(), basis.d, 0.0, gram.data(), basis.k);
  double loss = 0;
  for (std::int64_t i = 0; i < basis.k; ++i)
    for (std::int64_t j = i; j < basis.k; ++j)
      loss = std::max(loss, std::abs(gram[i * basis.k + j] - (i == j ? 1 : 0)));
  return loss;
}

double OutputBasis::energy_kept() const {
  if (!(total_energy > 0)) return 1;
  return std::min(std::accumulate(energies.begin(), energies.end(), 0.0) / total_energy, 1.0);
}

OutputBasis output_aware_basis(const SecondMoment& moment, const float* weights, std::int64_t d_out,
                               std::int64_t k) {
  const std::int64_t d = moment.width();
  check_rank(moment, k, std::min(d, d_out));
  const std::vector<double> w(weights, weights + d_out * d);
  OutputBasis basis;
  Spectrum s = output_spectrum(moment, w, d_out, k, basis.total_energy);
  fix_signs(s.vectors.data(), k, d_out);
  basis.d = d;
  basis.d_out = d_out;
  basis.k = k;
  basis.tokens = moment.tokens();
  basis.energies = energies_of(s.values);

  std::vector<double> encoder(k * d);
  gemm(Transpose::No, Transpose::No, k, d, d_out, 1.0, s.vectors.data(), d_out, w.data(), d, 0.0,
       encoder.data(), d);
  basis.encoder.assign(encoder.begin(), encoder.end());
  basis.decoder.resize(d_out * k);
  for (std::int64_t i = 0; i < d_out; ++i)
    for (std::int64_t j = 0; j < k; ++j)
      basis.decoder[i * k + j] = static_cast<float>(s.vectors[j * d_out + i]);
  return basis;
}

}  // namespace narrows
