#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "eval/gsi_report.h"

namespace narrows {
namespace {

using Json = nlohmann::ordered_json;

// 0.1, not the 0.10000000149 that a float's bits are.
double as_asked(float epsilon) { return std::stod(fmt::format("{}", epsilon)); }

// Bins with tokens, by their upper edges.
Json histogram(const GateCounts& counts) {
  Json bins = Json::array();
  for (int i = 0; i < GateCounts::kBins; ++i)
    if (const std::int64_t n = counts.bins()[static_cast<std::size_t>(i)]; n > 0)
      bins.push_back({{"below", GateCounts::bin_top(i)}, {"tokens", n}});
  return bins;
}

void add_reads(Json& json, const Reads& reads) {
  json["paper_speedup"] = reads.paper_speedup();
  json["honest_speedup"] = reads.honest_speedup();
  json["bytes_fraction"] = reads.bytes_fraction();
  json["dense_bytes"] = reads.dense_bytes;
  json["bytes"] = reads.bytes;
  json["dense_parameters"] = reads.dense_elements;
  json["effective_parameters"] = reads.elements;
}

Json site_json(const GsiSiteReport& site) {
  Json json{{"site", site.name},
            {"kind", kSiteKindNames[static_cast<std::size_t>(site.kind)]},
            {"layer", site.layer},
            {"d", site.d},
            {"d_out", site.d_out},
            {"k", site.k},
            {"fast_fraction", site.fast_fraction()}};
  add_reads(json, site.reads);
  if (site.counts.tokens() == 0) return json;  // no ratio was computed
  Json& quantiles = json["rho_quantiles"];
  for (const double q : kReportQuantiles)
    quantiles.push_back({{"share", q}, {"rho", site.counts.quantile(q)}});
  json["rho_histogram"] = histogram(site.counts);
  return json;
}

Json setting_json(const GsiSettingReport& setting, const GsiReport& report) {
  Json json{{"k", setting.k}, {"epsilon", nullptr}, {"static", setting.is_static()}};
  if (!setting.is_static()) json["epsilon"] = as_asked(setting.epsilon);  // infinity is no number in JSON
  json["fast_fraction"] = setting.fast_fraction;
  json["plain_fast_fraction"] = setting.plain_fast_fraction;
  add_reads(json, setting.reads);
  json["perplexity"] = setting.perplexity;
  json["perplexity_ratio"] = setting.perplexity_ratio;
  json["top1_agreement"] = setting.top1_agreement;
  json["kl_at_least"] = setting.kl_at_least;
  if (report.greedy > 0) {
    json["greedy_equal_tokens"] = setting.greedy_equal;
    json["greedy_same"] = setting.greedy_equal == report.greedy;
  }
  Json& fast = json["site_fast_fractions"] = Json::object();
  for (const GsiSiteReport& site : setting.sites) fast[site.name] = site.fast_fraction();
  return json;
}

}  // namespace

std::string gsi_report_json(const GsiReport& report) {
  const GsiSettingReport& chosen = report.protocols[0].settings[report.site_setting];
  Json json{{"model", report.model},     {"method", report.method},
            {"context", report.context}, {"greedy_tokens", report.greedy},
            {"site_k", chosen.k},        {"site_epsilon", as_asked(chosen.epsilon)}};
  for (const GsiProtocolReport& p : report.protocols) {
    Json& protocol = json["protocols"][p.name];
    protocol = {{"meaning", p.meaning},
                {"calibration_tokens", p.calibration_tokens},
                {"evaluated_tokens", p.evaluated_tokens},
                {"scored_tokens", p.scored_tokens},
                {"dense_perplexity", p.dense_perplexity}};
    for (const GsiSettingReport& setting : p.settings)
      protocol["settings"].push_back(setting_json(setting, report));
    for (const GsiSiteReport& site : p.settings[report.site_setting].sites)
      protocol["sites"].push_back(site_json(site));
  }
  return json.dump(2) + "\n";
}

}  // namespace narrows
