#include "carillon/cli/safety_options.h"

#include <tuple>
#include <utility>
#include <vector>

#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/access/tls.h"
#include "carillon/frontend/net/address.h"
#include "carillon/frontend/telemetry/access_log.h"

namespace carillon::cli {
namespace {

// An admin port without a host is this machine's alone: unlike at the other doors.
std::string admin_address(const std::string& text) {
  if (text.empty()) return text;
  if (text.find(':') == std::string::npos) return "127.0.0.1:" + text;
  return text.front() == ':' ? "127.0.0.1" + text : text;
}

struct OpenDoor {
  std::string name;
  std::string address;
  bool beyond_loopback = true;
};

Result<std::vector<OpenDoor>> doors_in(const frontend::Options& doors) {
  std::vector<OpenDoor> open;
  for (const auto& [name, option, text] :
       {std::tuple("HTTP", "--http", &doors.http), std::tuple("gRPC", "--grpc", &doors.grpc),
        std::tuple("metrics", "--metrics", &doors.metrics),
        std::tuple("administration", "--admin-port", &doors.admin)}) {
    if (text->empty()) continue;
    const auto address = frontend::parse_address(*text);
    if (!address) return in_context(option, address.error());
    open.push_back({name, *text, !frontend::is_loopback(*address)});
  }
  return open;
}

std::string list_of(const std::vector<OpenDoor>& doors) {
  std::string text;
  for (const OpenDoor& door : doors) text += (text.empty() ? "" : ", ") + door.name + " " + door.address;
  return text;
}

}  // namespace

void add_admin_option(CLI::App& command, SafetyArguments& arguments) {
  command.add_option(
      "--admin-port", arguments.admin,
      "[HOST:]PORT of an HTTP port, of 127.0.0.1 without a host, where alone models are loaded "
      "and unloaded, log and trace settings changed and shared memory registered; a browser finds a page "
      "there that shows what the server does");
}

void add_safety_options(CLI::App& command, SafetyArguments& arguments) {
  command.add_option("--tls-cert", arguments.tls_cert,
                     "TLS at every port: the server's certificate in PEM, and behind it those between it and "
                     "its CA. SIGHUP reads it, the key and the CA again");
  command.add_option("--tls-key", arguments.tls_key,
                     "The private key of --tls-cert, in PEM without a passphrase");
  command.add_option("--tls-client-ca", arguments.tls_client_ca,
                     "Clients must have a certificate of one of the CAs in this file, in PEM");
  command.add_option("--keys", arguments.keys,
                     "Clients must have one of the keys in this file ('carillon key new NAME' makes one), "
                     "which says what each may do. Health stays open. SIGHUP reads it again");
  command.add_flag("--require-key", arguments.require_key,
                   "Do not start without --keys where a port can be reached from other machines");
}

Result<> secure(const SafetyArguments& arguments, frontend::Options& doors) {
  if (arguments.tls_cert.empty() != arguments.tls_key.empty())
    return invalid("--tls-cert and --tls-key go together: give both");
  if (!arguments.tls_client_ca.empty() && arguments.tls_cert.empty())
    return invalid("--tls-client-ca needs --tls-cert and --tls-key");
  doors.admin = admin_address(arguments.admin);
  const auto open = doors_in(doors);
  if (!open) return std::unexpected(open.error());
  std::vector<OpenDoor> beyond;
  for (const OpenDoor& door : *open)
    if (door.beyond_loopback) beyond.push_back(door);
  if (arguments.require_key && arguments.keys.empty() && !beyond.empty())
    return invalid("--require-key: " + list_of(beyond) +
                   " can be reached from other machines, and there are no --keys; give keys, or listen on "
                   "127.0.0.1");
  if (!arguments.tls_cert.empty()) {
    auto tls = frontend::Tls::open(
        {.certificate = arguments.tls_cert, .key = arguments.tls_key, .client_ca = arguments.tls_client_ca},
        doors.log);
    if (!tls) return std::unexpected(std::move(tls.error()));
    doors.tls = std::move(*tls);
  }
  auto guard = frontend::Guard::open({.keys = arguments.keys, .admin_at = doors.admin, .log = doors.log});
  if (!guard) return std::unexpected(std::move(guard.error()));
  doors.guard = std::move(*guard);
  const bool known = !arguments.keys.empty() || !arguments.tls_client_ca.empty();
  if (!beyond.empty() && doors.log && (!doors.tls || !known))
    doors.log("open to the network " +
              std::string(doors.tls ? "without keys"
                          : known   ? "without TLS"
                                    : "without TLS and without keys") +
              ": " + list_of(beyond) + "; see --help of --tls-cert, --keys and --require-key");
  return {};
}

void reload(const frontend::Options& doors, const std::function<void(const std::string&)>& log) {
  if (!doors.tls && !doors.guard->needs_keys() && !doors.access_log)
    log("SIGHUP: there are neither certificates nor keys to read again, nor is there an access log");
  if (doors.access_log) {
    doors.access_log->reopen();
    log("SIGHUP: the access log is opened again");
  }
  if (doors.tls) {
    if (const auto done = doors.tls->reload())
      log("SIGHUP: new connections get the certificates that were read again");
    else
      doors.log("SIGHUP: the certificates stay as they were: " + done.error().message);
  }
  if (doors.guard->needs_keys()) {
    if (const auto done = doors.guard->reload())
      log("SIGHUP: the keys were read again");
    else
      doors.log("SIGHUP: the keys stay as they were: " + done.error().message);
  }
}

}  // namespace carillon::cli
