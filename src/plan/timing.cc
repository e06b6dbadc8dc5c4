#include "plan/timing.h"

#include <algorithm>
#include <chrono>

#include "narrows/session.h"
#include "subspace/apply_gsi.h"

namespace narrows {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class TimedSite final : public LinearSite {
 public:
  explicit TimedSite(std::unique_ptr<LinearSite> site) : site_(std::move(site)) {}
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override {
    const auto start = Clock::now();
    site_->apply(pool, scratch, x, rows, y);
    seconds += seconds_since(start);
  }
  std::int64_t in() const override { return site_->in(); }
  std::int64_t out() const override { return site_->out(); }
  std::size_t bytes_read() const override { return site_->bytes_read(); }
  const std::vector<Linear>& maps() const override { return site_->maps(); }
  std::unique_ptr<LinearSite> release() { return std::move(site_); }
  double seconds = 0;

 private:
  std::unique_ptr<LinearSite> site_;
};

}  // namespace

std::vector<KindTime> time_sites(const std::shared_ptr<Model>& model, std::span<const TokenId> tokens,
                                 const std::function<void(std::int64_t, std::int64_t)>& progress) {
  constexpr int kPasses = 5;
  const std::int64_t steps = std::min<std::int64_t>(std::ssize(tokens) - 1, 16);
  const std::vector<NamedSite> sites = loaded(*model).weights().sites();
  std::vector<TimedSite*> timed;
  for (const NamedSite& s : sites) {
    auto site = std::make_unique<TimedSite>(std::move(*s.site));
    timed.push_back(site.get());
    *s.site = std::move(site);
  }
  std::vector<KindTime> kinds(kSiteKindNames.size()), best;
  Session session(model, {.context = steps + 1});
  for (int pass = 0; pass < kPasses; ++pass) {
    session.truncate(0);
    session.step(tokens[0]);
    for (TimedSite* site : timed) site->seconds = 0;
    for (std::int64_t i = 1; i <= steps; ++i) session.step(tokens[static_cast<std::size_t>(i)]);
    kinds.assign(kinds.size(), {});
    for (std::size_t i = 0; i < sites.size(); ++i) {
      KindTime& kind = kinds[static_cast<std::size_t>(sites[i].kind)];
      ++kind.sites;
      kind.seconds += timed[i]->seconds / static_cast<double>(steps);
      kind.bytes += static_cast<double>(timed[i]->bytes_read());
    }
    if (best.empty()) best = kinds;
    for (std::size_t i = 0; i < kinds.size(); ++i) best[i].seconds = std::min(best[i].seconds, kinds[i].seconds);
    progress(pass + 1, kPasses);
  }
  for (std::size_t i = 0; i < best.size(); ++i) {
    best[i].bytes = kinds[i].bytes;
    if (best[i].sites == 0) continue;
    best[i].seconds /= static_cast<double>(best[i].sites);
    best[i].bytes /= static_cast<double>(best[i].sites);
  }
  for (std::size_t i = 0; i < sites.size(); ++i) *sites[i].site = timed[i]->release();
  return best;
}

WorkTimes time_work(const std::shared_ptr<Model>& dense, const std::shared_ptr<Model>& plan, std::span<const TokenId> tokens,
                    std::int64_t prompt, std::int64_t generate, int rounds,
                    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  std::array<Session, 2> sessions{Session(dense, {.context = prompt + generate}), Session(plan, {.context = prompt + generate})};
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
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  };
  return {median(prefill[0]), median(prefill[1]), median(decode[0]), median(decode[1])};
}

}  // namespace narrows
