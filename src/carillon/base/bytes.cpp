#include "carillon/base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace carillon {

Result<Bytes> parse_bytes(std::string_view text) {
  const auto wrong = [&] {
    return invalid("'" + std::string(text) +
                   "' is not a size; write for example '512 MiB', '16 GB' or '4096'");
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return wrong();
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  static constexpr std::array<std::pair<std::string_view, double>, 13> units{{{"", 1},
                                                                              {"B", 1},
                                                                              {"kB", 1e3},
                                                                              {"KB", 1e3},
                                                                              {"MB", 1e6},
                                                                              {"GB", 1e9},
                                                                              {"TB", 1e12},
                                                                              {"KiB", 0x1p10},
                                                                              {"MiB", 0x1p20},
                                                                              {"GiB", 0x1p30},
                                                                              {"TiB", 0x1p40},
                                                                              {"M", 0x1p20},
                                                                              {"G", 0x1p30}}};
  for (const auto& [name, scale] : units)
    if (unit == name) {
      const double bytes = std::round(number * scale);
      if (bytes > 0x1p60) return wrong();
      return Bytes{static_cast<std::uint64_t>(bytes)};
    }
  return wrong();
}

std::string to_text(Bytes size) {
  static constexpr std::array<const char*, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(size.count);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, names[unit]);
  return text.data();
}

}  // namespace carillon
