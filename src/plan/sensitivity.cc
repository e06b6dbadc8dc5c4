#include "plan/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "generate/log_softmax.h"
#include "model/wrapped_site.h"
#include "narrows/session.h"
#include "subspace/apply_gsi.h"

namespace narrows {
namespace {

// Adds noise of a given deviation to what a site gives; with deviation 0 only measures.
class NoisySite final : public WrappedSite {
 public:
  NoisySite(std::unique_ptr<LinearSite> site, float deviation, unsigned seed)
      : WrappedSite(std::move(site)), deviation_(deviation), random_(seed) {}
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override {
    inner().apply(pool, scratch, x, rows, y);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * out(); ++i) {
      if (deviation_ > 0)
        y[i] += deviation_ * normal(random_);
      else
        sum_ += double{y[i]} * y[i];
    }
    count_ += rows * out();
  }
  double rms() const { return count_ > 0 ? std::sqrt(sum_ / static_cast<double>(count_)) : 0; }

 private:
  float deviation_;
  std::minstd_rand random_;
  double sum_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace

std::vector<SiteSensitivity> measure_sensitivities(const std::shared_ptr<Model>& model, std::span<const TokenId> tokens,
                                                   const std::function<void(std::int64_t, std::int64_t)>& progress) {
  LoadedModel& target = loaded(*model);
  const std::vector<NamedSite> sites = target.weights().sites();
  const auto vocab = static_cast<std::size_t>(model->vocab_size());
  AlignedVector<float> dense(tokens.size() * vocab), noisy(dense.size());
  const auto run = [&](AlignedVector<float>& logits) {
    Session session(model, {.context = static_cast<std::int64_t>(tokens.size())});
    session.step_all(tokens, logits);
  };
  std::vector<SiteSensitivity> result;
  {
    std::vector<Wrapping<NoisySite>> measured;
    for (const NamedSite& s : sites) measured.emplace_back(*s.site, 0.0f, 0);
    run(dense);
    for (std::size_t i = 0; i < sites.size(); ++i) result.push_back({sites[i].name, measured[i]->rms(), 0, 0});
  }
  ThreadPool pool(model->threads());
  std::vector<double> divergences(tokens.size());
  for (std::size_t i = 0; i < sites.size(); ++i) {
    SiteSensitivity& s = result[i];
    const double deviation = kNoise * s.rms;
    {
      const Wrapping<NoisySite> noise(*sites[i].site, static_cast<float>(deviation), static_cast<unsigned>(i + 1));
      run(noisy);
    }
    pool.share(static_cast<std::int64_t>(tokens.size()), 1, [&](int, Range range) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        const auto row = [&](const AlignedVector<float>& logits) {
          return std::span(logits).subspan(static_cast<std::size_t>(t) * vocab, vocab);
        };
        double& divergence = divergences[static_cast<std::size_t>(t)];
        try {
          divergence = kl_divergence(LogSoftmax(row(dense)), LogSoftmax(row(noisy)));
        } catch (const Error&) {
          divergence = std::numeric_limits<double>::quiet_NaN();
        }
      }
    });
    for (const double kl : divergences) s.kl += kl / static_cast<double>(tokens.size());
    if (!std::isfinite(s.kl)) fail("{}: the logits are not finite", s.site);
    const double error = deviation * deviation * static_cast<double>((*sites[i].site)->out());
    s.sensitivity = error > 0 ? std::max(s.kl, 1e-12) / error : 0;
    if (progress) progress(static_cast<std::int64_t>(i + 1), static_cast<std::int64_t>(sites.size()));
  }
  return result;
}

}  // namespace narrows
