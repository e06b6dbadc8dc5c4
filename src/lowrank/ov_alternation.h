// Alternating least squares in the inner dimension, for OvReduction.
#pragma once
#include <cstdint>
#include <vector>

namespace narrows {

// Minimises Σ_i tr(G_i E_i C_i E_iᵀ), E_i = I - t_i uᵀ, over u and t_i [d][rank]; G_i and C_i [d][d]
// symmetric positive semidefinite, Σ C_i about the identity. No step makes the loss larger, whatever is
// singular.
class OvAlternation {
 public:
  // Starts from the first `rank` coordinates: u = t_i = (I 0)ᵀ. Keeps references to g and c.
  OvAlternation(const std::vector<std::vector<double>>& g, const std::vector<std::vector<double>>& c,
                std::int64_t d, std::int64_t rank);

  void fit_outputs();  // all t_i for this u
  void fit_values();   // u for these t_i
  double loss() const;

  std::vector<double> u;               // [d][rank]
  std::vector<std::vector<double>> t;  // [heads] [d][rank]

 private:
  const std::vector<std::vector<double>>&g_, &c_;
  const std::int64_t d_, r_;
};

}  // namespace narrows
