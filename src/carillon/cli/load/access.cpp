#include "carillon/cli/load/access.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "carillon/base/files.h"
#include "carillon/cli/load/tls_client.h"

namespace carillon::cli {
namespace {

constexpr std::size_t longest_file = std::size_t{4} << 20;

Result<std::string> read_pem(const char* option, const std::string& file) {
  if (file.empty()) return std::string();
  auto text = read_file("the file of PEM", file);
  if (!text) return invalid(std::string(option) + ": " + text.error().message);
  if (text->empty()) return invalid(std::string(option) + ": '" + file + "' is empty");
  if (text->size() > longest_file) return invalid(std::string(option) + ": '" + file + "' is no file of PEM");
  return text;
}

Result<std::string> read_secret(const std::string& key) {
  if (!key.starts_with('@')) return key;
  const std::string file = key.substr(1);
  auto in = open_to_read("the secret", file);
  if (!in) return invalid("--key: " + in.error().message);
  std::string secret;
  if (!(*in >> secret)) return invalid("--key: '" + file + "' has no secret");
  return secret;
}

}  // namespace

Result<Access> read_access(const AccessArguments& arguments, const Address& address) {
  Access access;
  if (auto secret = read_secret(arguments.key))
    access.secret = std::move(*secret);
  else
    return std::unexpected(secret.error());
  if (!std::ranges::all_of(access.secret, [](unsigned char c) { return c > 0x20 && c < 0x7f; }))
    return invalid("--key: a key's secret is ASCII without spaces");
  if (arguments.cert.empty() != arguments.cert_key.empty())
    return invalid("--cert and --cert-key go together: give both");
  if (!address.tls) {
    if (!arguments.ca.empty() || !arguments.cert.empty())
      return invalid(std::string(arguments.ca.empty() ? "--cert" : "--ca") +
                     " goes with TLS: write https:// or grpcs://");
    return access;
  }
  for (const auto& [option, file, into] :
       {std::tuple("--ca", &arguments.ca, &access.ca),
        std::tuple("--cert", &arguments.cert, &access.certificate),
        std::tuple("--cert-key", &arguments.cert_key, &access.private_key)}) {
    auto pem = read_pem(option, *file);
    if (!pem) return std::unexpected(pem.error());
    *into = std::move(*pem);
  }
  auto tls = TlsClient::make(address.host, address.protocol == Protocol::grpc, access.ca, access.certificate,
                             access.private_key);
  if (!tls) return std::unexpected(tls.error());
  access.tls = std::move(*tls);
  return access;
}

std::string authorization_of(const Access& access) {
  return "Bearer " + access.secret;
}

std::string key_advice(KeyRefusal refusal, const Access& access) {
  if (access.secret.empty()) return "; --key, or CARILLON_KEY, sends a key";
  return refusal == KeyRefusal::unknown ? " (the key that was sent is refused)"
                                        : " (the key that was sent is known, and may not do this)";
}

}  // namespace carillon::cli
