// The loss by the number of inner dimensions kept.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace narrows {

// Dimensions whose errors do not mix: loss[r] = Σ_{i≥r} energies[i], for r from 0 to their number.
std::vector<double> loss_by_rank(std::span<const double> energies);

// Errors [n][n], symmetric: loss[r] = Σ errors[i][j] over all i, j in order[r …], for r from 0 to n.
std::vector<double> loss_by_order(std::span<const double> errors, std::span<const std::int64_t> order);

}  // namespace narrows
