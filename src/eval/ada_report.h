// Representative tokens on a model and a text: how many each layer has, how the set changes from layer to
// layer, and what choosing them costs, independently at every layer or by cascade.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/loaded_model.h"

namespace narrows {

struct AdaReportOptions {
  std::vector<float> tau = {0.2f, 0.3f, 0.5f};
  std::vector<std::int64_t> tokens = {512};  // T: windows of so many, BOS included
  std::int64_t windows = 4;                  // of each T, at most; incomplete ones are left out
  int rounds = 3;                            // of timing; their medians count
  std::function<void(double share, const std::string& what)> progress = {};
};

// Counts are means over the windows; operations and seconds are sums.
struct AdaLayerReport {
  double independent = 0, representatives = 0;  // r of either way
  // With the layer before, of either way; not in the first layer, whose set the cascade takes from the other.
  double independent_jaccard = 0, jaccard = 0;
  double removed = 0, added = 0, churn = 0;                 // churn: (removed + added) / inherited
  std::int64_t independent_operations = 0, operations = 0;  // multiply-adds of cosines
  double independent_seconds = 0, seconds = 0;
  bool holds_independent = true;  // Proposition 4
};

// One T and one tau.
struct AdaSettingReport {
  std::int64_t tokens = 0, windows = 0;
  float tau = 0;
  std::vector<AdaLayerReport> layers;

  double independent_share() const;  // r/T, mean over layers
  double share() const;
  double operation_ratio() const;  // independent / cascade, all layers
  double operations_saved() const { return 1 - 1 / operation_ratio(); }
  double time_ratio() const;
  double ceiling() const;  // L / (1 + (L - 1) r/T)
  bool holds_independent() const;
  // Least and largest over the deeper half of the layers.
  struct Span {
    double least, most;
  };
  Span deep(double AdaLayerReport::*figure) const;
};

struct AdaReport {
  std::string model;
  int layers = 0, threads = 0, rounds = 0;
  std::int64_t d = 0;
  std::vector<AdaSettingReport> settings;  // by T, then tau
};

// Throws Error: no window of T tokens in the text, T beyond what the model was trained on, a tau out of
// range.
AdaReport ada_report(const std::shared_ptr<Model>& model, std::string_view text,
                     const AdaReportOptions& options);

std::string ada_report_json(const AdaReport& report);  // indented, ends in a line break
std::string ada_report_html(const AdaReport& report);  // one page that needs nothing else

}  // namespace narrows
