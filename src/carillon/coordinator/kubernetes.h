#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/cluster/coordinator/client.h"
#include "carillon/coordinator/coordinator.h"

namespace carillon::coordinator {

// Connections to a Kubernetes API server: cluster::KubernetesClient over HTTP/1.1. The token is read from its
// file for each request, and the CA for each connection, so that files which are renewed are heeded.
class Kubernetes final : public Coordinator {
 public:
  // `address` is of Kubernetes. Where it names no server, the pod's: KUBERNETES_SERVICE_HOST and _PORT, with
  // the token and the CA of /var/run/secrets/kubernetes.io/serviceaccount. Over http:// a token is sent only
  // if the address names its file. Does not wait for the server. Error: what is missing, or an id that no
  // Lease can be called by.
  static Result<std::unique_ptr<Kubernetes>> open(const cluster::CoordinatorAddress& address,
                                                  cluster::CoordinatorOptions options, Tell tell);
  ~Kubernetes() override;

  Result<> compare_and_set(std::uint64_t token, std::int64_t revision, const cluster::Epoch& epoch) override;
  Result<> read_epoch(std::uint64_t token) override;
  void leave() override;

  bool up() const override;
  std::map<std::string, cluster::Member> members() const override;
  cluster::EpochRecord epoch() const override;

 private:
  class Loop;
  explicit Kubernetes(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace carillon::coordinator
