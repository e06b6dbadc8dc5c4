#include "lowrank/mlp.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "lowrank/covariance.h"
#include "lowrank/loss_curve.h"
#include "lowrank/ridge.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

std::vector<double> take_columns(std::span<const double> a, std::int64_t columns,
                                 std::span<const std::int64_t> kept) {
  const std::int64_t rows = static_cast<std::int64_t>(a.size()) / columns;
  std::vector<double> result;
  result.reserve(rows * kept.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (const std::int64_t j : kept) result.push_back(a[i * columns + j]);
  return result;
}

// ‖column‖² of A [·][columns].
std::vector<double> column_energies(std::span<const double> a, std::int64_t columns) {
  std::vector<double> energies(columns);
  for (std::size_t i = 0; i < a.size(); ++i) energies[i % columns] += a[i] * a[i];
  return energies;
}

}  // namespace

MlpReduction::MlpReduction(std::span<const double> down, std::int64_t d_out, std::int64_t d_inter,
                           std::span<const double> r_hh, NeuronChoice choice, std::span<const double> up)
    : down_(down), r_(r_hh), d_out_(d_out), d_(d_inter) {
  if (d_ < 1 || d_out_ < 1)
    fail("feed-forward block: expected at least 1 neuron and output, found {} and {}", d_, d_out_);
  expect_size(down_, d_out_ * d_, "down projection");
  expect_size(r_, d_ * d_, "autocorrelation of the neurons");
  expect_finite(down_, "down projection");
  expect_finite(r_, "autocorrelation of the neurons");
  if (choice == NeuronChoice::Elimination) {
    eliminate();
  } else if (choice == NeuronChoice::Down) {
    order_by(column_energies(down_, d_));
  } else {
    if (up.empty() || up.size() % d_)
      fail("up projection: expected rows for {} neurons, found {} elements", d_, up.size());
    expect_finite(up, "up projection");
    const std::int64_t d_in = static_cast<std::int64_t>(up.size()) / d_;
    std::vector<double> energies(d_);
    for (std::int64_t j = 0; j < d_; ++j)
      energies[j] = dot(up.subspan(j * d_in, d_in), up.subspan(j * d_in, d_in));
    order_by(energies);
  }
}

// By the squares of the scores.
void MlpReduction::order_by(std::span<const double> energies) {
  order_.resize(d_);
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](std::int64_t a, std::int64_t b) {
    return energies[a] * r_[a * d_ + a] > energies[b] * r_[b * d_ + b];
  });
  std::vector<double> errors(d_ * d_);
  symmetric_rank_k(Transpose::Yes, d_, d_out_, 1.0, down_.data(), d_, 0.0, errors.data(), d_);
  mirror_upper(errors.data(), d_);
  for (std::int64_t i = 0; i < d_ * d_; ++i) errors[i] *= r_[i];
  loss_ = loss_by_order(errors, order_);
}

// With H = (R + ρ I)⁻¹ over the neurons left, dropping j costs ‖w_j‖² / H_jj, and the others' columns become
// w_i - w_j H_ji / H_jj. What is left stays in front: [left] neurons, their rows and columns of H and W.
void MlpReduction::eliminate() {
  std::vector<double> h(d_ * d_), w(down_.begin(), down_.end()), energies = column_energies(w, d_), row(d_);
  for (std::int64_t j = 0; j < d_; ++j) h[j * d_ + j] = 1;
  ridge_solve({r_.begin(), r_.end()}, d_, kEliminationRidge, h.data(), d_);
  order_.resize(d_);
  std::iota(order_.begin(), order_.end(), 0);
  loss_.assign(d_ + 1, 0.0);
  for (std::int64_t left = d_; left > 0; --left) {
    // A pivot of no size means statistics of zeros: the neuron goes for nothing.
    const auto cost = [&](std::int64_t j) { return h[j * d_ + j] > 0 ? energies[j] / h[j * d_ + j] : 0.0; };
    std::int64_t least = 0;
    double least_cost = cost(0);
    for (std::int64_t j = 1; j < left; ++j) {
      const double c = cost(j);
      if (c < least_cost || (c == least_cost && order_[j] > order_[least])) {
        least = j;
        least_cost = c;
      }
    }
    const std::int64_t last = left - 1;
    loss_[last] = loss_[left] + least_cost;
    std::swap(order_[least], order_[last]);
    std::swap_ranges(&h[least * d_], &h[least * d_] + left, &h[last * d_]);
    for (std::int64_t i = 0; i < left; ++i) std::swap(h[i * d_ + least], h[i * d_ + last]);
    for (std::int64_t o = 0; o < d_out_; ++o) std::swap(w[o * d_ + least], w[o * d_ + last]);
    const double pivot = h[last * d_ + last];
    if (last == 0 || !(pivot > 0)) continue;
    std::copy_n(&h[last * d_], last, row.begin());
    std::vector<double> dropped(d_out_);
    for (std::int64_t o = 0; o < d_out_; ++o) dropped[o] = w[o * d_ + last];
    gemm(Transpose::No, Transpose::No, last, last, 1, -1 / pivot, row.data(), 1, row.data(), last, 1.0,
         h.data(), d_);
    gemm(Transpose::No, Transpose::No, d_out_, last, 1, -1 / pivot, dropped.data(), 1, row.data(), last, 1.0,
         w.data(), d_);
    std::fill_n(energies.begin(), last, 0.0);
    for (std::int64_t o = 0; o < d_out_; ++o)
      for (std::int64_t j = 0; j < last; ++j) energies[j] += w[o * d_ + j] * w[o * d_ + j];
  }
}

MlpReduced MlpReduction::shrink(std::int64_t rank, std::optional<double> ridge,
                                std::span<const double> correction) const {
  if (rank < 1 || rank > d_) fail("neurons: expected 1 to {}, found {}", d_, rank);
  if (ridge && !(*ridge >= 0)) fail("ridge of the down projection: expected 0 or more, found {}", *ridge);
  if (!correction.empty()) {
    expect_size(correction, d_out_ * d_, "correction of the outputs");
    expect_finite(correction, "correction of the outputs");
  }
  MlpReduced reduced;
  reduced.kept.assign(order_.begin(), order_.begin() + rank);
  std::vector<std::int64_t> gone(order_.begin() + rank, order_.end());
  std::sort(reduced.kept.begin(), reduced.kept.end());
  std::sort(gone.begin(), gone.end());
  const auto count = static_cast<std::int64_t>(gone.size());
  reduced.down = take_columns(down_, d_, reduced.kept);

  std::vector<double> wanted(d_out_ * rank);  // what E (W_d h + c - W_d,kept h_kept) h_keptᵀ is
  if (count > 0) {
    const std::vector<double> lost = take_columns(down_, d_, gone), rows = take_rows(r_, d_, gone),
                              own = take_columns(rows, d_, gone);
    reduced.loss = std::max(dot(lost, product(lost.data(), d_out_, count, own.data(), count)), 0.0);
    if (!correction.empty()) reduced.loss += 2 * dot(lost, take_columns(correction, d_, gone));
    const std::vector<double> shared = take_columns(rows, d_, reduced.kept);
    if (ridge) wanted = product(lost.data(), d_out_, count, shared.data(), rank);
  }
  if (!ridge || (count == 0 && correction.empty())) return reduced;
  if (!correction.empty()) {
    const std::vector<double> kept = take_columns(correction, d_, reduced.kept);
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += kept[i];
  }
  std::vector<double> change = wanted;  // wanted (R_kept + ρ I)⁻¹
  std::vector<double> own;  // R_kept; no larger copy beside it
  own.reserve(rank * rank);
  for (const std::int64_t i : reduced.kept)
    for (const std::int64_t j : reduced.kept) own.push_back(r_[i * d_ + j]);
  reduced.ridge = ridge_solve(own, rank, *ridge, change.data(), d_out_);
  for (std::size_t i = 0; i < change.size(); ++i) reduced.down[i] += change[i];
  // tr(Δ R Δᵀ) - 2 tr(Δ wantedᵀ), with Δ R = wanted - ρ Δ
  reduced.loss -= dot(change, wanted) + reduced.ridge * dot(change, change);
  if (correction.empty()) reduced.loss = std::max(reduced.loss, 0.0);
  return reduced;
}

}  // namespace narrows
