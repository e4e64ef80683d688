#include "carillon/cli/otlp_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <exception>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "carillon/base/trace_context.h"
#include "carillon/cli/load/http_get.h"
#include "carillon/frontend/http/http_routes.h"
#include "carillon/frontend/telemetry/trace.h"
#include "carillon/graph/text.h"

namespace carillon::cli {
namespace {

constexpr std::string_view traces_path = "/v1/traces";
constexpr const char* headers_variable = "OTEL_EXPORTER_OTLP_HEADERS";
constexpr const char* traces_headers_variable = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
constexpr const char* resource_variable = "OTEL_RESOURCE_ATTRIBUTES";
constexpr const char* name_variable = "OTEL_SERVICE_NAME";

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// "a=1,b=2" as in W3C's Baggage, without properties.
Result<Pairs> read_list(const char* variable, std::string_view text) {
  Pairs out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view member = trimmed(text.substr(at, comma - at));
    at = comma + 1;
    if (member.empty()) continue;
    const std::size_t equals = member.find('=');
    const auto name = trimmed(member.substr(0, equals));
    if (equals == std::string_view::npos || name.empty())
      return invalid(std::string(variable) + ": it must be a list of NAME=VALUE, with commas between them");
    auto value = frontend::unescape(trimmed(member.substr(equals + 1)));
    if (!value)
      return invalid(std::string(variable) + ": the value of '" + std::string(name) +
                     "' has a broken % escape");
    out.emplace_back(name, *std::move(value));
  }
  return out;
}

bool is_token(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

Result<> check_header(const std::string& where, const std::pair<std::string, std::string>& header) {
  static constexpr std::array<std::string_view, 6> ours{
      "host", "content-type", "content-length", "connection", "transfer-encoding", "content-encoding"};
  const auto& [name, value] = header;
  if (!is_token(name))
    return invalid(where + ": '" + graph::printable(name, 64) + "' is no name of a header");
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  if (std::ranges::find(ours, lower) != ours.end())
    return invalid(where + ": the header '" + name + "' is what it must be, and cannot be given");
  if (!std::ranges::all_of(value, [](unsigned char c) { return (c >= 0x20 && c != 0x7f) || c == '\t'; }))
    return invalid(where + ": the value of the header '" + name + "' has control characters");
  return {};
}

Result<> read_url(const std::string& url, OtlpTarget& target) {
  const auto wrong = [&](const std::string& what) {
    return invalid("--otlp: '" + graph::printable(url, 200) + "': " + what + "; write http://127.0.0.1:4318");
  };
  const bool tls = url.starts_with("https://");
  if (!tls && !url.starts_with("http://"))
    return wrong("it begins with neither http:// nor https:// (OTLP is spoken over HTTP, not gRPC)");
  const std::size_t host = tls ? 8 : 7;
  const std::size_t path = std::min(url.find_first_of("/?#", host), url.size());
  std::string authority = url.substr(host, path - host);
  // A password would be seen in the list of processes.
  if (authority.find('@') != std::string::npos)
    return invalid(std::string("--otlp: a URL with a user or a password is not taken; ") + headers_variable +
                   " may have an Authorization");
  if (!std::ranges::all_of(url, [](unsigned char c) { return c > 0x20 && c < 0x7f; }) ||
      url.find('#') != std::string::npos)
    return wrong("it has characters that no URL has here");
  const std::size_t colon = authority.rfind(':');
  if (colon == std::string::npos || authority.find(']', colon) != std::string::npos)
    authority += tls ? ":443" : ":80";
  auto address = parse_address(url.substr(0, host) + authority);
  if (!address) return wrong("its host or its port is none");
  target.address = *std::move(address);
  target.path = url.substr(path);
  if (target.path.empty() || target.path == "/") target.path = traces_path;
  if (target.path.front() != '/') target.path.insert(0, "/");
  return {};
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

// Of this start of the server, and of no other: a UUID of version 4.
std::string instance_id() {
  TraceIds ids(frontend::trace_seed());
  auto id = ids.begin().trace_id;
  id[6] = static_cast<std::uint8_t>((id[6] & 0x0fU) | 0x40U);
  id[8] = static_cast<std::uint8_t>((id[8] & 0x3fU) | 0x80U);
  std::string text;
  for (std::size_t i = 0; i < id.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
  return text;
}

void set(Pairs& pairs, const std::string& name, const std::string& value) {
  const auto found = std::ranges::find(pairs, name, &Pairs::value_type::first);
  if (found != pairs.end())
    found->second = value;
  else
    pairs.emplace_back(name, value);
}

std::string_view text_of(const Environment& environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

Result<> read_resource(const Environment& environment, Pairs& resource) {
  resource = {{"service.name", "carillon"},
              {"service.version", CARILLON_VERSION},
              {"service.instance.id", instance_id()}};
  if (const std::string host = host_name(); !host.empty()) resource.emplace_back("host.name", host);
  auto said = read_list(resource_variable, text_of(environment, resource_variable));
  if (!said) return std::unexpected(said.error());
  for (const auto& [name, value] : *said) set(resource, name, value);
  // OpenTelemetry has it that this one goes before the list.
  if (const auto name = text_of(environment, name_variable); !name.empty())
    set(resource, "service.name", std::string(name));
  for (auto& [name, value] : resource) {
    name = graph::printable(name, 256);
    value = graph::printable(value, 1024);
  }
  return {};
}

Result<> read_headers(const OtlpArguments& arguments, const Environment& environment, Pairs& headers) {
  for (const char* variable : {headers_variable, traces_headers_variable}) {
    auto said = read_list(variable, text_of(environment, variable));
    if (!said) return std::unexpected(said.error());
    for (const auto& header : *said) {
      if (auto good = check_header(variable, header); !good) return good;
      set(headers, header.first, header.second);
    }
  }
  for (const std::string& text : arguments.headers) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) return invalid("--otlp-header: it must be NAME=VALUE");
    const std::pair header(text.substr(0, equals), text.substr(equals + 1));
    if (auto good = check_header("--otlp-header", header); !good) return good;
    set(headers, header.first, header.second);
  }
  return {};
}

// What TLS says, with this command's option. Certificates of its own it has none to show.
std::string in_our_words(std::string text) {
  if (const auto at = text.find("--ca"); at != std::string::npos) text.insert(at + 2, "otlp-");
  if (const auto at = text.find(": --cert"); at != std::string::npos) text.resize(at);
  return text;
}

}  // namespace

void add_otlp_options(CLI::App& command, OtlpArguments& arguments) {
  auto* const url = command.add_option(
      "--otlp", arguments.url,
      "Send the spans of requests in sampled traces to this OpenTelemetry collector, such as "
      "http://127.0.0.1:4318 (OTLP in protobuf over HTTP; the path is /v1/traces where the URL has none)");
  command
      .add_option(
          "--otlp-header", arguments.headers,
          "NAME=VALUE of a header that goes with them; may be given several times. A secret is better "
          "in the variable OTEL_EXPORTER_OTLP_HEADERS, which is heeded as well: others see a command "
          "line")
      ->needs(url);
  command
      .add_option(
          "--otlp-ca", arguments.ca,
          "The CA that a collector at https:// is believed by, in PEM; without it those of the system")
      ->needs(url);
}

std::string OtlpTarget::url() const {
  return (address.tls ? "https://" : "http://") + address.authority() + path.substr(0, path.find('?'));
}

Result<std::optional<OtlpTarget>> read_otlp(const OtlpArguments& arguments, const Environment& environment) {
  if (arguments.url.empty()) return std::optional<OtlpTarget>();
  OtlpTarget target;
  if (auto read = read_url(arguments.url, target); !read) return std::unexpected(read.error());
  if (!arguments.ca.empty() && !target.address.tls) return invalid("--otlp-ca goes with TLS: write https://");
  auto access = read_access({.ca = arguments.ca, .cert = {}, .cert_key = {}, .key = {}}, target.address);
  if (!access) return fail(access.error().code, in_our_words(access.error().message));
  target.access = *std::move(access);
  if (auto read = read_headers(arguments, environment, target.headers); !read)
    return std::unexpected(read.error());
  if (auto read = read_resource(environment, target.resource); !read) return std::unexpected(read.error());
  return target;
}

frontend::SpanPost post_to(OtlpTarget target) {
  Pairs headers = std::move(target.headers);
  headers.emplace_back("Content-Type", "application/x-protobuf");
  headers.emplace_back("User-Agent", std::string("carillon/") + CARILLON_VERSION);
  return [address = target.address, access = target.access, path = target.path, headers = std::move(headers)](
             const std::string& body, Duration patience,
             const std::function<bool()>& given_up) -> frontend::PostAnswer {
    try {
      auto reply =
          http_post(address, access, {.target = path, .headers = headers, .body = body}, patience, given_up);
      if (!reply) return {.status = 0, .retry_after = {}, .body = in_our_words(reply.error().message)};
      return {.status = reply->status,
              .retry_after = retry_after_of(reply->retry_after),
              .body = std::move(reply->body)};
    } catch (const std::exception& thrown) {
      return {.status = 0, .retry_after = {}, .body = thrown.what()};
    }
  };
}

std::optional<Duration> retry_after_of(const std::string& value) {
  constexpr std::int64_t most = 86'400;
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error != std::errc{} || end != value.data() + value.size() || seconds < 0) return std::nullopt;
  return std::chrono::seconds(std::min(seconds, most));
}

}  // namespace carillon::cli
