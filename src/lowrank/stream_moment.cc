#include "lowrank/stream_moment.h"

#include "base/error.h"
#include "lowrank/relative.h"
#include "subspace/linear_algebra.h"

namespace narrows {

StreamMoment::StreamMoment(std::int64_t d, std::int64_t width)
    : d_(d),
      width_(width),
      product_(static_cast<std::size_t>(d * width)),
      moment_(width),
      sum_(static_cast<std::size_t>(d * width)) {}

void StreamMoment::add_inputs(const float* x, std::int64_t rows) {
  inputs_.insert(inputs_.end(), x, x + rows * width_);
}

void StreamMoment::add_streams(const float* wanted, const float* found, std::int64_t rows) {
  if (std::ssize(inputs_) != rows * width_)
    fail("streams of {} tokens: expected as many as inputs, found {}", rows, std::ssize(inputs_) / width_);
  const std::vector<float> scales = inverse_norms(wanted, rows, d_);
  difference_.resize(static_cast<std::size_t>(rows * d_));
  for (std::int64_t i = 0; i < rows * d_; ++i)
    difference_[static_cast<std::size_t>(i)] =
        scales[static_cast<std::size_t>(i / d_)] * (wanted[i] - found[i]);
  inputs_ = relative(inputs_.data(), rows, width_, scales);
  check_activations(difference_.data(), rows, d_, d_, moment_.tokens());
  moment_.add(inputs_.data(), rows, width_);
  gemm(Transpose::Yes, Transpose::No, d_, width_, rows, 1.0f, difference_.data(), d_, inputs_.data(), width_,
       0.0f, product_.data(), width_);
  for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += static_cast<double>(product_[i]);
  inputs_.clear();
}

std::vector<double> StreamMoment::lack() const {
  std::vector<double> c = sum_;
  for (double& v : c) v /= static_cast<double>(moment_.tokens());
  return c;
}

}  // namespace narrows
