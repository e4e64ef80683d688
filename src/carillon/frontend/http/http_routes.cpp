#include "carillon/frontend/http/http_routes.h"

#include <optional>
#include <utility>
#include <vector>

namespace carillon::frontend {
namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Which methods an endpoint takes.
struct Match {
  Route route;
  bool get = false;
  bool post = false;
};

Match get(Endpoint endpoint, std::string model = {}, std::string version = {}) {
  return {{endpoint, std::move(model), std::move(version), {}, {}}, true, false};
}
Match post(Endpoint endpoint, std::string model = {}, std::string version = {}) {
  return {{endpoint, std::move(model), std::move(version), {}, {}}, false, true};
}
Match both(Endpoint endpoint, std::string model = {}) {
  return {{endpoint, std::move(model), {}, {}, {}}, true, true};
}

using Parts = std::vector<std::string>;

// What follows /v2/models.
std::optional<Match> match_model(const Parts& p) {
  if (p.size() == 1 && p[0] == "stats") return get(Endpoint::model_statistics);
  if (p.empty() || p[0].empty()) return std::nullopt;
  const std::string& model = p[0];
  std::size_t next = 1;
  std::string version;
  if (p.size() >= 3 && p[1] == "versions") {
    version = p[2];
    if (version.empty()) return std::nullopt;
    next = 3;
  }
  if (p.size() == next) return get(Endpoint::model_metadata, model, version);
  if (p.size() == next + 2 && p[next] == "trace" && p[next + 1] == "setting")
    return both(Endpoint::trace_setting, model);
  if (p.size() != next + 1) return std::nullopt;
  const std::string& what = p[next];
  if (what == "infer") return post(Endpoint::infer, model, version);
  if (what == "ready") return get(Endpoint::model_ready, model, version);
  if (what == "config") return get(Endpoint::model_config, model, version);
  if (what == "stats") return get(Endpoint::model_statistics, model, version);
  if (what == "generate" || what == "generate_stream") return post(Endpoint::not_implemented);
  return std::nullopt;
}

// What follows /v2/systemsharedmemory or /v2/cudasharedmemory.
std::optional<Match> match_shared_memory(Parts p, bool cuda) {
  std::string region;
  if (p.size() == 3 && p[0] == "region" && !p[1].empty()) {
    region = std::move(p[1]);
    p.erase(p.begin(), p.begin() + 2);
  }
  if (p.size() != 1) return std::nullopt;
  std::optional<Match> found;
  if (p[0] == "status") found = get(cuda ? Endpoint::cuda_memory_status : Endpoint::system_memory_status);
  if (p[0] == "register" && !region.empty())
    found = post(cuda ? Endpoint::cuda_memory_register : Endpoint::system_memory_register);
  if (p[0] == "unregister")
    found = post(cuda ? Endpoint::cuda_memory_unregister : Endpoint::system_memory_unregister);
  if (found) found->route.region = std::move(region);
  return found;
}

// What follows /v2/carillon.
std::optional<Match> match_carillon(const Parts& p) {
  if (p == Parts{"trace"}) return get(Endpoint::device_trace);
  if (p.empty() || p.size() > 2 || p[0] != "requests" || (p.size() == 2 && p[1].empty())) return std::nullopt;
  Match found = get(Endpoint::kept_requests);
  if (p.size() == 2) found.route.id = p[1];
  return found;
}

std::optional<Match> match(const Parts& p) {
  if (p.empty() || p == Parts{"admin"}) return get(Endpoint::admin_page);
  if (p[0] != "v2") return std::nullopt;
  if (p.size() == 1) return get(Endpoint::server_metadata);
  const std::string& room = p[1];
  if (room == "openapi.json" && p.size() == 2) return get(Endpoint::openapi);
  const Parts rest(p.begin() + 2, p.end());
  if (room == "health" && rest == Parts{"live"}) return get(Endpoint::server_live);
  if (room == "health" && rest == Parts{"ready"}) return get(Endpoint::server_ready);
  if (room == "models") return match_model(rest);
  if (room == "carillon" && rest == Parts{"status"}) return get(Endpoint::carillon_status);
  if (room == "carillon" && rest == Parts{"timeline"}) return get(Endpoint::carillon_timeline);
  if (room == "carillon" && rest == Parts{"trend"}) return get(Endpoint::carillon_trend);
  if (room == "repository") {
    if (rest == Parts{"index"}) return post(Endpoint::repository_index);
    if (rest.size() == 3 && rest[0] == "models" && (rest[2] == "load" || rest[2] == "unload"))
      return post(rest[2] == "load" ? Endpoint::repository_load : Endpoint::repository_unload, rest[1]);
  }
  if (room == "systemsharedmemory" || room == "cudasharedmemory")
    return match_shared_memory(rest, room == "cudasharedmemory");
  if (room == "carillon") return match_carillon(rest);
  if (room == "logging" && rest.empty()) return both(Endpoint::logging);
  if (room == "trace" && rest == Parts{"setting"}) return both(Endpoint::trace_setting);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = digit_of(text[i + 1]);
    const int low = digit_of(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::expected<Route, RouteError> find_route(std::string_view method, std::string_view target) {
  const auto path = target.substr(0, target.find_first_of("?#"));
  const std::string shown(path.substr(0, 256));
  if (path.empty() || path.front() != '/')
    return std::unexpected(RouteError{404, "no such path: " + shown, {}});
  Parts parts;
  for (std::size_t at = 1; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    auto part = unescape(path.substr(at, slash - at));
    if (!part) return std::unexpected(RouteError{400, "the path has a broken % escape: " + shown, {}});
    parts.push_back(std::move(*part));
    at = slash + 1;
  }
  auto found = match(parts);
  if (!found)
    return std::unexpected(
        RouteError{404, "no such path: " + shown + "; the protocol's paths begin with /v2", {}});
  const bool fits = (method == "GET" && found->get) || (method == "POST" && found->post);
  if (!fits) {
    const std::string allow = found->get && found->post ? "GET, POST" : found->get ? "GET" : "POST";
    return std::unexpected(RouteError{
        405, "method " + std::string(method.substr(0, 32)) + " is not for " + shown + "; use " + allow,
        allow});
  }
  return std::move(found->route);
}

std::string_view query_value(std::string_view target, std::string_view name) {
  const std::size_t mark = target.find('?');
  if (mark == std::string_view::npos) return {};
  std::string_view query = target.substr(mark + 1);
  query = query.substr(0, query.find('#'));
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    if (equals != std::string_view::npos && pair.substr(0, equals) == name) return pair.substr(equals + 1);
  }
  return {};
}

}  // namespace carillon::frontend
