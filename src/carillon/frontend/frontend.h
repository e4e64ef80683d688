#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/engine/imported_memory.h"
#include "carillon/frontend/doors/settings.h"
#include "carillon/frontend/grpc/grpc_keepalive.h"
#include "carillon/frontend/memory/memory_figures.h"
#include "carillon/frontend/telemetry/watch.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

class AccessLog;
class Guard;
class SpanExporter;
class Tls;

struct Options {
  // "host:port"; empty: off. Port 0 lets the system choose; ports() says which.
  std::string http = "0.0.0.0:8000";
  std::string grpc = "0.0.0.0:8001";
  std::string metrics = "0.0.0.0:8002";
  std::string
      admin;  // HTTP; where given, administrative requests and the page are served there alone (Guard)
  int http_threads = 1;
  std::size_t max_body = std::size_t{256} << 20;  // bytes of an HTTP body or a gRPC message, packed or not
  std::size_t inflight = std::size_t{1} << 30;    // bytes of all that are in flight (ByteBudget); >= max_body
  bool strict_readiness = true;                   // ready only where all models are (server_ready())
  Duration idle_timeout = std::chrono::seconds(75);  // of HTTP connections
  Duration stop_grace = std::chrono::seconds(10);    // open requests have so long after stop()
  std::shared_ptr<Tls> tls;                          // of all doors; null: none
  std::shared_ptr<Guard> guard;                      // null: everybody may do everything
  ServerFacts facts;                                 // for people who look at it
  std::shared_ptr<AccessLog> access_log;             // of all doors; null: none
  std::shared_ptr<SpanExporter> spans;               // likewise
  double trace_share = 0;  // of requests in no trace so many begin one, 0 to 1 (W3C Trace Context)
  Log log;                 // warnings for the operator, none of them often
  LogControl log_control;  // of the log settings that clients see
  GrpcKeepalive keepalive;
  // Devices on which clients may lend memory, by CUDA's numbers of them; empty: none.
  std::map<std::int64_t, std::shared_ptr<engine::MemoryImporter>> importers;
  // What others have to add to the metrics, in their format; any thread. Empty: nobody.
  std::function<std::string()> more_metrics;
  LookAtMemory memory;  // for metrics; empty: nobody divides it
  // What gRPC's own buffers may have; 0: as much as half of `inflight`, or `max_body`, and 64 MiB.
  Bytes grpc_buffers{};
  // Metrics have histograms and quantiles also of models that counted nothing yet.
  bool empty_histograms = false;
};

// The real ports; 0: off.
struct Ports {
  std::uint16_t http = 0;
  std::uint16_t grpc = 0;
  std::uint16_t metrics = 0;
  std::uint16_t admin = 0;
};

// Whether these addresses can be listened on now: what Frontend::start() would say of them, for who has much
// to do before.
Result<> check_addresses(const Options& options);

// All of the server's doors: KServe v2 over HTTP and gRPC, and Prometheus metrics. Starting them raises the
// process's limit of open descriptors as far as it may be raised.
//
//   auto frontend = Frontend::start(service, {.http = "127.0.0.1:0", .grpc = "", .metrics = ""});
//   if (!frontend) return frontend.error().message;   // "cannot listen on ...: port in use; ... --http"
//   ... (*frontend)->ports().http ...
//   (*frontend)->stop();
class Frontend {
 public:
  // All listen, or none does. Errors name the address and the option (--http, --grpc, --metrics,
  // --admin-port). `service` outlives the frontend, and answers until stop() has returned.
  static Result<std::unique_ptr<Frontend>> start(controller::Service& service, const Options& options);

  virtual ~Frontend() = default;  // stops
  virtual Ports ports() const = 0;
  // Lets open requests finish within stop_grace. Until none is open the ports stay, so that clients are told:
  // the server is not ready, and new requests are refused (503, UNAVAILABLE). The metrics stay to the last.
  // May be called twice.
  virtual void stop() = 0;
};

}  // namespace carillon::frontend
