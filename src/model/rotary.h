// Frequencies of rotary positions from a model's base and scaling.
#pragma once
#include <span>
#include <string>

#include "model/spec.h"

namespace narrows {

struct RotaryScaling {
  std::string type = "none";           // "none", "linear", "yarn"
  double factor = 1;                   // how many times longer the context became
  double original_context = 0;         // yarn: tokens before the extension
  double attention_factor = 1;         // yarn: multiplies the magnitude
  double beta_fast = 32, beta_slow = 1;  // yarn: rotations within the original context where blending begins and ends
  double extrapolation = 1;            // yarn: weight of the blending
};

// dims must be even. `divisors` (Llama 3's rope_freqs, longrope) divide the frequencies, one a pair, or are empty.
// YaRN: Peng et al., arXiv 2309.00071, section 3.
Rotary make_rotary(RotaryLayout layout, int dims, double base, const RotaryScaling& scaling,
                   std::span<const float> divisors);

}  // namespace narrows
