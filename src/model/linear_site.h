// The first seam: a linear site is a group of linear maps that read the same activations (q, k, v; attention output;
// gate, up; down; head). The forward pass calls sites and does not know how they compute.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/threads.h"
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
};

class LinearSite {
 public:
  virtual ~LinearSite() = default;
  // y[t] = the outputs of all maps, one after the other, for rows x[t]. x is rows × in(), y rows × out().
  virtual void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) const = 0;
  virtual std::int64_t in() const = 0;
  virtual std::int64_t out() const = 0;
  virtual std::size_t bytes_read() const = 0;  // weights that one token reads
};

// Every weight is read for every token.
class DenseSite final : public LinearSite {
 public:
  explicit DenseSite(std::vector<Linear> maps);
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) const override;
  std::int64_t in() const override { return maps_.front().weight.cols; }
  std::int64_t out() const override { return out_; }
  std::size_t bytes_read() const override;

 private:
  std::vector<Linear> maps_;
  std::int64_t out_ = 0;
  std::int64_t units_ = 0;  // tiles of all maps; work is shared by them
  bool quantize_ = false;   // some map reads 8-bit activations
};

}  // namespace narrows
