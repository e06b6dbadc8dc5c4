#include "eval/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace narrows {
namespace {

constexpr double kLeft = 58, kRight = 14, kTop = 10, kBottom = 38;  // margins
constexpr int kTicks = 6;

// 1, 2 or 5 times a power of ten, at least `step`.
double round_step(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= step * (1 - 1e-9)) return m * power;
  return 10 * power;
}

Axis widened(Axis axis) {
  if (axis.empty()) axis.low = axis.high = 1;
  if (axis.log) {
    const double room = std::max(std::pow(axis.high / axis.low, 0.04), 1.02);
    axis.low /= room;
    axis.high *= room;
  } else if (axis.whole) {
    if (axis.low == axis.high) axis.high += 1;
  } else {
    const double room = std::max(0.04 * (axis.high - axis.low), 1e-3 * std::max(std::abs(axis.high), 1.0));
    axis.low -= room;
    axis.high += room;
  }
  return axis;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '&')
      escaped += "&amp;";
    else if (c == '"')
      escaped += "&quot;";
    else
      escaped += c;
  }
  return escaped;
}

void Axis::include(double value) {
  if (!std::isfinite(value) || (log && value <= 0)) return;
  low = std::min(low, value);
  high = std::max(high, value);
}

double Axis::share(double value) const {
  if (log) return std::clamp(std::log(std::max(value, low) / low) / std::log(high / low), 0.0, 1.0);
  return std::clamp((value - low) / (high - low), 0.0, 1.0);
}

std::vector<double> Axis::ticks() const {
  std::vector<double> ticks;
  if (log && high / low > 20) {  // powers of ten, not all of them where there are many
    const double step = std::max(1.0, std::ceil(std::log10(high / low) / kTicks));
    for (double e = std::ceil(std::log10(low)); e <= std::log10(high); e += step)
      ticks.push_back(std::pow(10, e));
  } else if (log && high / low > 2) {
    for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
      for (const double m : {1.0, 2.0, 5.0})
        if (m * power >= low && m * power <= high) ticks.push_back(m * power);
  } else {
    const double step = std::max(round_step((high - low) / kTicks), whole ? 1.0 : 0.0);
    for (double i = std::ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12); ++i)
      ticks.push_back(i * step + 0.0);  // no -0
  }
  return ticks;
}

SvgPlot::SvgPlot(int width, int height, Axis x, Axis y, std::string_view x_label, std::string_view y_label,
                 std::string_view title)
    : width_(width), height_(height), x_(widened(x)), y_(widened(y)) {
  svg_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
      width, height, escape_html(title));
  const double bottom = height - kBottom, right = width - kRight;
  for (const double t : x_.ticks())
    svg_ += fmt::format(
        "<path class=\"rule\" d=\"M{0:.1f} {1}V{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4:.4g}</text>\n",
        px(t), kTop, bottom, bottom + 14, t);
  for (const double t : y_.ticks())
    svg_ += fmt::format(
        "<path class=\"rule\" d=\"M{1} {0:.1f}H{2}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:.4g}</text>\n",
        py(t), kLeft, right, kLeft - 5, py(t) + 4, t);
  svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + right) / 2,
                      height - 8, escape_html(x_label));
  svg_ +=
      fmt::format("<text transform=\"translate(12 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                  (kTop + bottom) / 2, escape_html(y_label));
}

double SvgPlot::px(double x) const { return kLeft + x_.share(x) * (width_ - kLeft - kRight); }
double SvgPlot::py(double y) const { return height_ - kBottom - y_.share(y) * (height_ - kTop - kBottom); }
std::string SvgPlot::at(Point p) const { return fmt::format("{:.1f},{:.1f}", px(p.x), py(p.y)); }

void SvgPlot::add(std::string_view series, const std::string& element) {
  svg_ += fmt::format("<g class=\"{}\">{}</g>\n", escape_html(series), element);
}

void SvgPlot::vertical(double x) {
  svg_ += fmt::format("<path class=\"mark\" d=\"M{:.1f} {}V{}\"/>\n", px(x), kTop, height_ - kBottom);
}

void SvgPlot::horizontal(double y) {
  svg_ += fmt::format("<path class=\"mark\" d=\"M{} {:.1f}H{}\"/>\n", kLeft, py(y), width_ - kRight);
}

void SvgPlot::line(std::string_view series, const std::vector<Point>& points) {
  std::string list;
  for (const Point& p : points) list += at(p) + ' ';
  add(series, fmt::format("<polyline class=\"line\" points=\"{}\"/>", list));
}

void SvgPlot::band(std::string_view series, std::string_view style, const std::vector<Point>& lower,
                   const std::vector<Point>& upper) {
  std::string list;
  for (const Point& p : lower) list += at(p) + ' ';
  for (auto p = upper.rbegin(); p != upper.rend(); ++p) list += at(*p) + ' ';
  add(series, fmt::format("<polygon class=\"{}\" points=\"{}\"/>", style, list));
}

void SvgPlot::dot(std::string_view series, Point p, std::string_view title) {
  add(series,
      fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}</title></circle>",
                  px(p.x), py(p.y), escape_html(title)));
}

void SvgPlot::cross(std::string_view series, Point p, std::string_view title) {
  add(series, fmt::format("<path class=\"cross\" d=\"M{:.1f} {:.1f}l8 8m0 -8l-8 8\"><title>{}</title></path>",
                          px(p.x) - 4, py(p.y) - 4, escape_html(title)));
}

void SvgPlot::label(std::string_view series, Point p, std::string_view text) {
  const bool left = px(p.x) > width_ - kRight - 50;
  add(series, fmt::format("<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
                          px(p.x) + (left ? -7 : 7), py(p.y) - 5, left ? "end" : "start", escape_html(text)));
}

std::string SvgPlot::finish() const { return svg_ + "</svg>\n"; }

}  // namespace narrows
