#include "carillon/graph/text.h"

#include <algorithm>
#include <cstdint>

namespace carillon::graph {

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t more = lead < 0x80       ? 0
                             : lead >> 5 == 6  ? 1
                             : lead >> 4 == 14 ? 2
                             : lead >> 3 == 30 ? 3
                                               : 9;
    if (more == 9 || i + more >= text.size()) return false;
    std::uint32_t code = more == 0 ? lead : lead & (0x3fU >> more);
    for (std::size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3fU);
    }
    constexpr std::uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += more + 1;
  }
  return true;
}

bool is_text(std::string_view name) {
  return is_utf8(name) &&
         std::ranges::none_of(name, [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; });
}

}  // namespace carillon::graph
