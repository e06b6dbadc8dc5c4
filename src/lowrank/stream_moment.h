// Least squares that make up for what the residual stream lacks.
#pragma once
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "subspace/second_moment.h"

namespace narrows {

// R = E s² x xᵀ and C = E s² c xᵀ over tokens: x [width] the input of a block's last map, c [d] what the
// stream lacks after the block. s = 1 / ‖stream‖ of a token, since norms divide by that: errors count
// relative to the stream that they land in, and a few tokens with huge activations do not outweigh all
// others. Products and sums over a window are single precision, the sum over windows double. Memory: 12 d ·
// width + 8 width² bytes and a window's inputs.
class StreamMoment {
 public:
  StreamMoment(std::int64_t d, std::int64_t width);
  // The inputs of a window, then the streams of its tokens: as it should be and as it is. Throw Error if a
  // number is not finite or the tokens are not as many.
  void add_inputs(const float* x, std::int64_t rows);
  void add_streams(const float* wanted, const float* found, std::int64_t rows);

  std::vector<double> inputs() const { return moment_.mean(); }  // R [width][width]
  std::vector<double> lack() const;    // C [d][width]

 private:
  std::int64_t d_, width_;
  AlignedVector<float> inputs_, difference_, product_;
  SecondMoment moment_;
  std::vector<double> sum_;
};

}  // namespace narrows
