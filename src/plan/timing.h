// Timing of sites and of whole work, for the tuner.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/loaded_model.h"
#include "narrows/session.h"

namespace narrows {

// Means over the sites of one kind.
struct KindTime {
  std::int64_t sites = 0;
  double seconds = 0, bytes = 0;  // of one token in decode
  double prompt_seconds = 0;      // of one token of a prompt (the head: of the whole prompt)
};

// A prompt and a few steps of decode, each site timed; the least of several passes, which others' work disturbs least.
std::vector<KindTime> time_sites(const std::shared_ptr<Model>& model, std::span<const TokenId> tokens,
                                 const std::function<void(std::int64_t, std::int64_t)>& progress);

struct WorkTimes {
  double dense_prefill = 0, plan_prefill = 0, dense_decode = 0, plan_decode = 0;  // seconds, medians of the rounds
};

// The first `prompt` tokens in one step, the next `generate` one by one, with either model in turn; the plan's with that
// cache.
WorkTimes time_work(const std::shared_ptr<Model>& dense, const std::shared_ptr<Model>& plan, std::span<const TokenId> tokens,
                    std::int64_t prompt, std::int64_t generate, int rounds,
                    const std::function<void(std::int64_t, std::int64_t)>& progress,
                    const std::optional<KvCompression>& plan_cache = {});

}  // namespace narrows
