// Plots in SVG for a page of its own style: classes "rule", "mark", "line", "dot", "cross", "label", bands'
// own, inside a group that carries the series' name as its class.
#pragma once
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

std::string escape_html(std::string_view text);

struct Point {
  double x, y;
};

// A range of values; what is not finite, or not positive where log, does not count.
struct Axis {
  bool log = false, whole = false;  // whole: ticks at whole numbers only
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void include(double value);
  bool empty() const { return !(low <= high); }
  std::vector<double> ticks() const;
  double share(double value) const;  // 0 at low, 1 at high, clamped
};

class SvgPlot {
 public:
  // Axes are widened a little unless they end at whole numbers.
  SvgPlot(int width, int height, Axis x, Axis y, std::string_view x_label, std::string_view y_label,
          std::string_view title);
  void vertical(double x);  // dashed
  void horizontal(double y);
  void line(std::string_view series, const std::vector<Point>& points);
  void band(std::string_view series, std::string_view style, const std::vector<Point>& lower,
            const std::vector<Point>& upper);
  void dot(std::string_view series, Point at, std::string_view title);
  void cross(std::string_view series, Point at, std::string_view title);
  void label(std::string_view series, Point at, std::string_view text);
  std::string finish() const;

 private:
  std::string at(Point p) const;  // "12.3,45.6"
  double px(double x) const;
  double py(double y) const;
  void add(std::string_view series, const std::string& element);

  int width_, height_;
  Axis x_, y_;
  std::string svg_;
};

}  // namespace narrows
