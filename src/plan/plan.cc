#include "plan/plan.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

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

SitePlan read_site(const std::string& name, const Json& json) {
  SitePlan site;
  site.site = name;
  const std::string mode = json.at("mode");
  const auto at = std::find(kModes.begin(), kModes.end(), mode);
  if (at == kModes.end()) fail("{}: mode: expected dense, graded or gated, found {}", name, mode);
  site.mode = static_cast<SiteMode>(at - kModes.begin());
  if (site.mode == SiteMode::Graded) {
    site.threshold = json.at("threshold");
    site.rotated = json.value("rotated", false);
    site.rescore = json.value("rescore", std::int64_t{0});
    if (!(site.threshold >= 0) || site.rescore < 0) fail("{}: threshold, rescore: expected 0 or more", name);
  }
  if (site.mode == SiteMode::Gated) {
    site.k = json.at("k");
    site.epsilon = json.at("epsilon");
    if (site.k < 1 || !(site.epsilon >= 0)) fail("{}: k, epsilon: expected at least 1 and 0", name);
  }
  return site;
}

// Frees a range of whole pages of packed weights that nothing will read any more.
void free_pages(const std::byte* begin, std::size_t size) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = (reinterpret_cast<std::uintptr_t>(begin) + page - 1) / page * page;
  const auto until = (reinterpret_cast<std::uintptr_t>(begin) + size) / page * page;
  if (from < until) ::madvise(reinterpret_cast<void*>(from), until - from, MADV_DONTNEED);
}

}  // namespace

Plan read_plan(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("{}: cannot open the plan", path);
  try {
    const Json json = Json::parse(in);
    if (!json.contains("narrows_plan")) fail("not a plan: expected one that `narrows tune` wrote");
    if (const int version = json.at("narrows_plan"); version != kPlanVersion)
      fail("version: expected {}, found {}: tune again", kPlanVersion, version);
    Plan plan;
    plan.model = json.at("model");
    plan.model_name = json.at("model_name");
    plan.text = json.value("text", "");
    plan.bases = json.value("bases", "");
    plan.threads = json.value("threads", 0);
    plan.instructions = json.value("instructions", "");
    for (const auto& [name, site] : json.at("sites").items()) plan.sites.push_back(read_site(name, site));
    if (const auto m = json.find("measured"); m != json.end()) {
      plan.measured.tokens = m->value("tokens", std::int64_t{0});
      plan.measured.perplexity_ratio = m->value("perplexity_ratio", 1.0);
      plan.measured.top1_agreement = m->value("top1_agreement", 1.0);
      plan.measured.kl_mean = m->value("kl_mean", 0.0);
      plan.measured.weight_bytes_fraction = m->value("weight_bytes_fraction", 1.0);
      plan.measured.decode_speedup = m->value("decode_speedup", 1.0);
      plan.measured.prefill_speedup = m->value("prefill_speedup", 1.0);
    }
    return plan;
  } catch (const Json::exception& error) {
    fail("{}: not a plan: {}", path, error.what());
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

void apply_plan(Model& model, const std::string& path) {
  LoadedModel& target = loaded(model);
  const Plan plan = read_plan(path);
  if (fingerprint(target.file()) != plan.model)
    fail("{}: made for {}, whose weights are not those of {}: tune on this model", path, plan.model_name, model.path());
  try {
    apply_sites(target, plan, true);
  } catch (const Error& error) {
    fail("{}: {}", path, error.what());
  }
}

}  // namespace narrows
