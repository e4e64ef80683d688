#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/cluster/coordinator/client.h"

namespace carillon::coordinator {

// Files of PEM, for etcds://.
struct EtcdTls {
  std::filesystem::path ca;                // empty: the system's
  std::filesystem::path certificate, key;  // of this client; both or none
};

// A connection to etcd: cluster::CoordinatorClient over gRPC, with a thread of its own.
class Etcd {
 public:
  // Called from the thread, one news at a time, with no lock held. It may call all of Etcd's functions, but
  // must not end it.
  using Tell = std::function<void(const cluster::CoordinatorNews&)>;

  // `options.name` and `.endpoints` are taken from `address`, which is no file. Does not wait for etcd.
  // Error: what is wrong with the files.
  static Result<std::unique_ptr<Etcd>> open(const cluster::CoordinatorAddress& address, const EtcdTls& tls,
                                            cluster::CoordinatorOptions options, Tell tell);
  // Ends at once, whatever etcd does. A member that did not leave() stays registered until its lease ends.
  ~Etcd();
  Etcd(const Etcd&) = delete;
  Etcd& operator=(const Etcd&) = delete;

  // As CoordinatorClient's, from any thread. The outcome may be told before these return.
  Result<> compare_and_set(std::uint64_t token, std::int64_t revision, const cluster::Epoch& epoch);
  Result<> read_epoch(std::uint64_t token);
  Result<> set(std::uint64_t token, const std::string& key, std::optional<std::string> value);
  void leave();

  // The copy as it is now, which may be ahead of what was told.
  bool up() const;
  std::map<std::string, cluster::Member> members() const;
  std::map<std::string, std::string> values() const;
  cluster::EpochRecord epoch() const;

 private:
  class Loop;
  explicit Etcd(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace carillon::coordinator
