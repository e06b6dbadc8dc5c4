// Activations divided by their norms, so that products of rows are cosines.
#pragma once
#include <cstdint>
#include <string>

#include "base/aligned.h"
#include "base/threads.h"

namespace narrows {

class UnitRows {
 public:
  // x [tokens][d]. A zero vector has no direction and stays zero: its cosine with anything is 0, so it is
  // always a representative. Throws Error, beginning with `what`, at a token that is not finite.
  void assign(const float* x, std::int64_t tokens, std::int64_t d, ThreadPool& pool, const std::string& what);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t d() const { return d_; }
  std::int64_t stride() const { return stride_; }  // d filled up to a multiple of 16, with zeros
  const float* data() const { return values_.data(); }

 private:
  std::int64_t tokens_ = 0, d_ = 0, stride_ = 0;
  AlignedVector<float> values_;  // [tokens][stride]
};

}  // namespace narrows
