#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "carillon/base/result.h"
#include "carillon/frontend/net/descriptor.h"
#include "carillon/frontend/telemetry/access_record.h"
#include "carillon/frontend/telemetry/bounded_ring.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

struct AccessLogOptions {
  std::string file;          // "-": standard output
  std::size_t queue = 8192;  // records that may wait to be written
  Log log;                   // told where the file cannot be written, once until it can be again
};

// A line of JSON for each request, written by a thread of its own. Whoever serves a request only puts a
// record into a queue that neither locks nor waits; where that is full the record is dropped, and counted.
class AccessLog {
 public:
  // Errors: the file cannot be opened, and why.
  static Result<std::shared_ptr<AccessLog>> open(AccessLogOptions options);
  ~AccessLog();  // writes what is there
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // Any thread; never waits.
  void add(const AccessRecord& record) {
    if (!ring_.push(record)) dropped_.fetch_add(1, std::memory_order_relaxed);
  }
  // Opens the file of that name again, for whoever moved it away: soon, on the log's thread. Any thread.
  void reopen();

  std::uint64_t written() const { return written_.load(std::memory_order_relaxed); }  // lines
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  AccessLog(AccessLogOptions options, Descriptor file);
  void run();
  void open_again();
  std::size_t write_some();
  bool write(const std::string& lines);
  void complain(const std::string& text);

  const AccessLogOptions options_;
  BoundedRing<AccessRecord> ring_;
  std::atomic<std::uint64_t> written_{0};
  std::atomic<std::uint64_t> dropped_{0};
  Descriptor file_;          // the thread's
  bool complained_ = false;  // likewise
  std::mutex mutex_;
  std::condition_variable wake_;
  bool reopen_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace carillon::frontend
