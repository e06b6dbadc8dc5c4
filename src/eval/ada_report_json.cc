#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "eval/ada_report.h"

namespace narrows {
namespace {

using Json = nlohmann::ordered_json;

Json layer_json(const AdaLayerReport& layer, std::size_t index) {
  Json json{{"layer", index},
            {"independent_representatives", layer.independent},
            {"representatives", layer.representatives}};
  if (index > 0) {
    json["independent_jaccard"] = layer.independent_jaccard;
    json["jaccard"] = layer.jaccard;
    json["removed"] = layer.removed;
    json["added"] = layer.added;
    json["churn"] = layer.churn;
  }
  json["independent_operations"] = layer.independent_operations;
  json["operations"] = layer.operations;
  json["independent_seconds"] = layer.independent_seconds;
  json["seconds"] = layer.seconds;
  json["holds_independent"] = layer.holds_independent;
  return json;
}

Json setting_json(const AdaSettingReport& setting) {
  Json json{{"tokens", setting.tokens},
            {"windows", setting.windows},
            {"tau", std::stod(fmt::format("{}", setting.tau))},  // 0.3, not 0.30000001192
            {"independent_share", setting.independent_share()},
            {"share", setting.share()},
            {"operation_ratio", setting.operation_ratio()},
            {"operations_saved", setting.operations_saved()},
            {"time_ratio", setting.time_ratio()},
            {"ceiling", setting.ceiling()},
            {"holds_independent", setting.holds_independent()}};
  Json& layers = json["layers"] = Json::array();
  for (std::size_t i = 0; i < setting.layers.size(); ++i) layers.push_back(layer_json(setting.layers[i], i));
  return json;
}

}  // namespace

std::string ada_report_json(const AdaReport& report) {
  Json json{{"model", report.model},
            {"layers", report.layers},
            {"d", report.d},
            {"threads", report.threads},
            {"rounds", report.rounds}};
  for (const AdaSettingReport& setting : report.settings) json["settings"].push_back(setting_json(setting));
  return json.dump(2) + '\n';
}

}  // namespace narrows
