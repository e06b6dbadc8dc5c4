#include "eval/ada_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/measure.h"
#include "generate/layer_walk.h"
#include "selection/representatives.h"
#include "subspace/apply_gsi.h"

namespace narrows {
namespace {

using Tokens = std::vector<TokenRow>;

template <typename Work>
double seconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return seconds_since(start);
}

double jaccard(const Tokens& a, const Tokens& b) {
  Tokens both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(a.size() + b.size() - both.size());
}

// The sets of the layer before, of one window and tau.
struct Before {
  Tokens independent, cascade;
};

// Windows of T tokens through the layers.
class Windows {
 public:
  Windows(LoadedModel& model, std::string_view text, std::int64_t tokens, const AdaReportOptions& options)
      : model_(model),
        options_(options),
        tokens_(tokens),
        walk_(model, text, tokens, tokens * options.windows) {
    count_ = walk_.windows();
    if (walk_.window_tokens(count_ - 1) < tokens) --count_;
    if (count_ == 0)
      fail("the text has {} tokens: expected at least T, {}", walk_.window_tokens(0), tokens);
    before_.resize(static_cast<std::size_t>(count_) * options.tau.size());
    for (const float tau : options.tau) {
      AdaSettingReport& setting = settings_.emplace_back();
      setting.tokens = tokens;
      setting.windows = count_;
      setting.tau = tau;
      setting.layers.resize(static_cast<std::size_t>(model.spec().layers));
    }
  }

  template <typename Progress>
  std::vector<AdaSettingReport> report(Progress&& progress) {
    walk_.pass_embedding();
    const int layers = model_.spec().layers;
    for (int layer = 0; layer < layers; ++layer) {
      for (std::int64_t window = 0; window < count_; ++window) {
        select(layer, window);
        progress(static_cast<double>(layer * count_ + window + 1) / static_cast<double>(layers * count_));
      }
      if (layer + 1 < layers) walk_.pass_layer(layer);
    }
    return std::move(settings_);
  }

 private:
  // Both ways in turn, round after round: whatever else the machine does meets both.
  void select(int layer, std::int64_t window) {
    rows_.assign(walk_.stream(window).data(), tokens_, model_.spec().d, model_.pool(),
                 fmt::format("{}: window {}, layer {}", model_.path(), window, layer));
    const std::size_t taus = options_.tau.size(), first = static_cast<std::size_t>(window) * taus;
    PrecedingMaxima maxima;
    std::vector<Selection> cascades(taus);
    std::vector<double> independent_times;
    std::vector<std::vector<double>> cascade_times(taus);
    const auto independently = [&] {
      independent_times.push_back(seconds([&] { maxima = preceding_maxima(rows_, model_.pool()); }));
    };
    const auto by_cascade = [&] {
      for (std::size_t i = 0; layer > 0 && i < taus; ++i)
        cascade_times[i].push_back(seconds([&] {
          cascades[i] = select_by_cascade(rows_, selection_threshold(options_.tau[i]),
                                          before_[first + i].cascade, model_.pool());
        }));
    };
    for (int round = 0; round < options_.rounds; ++round) {
      if (round % 2 == 0) independently();
      by_cascade();
      if (round % 2 == 1) independently();
    }
    const double independent_time = median(independent_times);
    for (std::size_t i = 0; i < taus; ++i) {
      const Selection independent = maxima.below(selection_threshold(options_.tau[i]));
      const Selection& chosen = layer == 0 ? independent : cascades[i];
      AdaLayerReport& report = settings_[i].layers[static_cast<std::size_t>(layer)];
      add(report, independent, chosen, layer == 0 ? nullptr : &before_[first + i]);
      report.independent_seconds += independent_time;
      report.seconds += layer == 0 ? independent_time : median(cascade_times[i]);
      before_[first + i] = {independent.representatives, chosen.representatives};
    }
  }

  void add(AdaLayerReport& report, const Selection& independent, const Selection& chosen,
           const Before* before) const {
    const double part = 1 / static_cast<double>(count_);
    const Tokens &a = independent.representatives, &b = chosen.representatives;
    report.independent += part * static_cast<double>(a.size());
    report.representatives += part * static_cast<double>(b.size());
    report.independent_operations += independent.cosines * model_.spec().d;
    report.operations += chosen.cosines * model_.spec().d;
    report.holds_independent &= std::includes(b.begin(), b.end(), a.begin(), a.end());
    if (!before) return;
    report.independent_jaccard += part * jaccard(before->independent, a);
    report.jaccard += part * jaccard(before->cascade, b);
    report.removed += part * static_cast<double>(chosen.removed);
    report.added += part * static_cast<double>(chosen.added);
    report.churn += part * static_cast<double>(chosen.removed + chosen.added) /
                    static_cast<double>(before->cascade.size());
  }

  LoadedModel& model_;
  const AdaReportOptions& options_;
  const std::int64_t tokens_;
  LayerWalk walk_;
  std::int64_t count_ = 0;
  UnitRows rows_;
  std::vector<Before> before_;  // [window][tau]
  std::vector<AdaSettingReport> settings_;
};

template <typename Value>
double sum(const std::vector<AdaLayerReport>& layers, Value AdaLayerReport::*figure) {
  double total = 0;
  for (const AdaLayerReport& layer : layers) total += static_cast<double>(layer.*figure);
  return total;
}

}  // namespace

double AdaSettingReport::independent_share() const {
  return sum(layers, &AdaLayerReport::independent) / static_cast<double>(layers.size()) /
         static_cast<double>(tokens);
}

double AdaSettingReport::share() const {
  return sum(layers, &AdaLayerReport::representatives) / static_cast<double>(layers.size()) /
         static_cast<double>(tokens);
}

double AdaSettingReport::operation_ratio() const {
  return sum(layers, &AdaLayerReport::independent_operations) / sum(layers, &AdaLayerReport::operations);
}

double AdaSettingReport::time_ratio() const {
  return sum(layers, &AdaLayerReport::independent_seconds) / sum(layers, &AdaLayerReport::seconds);
}

double AdaSettingReport::ceiling() const {
  const auto count = static_cast<double>(layers.size());
  return count / (1 + (count - 1) * share());
}

bool AdaSettingReport::holds_independent() const {
  return std::all_of(layers.begin(), layers.end(),
                     [](const AdaLayerReport& l) { return l.holds_independent; });
}

AdaSettingReport::Span AdaSettingReport::deep(double AdaLayerReport::*figure) const {
  const std::size_t first = std::min(std::max<std::size_t>(layers.size() / 2, 1), layers.size() - 1);
  Span span{layers[first].*figure, layers[first].*figure};
  for (std::size_t i = first; i < layers.size(); ++i) {
    span.least = std::min(span.least, layers[i].*figure);
    span.most = std::max(span.most, layers[i].*figure);
  }
  return span;
}

AdaReport ada_report(const std::shared_ptr<Model>& model, std::string_view text,
                     const AdaReportOptions& options) {
  LoadedModel& target = loaded(*model);
  const ModelSpec& spec = target.spec();
  if (options.tau.empty() || options.tokens.empty()) fail("tau and T: expected some");
  if (options.windows < 1 || options.rounds < 1) fail("windows and rounds: expected at least 1");
  for (const float tau : options.tau) selection_threshold(tau);
  double work = 0, done = 0;
  for (const std::int64_t tokens : options.tokens) {
    if (tokens < 2) fail("T: expected at least 2, found {}", tokens);
    if (spec.trained_context > 0 && tokens > spec.trained_context)
      fail("{}: T: expected at most {}, the context it was trained on, found {}", target.path(),
           spec.trained_context, tokens);
    work += static_cast<double>(tokens) * static_cast<double>(tokens);
  }

  AdaReport report;
  report.model = std::filesystem::path(target.path()).filename().string();
  report.layers = spec.layers;
  report.d = spec.d;
  report.threads = target.threads();
  report.rounds = options.rounds;
  for (const std::int64_t tokens : options.tokens) {
    const double part = static_cast<double>(tokens) * static_cast<double>(tokens) / work;
    const auto settings = Windows(target, text, tokens, options).report([&](double share) {
      if (options.progress) options.progress(done + part * share, fmt::format("T {}", tokens));
    });
    report.settings.insert(report.settings.end(), settings.begin(), settings.end());
    done += part;
  }
  return report;
}

}  // namespace narrows
