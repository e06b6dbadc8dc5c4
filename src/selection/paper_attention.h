// Attention among representatives alone, as published: queries, keys and values are those of a layer's
// representatives, and every other token takes the output of the representative that stands for it. A query
// cannot be borrowed, so the quality is poor: this is here to be measured, not to be used.
#pragma once
#include <memory>

#include "model/attention_policy.h"

namespace narrows {

// Representatives by cascade (the first layer's: independent), from each layer's input. Whether a token is
// one depends on tokens before it only, so chunks of a prompt and decode give the same bits. Selection is
// done anew with every pass, and the layers' inputs are kept for it in f32: bytes() counts them. `spec` must
// outlive the policy. Throws Error for tau out of range and for models with ALiBi.
std::unique_ptr<AttentionPolicy> paper_attention(const ModelSpec& spec, float tau);

}  // namespace narrows
