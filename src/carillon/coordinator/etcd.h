#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/cluster/coordinator/client.h"
#include "carillon/coordinator/coordinator.h"

namespace carillon::coordinator {

// A connection to etcd: cluster::CoordinatorClient over gRPC.
class Etcd final : public Coordinator {
 public:
  // `options.name` and `.endpoints` are taken from `address`, which is of etcd. Does not wait for etcd.
  // Error: what is wrong with the files.
  static Result<std::unique_ptr<Etcd>> open(const cluster::CoordinatorAddress& address, const EtcdTls& tls,
                                            cluster::CoordinatorOptions options, Tell tell);
  ~Etcd() override;

  Result<> compare_and_set(std::uint64_t token, std::int64_t revision, const cluster::Epoch& epoch) override;
  Result<> read_epoch(std::uint64_t token) override;
  Result<> set(std::uint64_t token, const std::string& key, std::optional<std::string> value);
  void leave() override;

  bool up() const override;
  std::map<std::string, cluster::Member> members() const override;
  std::map<std::string, std::string> values() const;
  cluster::EpochRecord epoch() const override;

 private:
  class Loop;
  explicit Etcd(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace carillon::coordinator
