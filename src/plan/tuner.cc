#include "plan/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "eval/perplexity.h"
#include "eval/reference_scores.h"
#include "formats/fingerprint.h"
#include "kernels/dispatch.h"
#include "narrows/session.h"
#include "plan/gate_choice.h"
#include "plan/timing.h"
#include "subspace/apply_gsi.h"
#include "subspace/graded_site.h"
#include "subspace/gsi_file.h"

namespace narrows {
namespace {

constexpr double kMinGain = 0.01;  // of the stated work's time: less is noise
constexpr double kMostRotation = 0.05;  // of a site's bytes
constexpr double kMargin = 0.75;   // of the budget is used on the search text: other text differs

void check(const TuneOptions& o) {
  const TuneBudget& b = o.budget;
  if (o.cache && b.kind == TuneBudget::Kind::Bytes) fail("budget: bytes: expected ppl or kl to choose a cache by");
  if (b.kind == TuneBudget::Kind::PerplexityRatio && !(b.limit > 1 && std::isfinite(b.limit)))
    fail("budget: ppl: expected a ratio above 1, found {}", b.limit);
  if (b.kind == TuneBudget::Kind::Kl && !(b.limit > 0 && std::isfinite(b.limit))) fail("budget: kl: expected more than 0, found {}", b.limit);
  if (b.kind == TuneBudget::Kind::Bytes && !(b.limit > 0 && b.limit < 1))
    fail("budget: bytes: expected a fraction between 0 and 1, found {}", b.limit);
}

class Tuner {
 public:
  Tuner(const std::shared_ptr<Model>& model, const std::shared_ptr<Model>& reference, std::string_view text,
        const TuneOptions& options)
      : model_(model), reference_(reference), target_(loaded(*model)), o_(options) {
    check(o_);
    site_search_tokens_ = o_.search_tokens;
    if (o_.cache) {  // judged on whole windows
      o_.search_tokens = std::max(o_.search_tokens, o_.prompt + o_.generate);
      o_.validation_tokens = std::max(o_.validation_tokens, o_.prompt + o_.generate);
    }
    split(text);
    result_.plan.model = fingerprint(target_.file());
    result_.plan.model_name = std::filesystem::path(model->path()).filename().string();
    result_.plan.text = fingerprint(text);
    result_.plan.threads = model->threads();
    result_.plan.instructions = dispatch_targets().front();
  }

  TuneResult run() {
    find_candidates();
    if (candidates_.empty() && !o_.cache) fail("{}: no site has weights of a type that can be graded (quantize it first)", model_->path());
    if (!candidates_.empty()) choose_sites();
    if (o_.cache) choose_cache();
    validate();
    return std::move(result_);
  }

 private:
  struct Candidate {
    std::string name;
    SiteKind kind;
    bool may_grade, may_gate, rotated;
    std::int64_t outputs;
  };

  void choose_sites() {
    result_.sensitivities = measure_sensitivities(model_, sensitivity_tokens_, stage("sensitivities"));
    if (gates_possible_) gates_ = GateChoices::measure(model_, o_.bases, search_text_, result_.sensitivities);
    EvalOptions windows{.context = o_.context};
    dense_scores_.emplace(model_, window_tokens(*model_, search_text_, windows));
    search(stage("search"));
    fit_costs();
    if (drop_what_does_not_pay()) search(stage("search again"));
  }

  // A site is rotated if the file of bases allows it and its basis weighs little beside its weights.
  void find_candidates() {
    std::optional<GsiFile> bases;
    if (!o_.bases.empty()) {
      bases = GsiFile::open(o_.bases);
      bases->check_model(target_);
    }
    for (const NamedSite& s : target_.weights().sites()) {
      const GsiSite* basis = bases ? bases->find(s.name) : nullptr;
      const bool rotated = basis && can_rotate(**s.site, *basis) &&
                           static_cast<double>(basis->basis.bytes_read()) < kMostRotation * static_cast<double>((*s.site)->bytes_read());
      gates_possible_ |= basis && !rotated;
      const bool may_grade = rotated || can_grade(**s.site), may_gate = basis && !rotated;
      if (may_grade || may_gate) candidates_.push_back({s.name, s.kind, may_grade, may_gate, rotated, (*s.site)->out()});
    }
  }

  std::function<void(std::int64_t, std::int64_t)> stage(const char* name) const {
    return [this, name](std::int64_t done, std::int64_t total) {
      if (o_.progress) o_.progress(name, done, total);
    };
  }

  // Sensitivity tokens, search text and validation text follow each other: none is used twice.
  void split(std::string_view text) {
    const std::vector<TokenId> ids = model_->tokenize(text, {.add_special = false, .parse_special = false});
    const std::int64_t needed =
        std::max(o_.sensitivity_tokens + o_.search_tokens + o_.validation_tokens, o_.prompt + o_.generate);
    if (std::ssize(ids) < needed)
      fail("the text has {} tokens: expected at least {}, {} to find the plan and {} to judge it", ids.size(), needed,
           o_.sensitivity_tokens + o_.search_tokens, o_.validation_tokens);
    const auto part = [&](std::int64_t begin, std::int64_t size) {
      return std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    };
    const auto first = part(0, o_.sensitivity_tokens);
    if (model_->adds_bos() && model_->bos() != kNoToken) sensitivity_tokens_.push_back(model_->bos());
    sensitivity_tokens_.insert(sensitivity_tokens_.end(), first.begin(), first.end());
    search_text_ = model_->detokenize(part(o_.sensitivity_tokens, site_search_tokens_), true);
    cache_text_ = model_->detokenize(part(o_.sensitivity_tokens, o_.search_tokens), true);
    validation_text_ = model_->detokenize(part(o_.sensitivity_tokens + o_.search_tokens, o_.validation_tokens), true);
    speed_tokens_.assign(ids.begin(), ids.begin() + std::min<std::ptrdiff_t>(std::ssize(ids), o_.prompt + o_.generate));
    result_.calibration_tokens = o_.sensitivity_tokens + o_.search_tokens;
  }

  double sensitivity(const std::string& site) const {
    for (const SiteSensitivity& s : result_.sensitivities)
      if (s.site == site) return s.sensitivity;
    return 0;
  }

  // The sites at a price.
  std::vector<SitePlan> plan_at(double price, bool gates = true) const {
    std::vector<SitePlan> sites;
    for (const Candidate& c : candidates_) {
      if (gates && gates_ && c.may_gate)
        if (const auto gate = gates_->choose(c.name, price)) {
          sites.push_back(*gate);
          continue;
        }
      if (!c.may_grade) continue;
      SitePlan site{.site = c.name, .mode = SiteMode::Graded};
      site.threshold = price / std::max(sensitivity(c.name), 1e-30);
      site.rotated = c.rotated;
      if (c.kind == SiteKind::Head) site.rescore = std::min(o_.rescore, c.outputs);
      sites.push_back(site);
    }
    return sites;
  }

  // Puts the sites in; keeps the planes of those that are graded already.
  void use(const std::vector<SitePlan>& sites) {
    const auto same_kinds = [&] {
      if (in_use_.size() != sites.size()) return false;
      for (std::size_t i = 0; i < sites.size(); ++i)
        if (in_use_[i].site != sites[i].site || in_use_[i].mode != SiteMode::Graded || sites[i].mode != SiteMode::Graded)
          return false;
      return true;
    };
    if (!sites.empty() && same_kinds()) {
      for (const NamedSite& s : target_.weights().sites()) {
        LinearSite* site = s.site->get();
        if (auto* rescored = dynamic_cast<RescoredSite*>(site)) site = &rescored->approximate();
        auto* graded = dynamic_cast<GradedSite*>(site);
        if (!graded) continue;
        for (const SitePlan& p : sites)
          if (p.site == s.name) graded->set_threshold(p.threshold);
      }
    } else {
      make_dense(target_);
      Plan plan = result_.plan;
      plan.bases = o_.bases;
      plan.sites = sites;
      apply_sites(target_, plan, false);
    }
    in_use_ = sites;
  }

  EvalResult judge(const std::string& text, const std::vector<SitePlan>& sites,
                   const std::function<void(std::int64_t, std::int64_t)>& progress = {}) {
    use(sites);
    EvalOptions options{.context = o_.context};
    if (progress) options.progress = [&](std::int64_t done, std::int64_t total, double) { progress(done, total); };
    return evaluate(model_, text, options, reference_);
  }

  bool meets(double perplexity_ratio, double kl, double bytes_fraction, double margin) const {
    switch (o_.budget.kind) {
      case TuneBudget::Kind::PerplexityRatio: return perplexity_ratio - 1 <= margin * (o_.budget.limit - 1);
      case TuneBudget::Kind::Kl: return kl <= margin * o_.budget.limit;
      default: return bytes_fraction >= o_.budget.limit;
    }
  }

  // The highest price that meets the budget (for a budget of bytes: the price that reads as much as allowed). Prices are
  // nats a bit; what they should be depends on the model, so the range is found first.
  void search(const std::function<void(std::int64_t, std::int64_t)>& progress) {
    constexpr int kSteps = 9;
    int step = 0;
    const auto good = [&](double price) {
      use(plan_at(price));
      const Comparison c = dense_scores_->compare(model_);
      const double read = static_cast<double>(model_->weight_bytes_per_token()) / static_cast<double>(reference_->weight_bytes_per_token());
      progress(std::min(++step, kSteps + 4), kSteps + 5);
      return meets(c.perplexity_ratio, c.kl_at_least, read, kMargin);
    };
    double low = result_.price > 0 ? result_.price : first_price(), high = low;
    if (good(low)) {
      do {
        low = high;
        high *= 4;
      } while (step < kSteps && good(high));
    } else {
      do {
        high = low;
        low /= 4;
      } while (step < kSteps && !good(low));
    }
    while (step < kSteps + 4 && high / low > 1.1) {
      const double middle = std::sqrt(low * high);
      (good(middle) ? low : high) = middle;
    }
    result_.price = low;
    result_.plan.sites = plan_at(low);
    progress(kSteps + 5, kSteps + 5);
  }

  // Where grading begins to matter: all sites together lose a hundredth of a nat if each bit is worth this.
  double first_price() const {
    double bits = 0;
    for (const NamedSite& s : target_.weights().sites()) bits += 8.0 * static_cast<double>((*s.site)->bytes_read());
    return 0.02 / bits;
  }

  // Times every kind of site in decode: dense, graded at two prices, and gated.
  void fit_costs() {
    const auto time_kinds = [&](const std::vector<SitePlan>& sites) {
      use(sites);
      return time_sites(model_, speed_tokens_, stage("timing"));
    };
    const std::vector<KindTime> dense = time_kinds({});
    const std::vector<KindTime> fine = time_kinds(plan_at(result_.price / 16, false)), here = time_kinds(plan_at(result_.price, false));
    const std::vector<SitePlan> gates = gated_only(result_.plan.sites);
    const std::vector<KindTime> gated = gates.empty() ? std::vector<KindTime>() : time_kinds(gates);
    for (std::size_t i = 0; i < dense.size(); ++i) {
      if (dense[i].sites == 0) continue;
      SiteCost cost = cost_of(i, SiteMode::Graded, dense[i], here[i]);
      const double span = fine[i].bytes - here[i].bytes;
      cost.graded_per_byte = span > 0.02 * fine[i].bytes ? std::max((fine[i].seconds - here[i].seconds) / span, 0.0)
                                                         : here[i].seconds / std::max(here[i].bytes, 1.0);
      cost.graded_fixed = std::max(here[i].seconds - cost.graded_per_byte * here[i].bytes, 0.0);
      result_.costs.push_back(cost);
      if (std::none_of(gates.begin(), gates.end(), [&](const SitePlan& s) { return kind_of(s.site) == i; })) continue;
      SiteCost gate = cost_of(i, SiteMode::Gated, dense[i], gated[i]);
      SiteCost& grade = result_.costs.back();
      if (grade.pays && gate.pays) (saved(gate) > saved(grade) ? grade : gate).pays = false;
      result_.costs.push_back(gate);
    }
  }

  std::size_t kind_of(const std::string& site) const {
    for (const Candidate& c : candidates_)
      if (c.name == site) return static_cast<std::size_t>(c.kind);
    return kSiteKindNames.size();
  }

  // Seconds of the stated work that a site saves. What is not read saves its share of the time at most: more is noise.
  double saved(const SiteCost& c) const {
    const double planned = std::max(c.planned_seconds, c.dense_seconds * c.planned_bytes / c.dense_bytes);
    const double prompt = c.kind == kSiteKindNames[static_cast<std::size_t>(SiteKind::Head)] ? 1 : static_cast<double>(o_.prompt);
    return static_cast<double>(o_.generate) * (c.dense_seconds - planned) - prompt * (c.planned_prompt - c.dense_prompt);
  }

  SiteCost cost_of(std::size_t kind, SiteMode mode, const KindTime& dense, const KindTime& planned) const {
    SiteCost cost;
    cost.kind = kSiteKindNames[kind];
    cost.mode = mode;
    cost.sites = dense.sites;
    cost.dense_seconds = dense.seconds;
    cost.dense_bytes = dense.bytes;
    cost.planned_seconds = planned.seconds;
    cost.planned_bytes = planned.bytes;
    cost.dense_prompt = dense.prompt_seconds;
    cost.planned_prompt = planned.prompt_seconds;
    cost.pays = saved(cost) > 0;
    return cost;
  }

  static std::vector<SitePlan> gated_only(std::vector<SitePlan> sites) {
    std::erase_if(sites, [](const SitePlan& s) { return s.mode != SiteMode::Gated; });
    return sites;
  }

  // Whether the plan changed.
  bool drop_what_does_not_pay() {
    bool dropped = false;
    for (const SiteCost& cost : result_.costs) {
      if (cost.pays) continue;
      bool had = false;
      for (Candidate& c : candidates_) {
        bool& may = cost.mode == SiteMode::Gated ? c.may_gate : c.may_grade;
        if (kSiteKindNames[static_cast<std::size_t>(c.kind)] != cost.kind || !may) continue;
        had = true;
        may = o_.force;
      }
      if (!had) continue;
      dropped |= !o_.force;
      result_.notes.push_back(
          fmt::format("{}: {} sites read {:.0f} % of the bytes, in {:.0f} % of the time in decode and {:.0f} % in prompts: {}",
                      cost.kind, cost.mode == SiteMode::Gated ? "gated" : "graded", 100 * cost.planned_bytes / cost.dense_bytes,
                      100 * cost.planned_seconds / cost.dense_seconds, 100 * cost.planned_prompt / cost.dense_prompt,
                      saved(cost) > 0 ? "the other mode saves more"
                      : o_.force      ? "they do not pay, and are used because all are (--force)"
                                      : "they do not pay"));
    }
    if (std::none_of(candidates_.begin(), candidates_.end(), [](const Candidate& c) { return c.may_grade || c.may_gate; })) {
      result_.plan.sites.clear();
      return false;
    }
    return dropped;
  }

  // The model as it is in use, with that cache, on windows as long as the stated work.
  EvalResult judge_cache(const std::string& text, double tau, const std::function<void(std::int64_t, std::int64_t)>& progress) const {
    EvalOptions options{.context = o_.prompt + o_.generate};
    options.compression = KvCompression{.tau = tau};
    options.score_from = options.context / 2;
    options.progress = [&](std::int64_t done, std::int64_t total, double) { progress(done, total); };
    return evaluate(model_, text, options, reference_);
  }

  void choose_cache() {
    use(result_.plan.sites);
    const std::int64_t length = o_.prompt + o_.generate;
    if (Session(model_, {.context = length, .compression = KvCompression{.tau = 0.5}}).next_compression() > length / 2) {
      result_.notes.push_back(fmt::format("cache: {} tokens of prompt and answer are too few to compress it: it stays dense", length));
      return;
    }
    for (const double tau : {0.5, 0.35, 0.25, 0.18, 0.12, 0.09, 0.06, 0.04}) {
      const EvalResult found = judge_cache(cache_text_, tau, stage("cache"));
      if (!meets(found.agreement->perplexity_ratio, found.agreement->kl_mean, 1, kMargin)) continue;
      result_.plan.cache.tau = tau;
      break;
    }
    if (result_.plan.cache.tau == 0) {
      result_.notes.push_back("cache: no tau keeps the budget: the cache stays dense");
      return;
    }
    const WorkTimes times = time_work(model_, model_, speed_tokens_, o_.prompt, o_.generate, o_.rounds, stage("timing the cache"),
                                      result_.plan.cache.compression());
    const double dense = times.dense_prefill + times.dense_decode, with = times.plan_prefill + times.plan_decode;
    if (with < (1 - kMinGain) * dense || o_.force) return;
    result_.notes.push_back(fmt::format("cache: with tau {} the work takes {:.0f} % of the time: it stays dense",
                                        result_.plan.cache.tau, 100 * with / dense));
    result_.plan.cache.tau = 0;
  }

  void validate() {
    PlanMeasurements& m = result_.plan.measured;
    const std::vector<SitePlan>& sites = result_.plan.sites;
    if (std::any_of(sites.begin(), sites.end(), [](const SitePlan& s) { return s.mode == SiteMode::Gated || s.rotated; }))
      result_.plan.bases = o_.bases;
    const EvalResult quality = judge(validation_text_, sites, stage("validation"));
    const Agreement& a = *quality.agreement;
    m.tokens = quality.tokens;
    m.perplexity_ratio = a.perplexity_ratio;
    m.log_ratio_error = a.log_ratio_error;
    m.top1_agreement = a.top1_agreement;
    m.kl_mean = a.kl_mean;
    m.weight_bytes_fraction = a.weight_bytes_fraction;
    result_.within_budget = o_.budget.kind == TuneBudget::Kind::Bytes || meets(a.perplexity_ratio, a.kl_mean, 0, 1);
    if (const double limit = o_.budget.limit - 1;
        o_.budget.kind == TuneBudget::Kind::PerplexityRatio && a.perplexity_ratio * a.log_ratio_error > limit) {
      result_.within_budget = false;
      result_.notes.push_back(fmt::format(
          "{} tokens are too few to judge a budget of {:.1f} %: the ratio's standard error is {:.1f} %. Give more of them: "
          "--validation-tokens",
          quality.tokens, 100 * limit, 100 * a.perplexity_ratio * a.log_ratio_error));
    }
    if (CachePlan& c = result_.plan.cache; c.tau > 0) {
      const EvalResult with = judge_cache(validation_text_, c.tau, stage("validation of the cache"));
      c.tokens = o_.prompt + o_.generate;
      c.perplexity_ratio = with.agreement->perplexity_ratio;
      c.kl_mean = with.agreement->kl_mean;
      c.bytes_fraction = with.agreement->kv_bytes_fraction;
      result_.within_budget &= meets(c.perplexity_ratio, c.kl_mean, 1, 1);
    }
    const WorkTimes times = time_work(reference_, model_, speed_tokens_, o_.prompt, o_.generate, o_.rounds, stage("speed"),
                                      result_.plan.cache.compression());
    m.dense_decode = static_cast<double>(o_.generate) / times.dense_decode;
    m.plan_decode = static_cast<double>(o_.generate) / times.plan_decode;
    m.dense_prefill = static_cast<double>(o_.prompt) / times.dense_prefill;
    m.plan_prefill = static_cast<double>(o_.prompt) / times.plan_prefill;
    m.decode_speedup = times.dense_decode / times.plan_decode;
    m.prefill_speedup = times.dense_prefill / times.plan_prefill;
    result_.dense_work = times.dense_decode + times.dense_prefill;
    result_.plan_work = times.plan_decode + times.plan_prefill;
    result_.faster = !result_.plan.empty() && result_.plan_work < (1 - kMinGain) * result_.dense_work;
    make_dense(target_);
  }

  std::shared_ptr<Model> model_, reference_;
  LoadedModel& target_;
  TuneOptions o_;
  std::vector<TokenId> sensitivity_tokens_, speed_tokens_;
  std::int64_t site_search_tokens_ = 0;
  std::string search_text_, cache_text_, validation_text_;  // the first is how the second begins
  std::vector<Candidate> candidates_;
  std::optional<ReferenceScores> dense_scores_;  // on the search text
  bool gates_possible_ = false;  // the file of bases has some that are no rotation
  std::optional<GateChoices> gates_;
  std::vector<SitePlan> in_use_;
  TuneResult result_;
};

}  // namespace

TuneResult tune(const std::shared_ptr<Model>& model, const std::shared_ptr<Model>& reference, std::string_view text,
                const TuneOptions& options) {
  try {
    return Tuner(model, reference, text, options).run();
  } catch (...) {
    make_dense(loaded(*model));
    throw;
  }
}

}  // namespace narrows
