// Log-probabilities from one row of logits, summed in double. Vocabularies reach 262,144 entries: one pass
// each for the largest and for the sum, written so that the compiler vectorises them.
#pragma once
#include <cstddef>
#include <span>

namespace narrows {

// The logits are used, not copied. Exponentials are single precision (relative error below 2e-7), their sums
// double.
class LogSoftmax {
 public:
  // Throws Error if a logit is NaN or +∞, or all are -∞.
  explicit LogSoftmax(std::span<const float> logits);

  std::size_t size() const { return logits_.size(); }
  double log_sum_exp() const { return log_sum_exp_; }
  double operator[](std::size_t i) const { return static_cast<double>(logits_[i]) - log_sum_exp_; }

 private:
  friend double kl_divergence(const LogSoftmax& reference, const LogSoftmax& other);
  std::span<const float> logits_;
  float max_;
  double sum_;  // Σ exp(logit - max_), at least 1
  double log_sum_exp_;
};

// Σ p log(p / q) in nats, p the reference: the Kullback-Leibler divergence of q from p. Exactly 0 for equal
// rows. Throws Error if the sizes differ or a logit is -∞.
double kl_divergence(const LogSoftmax& reference, const LogSoftmax& other);

// The smallest index among the largest logits.
std::size_t top1(std::span<const float> logits);

}  // namespace narrows
