#include "plan/timing.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/measure.h"
#include "model/wrapped_site.h"
#include "narrows/session.h"
#include "subspace/apply_gsi.h"

namespace narrows {
namespace {

using Clock = std::chrono::steady_clock;

class TimedSite final : public WrappedSite {
 public:
  using WrappedSite::WrappedSite;
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override {
    const auto start = Clock::now();
    inner().apply(pool, scratch, x, rows, y);
    seconds += seconds_since(start);
  }
  double seconds = 0;
};

}  // namespace

std::vector<KindTime> time_sites(const std::shared_ptr<Model>& model, std::span<const TokenId> tokens,
                                 const std::function<void(std::int64_t, std::int64_t)>& progress) {
  constexpr int kPasses = 5;
  const std::int64_t steps = std::clamp<std::int64_t>(std::ssize(tokens) / 2, 1, 16);
  const std::int64_t prompt = std::clamp<std::int64_t>(std::ssize(tokens) - steps, 1, 64);
  const std::vector<NamedSite> sites = loaded(*model).weights().sites();
  std::vector<Wrapping<TimedSite>> timed;
  for (const NamedSite& s : sites) timed.emplace_back(*s.site);
  std::vector<KindTime> best(kSiteKindNames.size());
  Session session(model, {.context = prompt + steps});
  for (int pass = 0; pass < kPasses; ++pass) {
    // The sums over each kind's sites of the time since the last call.
    const auto take = [&] {
      std::vector<double> seconds(best.size());
      for (std::size_t i = 0; i < sites.size(); ++i)
        seconds[static_cast<std::size_t>(sites[i].kind)] += std::exchange(timed[i]->seconds, 0.0);
      return seconds;
    };
    const auto keep_least = [&](double KindTime::*time, const std::vector<double>& seconds, double steps_taken) {
      for (std::size_t i = 0; i < best.size(); ++i) {
        const double found = seconds[i] / steps_taken;
        best[i].*time = pass == 0 ? found : std::min(best[i].*time, found);
      }
    };
    session.truncate(0);
    session.step(tokens.first(static_cast<std::size_t>(prompt)));
    keep_least(&KindTime::prompt_seconds, take(), static_cast<double>(prompt));
    for (std::int64_t i = prompt; i < prompt + steps; ++i) session.step(tokens[static_cast<std::size_t>(i)]);
    keep_least(&KindTime::seconds, take(), static_cast<double>(steps));
    progress(pass + 1, kPasses);
  }
  for (std::size_t i = 0; i < sites.size(); ++i) {
    KindTime& kind = best[static_cast<std::size_t>(sites[i].kind)];
    ++kind.sites;
    kind.bytes += static_cast<double>(timed[i]->bytes_read());
  }
  for (std::size_t i = 0; i < best.size(); ++i) {
    KindTime& kind = best[i];
    if (static_cast<SiteKind>(i) == SiteKind::Head) kind.prompt_seconds *= static_cast<double>(prompt);
    const double n = static_cast<double>(std::max<std::int64_t>(kind.sites, 1));
    kind.seconds /= n;
    kind.bytes /= n;
    kind.prompt_seconds /= n;
  }
  return best;
}

WorkTimes time_work(const std::shared_ptr<Model>& dense, const std::shared_ptr<Model>& plan, std::span<const TokenId> tokens,
                    std::int64_t prompt, std::int64_t generate, int rounds,
                    const std::function<void(std::int64_t, std::int64_t)>& progress,
                    const std::optional<KvCompression>& plan_cache) {
  std::array<Session, 2> sessions{Session(dense, {.context = prompt + generate}),
                                  Session(plan, {.context = prompt + generate, .compression = plan_cache})};
  std::array<std::vector<double>, 2> prefill, decode;
  for (int round = 0; round <= rounds; ++round) {  // the first only warms up
    for (std::size_t which = 0; which < 2; ++which) {
      Session& s = sessions[which];
      s.truncate(0);
      auto start = Clock::now();
      s.step(tokens.first(static_cast<std::size_t>(prompt)));
      const double prompt_seconds = seconds_since(start);
      start = Clock::now();
      for (std::int64_t i = 0; i < generate; ++i) s.step(tokens[static_cast<std::size_t>(prompt + i)]);
      if (round == 0) continue;
      prefill[which].push_back(prompt_seconds);
      decode[which].push_back(seconds_since(start));
    }
    progress(round, rounds);
  }
  return {median(prefill[0]), median(prefill[1]), median(decode[0]), median(decode[1])};
}

}  // namespace narrows
