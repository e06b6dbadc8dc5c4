// The loop behind generate(), on what it needs of a session: tests drive it without weights.
#pragma once
#include <span>

#include "narrows/generate.h"

namespace narrows {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual const Model& model() const = 0;
  virtual std::span<const float> step(std::span<const TokenId> tokens) = 0;
  virtual std::span<const float> logits() const = 0;
  virtual std::int64_t room() const = 0;   // tokens that still fit
  virtual std::int64_t chunk() const = 0;  // tokens of a prompt between two looks at the callback
};

GenerateResult generate_from(TokenSource& source, std::span<const TokenId> prompt, Sampler& sampler,
                             const GenerateOptions& options, const TextCallback& on_text);

}  // namespace narrows
