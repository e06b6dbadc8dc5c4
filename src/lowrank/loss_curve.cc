#include "lowrank/loss_curve.h"

#include <algorithm>

namespace narrows {

std::vector<double> loss_by_rank(std::span<const double> energies) {
  std::vector<double> loss(energies.size() + 1);
  for (std::size_t r = energies.size(); r-- > 0;) loss[r] = loss[r + 1] + energies[r];
  return loss;
}

std::vector<double> loss_by_order(std::span<const double> errors, std::span<const std::int64_t> order) {
  const auto n = static_cast<std::int64_t>(order.size());
  std::vector<double> loss(n + 1);
  for (std::int64_t r = n; r-- > 0;) {
    const double* row = &errors[order[r] * n];
    double mixed = 0;
    for (std::int64_t i = r + 1; i < n; ++i) mixed += row[order[i]];
    loss[r] = std::max(loss[r + 1] + row[order[r]] + 2 * mixed, 0.0);
  }
  return loss;
}

}  // namespace narrows
