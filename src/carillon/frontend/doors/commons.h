#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "carillon/controller/calls/service.h"
#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/codec/shared_memory.h"
#include "carillon/frontend/doors/model_waits.h"
#include "carillon/frontend/doors/settings.h"
#include "carillon/frontend/doors/work_pool.h"
#include "carillon/frontend/memory/byte_budget.h"
#include "carillon/frontend/memory/memory_figures.h"
#include "carillon/frontend/memory/parse_room.h"
#include "carillon/frontend/memory/side_room.h"
#include "carillon/frontend/telemetry/access_log.h"
#include "carillon/frontend/telemetry/span_exporter.h"
#include "carillon/frontend/telemetry/watch.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

struct CommonsOptions {
  std::size_t inflight = std::size_t{1} << 30;    // bytes of bodies and answers; see ByteBudget
  std::size_t max_body = std::size_t{256} << 20;  // bytes; at most `inflight`
  bool strict_readiness = true;
  int heavy_threads = 0;  // 0: a quarter of the processors, 1 to 4
  std::size_t heavy_queue = 64;
  // Requests and answers that may wait for copies from and to devices; as many as may be open, so that an
  // answer that is there is not refused for want of a place.
  std::size_t copies_queue = std::size_t{1} << 16;
  std::size_t regions = 1024;             // of shared memory; each may take a descriptor
  MemoryImporters importers;              // devices on which regions may lie; empty: none
  std::shared_ptr<Guard> guard;           // null: everybody may do everything
  std::shared_ptr<AccessLog> access_log;  // null: none
  std::shared_ptr<SpanExporter> spans;    // null: none
  double trace_share = 0;                 // of requests that are in no trace: so many begin one
  ServerFacts facts;
  Log log;
  LogControl log_control;                     // without it there are no log settings
  std::function<std::string()> more_metrics;  // see Options of frontend.h
  bool empty_histograms = false;              // likewise
  LookAtMemory memory;                        // likewise
};

// What all doors of a server share. Safe from any thread.
struct Commons {
  explicit Commons(const CommonsOptions& options = {});

  const CommonsOptions options;
  const std::shared_ptr<ByteBudget> bodies;
  const SideBudget side;  // of them
  const std::shared_ptr<ParseRoom> parse_room;
  const std::shared_ptr<const Guard> guard;     // never null
  const std::shared_ptr<AccessLog> access_log;  // null: none
  const std::shared_ptr<SpanExporter> spans;    // null: none
  SharedMemory regions;
  LogSettings log_settings;
  TraceSettings trace_settings;
  UnheededParameters unheeded;
  // Set once the server is told to stop: requests that come later are refused, and it is not ready.
  std::atomic<bool> draining = false;
  WorkPool heavy;
  ModelWaits waits;  // goes on there
  // Waits for devices: opens regions there, copies, closes them. Null where there are none. It ends first:
  // its work uses the rest.
  const std::unique_ptr<WorkPool> copies;

  // Whether anybody wants the record of a request that is in this trace, and who ends it gives it to them.
  bool exports(const TraceContext& trace) const { return spans && trace.sampled(); }
  bool records(const TraceContext& trace) const { return access_log || exports(trace); }
  void keep(const AccessRecord& record) const {
    if (access_log) access_log->add(record);
    if (exports(record.trace)) spans->add(record);
  }

  void log(const std::string& text) const {
    if (options.log) options.log(text);
  }
};

// Where `Commons::copies` takes no more.
Error too_many_copies();

// Whether the server can be sent requests: it serves, is not going away, and (strict readiness, as Triton has
// it) every model that it was given can be served. A repository without models is not ready either: unlike
// Triton's, it cannot get any later. The error (unavailable) says why not.
Result<> server_ready(const controller::Service& service, const Commons& commons);

}  // namespace carillon::frontend
