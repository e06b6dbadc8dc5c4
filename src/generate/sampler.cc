#include "narrows/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace narrows {
namespace {

void check_options(const SamplerOptions& o) {
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature))
    fail("sampler: temperature: expected 0 or more, found {}", o.temperature);
  if (o.top_k < 0) fail("sampler: top-k: expected 0 or more, found {}", o.top_k);
  if (!(o.top_p >= 0 && o.top_p <= 1)) fail("sampler: top-p: expected 0 to 1, found {}", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) fail("sampler: min-p: expected 0 to 1, found {}", o.min_p);
  if (!(o.repeat_penalty > 0) || !std::isfinite(o.repeat_penalty))
    fail("sampler: repeat penalty: expected more than 0, found {}", o.repeat_penalty);
  if (o.repeat_last_n < -1) fail("sampler: repeat last n: expected -1 or more, found {}", o.repeat_last_n);
}

// One step of splitmix64, which spreads a seed over the generator's state.
std::uint64_t splitmix64(std::uint64_t& x) {
  std::uint64_t z = (x += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

TokenId argmax(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  TokenId id = kNoToken;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best && std::isfinite(logits[i])) {
      best = logits[i];
      id = static_cast<TokenId>(i);
    }
  }
  return id;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  check_options(options);
  reset();
}

void Sampler::reset() {
  recent_.clear();
  std::uint64_t seed = options_.seed;
  for (auto& word : state_) word = splitmix64(seed);
}

// xoshiro256**
std::uint64_t Sampler::next_random() {
  auto& s = state_;
  const std::uint64_t result = std::rotl(s[1] * 5, 7) * 9;
  const std::uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = std::rotl(s[3], 45);
  return result;
}

void Sampler::accept(TokenId token) {
  if (options_.repeat_penalty == 1 || options_.repeat_last_n == 0) return;
  recent_.push_back(token);
  if (options_.repeat_last_n < 0) return;
  const auto last = static_cast<std::size_t>(options_.repeat_last_n);
  if (recent_.size() >= 2 * last + 1024)
    recent_.erase(recent_.begin(), recent_.end() - options_.repeat_last_n);
}

// The logits with each recent token penalised once.
std::span<const float> Sampler::penalize(std::span<const float> logits) {
  if (recent_.empty()) return logits;
  std::size_t count = recent_.size();
  if (options_.repeat_last_n >= 0) count = std::min(count, static_cast<std::size_t>(options_.repeat_last_n));
  penalized_.assign(logits.begin(), logits.end());
  for (std::size_t i = recent_.size() - count; i < recent_.size(); ++i) {
    const auto id = static_cast<std::size_t>(recent_[i]);
    if (id >= logits.size()) continue;
    // From the original each time, so that a token seen often is penalised once.
    penalized_[id] =
        logits[id] > 0 ? logits[id] / options_.repeat_penalty : logits[id] * options_.repeat_penalty;
  }
  return penalized_;
}

// Fills candidates_ with the k best finite logits (all of them when top-k is off), in no particular order.
void Sampler::select_top_k(std::span<const float> logits) {
  const std::size_t n = logits.size();
  const std::size_t k = options_.top_k == 0 ? n : std::min(n, static_cast<std::size_t>(options_.top_k));
  candidates_.clear();
  // Candidates that beat the k-th best so far pile up and are cut back to k now and then: one comparison for
  // nearly every logit. Ids ascend, so a later logit that merely equals the k-th best does not displace it.
  const std::size_t room = std::min(n, 2 * k + 64);
  candidates_.reserve(room);
  const auto cut = [&] {
    if (candidates_.size() <= k) return;
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k) - 1,
                     candidates_.end());
    candidates_.resize(k);
  };
  float threshold = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    if (!(logits[i] > threshold) || !std::isfinite(logits[i])) continue;
    if (candidates_.size() == room) {
      cut();
      threshold = candidates_.back().logit;
      if (!(logits[i] > threshold)) continue;
    }
    candidates_.push_back({logits[i], static_cast<TokenId>(i)});
  }
  cut();
}

// Both filters keep a prefix of the candidates in descending order, so the shorter prefix is the result of
// applying them one after the other. Only as much of the order is established as the filters look at.
void Sampler::keep_top_p_and_min_p() {
  const bool top_p = options_.top_p<1, min_p = options_.min_p> 0;
  if (!top_p && !min_p) return;
  const float best = std::min_element(candidates_.begin(), candidates_.end())->logit;
  double total = 0;
  if (top_p)
    for (const Candidate& c : candidates_) total += std::exp(static_cast<double>(c.logit) - best);
  if (min_p) {
    const float least = best + std::log(options_.min_p);
    std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < least; });
  }
  if (!top_p) return;
  const double enough = options_.top_p * total;
  double sum = 0;
  std::size_t sorted = 0;
  for (std::size_t block = 64; sorted < candidates_.size(); block *= 4) {
    const std::size_t end = std::min(candidates_.size(), sorted + block);
    const auto at = [&](std::size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
    std::partial_sort(at(sorted), at(end), candidates_.end());
    for (; sorted < end; ++sorted) {
      sum += std::exp(static_cast<double>(candidates_[sorted].logit) - best);
      if (sum >= enough) {
        candidates_.resize(sorted + 1);
        return;
      }
    }
  }
}

TokenId Sampler::draw() {
  const float best = std::min_element(candidates_.begin(), candidates_.end())->logit;
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - best) / options_.temperature);
  };
  double total = 0;
  for (const Candidate& c : candidates_) total += weight(c);
  const double uniform = static_cast<double>(next_random() >> 11) * 0x1p-53;  // in [0, 1)
  double left = uniform * total;
  const Candidate* chosen = nullptr;
  for (const Candidate& c : candidates_) {
    const double w = weight(c);
    if (w > 0)
      chosen = &c;  // rounding may leave a crumb of `left` at the end: the last possible one is drawn
    left -= w;
    if (left < 0) break;
  }
  return chosen->id;
}

TokenId Sampler::sample(std::span<const float> logits) {
  const std::span<const float> values = penalize(logits);
  if (options_.temperature == 0) {
    const TokenId id = argmax(values);
    if (id == kNoToken) fail("sampler: none of {} logits is finite", logits.size());
    return id;
  }
  select_top_k(values);
  if (candidates_.empty()) fail("sampler: none of {} logits is finite", logits.size());
  keep_top_p_and_min_p();
  return draw();
}

}  // namespace narrows
