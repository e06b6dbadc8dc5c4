// Least squares that survive singular statistics.
#pragma once
#include <cstdint>
#include <vector>

namespace narrows {

// Of the trace: about what rounding makes of a singular matrix.
constexpr double kLeastRidge = 1e-13;

// B [rows][n] = B (A + ρ I)⁻¹, A [n][n] symmetric positive semidefinite up to rounding, ρ = ridge · tr A.
// While that is not positive definite, ρ grows tenfold, from kLeastRidge · tr A at least. Returns ρ. An A of
// zeros leaves B at 0.
double ridge_solve(const std::vector<double>& a, std::int64_t n, double ridge, double* b, std::int64_t rows);

}  // namespace narrows
