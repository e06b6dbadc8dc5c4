#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace narrows {

Rotary make_rotary(RotaryLayout layout, int dims, double base, const RotaryScaling& scaling,
                   std::span<const float> divisors) {
  Rotary rotary;
  rotary.layout = layout;
  rotary.pairs = dims / 2;
  const bool yarn = scaling.type == "yarn";
  double low = 0, high = 0;
  if (yarn) {
    // The pair that turns `rotations` times within the original context.
    const auto pair_of = [&](double rotations) {
      return dims * std::log(scaling.original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
    };
    low = std::max(std::floor(pair_of(scaling.beta_fast)), 0.0);
    high = std::min(std::ceil(pair_of(scaling.beta_slow)), dims - 1.0);
    rotary.magnitude = static_cast<float>(scaling.attention_factor * (1 + 0.1 * std::log(scaling.factor)));
  }
  for (int i = 0; i < rotary.pairs; ++i) {
    double frequency = std::pow(base, -2.0 * i / dims);
    if (!divisors.empty()) frequency /= divisors[static_cast<std::size_t>(i)];
    if (scaling.type == "linear") {
      frequency /= scaling.factor;
    } else if (yarn) {
      const double ramp = std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
      const double keep = (1 - ramp) * scaling.extrapolation;  // fast pairs keep their frequency
      frequency = frequency / scaling.factor * (1 - keep) + frequency * keep;
    }
    rotary.frequencies.push_back(static_cast<float>(frequency));
  }
  return rotary;
}

}  // namespace narrows
