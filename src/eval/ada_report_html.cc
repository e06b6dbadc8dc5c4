// The report as a page: inline style and plots, nothing fetched.
#include <fmt/format.h>

#include "eval/ada_report.h"
#include "eval/html_page.h"
#include "eval/svg_plot.h"

namespace narrows {
namespace {

constexpr std::string_view kLight =
    "--c0: #1f5fbf; --c1: #b35900; --c2: #1d7a46; --c3: #8a3fa0; --c4: #a3223c;";
constexpr std::string_view kDark =
    "--c0: #7fb0ff; --c1: #f0a050; --c2: #6cc592; --c3: #c99be0; --c4: #f08095;";
constexpr std::size_t kColours = 5;
constexpr std::string_view kStyle = R"(
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
b[class] { color: var(--c); } svg .dashed .line { stroke-dasharray: 5 4; stroke-width: 1.2; }
)";

using Settings = std::vector<const AdaSettingReport*>;  // of one T

std::string colour(std::size_t i) { return fmt::format("c{}", i % kColours); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string span(AdaSettingReport::Span s) { return fmt::format("{:.2f}–{:.2f}", s.least, s.most); }

std::string row(std::string_view tag, const std::vector<std::string>& cells) {
  std::string text = "<tr>";
  for (const std::string& cell : cells) text += fmt::format("<{0}>{1}</{0}>", tag, cell);
  return text + "</tr>\n";
}

std::string table(const std::vector<std::string>& head, const std::string& rows) {
  return "<div class=\"wide\"><table>\n<thead>" + row("th", head) + "</thead>\n<tbody>\n" + rows +
         "</tbody></table></div>\n";
}

std::string settings_table(const AdaReport& report) {
  std::string rows;
  for (const AdaSettingReport& s : report.settings)
    rows += row("td", {fmt::format("T {}, τ {}", s.tokens, s.tau), fmt::format("{}", s.windows),
                       fmt::format("{:.3f}", s.independent_share()), fmt::format("{:.3f}", s.share()),
                       span(s.deep(&AdaLayerReport::jaccard)), span(s.deep(&AdaLayerReport::churn)),
                       percent(s.operations_saved()), fmt::format("{:.2f}", s.operation_ratio()),
                       fmt::format("{:.2f}", s.time_ratio()), fmt::format("{:.2f}", s.ceiling()),
                       s.holds_independent() ? "yes" : "NO"});
  return table({"setting", "windows", "r/T, independent", "r/T, cascade", "Jaccard, deep", "churn, deep",
                "operations saved", "operations ×", "time ×", "ceiling ×", "superset"},
               rows);
}

std::string layers_table(const AdaSettingReport& s, std::int64_t d) {
  const auto per_token = [&](double count) {
    return fmt::format("{:.3f}", count / static_cast<double>(s.tokens));
  };
  const auto giga = [](std::int64_t operations) {
    return fmt::format("{:.3f}", static_cast<double>(operations) / 1e9);
  };
  const auto milli = [](double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); };
  std::string rows;
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const AdaLayerReport& l = s.layers[i];
    const auto from_second = [&](const std::string& text) { return i == 0 ? "–" : text; };
    rows +=
        row("td", {fmt::format("{}", i), per_token(l.independent), per_token(l.representatives),
                   from_second(fmt::format("{:.3f}", l.independent_jaccard)),
                   from_second(fmt::format("{:.3f}", l.jaccard)), from_second(percent(l.churn)),
                   from_second(fmt::format("{:.1f}", l.removed)), from_second(fmt::format("{:.1f}", l.added)),
                   giga(l.independent_operations), giga(l.operations), milli(l.independent_seconds),
                   milli(l.seconds), l.holds_independent ? "yes" : "NO"});
  }
  return fmt::format(
             "<h3>τ {}</h3>\n<p>Gram operations in 10⁹ multiply-adds (d = {}), sums over {} windows.</p>\n",
             s.tau, d, s.windows) +
         table({"layer", "r/T, independent", "cascade", "Jaccard, independent", "cascade", "churn", "removed",
                "added", "10⁹ operations, independent", "cascade", "ms, independent", "cascade", "superset"},
               rows);
}

struct Curve {
  double (*figure)(const AdaSettingReport&, const AdaLayerReport&);
  bool dashed;
};

std::string plot(const Settings& settings, std::string_view label, bool from_second,
                 std::vector<double> marks, const std::vector<Curve>& curves) {
  Axis x{.whole = true}, y;
  for (const double mark : marks) y.include(mark);
  const auto points = [&](const AdaSettingReport& s, const Curve& curve) {
    std::vector<Point> line;
    for (std::size_t i = from_second; i < s.layers.size(); ++i)
      line.push_back({static_cast<double>(i), curve.figure(s, s.layers[i])});
    return line;
  };
  for (const AdaSettingReport* s : settings)
    for (const Curve& curve : curves)
      for (const Point& p : points(*s, curve)) {
        x.include(p.x);
        y.include(p.y);
      }
  if (x.empty()) return "";  // one layer
  SvgPlot svg(560, 280, x, y, "layer", label, fmt::format("{} over layers", label));
  for (std::size_t i = 0; i < settings.size(); ++i)
    for (const Curve& curve : curves) {
      const auto line = points(*settings[i], curve);
      svg.line(colour(i) + (curve.dashed ? " dashed" : ""), line);
      if (curve.dashed) continue;
      for (const Point& p : line)
        svg.dot(colour(i), p, fmt::format("τ {}, layer {:.0f}: {:.3g}", settings[i]->tau, p.x, p.y));
    }
  return fmt::format("<figure><h3>{}</h3>\n{}</figure>\n", label, svg.finish());
}

std::string plots(const Settings& settings) {
  std::string legend;
  for (std::size_t i = 0; i < settings.size(); ++i)
    legend += fmt::format("{}<b class=\"{}\">τ {}</b>", i == 0 ? "" : ", ", colour(i), settings[i]->tau);
  std::string text = "<div class=\"grid\">\n";
  text += plot(settings, "r/T", false, {0},
               {{[](const AdaSettingReport& s, const AdaLayerReport& l) {
                   return l.representatives / static_cast<double>(s.tokens);
                 },
                 false},
                {[](const AdaSettingReport& s, const AdaLayerReport& l) {
                   return l.independent / static_cast<double>(s.tokens);
                 },
                 true}});
  text +=
      plot(settings, "Jaccard index with the layer before", true, {1},
           {{[](const AdaSettingReport&, const AdaLayerReport& l) { return l.jaccard; }, false},
            {[](const AdaSettingReport&, const AdaLayerReport& l) { return l.independent_jaccard; }, true}});
  text += plot(settings, "churn", true, {0},
               {{[](const AdaSettingReport&, const AdaLayerReport& l) { return l.churn; }, false}});
  text += plot(
      settings, "cascade / independent", true, {0, 1},
      {{[](const AdaSettingReport&, const AdaLayerReport& l) { return l.seconds / l.independent_seconds; },
        false},
       {[](const AdaSettingReport&, const AdaLayerReport& l) {
          return static_cast<double>(l.operations) / static_cast<double>(l.independent_operations);
        },
        true}});
  return text +
         fmt::format(
             "</div>\n<p>{}. r/T and Jaccard: solid by cascade, dashed independent. Last: solid time, dashed "
             "Gram operations.</p>\n",
             legend);
}

}  // namespace

std::string ada_report_html(const AdaReport& report) {
  std::string page = page_head("Representative tokens", kLight, kDark, kStyle);
  page += fmt::format(
      "<h1>Representative tokens: {}</h1>\n<p>A token is a representative if its largest cosine with all "
      "preceding "
      "tokens is below 1 − τ². Chosen from the input of each of {} layers, independently (all pairs, every "
      "layer) or "
      "by cascade (from the layer before). Times: medians of {} alternating rounds on {} threads, the "
      "division by norms, "
      "which both need, left out.</p>\n<h2>Settings</h2>\n{}",
      escape_html(report.model), report.layers, report.rounds, report.threads, settings_table(report));
  page +=
      R"(<p>Deep: least and largest over the deeper half of the layers, by cascade. Churn: (removed + added) / inherited.
Operations × and time ×: independent over cascade, all layers. Ceiling: L / (1 + (L − 1) r/T). Superset: whether the
cascade's set holds the independent one at every layer.</p>
)";
  for (std::size_t i = 0; i < report.settings.size();) {
    Settings same;
    const std::int64_t tokens = report.settings[i].tokens;
    for (; i < report.settings.size() && report.settings[i].tokens == tokens; ++i)
      same.push_back(&report.settings[i]);
    page += fmt::format("<h2>T {}</h2>\n{}", tokens, plots(same));
    for (const AdaSettingReport* setting : same) page += layers_table(*setting, report.d);
  }
  return page.append(kPageEnd);
}

}  // namespace narrows
