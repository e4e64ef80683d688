#include "carillon/simulate/panels.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "carillon/base/xml.h"

namespace carillon::simulate::panels {
namespace {

// A round number of steps between 4 and 10 that cover `most`.
double step_for(double most) {
  const double raw = std::max(most, 1e-9) / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0, 10.0})
    if (raw <= m * power) return m * power;
  return 10 * power;
}

void box(std::string& svg, double top, std::string_view title) {
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#444\"/>\n",
                     left, top, inner, panel);
  text(svg, left, top - 8, title, "start", 14);
}

void y_axis(std::string& svg, double top, std::string_view y_label, double y_most, bool ticks) {
  if (ticks) {
    const double y_step = step_for(y_most);
    for (double v = 0; v <= y_most * 1.0001; v += y_step)
      text(svg, left - 6, top + panel - panel * v / y_most + 4, fmt::format("{:g}", v), "end");
  }
  svg += fmt::format(
      "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\" font-size=\"12\">{}</text>\n",
      top + panel / 2, xml_escaped(y_label));
}

}  // namespace

std::string opening(double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
}

void text(std::string& svg, double x, double y, std::string_view what, const char* anchor, int size) {
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
                     anchor, size, xml_escaped(what));
}

void frame(std::string& svg, double top, std::string_view title, std::string_view x_label, double x_most,
           std::string_view y_label, double y_most, bool y_ticks) {
  box(svg, top, title);
  const double x_step = step_for(x_most);
  for (double v = 0; v <= x_most * 1.0001; v += x_step) {
    const double x = left + inner * v / x_most;
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>\n", x,
                       top, top + panel);
    text(svg, x, top + panel + 15, fmt::format("{:g}", v));
  }
  text(svg, left + inner / 2, top + panel + 32, x_label);
  y_axis(svg, top, y_label, y_most, y_ticks);
}

void frame(std::string& svg, double top, std::string_view title, std::span<const std::string> names,
           std::string_view y_label, double y_most) {
  box(svg, top, title);
  const double part = inner / static_cast<double>(names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    text(svg, left + part * (static_cast<double>(i) + 0.5), top + panel + 15, names[i]);
  y_axis(svg, top, y_label, y_most, true);
}

void label(std::string& svg, double top, std::string_view what, const char* colour, std::size_t line) {
  label_at(svg, left + inner - 6, top - 8 - 14 * static_cast<double>(line), what, colour);
}

void label_at(std::string& svg, double x, double y, std::string_view what, const char* colour) {
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"12\" fill=\"{}\">{}</text>\n", x, y,
      colour, xml_escaped(what));
}

}  // namespace carillon::simulate::panels
