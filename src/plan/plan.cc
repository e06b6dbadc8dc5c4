#include "plan/plan.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/output_file.h"
#include "formats/fingerprint.h"
#include "narrows/methods.h"
#include "subspace/apply_gsi.h"
#include "subspace/graded_site.h"
#include "subspace/gsi_file.h"

namespace narrows {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kModes = {"dense", "graded", "gated"};

template <typename Value>
bool holds(const Json& json) {
  if constexpr (std::is_same_v<Value, std::string>) return json.is_string();
  if constexpr (std::is_same_v<Value, bool>) return json.is_boolean();
  if constexpr (std::is_floating_point_v<Value>) return json.is_number();
  return json.is_number_integer() && !(json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX);
}

template <typename Value>
Value field(const Json& json, const char* name, std::optional<Value> absent = {}) {
  const auto at = json.find(name);
  if (at == json.end() && absent) return *absent;
  if (at == json.end()) fail("{}: missing", name);
  if (!holds<Value>(*at))
    fail("{}: expected a {}, found {}", name,
         std::is_same_v<Value, std::string> ? "text" : std::is_same_v<Value, bool> ? "truth value"
         : std::is_floating_point_v<Value>  ? "number" : "whole number",
         at->dump());
  return at->get<Value>();
}

// A key that nothing reads is a mistake: what it asks for would not happen.
void check_keys(const Json& json, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : json.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail("\"{}\": expected one of {}", key, fmt::join(known, ", "));
}

SitePlan read_site(const std::string& name, const Json& json) {
  SitePlan site;
  site.site = name;
  if (!json.is_object()) fail("expected an object, found {}", json.dump());
  const std::string mode = field<std::string>(json, "mode");
  const auto at = std::find(kModes.begin(), kModes.end(), mode);
  if (at == kModes.end()) fail("mode: expected dense, graded or gated, found {}", mode);
  site.mode = static_cast<SiteMode>(at - kModes.begin());
  switch (site.mode) {
    case SiteMode::Dense: check_keys(json, {"mode"}); break;
    case SiteMode::Graded:
      check_keys(json, {"mode", "threshold", "rotated", "rescore"});
      site.threshold = field<double>(json, "threshold");
      site.rotated = field<bool>(json, "rotated", false);
      site.rescore = field<std::int64_t>(json, "rescore", 0);
      if (!(site.threshold >= 0) || site.rescore < 0) fail("threshold, rescore: expected 0 or more");
      break;
    case SiteMode::Gated:
      check_keys(json, {"mode", "k", "epsilon"});
      site.k = field<std::int64_t>(json, "k");
      site.epsilon = field<float>(json, "epsilon");
      if (site.k < 1 || !(site.epsilon >= 0)) fail("k, epsilon: expected at least 1 and 0");
      break;
  }
  return site;
}

PlanMeasurements read_measurements(const Json& json) {
  PlanMeasurements m;
  m.tokens = field<std::int64_t>(json, "tokens", 0);
  m.perplexity_ratio = field<double>(json, "perplexity_ratio", 1);
  m.log_ratio_error = field<double>(json, "log_ratio_error", 0);
  m.top1_agreement = field<double>(json, "top1_agreement", 1);
  m.kl_mean = field<double>(json, "kl_mean", 0);
  m.weight_bytes_fraction = field<double>(json, "weight_bytes_fraction", 1);
  m.decode_speedup = field<double>(json, "decode_speedup", 1);
  m.prefill_speedup = field<double>(json, "prefill_speedup", 1);
  return m;
}

// Frees a range of whole pages of packed weights that nothing will read any more.
void free_pages(const std::byte* begin, std::size_t size) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = (reinterpret_cast<std::uintptr_t>(begin) + page - 1) / page * page;
  const auto until = (reinterpret_cast<std::uintptr_t>(begin) + size) / page * page;
  if (from < until) ::madvise(reinterpret_cast<void*>(from), until - from, MADV_DONTNEED);
}

CachePlan read_cache(const Json& json) try {
  CachePlan cache;
  cache.tau = field<double>(json, "tau");
  if (!(cache.tau > 0 && cache.tau <= 1)) fail("tau: expected more than 0 and at most 1, found {}", cache.tau);
  cache.tokens = field<std::int64_t>(json, "tokens", 0);
  cache.perplexity_ratio = field<double>(json, "perplexity_ratio", 1);
  cache.kl_mean = field<double>(json, "kl_mean", 0);
  cache.bytes_fraction = field<double>(json, "bytes_fraction", 1);
  return cache;
} catch (const Error& error) {
  fail("cache: {}", error.what());
}

}  // namespace

Plan read_plan(const std::string& path) {
  std::error_code absent;
  if (std::filesystem::is_directory(path, absent)) fail("{}: expected a plan, found a directory", path);
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("{}: cannot open the plan", path);
  const Json json = Json::parse(in, nullptr, false);
  if (!json.is_object() || !json.contains("narrows_plan"))
    fail("{}: not a plan: expected the JSON that `narrows tune` writes", path);
  try {
    check_keys(json, {"narrows_plan", "model", "model_name", "text", "bases", "threads", "instructions", "measured", "sites", "cache"});
    if (const auto version = field<std::int64_t>(json, "narrows_plan"); version != kPlanVersion)
      fail("version: expected {}, found {}: tune again", kPlanVersion, version);
    Plan plan;
    plan.model = field<std::string>(json, "model");
    plan.model_name = field<std::string>(json, "model_name");
    plan.text = field<std::string>(json, "text", "");
    plan.bases = field<std::string>(json, "bases", "");
    plan.threads = static_cast<int>(field<std::int64_t>(json, "threads", 0));
    plan.instructions = field<std::string>(json, "instructions", "");
    const auto sites = json.find("sites");
    if (sites == json.end() || !sites->is_object()) fail("sites: expected an object of sites by name");
    for (const auto& [name, site] : sites->items()) try {
        plan.sites.push_back(read_site(name, site));
      } catch (const Error& error) {
        fail("{}: {}", name, error.what());
      }
    if (const auto cache = json.find("cache"); cache != json.end()) {
      if (!cache->is_object()) fail("cache: expected an object");
      check_keys(*cache, {"tau", "tokens", "perplexity_ratio", "kl_mean", "bytes_fraction"});
      plan.cache = read_cache(*cache);
    }
    if (const auto measured = json.find("measured"); measured != json.end()) {
      if (!measured->is_object()) fail("measured: expected an object");
      plan.measured = read_measurements(*measured);
    }
    return plan;
  } catch (const Error& error) {
    fail("{}: {}", path, error.what());
  }
}

void write_plan(const std::string& path, const Plan& plan) {
  const PlanMeasurements& m = plan.measured;
  Json json{{"narrows_plan", kPlanVersion},
            {"model", plan.model},
            {"model_name", plan.model_name},
            {"text", plan.text},
            {"threads", plan.threads},
            {"instructions", plan.instructions},
            {"measured",
             {{"tokens", m.tokens},
              {"perplexity_ratio", m.perplexity_ratio},
              {"log_ratio_error", m.log_ratio_error},
              {"top1_agreement", m.top1_agreement},
              {"kl_mean", m.kl_mean},
              {"weight_bytes_fraction", m.weight_bytes_fraction},
              {"decode_speedup", m.decode_speedup},
              {"prefill_speedup", m.prefill_speedup},
              {"dense_decode", m.dense_decode},
              {"plan_decode", m.plan_decode},
              {"dense_prefill", m.dense_prefill},
              {"plan_prefill", m.plan_prefill}}}};
  if (!plan.bases.empty()) json["bases"] = plan.bases;
  Json& sites = json["sites"] = Json::object();
  for (const SitePlan& s : plan.sites) {
    Json& site = sites[s.site] = {{"mode", kModes[static_cast<std::size_t>(s.mode)]}};
    if (s.mode == SiteMode::Graded) site["threshold"] = s.threshold;
    if (s.rotated) site["rotated"] = true;
    if (s.rescore > 0) site["rescore"] = s.rescore;
    if (s.mode == SiteMode::Gated) {
      site["k"] = s.k;
      site["epsilon"] = s.epsilon;
    }
  }
  if (const CachePlan& c = plan.cache; c.tau > 0)
    json["cache"] = {{"tau", c.tau}, {"tokens", c.tokens}, {"perplexity_ratio", c.perplexity_ratio}, {"kl_mean", c.kl_mean},
                     {"bytes_fraction", c.bytes_fraction}};
  OutputFile file(path);
  const std::string text = json.dump(1) + "\n";
  file.write(text.data(), text.size());
  file.commit();
}

void apply_sites(LoadedModel& model, const Plan& plan, bool give_back) {
  std::optional<GsiFile> bases;
  std::vector<NamedSite> sites = model.weights().sites();
  const auto basis_of = [&](const std::string& site) -> const GsiSite& {
    if (!bases) {
      bases = GsiFile::open(plan.bases);
      bases->check_model(model);
    }
    const GsiSite* basis = bases->find(site);
    if (!basis) fail("{}: {}: no basis for this site", plan.bases, site);
    return *basis;
  };
  for (const SitePlan& planned : plan.sites) {
    if (planned.mode == SiteMode::Dense) continue;
    const auto at = std::find_if(sites.begin(), sites.end(), [&](const NamedSite& s) { return s.name == planned.site; });
    if (at == sites.end()) fail("{}: the model has no such site", planned.site);
    std::unique_ptr<LinearSite>& site = *at->site;
    if (!dynamic_cast<DenseSite*>(site.get())) fail("{}: the site is not dense any more", planned.site);
    if (planned.mode == SiteMode::Gated) {
      const GsiSite& basis = basis_of(planned.site);
      check_gate(*site, basis.basis, basis.images, planned.k);
      site = std::make_unique<GatedSite>(std::move(site), basis.basis, basis.images, planned.k, planned.epsilon, model.pool());
      continue;
    }
    const GsiSite* basis = planned.rotated ? &basis_of(planned.site) : nullptr;
    if (basis && !can_rotate(*site, *basis))
      fail("{}: {}: expected a basis of all {} directions with images of a type that can be graded (calibrate -k {} --type q8_0)",
           plan.bases, planned.site, site->in(), site->in());
    if (!basis && !can_grade(*site)) fail("{}: its weights are of a type that cannot be graded", planned.site);
    auto graded = std::make_unique<GradedSite>(std::move(site), planned.threshold, model.pool(), basis);
    if (planned.rescore > graded->out())
      fail("{}: rescore: expected at most its {} outputs, found {}", planned.site, graded->out(), planned.rescore);
    if (planned.rescore > 0)
      site = std::make_unique<RescoredSite>(std::move(graded), planned.rescore);
    else
      site = std::move(graded);
    if (give_back)
      for (const Linear& map : site->maps())
        if (map.weight.packed)
          free_pages(map.weight.packed, static_cast<std::size_t>(map.weight.tiles()) *
                                            packed_tile_bytes(map.weight.dtype, map.weight.cols));
  }
}

std::optional<KvCompression> plan_compression(const std::string& path) {
  return read_plan(path).cache.compression();
}

void apply_plan(Model& model, const std::string& path) {
  LoadedModel& target = loaded(model);
  const Plan plan = read_plan(path);
  if (const std::string found = fingerprint(target.file()); found != plan.model)
    fail("{}: made for {} ({}), whose weights are not those of {} ({}): tune on this model", path, plan.model_name, plan.model,
         model.path(), found);
  try {
    apply_sites(target, plan, true);
  } catch (const Error& error) {
    fail("{}: {}", path, error.what());
  }
}

}  // namespace narrows
