#include "eval/html_page.h"

#include <fmt/format.h>

#include "eval/svg_plot.h"

namespace narrows {
namespace {

constexpr std::string_view kBasicStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; background: var(--page); color: var(--ink); margin: 2em auto;
  max-width: 72em; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin: 2.2em 0 .6em; } h3 { font-size: 1em; margin: .6em 0 0; }
p { max-width: 48em; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85em; }
th, td { padding: .2em .6em; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { font-weight: 600; color: var(--muted); } th:first-child, td:first-child { text-align: left; }
figure { margin: 0; } figcaption { color: var(--muted); font-size: .85em; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(23em, 1fr)); gap: 1em; }
svg { width: 100%; height: auto; display: block; font: 11px system-ui, sans-serif; }
svg text { fill: var(--muted); } svg .rule { stroke: var(--rule); fill: none; } svg .mark { stroke: var(--muted); stroke-dasharray: 4 3; fill: none; }
svg .line { stroke: var(--c); stroke-width: 1.6; fill: none; } svg .dot { fill: var(--c); stroke: var(--page); }
svg .cross { stroke: var(--c); stroke-width: 2; fill: none; } svg .outer { fill: var(--c); opacity: .14; stroke: none; }
svg .inner { fill: var(--c); opacity: .28; stroke: none; } svg text.name { fill: var(--c); }
)";

}  // namespace

std::string page_head(std::string_view title, std::string_view light, std::string_view dark,
                      std::string_view style) {
  return fmt::format(R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{}</title>
<style>
:root {{ color-scheme: light dark; --page: #fff; --ink: #1c1e21; --muted: #62676d; --rule: #dcdfe3; {} }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #16181b; --ink: #e6e8ea; --muted: #9aa0a6; --rule: #34383d; {} }} }}{}{}</style>
</head>
<body>
)",
                     escape_html(title), light, dark, kBasicStyle, style);
}

}  // namespace narrows
