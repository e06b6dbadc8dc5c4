// The second seam: an attention policy decides which keys a query sees and with what weight, and what is remembered
// of a sequence. The forward pass calls it once a layer.
#pragma once
#include <memory>

#include "base/threads.h"
#include "model/batch.h"
#include "model/spec.h"

namespace narrows {

class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;
  virtual std::unique_ptr<SequenceCache> new_sequence() const = 0;

  // Called once before and once after a forward pass: makes room for the batch's tokens; counts them in.
  virtual void begin(const Batch& batch) = 0;
  virtual void end(ThreadPool& pool, const Batch& batch) = 0;

  // A forward pass may not compute tokens of a sequence on both sides of this position, which lies beyond its length.
  virtual std::int64_t next_boundary(const SequenceCache& /*cache*/) const { return INT64_MAX; }

  // x: [rows][d], the layer's input, shown before anything of the layer is computed.
  virtual void observe(int /*layer*/, ThreadPool& /*pool*/, const Batch& /*batch*/, const float* /*x*/) {}

  // qkv: [rows][heads·d_qk + kv_heads·d_qk + kv_heads·d_vo], rotated and ready; out: [rows][heads·d_vo].
  // Remembers the keys and values of the batch's tokens, then attends each token to its sequence up to itself.
  virtual void attend(int layer, ThreadPool& pool, const Batch& batch, const float* qkv, float* out) = 0;
};

}  // namespace narrows
