#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::cluster {

inline constexpr std::size_t most_endpoints = 16;

// `kubernetes://NAMESPACE/NAME`. After a question mark, joined by '&': `server=http://HOST:PORT` or
// `https://`, `token=FILE` and `ca=FILE`, where a pod's own are not meant.
struct KubernetesAddress {
  std::string name_space;
  std::string server;  // HOST:PORT; empty: what a pod is told by its environment
  bool tls = true;
  std::filesystem::path token, ca;  // empty: those of a pod, if there are any
};

// Where the members of a cluster find each other: `etcd://HOST:PORT,HOST:PORT/NAME`, `etcds://` with TLS,
// `kubernetes://NAMESPACE/NAME`, or `static:FILE`.
struct CoordinatorAddress {
  bool tls = false;
  std::vector<std::string> endpoints;  // of etcd: "HOST:PORT", IPv6 hosts in brackets
  std::string name;                    // of the cluster; a static file has its own
  std::filesystem::path file;
  std::optional<KubernetesAddress> kubernetes;

  bool is_static() const { return endpoints.empty() && !kubernetes; }
};

// Error (invalid_argument): what is wrong with `text`, and what would be right.
Result<CoordinatorAddress> parse_coordinator_address(std::string_view text);

// Names of clusters, ids of members and keys of small values: 1 to 64 letters, digits, '.', '_' and '-'.
bool is_name(std::string_view text);
inline constexpr std::string_view name_rule = "1 to 64 letters, digits, '.', '_' and '-'";

// What gRPC says of a connection that did not come about, without its own preface. It has no word for a port
// where nobody listens.
std::string words_of_connection(std::string_view text);

// Whether `text` is HOST:PORT with a port from 1 to 65535. Else what is wrong.
Result<> check_endpoint(std::string_view text);

}  // namespace carillon::cluster
