#include "carillon/graph/text.h"

#include <algorithm>
#include <cstdint>

namespace carillon::graph {

namespace {

// Bytes of the character that `text`, which is not empty, begins with; 0 where that is none.
std::size_t character_at(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t more = lead < 0x80       ? 0
                           : lead >> 5 == 6  ? 1
                           : lead >> 4 == 14 ? 2
                           : lead >> 3 == 30 ? 3
                                             : 9;
  if (more == 9 || more >= text.size()) return 0;
  std::uint32_t code = more == 0 ? lead : lead & (0x3fU >> more);
  for (std::size_t k = 1; k <= more; ++k) {
    const auto next = static_cast<unsigned char>(text[k]);
    if (next >> 6 != 2) return 0;
    code = code << 6 | (next & 0x3fU);
  }
  constexpr std::uint32_t least[] = {0, 0x80, 0x800, 0x10000};
  if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
  return more + 1;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = character_at(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

bool is_text(std::string_view name) {
  return is_utf8(name) &&
         std::ranges::none_of(name, [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; });
}

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  while (!text.empty()) {
    const std::size_t size = character_at(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (size == 0 || (byte < 0x20 && byte != '\n') || byte == 0x7f) {
      constexpr std::string_view digits = "0123456789abcdef";
      ((out += "\\x") += digits[byte >> 4]) += digits[byte & 15];
      text.remove_prefix(1);
      continue;
    }
    out += text.substr(0, size);
    text.remove_prefix(size);
  }
  if (out.size() <= longest) return out;
  // Neither part begins or ends within a character.
  const auto within = [&](std::size_t at) { return static_cast<unsigned char>(out[at]) >> 6 == 2; };
  std::size_t head = longest - longest / 4;
  std::size_t tail = out.size() - longest / 4;
  while (head > 0 && within(head)) --head;
  while (tail < out.size() && within(tail)) ++tail;
  return out.replace(head, tail - head, " ... ");
}

}  // namespace carillon::graph
