#include "plan/gate_choice.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "eval/perplexity.h"
#include "subspace/apply_gsi.h"
#include "subspace/gsi_file.h"

namespace narrows {
namespace {

double squared_norm(const LinearSite& site) {
  double sum = 0;
  std::vector<float> row(static_cast<std::size_t>(site.in()));
  for (const Linear& map : site.maps())
    for (std::int64_t r = 0; r < map.weight.rows; ++r) {
      dequantize(map.weight.dtype, map.weight.data + static_cast<std::size_t>(r) * row_bytes(map.weight.dtype, site.in()),
                 row.data(), site.in());
      for (const float w : row) sum += double{w} * w;
    }
  return sum;
}

}  // namespace

GateChoices GateChoices::measure(const std::shared_ptr<Model>& model, const std::string& bases, const std::string& text,
                                 const std::vector<SiteSensitivity>& sensitivities) {
  GateChoices result;
  std::int64_t most = 0, tokens = 0;
  std::map<std::string, double> energies;
  {
    const GsiFile file = GsiFile::open(bases);
    tokens = file.settings().tokens;
    for (const GsiSite& s : file.sites()) {
      most = std::max(most, s.basis.rows);
      energies[s.name] = s.total_energy / static_cast<double>(std::max<std::int64_t>(tokens, 1));
    }
  }
  for (std::int64_t k = most; k >= 32; k = k / 64 * 32) {  // images in Q8_0 want multiples of 32
    // A threshold that no ratio is below: dense bits, and every ratio counted.
    apply_gsi(*model, {bases, std::numeric_limits<float>::min(), k});
    for (const NamedGate& gate : gated_sites(*model)) gate.site->measure_ratios();
    evaluate(model, text);
    for (const NamedGate& gate : gated_sites(*model)) {
      const auto at = std::find_if(sensitivities.begin(), sensitivities.end(),
                                   [&](const SiteSensitivity& s) { return s.site == gate.name; });
      const double scale = at == sensitivities.end() ? 0 : at->sensitivity;
      result.choices_[gate.name].push_back(
          {gate.site->k(), 8.0 * static_cast<double>(gate.site->basis_bytes()), 8.0 * static_cast<double>(gate.site->image_bytes()),
           8.0 * static_cast<double>(gate.site->dense_bytes()),
           scale * energies[gate.name] * squared_norm(*gate.site) / static_cast<double>(gate.site->in()), gate.site->counts()});
    }
    make_dense(loaded(*model));
  }
  return result;
}

std::optional<SitePlan> GateChoices::choose(const std::string& site, double price) const {
  const auto found = choices_.find(site);
  if (found == choices_.end()) return std::nullopt;
  std::optional<SitePlan> best;
  double least = std::numeric_limits<double>::infinity();
  for (const Choice& c : found->second) {
    least = std::min(least, price * c.dense_bits);
    double error = 0, fast = 0;
    const auto tokens = static_cast<double>(std::max<std::int64_t>(c.counts.tokens(), 1));
    for (int bin = 0; bin < GateCounts::kBins; ++bin) {
      const double share = static_cast<double>(c.counts.bins()[static_cast<std::size_t>(bin)]) / tokens;
      const double ratio = GateCounts::bin_top(bin);
      error += share * ratio * ratio;
      fast += share;
      const double cost = price * (c.basis_bits + fast * c.image_bits + (1 - fast) * c.dense_bits) + c.error_scale * error;
      if (cost >= least || ratio > 1) continue;
      least = cost;
      best = SitePlan{.site = site, .mode = SiteMode::Gated, .k = c.k, .epsilon = static_cast<float>(ratio)};
    }
  }
  return best;
}

}  // namespace narrows
