// The second moment Σ x xᵀ of the activations of one linear site (R up to the factor 1 / tokens).
// Gated subspace inference, section 2.1; METHODS, section 1.
#pragma once
#include <cstdint>
#include <vector>

#include "base/aligned.h"

namespace narrows {

// Products and sums over 256 tokens are single precision, the sum of those sums double: an entry (i, j) errs
// by about 1e-7 · √(R_ii R_jj), however many tokens. Memory: 8 d² bytes (970 MB at d = 11008) + 1 KB · d.
// Not to be used from two threads at once. Bits do not depend on how tokens are divided among calls of add.
class SecondMoment {
 public:
  // Activations of d elements. Throws Error if d < 1.
  explicit SecondMoment(std::int64_t d);

  // x [rows][d], rows `stride` floats apart. Throws Error, having added nothing, on an activation that is
  // NaN, infinite or above 1e18 (whose square leaves single precision).
  void add(const float* x, std::int64_t rows, std::int64_t stride);

  std::int64_t width() const { return d_; }
  std::int64_t tokens() const { return tokens_; }
  // Σ ‖x‖²
  double trace() const;
  // [d][d], both triangles. Valid until the next add. Tokens added later start a new sum of 256.
  const double* matrix() const;
  // The same divided by the tokens: R. Zeros without any.
  std::vector<double> mean() const;

 private:
  void flush() const;

  std::int64_t d_, tokens_ = 0;
  mutable std::int64_t pending_rows_ = 0;
  mutable bool mirrored_ = true;
  AlignedVector<float> pending_;     // [256][d], tokens not yet in sum_
  mutable std::vector<double> sum_;  // [d][d], upper triangle; the lower when mirrored_
};

// Throws Error naming the first element of x [rows][d] that is NaN, infinite or above 1e18; `token` is the
// number of the first row.
void check_activations(const float* x, std::int64_t rows, std::int64_t d, std::int64_t stride,
                       std::int64_t token);

}  // namespace narrows
