#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/explain/row_spans.h"
#include "carillon/frontend/telemetry/access_record.h"
#include "carillon/frontend/telemetry/span_post.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::controller {
class Journal;
}

namespace carillon::frontend {

struct SpanExporterOptions {
  SpanPost post;
  std::shared_ptr<const controller::Journal> journal;         // null: none; there are no children then
  std::vector<std::pair<std::string, std::string>> resource;  // attributes: who this server is
  std::string version;                                        // its own
  std::size_t queue = 2048;                                   // requests that may wait, and rows
  std::size_t batch = 512;                                    // spans of one post
  Duration linger = std::chrono::seconds(1);                  // that a span waits for others
  Duration patience = std::chrono::seconds(10);               // of one post
  Log log;  // told where spans are not taken, once until they are again
};

// Sends the spans of requests to a collector, on a thread of its own. Whoever serves a request only puts its
// record into a queue that neither locks nor waits; where that is full the record is dropped, and counted.
class SpanExporter {
 public:
  explicit SpanExporter(SpanExporterOptions options);
  ~SpanExporter();  // stops at once
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  // Of a request that has ended and is sampled. Any thread; never waits.
  void add(const AccessRecord& record);
  // Of a row of a cluster. Likewise.
  void add(std::shared_ptr<const explain::RowSpans> row);
  // Sends what waits, for so long at most; what is left is dropped. Nothing is sent afterwards. Again:
  // nothing.
  void stop(Duration patience);

  SpanCounts counts() const;
  // Requests, or rows, whose spans were never made, as the queue was full.
  std::uint64_t requests_dropped() const;

 private:
  struct Shared;
  static void run(Shared& shared);

  const std::shared_ptr<Shared> shared_;  // its thread's as well, which a collector's name may hold up
};

}  // namespace carillon::frontend
