// The report as a page: inline style and plots, nothing fetched.
#include <fmt/format.h>

#include "eval/gsi_report.h"
#include "eval/html_page.h"
#include "eval/svg_plot.h"

namespace narrows {
namespace {

constexpr std::string_view kLight = "--paper: #b35900; --held-out: #1f5fbf;";
constexpr std::string_view kDark = "--paper: #f0a050; --held-out: #7fb0ff;";
constexpr std::string_view kStyle = R"(
th.paper, th.held-out { text-align: left; } td.first, th.first { border-left: 2px solid var(--rule); }
b.paper, th.paper, figcaption .paper { color: var(--paper); } b.held-out, th.held-out, figcaption .held-out { color: var(--held-out); }
svg .paper { --c: var(--paper); } svg .held-out { --c: var(--held-out); }
)";
constexpr std::string_view kLegend = R"(<b class="paper">paper</b> and <b class="held-out">held-out</b>)";

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string ratio(double value) {
  return value < 10 ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}
std::string millions(double count) { return fmt::format("{:.2f}", count / 1e6); }

std::string setting_name(const GsiSettingReport& s) {
  return s.is_static() ? fmt::format("static, k {}", s.k) : fmt::format("k {}, ε {}", s.k, s.epsilon);
}

// Cells of a row; the first of a protocol's carries a rule.
std::string cells(std::string_view tag, const std::vector<std::string>& texts) {
  std::string row;
  for (std::size_t i = 0; i < texts.size(); ++i)
    row += fmt::format("<{}{}>{}</{}>", tag, i == 0 ? " class=\"first\"" : "", texts[i], tag);
  return row;
}

std::string table_head(const GsiReport& report, std::string_view first,
                       const std::vector<std::string>& columns) {
  std::string head = fmt::format("<div class=\"wide\"><table>\n<thead><tr><th></th>");
  for (const GsiProtocolReport& p : report.protocols)
    head += fmt::format("<th class=\"{0} first\" colspan=\"{1}\">{0}</th>", p.name, columns.size());
  head += fmt::format("</tr>\n<tr><th>{}</th>", first);
  for (std::size_t i = 0; i < report.protocols.size(); ++i) head += cells("th", columns);
  return head + "</tr></thead>\n<tbody>\n";
}

std::string settings_table(const GsiReport& report) {
  std::vector<std::string> columns = {"fast",       "fast, plain", "paper ×", "honest ×", "bytes",
                                      "10⁶ params", "ppl ratio",   "top-1",   "KL ≥"};
  if (report.greedy > 0) columns.push_back(fmt::format("greedy of {}", report.greedy));
  std::string text = table_head(report, "setting", columns);
  for (std::size_t i = 0; i < report.protocols[0].settings.size(); ++i) {
    text += fmt::format("<tr><td>{}</td>", setting_name(report.protocols[0].settings[i]));
    for (const GsiProtocolReport& p : report.protocols) {
      const GsiSettingReport& s = p.settings[i];
      std::vector<std::string> row = {percent(s.fast_fraction),
                                      percent(s.plain_fast_fraction),
                                      fmt::format("{:.2f}", s.reads.paper_speedup()),
                                      fmt::format("{:.2f}", s.reads.honest_speedup()),
                                      percent(s.reads.bytes_fraction()),
                                      millions(s.reads.elements),
                                      ratio(s.perplexity_ratio),
                                      percent(s.top1_agreement),
                                      fmt::format("{:.1e}", s.kl_at_least)};
      if (report.greedy > 0)
        row.push_back(s.greedy_equal == report.greedy ? "same" : fmt::format("{}", s.greedy_equal));
      text += cells("td", row);
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string sites_table(const GsiReport& report) {
  std::string text = table_head(
      report, "site",
      {"k", "ρ 5 %", "25 %", "50 %", "75 %", "95 %", "fast", "kB", "10⁶ params", "paper ×", "honest ×"});
  for (std::size_t i = 0; i < report.protocols[0].settings[0].sites.size(); ++i) {
    text += fmt::format("<tr><td>{}</td>", report.protocols[0].settings[0].sites[i].name);
    for (const GsiProtocolReport& p : report.protocols) {
      const GsiSiteReport& s = p.settings[report.site_setting].sites[i];
      std::vector<std::string> row = {s.k > 0 ? fmt::format("{}", s.k) : "–"};
      for (const double q : kReportQuantiles)
        row.push_back(s.counts.tokens() > 0 ? fmt::format("{:.4f}", s.counts.quantile(q)) : "–");
      row.insert(row.end(), {percent(s.fast_fraction()), fmt::format("{:.1f}", s.reads.bytes / 1e3),
                             millions(s.reads.elements), fmt::format("{:.2f}", s.reads.paper_speedup()),
                             fmt::format("{:.2f}", s.reads.honest_speedup())});
      text += cells("td", row);
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

// Perplexity against bytes: a line for each k, its points by ε; a cross for the static projection.
std::string trade_off(const GsiReport& report) {
  Axis x, y{.log = true};
  x.include(1);
  y.include(1);
  for (const GsiProtocolReport& p : report.protocols)
    for (const GsiSettingReport& s : p.settings) {
      x.include(s.reads.bytes_fraction());
      y.include(s.perplexity_ratio);
    }
  SvgPlot plot(860, 420, x, y, "bytes read / dense", "perplexity / dense",
               "Perplexity ratio against bytes read");
  plot.vertical(1);
  plot.horizontal(1);
  for (const GsiProtocolReport& p : report.protocols) {
    std::vector<Point> line;
    for (std::size_t i = 0; i < p.settings.size(); ++i) {
      const GsiSettingReport& s = p.settings[i];
      const Point at{s.reads.bytes_fraction(), s.perplexity_ratio};
      const std::string title =
          fmt::format("{}, {}: {} of the bytes, perplexity × {}", p.name, setting_name(s),
                      percent(s.reads.bytes_fraction()), ratio(s.perplexity_ratio));
      if (s.is_static()) {
        plot.cross(p.name, at, title);
        plot.label(p.name, at, "static");
        continue;
      }
      line.push_back(at);
      const bool last =
          i + 1 == p.settings.size() || p.settings[i + 1].k != s.k || p.settings[i + 1].is_static();
      if (last) {
        plot.line(p.name, line);
        plot.label(p.name, at, fmt::format("k {}", s.k));
        line.clear();
      }
      plot.dot(p.name, at, title);
    }
  }
  return plot.finish();
}

// One plot for each kind of site that layers have.
template <typename Draw>
std::string by_kind(const GsiReport& report, const Axis& y, std::string_view y_label, Draw&& draw) {
  std::string text = "<div class=\"grid\">\n";
  for (std::size_t kind = 0; kind < kSiteKindNames.size(); ++kind) {
    const auto of_kind = [&](const GsiProtocolReport& p) {
      std::vector<const GsiSiteReport*> sites;
      for (const GsiSiteReport& s : p.settings[report.site_setting].sites)
        if (static_cast<std::size_t>(s.kind) == kind && s.layer >= 0 && s.counts.tokens() > 0)
          sites.push_back(&s);
      return sites;
    };
    Axis x{.whole = true};
    for (const GsiProtocolReport& p : report.protocols)
      for (const GsiSiteReport* s : of_kind(p)) x.include(s->layer);
    if (x.empty()) continue;
    SvgPlot plot(420, 230, x, y, "layer", y_label,
                 fmt::format("{}: {} over layers", kSiteKindNames[kind], y_label));
    for (const GsiProtocolReport& p : report.protocols)
      if (const auto sites = of_kind(p); !sites.empty()) draw(plot, p.name, sites);
    text += fmt::format("<figure><h3>{}</h3>\n{}</figure>\n", kSiteKindNames[kind], plot.finish());
  }
  return text + "</div>\n";
}

using Sites = std::vector<const GsiSiteReport*>;

template <typename Value>
std::vector<Point> over_layers(const Sites& sites, Value&& value) {
  std::vector<Point> points;
  for (const GsiSiteReport* s : sites) points.push_back({static_cast<double>(s->layer), value(*s)});
  return points;
}

std::string ratio_bands(const GsiReport& report, float epsilon) {
  Axis y{.log = true};
  y.include(1);
  if (epsilon > 0) y.include(epsilon);
  for (const GsiProtocolReport& p : report.protocols)
    for (const GsiSiteReport& s : p.settings[report.site_setting].sites)
      if (s.layer >= 0 && s.counts.tokens() > 0)
        for (const double q : kReportQuantiles) y.include(std::max(s.counts.quantile(q), 1e-3));
  return by_kind(report, y, "ρ", [&](SvgPlot& plot, const std::string& name, const Sites& sites) {
    const auto quantile = [&](std::size_t i) {
      return over_layers(sites,
                         [i](const GsiSiteReport& s) { return s.counts.quantile(kReportQuantiles[i]); });
    };
    if (epsilon > 0) plot.horizontal(epsilon);
    plot.band(name, "outer", quantile(0), quantile(4));
    plot.band(name, "inner", quantile(1), quantile(3));
    plot.line(name, quantile(2));
  });
}

std::string fast_fractions(const GsiReport& report) {
  Axis y;
  y.include(0);
  y.include(1);
  return by_kind(report, y, "fast fraction", [](SvgPlot& plot, const std::string& name, const Sites& sites) {
    const auto points = over_layers(sites, [](const GsiSiteReport& s) { return s.fast_fraction(); });
    plot.line(name, points);
    for (const Point& p : points)
      plot.dot(name, p, fmt::format("{}, layer {:.0f}: {}", name, p.x, percent(p.y)));
  });
}

}  // namespace

std::string gsi_report_html(const GsiReport& report) {
  const GsiSettingReport& chosen = report.protocols[0].settings[report.site_setting];
  std::string page = page_head("Gated subspace inference", kLight, kDark, kStyle);
  page += fmt::format("<h1>Gated subspace inference: {}</h1>\n<p>Windows of {} tokens, bases by {}.</p>\n",
                      escape_html(report.model), report.context, report.method);
  for (const GsiProtocolReport& p : report.protocols)
    page += fmt::format("<p><b class=\"{0}\">{0}</b>: {1}. Dense perplexity {2:.3f} over {3} tokens.</p>\n",
                        p.name, escape_html(p.meaning), p.dense_perplexity, p.scored_tokens);
  page += "<h2>Settings</h2>\n" + settings_table(report);
  page +=
      R"(<p>Fast: the share of tokens on the fast path, by the weight bytes of sites. Paper ×: the speed-up as the paper counts
it, the projection left out. Honest ×: dense weight bytes over the bytes really read, below 1 where more is read than
before. KL: a lower bound, in nats. Greedy: tokens equal to the dense model's before the first that is not. Static: no
gate, every token on the fast path.</p>
)";
  page += fmt::format(
      "<h2>Perplexity against bytes read</h2>\n<figure>\n{}<figcaption>{}; along each line ε grows. "
      "Better is left and low; right of 1 the method reads more than the dense "
      "model.</figcaption></figure>\n",
      trade_off(report), kLegend);
  page += fmt::format(
      "<h2>Distance from the subspace, ρ, at {}</h2>\n{}<p>{}: median, 25 to 75 % and 5 to 95 % of the "
      "tokens; "
      "dashed: ε.</p>\n",
      setting_name(chosen), ratio_bands(report, chosen.epsilon), kLegend);
  page += fmt::format("<h2>Fast fraction at {}</h2>\n{}<p>{}.</p>\n", setting_name(chosen),
                      fast_fractions(report), kLegend);
  page += fmt::format("<h2>Sites at {}</h2>\n{}", setting_name(chosen), sites_table(report));
  return page.append(kPageEnd);
}

}  // namespace narrows
