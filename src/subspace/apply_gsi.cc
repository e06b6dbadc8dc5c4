#include "subspace/apply_gsi.h"

#include <algorithm>

#include "base/error.h"
#include "subspace/gsi_file.h"

namespace narrows {

LoadedModel& loaded(Model& model) {
  auto* loaded = dynamic_cast<LoadedModel*>(&model);
  if (!loaded || !loaded->has_weights()) fail("{}: expected a model loaded with its weights", model.path());
  return *loaded;
}

void apply_gsi(Model& model, const GsiOptions& options) {
  LoadedModel& target = loaded(model);
  const GsiFile file = GsiFile::open(options.path);
  file.check_model(target);
  const float epsilon = options.epsilon.value_or(file.settings().epsilon);
  if (!(epsilon >= 0)) fail("epsilon: expected 0 or more, found {}", epsilon);
  if (options.k < 0) fail("k: expected at least 1, or 0 for all directions, found {}", options.k);
  std::vector<NamedSite> sites = target.weights().sites();
  std::int64_t most = 0;
  for (const GsiSite& basis : file.sites()) {
    const auto at = std::find_if(sites.begin(), sites.end(), [&](const NamedSite& s) { return s.name == basis.name; });
    if (at == sites.end()) fail("{}: {}: the model has no such site", file.path(), basis.name);
    if (dynamic_cast<GatedSite*>(at->site->get())) fail("{}: {}: the site is gated already", file.path(), basis.name);
    most = std::max(most, basis.basis.rows);
    // A site narrower than k, or with fewer directions than others in the file, uses what it has.
    const std::int64_t k = options.k > 0 ? std::min(options.k, basis.basis.rows) : basis.basis.rows;
    try {
      check_gate(**at->site, basis.basis, basis.images, k);
    } catch (const Error& error) {
      fail("{}: {}: {}", file.path(), basis.name, error.what());
    }
    *at->site = std::make_unique<GatedSite>(std::move(*at->site), basis.basis, basis.images, k, epsilon, target.pool());
  }
  if (options.k > most) fail("{}: k: expected at most the {} directions of the file, found {}", file.path(), most, options.k);
}

std::vector<NamedGate> gated_sites(Model& model) {
  std::vector<NamedGate> gates;
  for (const NamedSite& s : loaded(model).weights().sites())
    if (auto* gate = dynamic_cast<GatedSite*>(s.site->get())) gates.push_back({s.name, s.kind, s.layer, gate});
  return gates;
}

void make_dense(LoadedModel& model) {
  for (const NamedSite& s : model.weights().sites()) unwrap(*s.site);
}

}  // namespace narrows
