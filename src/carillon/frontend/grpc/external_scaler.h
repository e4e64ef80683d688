#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/access/tls.h"
#include "carillon/frontend/unheeded.h"
#include "carillon/provision/wanted.h"

namespace carillon::frontend {

// How many devices are wanted now, by group. Called from several threads at once; must not wait for long.
// Errors say why nobody knows.
using LookAtWanted = std::function<Result<std::vector<provision::WantedFigures>>()>;

// Looks at the service about once a second, however many ask. `service` outlives it.
LookAtWanted look_once_a_second(const controller::Service& service);

struct ScalerOptions {
  std::string address;            // HOST:PORT
  std::string option = "--keda";  // named in errors about the address
  std::shared_ptr<Tls> tls;       // null: none
  std::size_t most_streams = 64;  // StreamIsActive calls at a time
  // Of connections (ListenerOptions). At most the lower half of what this process may have: whoever connects
  // and says nothing must not keep others out.
  int highest_descriptor = std::numeric_limits<int>::max();
  Log log;
};

// KEDA's external scaler (proto/externalscaler.proto) over gRPC: the wanted devices of a group as the metric
// carillon_devices_wanted, of which a worker has as many as it has devices. Reads one snapshot a call.
//
// Metadata of a trigger: `subcluster` names the group, which may be left out if there is one; and
// `devicesPerWorker`, 1 to 4096, 1 without it. Others are KEDA's own. A call whose metadata are wrong is
// answered INVALID_ARGUMENT. While nobody knows the number, calls are answered UNAVAILABLE: KEDA then gives
// the autoscaler no number, and the autoscaler leaves the replicas as they are. A group always is active.
class ScalerServer {
 public:
  // Listens when it returns. Errors: the address cannot be bound, and why.
  static Result<std::unique_ptr<ScalerServer>> start(LookAtWanted look, ScalerOptions options);
  virtual ~ScalerServer() = default;  // ends all calls
  virtual std::uint16_t port() const = 0;
};

}  // namespace carillon::frontend
