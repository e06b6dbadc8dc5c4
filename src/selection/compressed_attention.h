// Attention over a key/value cache that is compressed as it grows.
//
// All layers of a sequence are compressed together, between two forward passes, at positions that depend on the length
// alone; passes are cut there. So logits depend on the tokens before them alone, as with the dense cache.
#pragma once
#include <memory>

#include "kernels/attention.h"
#include "model/attention_policy.h"
#include "model/weights.h"
#include "narrows/session.h"

namespace narrows {

// `spec` and `weights` must outlive the policy. Throws Error for options out of range, for models with ALiBi, and for a
// budget that compress_at cannot meet.
std::unique_ptr<AttentionPolicy> compressed_attention(const ModelSpec& spec, const Weights& weights, KvFormat format,
                                                      const KvCompression& options);

}  // namespace narrows
