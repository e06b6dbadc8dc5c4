// The first seam: a linear site is a group of linear maps that read the same activations (q, k, v; attention output;
// gate, up; down; head). The forward pass calls sites and does not know how they compute.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "kernels/graded.h"
#include "kernels/matmul.h"

namespace narrows {

// One map: y = W x + b.
struct Linear {
  WeightMatrix weight;
  const float* bias = nullptr;  // [weight.rows] or nullptr
};

// Buffers that sites share within one forward pass; they grow as needed.
struct SiteScratch {
  QuantizedRows quantized;
  std::vector<TileScratch> tiles;  // one a thread
  AlignedVector<float> projected, span, gathered, outputs;  // of sites that divide tokens between two ways
  GradedTokens graded;                                      // of sites that read columns in part
};

class LinearSite {
 public:
  virtual ~LinearSite() = default;
  // y[t] = the outputs of all maps, one after the other, for rows x[t]. x is rows × in(), y rows × out(). One caller at a
  // time: sites may count what they read.
  virtual void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) = 0;
  virtual std::int64_t in() const = 0;
  virtual std::int64_t out() const = 0;
  // Weights that one token reads; where that depends on the token, the mean over those computed so far.
  virtual std::size_t bytes_read() const = 0;
  virtual const std::vector<Linear>& maps() const = 0;  // the dense maps that the site stands for
};

// Every weight is read for every token.
class DenseSite final : public LinearSite {
 public:
  explicit DenseSite(std::vector<Linear> maps);
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override;
  std::int64_t in() const override { return maps_.front().weight.cols; }
  std::int64_t out() const override { return out_; }
  std::size_t bytes_read() const override;
  const std::vector<Linear>& maps() const override { return maps_; }

 private:
  std::vector<Linear> maps_;
  std::int64_t out_ = 0;
  std::int64_t units_ = 0;  // tiles of all maps; work is shared by them
  bool quantize_ = false;   // some map reads 8-bit activations
};

}  // namespace narrows
