#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/frontend/telemetry/span_post.h"
#include "carillon/frontend/telemetry/spans.h"

namespace carillon::frontend {

struct SpanOutboxOptions {
  std::size_t batch = 512;  // spans of one post
  Duration linger = std::chrono::seconds(1);
  int tries = 5;  // of a batch
  Duration first_wait = std::chrono::seconds(1);
  Duration longest_wait = std::chrono::seconds(30);  // of our own; a collector may ask for twice as long
};

// Spans that wait to be sent, and when the next ones are: at `batch` of them, or once one has waited for
// `linger`. A batch that may be sent again (OTLP's specification: 429, 502, 503, 504; also where nobody
// answers) is, after waits that double, or as long as the collector asks; then it is dropped. While the
// collector fails, the batches after it wait as well. No clock, no socket: time is an argument.
class SpanOutbox {
 public:
  explicit SpanOutbox(SpanOutboxOptions options) : options_(options) {}

  // How many wait; at `batch` whoever fills it is to wait.
  std::size_t size() const { return spans_.size(); }
  bool full() const { return spans_.size() >= options_.batch; }
  void put(std::vector<OtlpSpan> spans, TimePoint now);

  // When the next post is due; max(): there is nothing to send.
  TimePoint due() const;
  // Nothing comes any more: all is due at once, and is sent once.
  void hurry();
  // What is to be posted now; the same until answered().
  std::vector<const OtlpSpan*> batch() const;
  // What became of it. The text, where there is one, is for the operator: that spans are not taken, once
  // until they are again, and that they are.
  std::optional<std::string> answered(const PostAnswer& answer, TimePoint now);
  // Of what is left.
  void drop_all();

  SpanCounts counts() const { return counts_; }

 private:
  void take_out(std::size_t count);

  const SpanOutboxOptions options_;
  struct Waiting {
    OtlpSpan span;
    TimePoint since;
  };
  std::deque<Waiting> spans_;
  SpanCounts counts_;
  int tried_ = 0;     // of the batch
  int failures_ = 0;  // in a row, of all batches
  TimePoint not_before_ = TimePoint::min();
  bool hurry_ = false;
  std::optional<std::uint64_t> complained_at_;  // how many were dropped by then
};

}  // namespace carillon::frontend
