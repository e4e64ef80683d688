#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
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

// Who is a member of a cluster, and who leads it, by etcd or by a Kubernetes API server. A thread of its own
// speaks with that.
class Coordinator {
 public:
  // Called from the thread, one news at a time, with no lock held. It may call all of these functions, but
  // must not end the coordinator.
  using Tell = std::function<void(const cluster::CoordinatorNews&)>;

  // Ends at once, whatever the other side does. A member that did not leave() stays registered until its
  // lease ends.
  virtual ~Coordinator() = default;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // As cluster::CoordinatorClient's, from any thread. The outcome may be told before these return.
  virtual Result<> compare_and_set(std::uint64_t token, std::int64_t revision,
                                   const cluster::Epoch& epoch) = 0;
  virtual Result<> read_epoch(std::uint64_t token) = 0;
  virtual void leave() = 0;

  // The copy as it is now, which may be ahead of what was told.
  virtual bool up() const = 0;
  virtual std::map<std::string, cluster::Member> members() const = 0;
  virtual cluster::EpochRecord epoch() const = 0;

 protected:
  Coordinator() = default;
};

// `options.name` and `.endpoints` are taken from `address`, which is no file. Does not wait for anybody.
// Error: what is wrong with the files, the environment or the id.
Result<std::unique_ptr<Coordinator>> open(const cluster::CoordinatorAddress& address, const EtcdTls& tls,
                                          cluster::CoordinatorOptions options, Coordinator::Tell tell);

}  // namespace carillon::coordinator
