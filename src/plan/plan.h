// A plan: how each site of one model computes on one machine. JSON; written by `narrows tune` alone.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "model/loaded_model.h"
#include "narrows/session.h"

namespace narrows {

inline constexpr int kPlanVersion = 1;

enum class SiteMode { Dense, Graded, Gated };

struct SitePlan {
  std::string site;  // "blk.3.up", "head"
  SiteMode mode = SiteMode::Dense;
  double threshold = 0;      // graded: GradedSite's
  bool rotated = false;      // graded: in the bases' basis
  std::int64_t rescore = 0;  // graded head: outputs computed exactly; 0: none
  std::int64_t k = 0;        // gated
  float epsilon = 0;         // gated
};

// What was measured when the plan was made, on text kept apart from what it was made on.
struct PlanMeasurements {
  std::int64_t tokens = 0;
  double perplexity_ratio = 1, log_ratio_error = 0, top1_agreement = 1, kl_mean = 0, weight_bytes_fraction = 1;
  double decode_speedup = 1, prefill_speedup = 1;  // dense time / plan time
  double dense_decode = 0, plan_decode = 0;        // tokens/s
  double dense_prefill = 0, plan_prefill = 0;
};

// A cache of representatives (KvCompression::tau), and what it was found to do on windows of `tokens` tokens, with the
// sites of the plan.
struct CachePlan {
  double tau = 0;  // 0: the dense cache
  std::int64_t tokens = 0;
  double perplexity_ratio = 1, kl_mean = 0, bytes_fraction = 1;

  std::optional<KvCompression> compression() const {
    return tau > 0 ? std::optional(KvCompression{.tau = tau}) : std::nullopt;
  }
};

struct Plan {
  std::string model, model_name;  // fingerprint and file name
  std::string text;               // fingerprint of the calibration text
  std::string bases;              // path of the file of bases, if a site is gated or rotated
  int threads = 0;
  std::string instructions;       // the widest instruction set in use
  PlanMeasurements measured;
  std::vector<SitePlan> sites;    // those that are not dense
  CachePlan cache;

  bool empty() const { return sites.empty() && cache.tau == 0; }
};

// Throws Error: not a plan, of another version, a value that makes no sense.
Plan read_plan(const std::string& path);
void write_plan(const std::string& path, const Plan& plan);  // whole or not at all

// Replaces the sites. `give_back` frees the dense copies that graded sites no longer need (the dense sites cannot come
// back then). Throws Error if the plan was made for another model.
void apply_sites(LoadedModel& model, const Plan& plan, bool give_back);

}  // namespace narrows
