#pragma once

#include <optional>
#include <string>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/memory_account.h"
#include "carillon/base/result.h"

namespace carillon::server {

// What of a device is memory of this host.
struct HostShare {
  unsigned caches = 0;   // page caches: 1 where weights are here, else 0
  unsigned tensors = 0;  // I/O caches: a GPU's has a mirror here
  unsigned streams = 0;  // workspaces
};

// What one bound of memory is to be divided by.
struct MemoryWanted {
  Bytes bound;        // of all that the server's processes have resident
  std::string named;  // for errors: "--memory 256MiB"
  unsigned cores = 1;
  std::vector<HostShare> devices{HostShare{}};
  bool serves = true;  // else there are no requests from outside, and no plans for sizes
  // What is given stays as it is.
  std::optional<Bytes> page_cache{}, io_cache{};  // of each device
  std::optional<Bytes> workspace{};               // of each stream
  std::optional<Bytes> sizes{}, inflight{}, body{};
  // What is known of the models, where it is: the page cache is at least as large as this, and the memory for
  // models as this, as far as there is room.
  Bytes largest_weights{}, known_models{};
  // What known models take while the largest is measured, but for what its run works in.
  Bytes known_measured{};
  std::optional<Bytes> all_weights{};  // no page cache is larger
};

// The parts of a bound; together they are no more than it.
struct MemoryPlan {
  Bytes libraries;             // with the code, threads, and what belongs to no other part
  Bytes page_cache, io_cache;  // of each device
  Bytes workspace;             // of each stream
  Bytes sizes;                 // plans for sizes of open models
  Bytes inflight, body;        // of requests and answers; of one request
  Bytes grpc;                  // its own buffers, beside `inflight`
  Bytes models;                // their plans, what they are made of, weights that no store keeps, processes
  // Of all devices.
  Bytes page_caches, io_caches, workspaces;

  // For people: "libraries 136.0 MiB, page cache 32.0 MiB, ...".
  std::string text() const;
};

inline constexpr Bytes largest_body = mib(256), largest_inflight = gib(1), least_inflight = mib(16);

// What libraries and threads have resident beside all parts, with the code. A core has 4 MiB of it, and 32
// cores count at most: a container on a large machine has few of its cores.
Bytes libraries_of(unsigned cores);

// What gRPC may have beside the bodies in flight: a body is read into its buffers before it is anywhere else.
Bytes grpc_buffers(Bytes inflight, Bytes body);

// How much of memory requests and answers may take.
struct DoorSizes {
  Bytes inflight;  // of all together
  Bytes body;      // of one request, at most `inflight`
};
// As given; else as large as `room` for both and gRPC's buffers lets them be, at most `largest_inflight`, at
// least `least_inflight`, and at least as large as a body that is given. A body is at most half of it. Error:
// a body that could never be read.
Result<DoorSizes> size_doors(Bytes room, std::optional<Bytes> inflight, std::optional<Bytes> body);

// Each part that is not given has a least size, and a share of what is left then, up to what is usual; models
// have the rest. Error (resource_exhausted): the bound is less than the parts that are given and the least
// sizes of the others; it names each part. Error (invalid_argument): as size_doors().
Result<MemoryPlan> plan_memory(const MemoryWanted& wanted);

// The least bound above `wanted`'s, in whole MiB, with which the plan has what is needed, and what known
// models take. 0: no bound would do, as a part has its most.
Bytes least_bound(MemoryWanted wanted, ModelNeed need);

}  // namespace carillon::server
