#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/cluster/coordinator/client.h"
#include "carillon/coordinator/of_loop.h"

namespace carillon::coordinator {

class EtcdLoop;

// A connection to etcd: cluster::CoordinatorClient over gRPC.
class Etcd final : public OfLoop<EtcdLoop> {
 public:
  // `options.name` and `.endpoints` are taken from `address`, which is of etcd. Does not wait for etcd.
  // Error: what is wrong with the files.
  static Result<std::unique_ptr<Etcd>> open(const cluster::CoordinatorAddress& address, const EtcdTls& tls,
                                            cluster::CoordinatorOptions options, Tell tell);
  ~Etcd() override;

  Result<> set(std::uint64_t token, const std::string& key, std::optional<std::string> value);
  std::map<std::string, std::string> values() const;

 private:
  explicit Etcd(std::unique_ptr<EtcdLoop> loop);
};

}  // namespace carillon::coordinator
