// Scores of one row of logits, summed in double. Vocabularies reach 262,144 entries: one pass, written so
// that the compiler vectorises it.
#pragma once
#include <span>

namespace narrows {

// log Σ exp(logits). The exponentials are single precision (relative error below 2e-7), their sum is double.
// Throws Error if a logit is NaN or +∞, or all are -∞.
double log_sum_exp(std::span<const float> logits);

// Σ p log(p / q) in nats, p = softmax(reference), q = softmax(logits): Kullback-Leibler divergence of q from
// p. Both rows must be finite; throws Error otherwise. Exactly 0 for equal rows.
double kl_divergence(std::span<const float> reference, std::span<const float> logits);

// The smallest index among the largest logits.
std::size_t top1(std::span<const float> logits);

}  // namespace narrows
