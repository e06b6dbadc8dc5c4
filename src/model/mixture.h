// Feed-forward blocks: one for all tokens, or a mixture of experts of which each token passes a few.
#pragma once
#include "model/forward.h"

namespace narrows {

struct FeedForward {
  const ModelSpec& spec;
  ThreadPool& pool;
  Workspace& work;
};

// out[t] = down(activation(gate) · up), or down(activation(up)), of rows h[t].
void apply_feed_forward(const FeedForward& pass, LinearSite& up, LinearSite& down, const float* h, std::int64_t rows,
                        float* out);

// Each token passes the experts_used experts with the largest softmax of the router's outputs (the first of equal ones), and
// gets the sum of what they give, weighed by these shares, in ascending order of experts: a token's bits do not depend on
// the others. Each expert computes its tokens together.
// Mixtral: Jiang et al., arXiv 2401.04088, section 2.1.
void apply_mixture(const FeedForward& pass, const LayerWeights& w, const float* h, std::int64_t rows, float* out);

}  // namespace narrows
