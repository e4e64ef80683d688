#pragma once

#include <memory>

#include <CLI/CLI.hpp>

#include "carillon/base/result.h"
#include "carillon/transport/tls.h"

namespace carillon::cli {

// --cluster-cert, --cluster-cert-key and --cluster-ca.
void add_tls_options(CLI::App& command, transport::TlsFiles& files);

// Null: none was given. Errors: not all three were, or as transport::Tls::open().
Result<std::shared_ptr<transport::Tls>> open_tls(const transport::TlsFiles& files);

}  // namespace carillon::cli
