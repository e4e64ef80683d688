#include "carillon/cluster/protocols.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace carillon::cluster {
namespace {

std::optional<std::uint32_t> version_of(std::string_view text) {
  std::uint32_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc{} || end != text.data() + text.size() || version == 0) return std::nullopt;
  return version;
}

}  // namespace

std::string to_text(const Protocols& protocols) {
  if (protocols.oldest == protocols.newest) return "protocol " + std::to_string(protocols.newest);
  return "protocols " + std::to_string(protocols.oldest) + " to " + std::to_string(protocols.newest);
}

Result<Protocols> parse_protocols(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto oldest = version_of(text.substr(0, dash));
  const auto newest = dash == std::string_view::npos ? oldest : version_of(text.substr(dash + 1));
  if (!oldest || !newest || *oldest > *newest)
    return invalid("'" + std::string(text) + "' is no range of protocols, such as 1-2");
  return Protocols{*oldest, *newest};
}

Result<std::uint32_t> settle(const Speaker& self, const Speaker& peer) {
  const std::uint32_t version = std::min(self.speaks.newest, peer.speaks.newest);
  if (self.speaks.has(version) && peer.speaks.has(version)) return version;
  const bool peer_is_older = peer.speaks.newest < self.speaks.oldest;
  const Speaker& older = peer_is_older ? peer : self;
  const Speaker& newer = peer_is_older ? self : peer;
  return invalid(std::string(peer.name) + " speaks " + to_text(peer.speaks) + ", and " +
                 std::string(self.name) + " speaks " + to_text(self.speaks) + ": upgrade " +
                 std::string(older.name) + " to a build that speaks protocol " +
                 std::to_string(newer.speaks.oldest));
}

bool is_build(std::string_view text) {
  return text.size() <= longest_build &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace carillon::cluster
