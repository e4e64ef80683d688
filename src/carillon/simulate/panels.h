#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

// What the plots of runs are drawn with: panels one below the other in one SVG. For the sources of plots
// alone.
namespace carillon::simulate::panels {

// Pixels: of the picture, its margins, and a panel and the gap below it.
inline constexpr double width = 1000, left = 70, right = 20, panel = 220, gap = 70;
inline constexpr double inner = width - left - right;
inline constexpr std::array<const char*, 10> colours{"#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2",
                                                     "#edc948", "#b07aa1", "#9c755f", "#ff9da7", "#8c8c8c"};

std::string opening(double height);
inline constexpr const char* closing = "</svg>\n";

// At a place in pixels; `anchor`: "start", "middle" or "end".
void text(std::string& svg, double x, double y, std::string_view what, const char* anchor = "middle",
          int size = 12);

// The frame of a panel, its title and the labels of its axes, which begin at 0.
void frame(std::string& svg, double top, std::string_view title, std::string_view x_label, double x_most,
           std::string_view y_label, double y_most, bool y_ticks = true);

// The same with a name for each of as many equal parts of the width.
void frame(std::string& svg, double top, std::string_view title, std::span<const std::string> names,
           std::string_view y_label, double y_most);

// Names a colour at the panel's upper right, above it; `line` counts upwards from the frame.
void label(std::string& svg, double top, std::string_view what, const char* colour, std::size_t line);
// The same where the text is to end, in pixels.
void label_at(std::string& svg, double x, double y, std::string_view what, const char* colour);

}  // namespace carillon::simulate::panels
