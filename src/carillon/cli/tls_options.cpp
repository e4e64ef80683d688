#include "carillon/cli/tls_options.h"

#include <spdlog/spdlog.h>

namespace carillon::cli {

void add_tls_options(CLI::App& command, transport::TlsFiles& files) {
  command.add_option("--cluster-cert", files.certificate,
                     "File in PEM: the certificate that this process shows the cluster's members by TLS. Its "
                     "URI carillon://CLUSTER/ROLE/ID says whose it is; an ID of * is any. All members have "
                     "one, or none has");
  command.add_option("--cluster-cert-key", files.key, "File in PEM: the private key of --cluster-cert");
  command.add_option("--cluster-ca", files.ca, "File in PEM: the CA that signed the members' certificates");
}

Result<std::shared_ptr<transport::Tls>> open_tls(const transport::TlsFiles& files) {
  const int given = !files.certificate.empty() + !files.key.empty() + !files.ca.empty();
  if (given == 0) return nullptr;
  if (given < 3) return invalid("--cluster-cert, --cluster-cert-key and --cluster-ca go together: give all");
  return transport::Tls::open(files, [](const std::string& text) { spdlog::warn("cluster: {}", text); });
}

}  // namespace carillon::cli
