#include "carillon/coordinator/coordinator.h"

#include <utility>

#include "carillon/coordinator/etcd.h"
#include "carillon/coordinator/kubernetes.h"

namespace carillon::coordinator {

Result<std::unique_ptr<Coordinator>> open(const cluster::CoordinatorAddress& address, const EtcdTls& tls,
                                          cluster::CoordinatorOptions options, Coordinator::Tell tell) {
  if (address.kubernetes) return Kubernetes::open(address, std::move(options), std::move(tell));
  return Etcd::open(address, tls, std::move(options), std::move(tell));
}

}  // namespace carillon::coordinator
