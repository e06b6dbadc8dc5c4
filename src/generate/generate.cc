#include "narrows/generate.h"

#include <limits>

#include "generate/generate_loop.h"

namespace narrows {
namespace {

class SessionSource : public TokenSource {
 public:
  explicit SessionSource(Session& session) : session_(session) {}
  const Model& model() const override { return *session_.model(); }
  std::span<const float> step(std::span<const TokenId> tokens) override { return session_.step(tokens); }
  std::span<const float> logits() const override { return session_.logits(); }
  std::int64_t room() const override {
    if (session_.options().context_shift) return std::numeric_limits<std::int64_t>::max();
    return session_.context() - std::ssize(session_.tokens());
  }
  std::int64_t chunk() const override { return session_.options().chunk; }

 private:
  Session& session_;
};

}  // namespace

GenerateResult generate(Session& session, std::span<const TokenId> prompt, Sampler& sampler,
                        const GenerateOptions& options, const TextCallback& on_text) {
  SessionSource source(session);
  return generate_from(source, prompt, sampler, options, on_text);
}

}  // namespace narrows
