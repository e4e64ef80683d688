#include "carillon/cli/door_options.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include <CLI/CLI.hpp>

namespace carillon::cli {
namespace {

Result<std::optional<Bytes>> size_of(const char* option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto size = parse_bytes(text);
  if (!size) return in_context(option, size.error());
  return *size;
}

void add_keepalive_options(CLI::App& command, frontend::GrpcKeepalive& keepalive) {
  constexpr int most = std::numeric_limits<int>::max();
  // No time at all to be silent, or to answer, would end every connection.
  for (const auto& [name, to, text] :
       {std::tuple("--grpc-keepalive-time", &keepalive.time_ms,
                   "Milliseconds without a word after which the server pings a gRPC connection"),
        std::tuple("--grpc-keepalive-timeout", &keepalive.timeout_ms,
                   "Milliseconds for the answer to such a ping, after which the connection is closed")})
    command.add_option(name, *to, text)->check(CLI::Range(1, most))->capture_default_str();
  for (const auto& [name, to, text] :
       {std::tuple("--grpc-http2-max-pings-without-data", &keepalive.max_pings_without_data,
                   "Pings that the server sends in a row without other frames; 0: any number"),
        std::tuple(
            "--grpc-http2-min-recv-ping-interval-without-data",
            &keepalive.min_recv_ping_interval_without_data_ms,
            "Milliseconds between a gRPC client's pings, where it is sent nothing meanwhile: pings that "
            "come sooner are strikes"),
        std::tuple("--grpc-http2-max-ping-strikes", &keepalive.max_ping_strikes,
                   "Strikes after which a gRPC connection is closed (too_many_pings); 0: never"),
        std::tuple("--grpc-max-connection-age", &keepalive.max_connection_age_ms,
                   "Milliseconds after which a gRPC connection takes no new calls (GOAWAY); 0: never"),
        std::tuple("--grpc-max-connection-age-grace", &keepalive.max_connection_age_grace_ms,
                   "Milliseconds after that for its open calls, which end then; 0: any time")})
    command.add_option(name, *to, text)->check(CLI::Range(0, most))->capture_default_str();
  command
      .add_option("--grpc-keepalive-permit-without-calls", keepalive.permit_without_calls,
                  "true: gRPC connections without a call are pinged, and may ping, as those with one")
      ->check(CLI::IsMember({"true", "false", "1", "0"}, CLI::ignore_case))
      ->capture_default_str();
}

}  // namespace

void add_door_options(CLI::App& command, DoorArguments& arguments) {
  command.add_option("--body-limit", arguments.body_limit,
                     "The largest request body, over HTTP and over gRPC, packed or not (default 256 MiB, or "
                     "half of --inflight-limit where that is less)");
  command.add_option(
      "--inflight-limit", arguments.inflight_limit,
      "How much the bodies of all requests in flight may have together, HTTP and gRPC, with what they take "
      "while they are read, and the answers that clients have not taken; beyond it requests are refused with "
      "503 or RESOURCE_EXHAUSTED. An eighth is kept for small ones (default 1 GiB, or less where --memory is "
      "little)");
  add_keepalive_options(command, arguments.keepalive);
}

Result<GivenDoorSizes> given_door_sizes(const DoorArguments& arguments) {
  const auto body = size_of("--body-limit", arguments.body_limit);
  if (!body) return std::unexpected(body.error());
  const auto inflight = size_of("--inflight-limit", arguments.inflight_limit);
  if (!inflight) return std::unexpected(inflight.error());
  return GivenDoorSizes{.body = *body, .inflight = *inflight};
}

}  // namespace carillon::cli
