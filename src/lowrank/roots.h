// The symmetric roots of an autocorrelation matrix, which make its errors plain squares: for R = E x xᵀ,
// E ‖A x‖² = ‖A R^{1/2}‖². A3, theorems 3.2 and 3.3; METHODS, section 3.
#pragma once
#include <cstdint>
#include <vector>

namespace narrows {

// Eigenvalues below this share of the largest are raised to it: R from fewer tokens than dimensions has none
// in many directions, and rounding leaves small or negative ones.
constexpr double kEigenvalueFloor = 1e-12;

struct Roots {
  std::vector<double> root, inverse;  // [n][n] R^{1/2} and R^{-1/2}, of the raised R: inverses of each other
  double largest = 0;                 // eigenvalue
  std::int64_t raised = 0;            // eigenvalues raised; above 0, R was regularised
};

// R [n][n], symmetric positive semidefinite up to rounding, of which the upper triangle is read. `floor` is
// relative to the largest eigenvalue, above 0 and at most 1. If no eigenvalue is above 0, all are raised
// to 1. Throws Error on a NaN or infinity, and on a floor out of range. Memory beside R: 48 n² bytes.
Roots symmetric_roots(const double* r, std::int64_t n, double floor = kEigenvalueFloor);

}  // namespace narrows
