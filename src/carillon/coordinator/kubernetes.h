#pragma once

#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/cluster/coordinator/client.h"
#include "carillon/coordinator/of_loop.h"

namespace carillon::coordinator {

class KubernetesLoop;

// Connections to a Kubernetes API server: cluster::KubernetesClient over HTTP/1.1. The token is read from its
// file for each request, and the CA for each connection, so that files which are renewed are heeded.
class Kubernetes final : public OfLoop<KubernetesLoop> {
 public:
  // `address` is of Kubernetes. Where it names no server, the pod's: KUBERNETES_SERVICE_HOST and _PORT, with
  // the token and the CA of /var/run/secrets/kubernetes.io/serviceaccount. Over http:// a token is sent only
  // if the address names its file. Does not wait for the server. Error: what is missing, or an id that no
  // Lease can be called by.
  static Result<std::unique_ptr<Kubernetes>> open(const cluster::CoordinatorAddress& address,
                                                  cluster::CoordinatorOptions options, Tell tell);
  ~Kubernetes() override;

 private:
  explicit Kubernetes(std::unique_ptr<KubernetesLoop> loop);
};

}  // namespace carillon::coordinator
