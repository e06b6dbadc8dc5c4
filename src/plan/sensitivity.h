// How much the model's output distribution suffers from errors at each site.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/loaded_model.h"

namespace narrows {

struct SiteSensitivity {
  std::string site;
  double rms = 0;          // of the site's outputs
  double kl = 0;           // mean KL divergence from dense, nats, when noise is added at this site alone
  double sensitivity = 0;  // kl / (squared error of a token's outputs): nats
};

inline constexpr float kNoise = 0.25f;  // standard deviation of the noise in parts of the outputs' rms: far above what
                                        // rounding does to the distribution, small enough to stay near linear

// Runs the tokens through the model once for each site (and once dense), noise being added to that site's outputs. The
// noise is the same for the same site and tokens. Needs 2 · tokens · vocab floats of memory.
std::vector<SiteSensitivity> measure_sensitivities(const std::shared_ptr<Model>& model, std::span<const TokenId> tokens,
                                                   const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace narrows
