// Finding the plan that pays: which sites to read in part, how finely, within a budget of quality, on this machine.
//
// 1. Sensitivities: the KL divergence that noise at each site alone causes (sensitivity.h), on calibration text.
// 2. One price for a bit read, for all columns of all sites (graded_site.h): the price is the only thing searched, by
//    bisection, until the budget is met on further calibration text. The head may read coarsely and score its best
//    outputs again.
// 3. A cost model fitted to this machine: the time of each kind of site, in decode (dense, and graded at two prices, as a
//    line in the bytes that it reads) and in prompts, where weights are read once for many tokens and grading costs
//    time. Kinds that do not pay in the stated work stay dense, and the search goes on with the rest. Where a file of bases is given, sites at which the gate is cheaper at the same price are gated.
// 4. If asked for: the coarsest cache of representatives (KvCompression::tau) that keeps the budget on windows as long as the
//    stated work, their second halves scored; dropped if the work takes no less time with it.
// 5. Validation on text kept apart from all that: quality, and the speed of whole steps against dense, alternating.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "plan/plan.h"
#include "plan/sensitivity.h"

namespace narrows {

struct TuneBudget {
  enum class Kind { PerplexityRatio, Kl, Bytes } kind = Kind::PerplexityRatio;
  double limit = 1.02;  // perplexity ratio at most; mean KL in nats at most; or fraction of the weight bytes to read
};

struct TuneOptions {
  TuneBudget budget;
  std::string bases;                    // a file of bases, for gates; empty: none
  std::int64_t context = 512;           // tokens a window
  std::int64_t sensitivity_tokens = 256;
  std::int64_t search_tokens = 1536;
  std::int64_t validation_tokens = 3072;
  std::int64_t rescore = 256;           // outputs of the head scored exactly; 0: none
  std::int64_t prompt = 128, generate = 128;  // the work that must get faster: tokens of a prompt and of its answer
  int rounds = 5;                       // of timing
  bool cache = false;                   // consider a cache of representatives, for windows of prompt + generate tokens,
                                        // of which search and validation take one at least
  bool force = false;                   // keep every graded site and give a plan even if it is not faster
  std::function<void(const char* stage, std::int64_t done, std::int64_t total)> progress = {};
};

// Time of the sites of one kind, for one token: dense, and graded as a line in the bytes read.
// One kind of sites, all of them graded, or gated where a gate is worth it.
struct SiteCost {
  std::string kind;
  SiteMode mode = SiteMode::Graded;
  std::int64_t sites = 0;
  double dense_seconds = 0, dense_bytes = 0;             // of one site, mean
  double graded_fixed = 0, graded_per_byte = 0;          // seconds; seconds a byte; of graded ones
  double planned_seconds = 0, planned_bytes = 0;         // of one site in the plan
  double dense_prompt = 0, planned_prompt = 0;           // seconds a token of a prompt; the head: of a whole prompt
  bool pays = false;                                     // in the stated work, and more than the other mode
};

struct TuneResult {
  Plan plan;                                // with its measurements
  bool faster = false;                      // the stated work takes less time than dense
  bool within_budget = false;               // on the text kept apart
  double dense_work = 0, plan_work = 0;     // seconds: prompt + answer
  double price = 0;
  std::vector<SiteSensitivity> sensitivities;
  std::vector<SiteCost> costs;
  std::int64_t calibration_tokens = 0;
  std::vector<std::string> notes;           // in plain words: what does not pay, and why
};

// `model` is dense, and is dense again afterwards; `reference` is a second dense one of the same file. Throws Error: too
// little text, no site that could be graded, a budget that makes no sense.
TuneResult tune(const std::shared_ptr<Model>& model, const std::shared_ptr<Model>& reference, std::string_view text,
                const TuneOptions& options);

}  // namespace narrows
