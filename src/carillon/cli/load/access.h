#pragma once

#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cli/load/address.h"

namespace carillon::cli {

// What the command line says of how a client shows itself, and of which servers it believes.
struct AccessArguments {
  std::string ca;        // file of PEM; empty: the CAs of the system
  std::string cert;      // file of PEM, with those between it and its CA; empty: none
  std::string cert_key;  // file of PEM
  std::string key;       // a secret, or @FILE that has one; empty: none
};

class TlsClient;

// The same, read.
struct Access {
  std::string ca, certificate, private_key;  // PEM
  std::string secret;                        // of a key; empty: none
  std::shared_ptr<const TlsClient> tls;      // null: without TLS
};

// For the server at `address`. Errors (invalid_argument) name the option, the file and what is wrong with it,
// and never show a secret: a file that cannot be read or has no PEM, a certificate without its key or with
// another's, TLS's options for an address without TLS.
Result<Access> read_access(const AccessArguments& arguments, const Address& address);

// "Bearer SECRET", for HTTP's header and gRPC's metadata `authorization`.
std::string authorization_of(const Access& access);

// What helps where a server refused a key (HTTP's status or gRPC's code for that): to be put behind its own
// words.
enum class KeyRefusal { unknown, forbidden };
std::string key_advice(KeyRefusal refusal, const Access& access);

}  // namespace carillon::cli
