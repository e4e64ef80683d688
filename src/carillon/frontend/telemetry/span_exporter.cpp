#include "carillon/frontend/telemetry/span_exporter.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include <pthread.h>

#include "carillon/base/clock.h"
#include "carillon/base/unix_time.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/frontend/telemetry/bounded_ring.h"
#include "carillon/frontend/telemetry/span_outbox.h"
#include "carillon/frontend/telemetry/spans.h"
#include "carillon/frontend/telemetry/trace.h"

namespace carillon::frontend {
namespace {

namespace otlp = opentelemetry::proto::trace::v1;

constexpr auto look_every = std::chrono::milliseconds(50);
// A request's answer goes out before the report of its action's last step has come: the journal has all of
// it a little later.
constexpr Duration settles_after = std::chrono::milliseconds(50);
constexpr std::size_t loads_kept = 64;

TimePoint steady_now() {
  return SteadyClock().now();
}

}  // namespace

struct SpanExporter::Shared {
  explicit Shared(SpanExporterOptions with)
      : options(std::move(with)),
        ring(options.queue),
        rows(options.queue),
        outbox({.batch = options.batch, .linger = options.linger}),
        ids(trace_seed()) {}

  SpanSources sources_of(const AccessRecord& record);
  std::string encode() const;
  void fill(bool all);
  void fill_rows();
  void post_once(TimePoint until);
  void publish();

  const SpanExporterOptions options;
  BoundedRing<AccessRecord> ring;
  BoundedRing<std::shared_ptr<const explain::RowSpans>> rows;
  std::atomic<std::uint64_t> requests_dropped{0}, sent{0}, dropped{0}, rejected{0};
  // The thread's.
  SpanOutbox outbox;
  TraceIds ids;
  std::uint64_t seen = 0;  // of the journal's actions
  std::deque<std::uint64_t> loads;

  std::mutex mutex;  // of what follows
  std::condition_variable wake;
  std::optional<TimePoint> ends;  // it stops, and may send until then
  std::atomic<bool> left{false};  // nobody waits for the thread any more
  std::promise<void> over;
  std::thread thread;
};

SpanSources SpanExporter::Shared::sources_of(const AccessRecord& record) {
  SpanSources out;
  if (!options.journal || !record.inferred) return out;
  const controller::Journal& journal = *options.journal;
  const auto add = [&](std::uint64_t number) {
    if (auto call = journal.call(number)) out.calls.push_back(*std::move(call));
  };
  if (record.facts.number != 0)
    add(record.facts.number);
  else
    for (std::size_t i = 0; i < record.facts.step_count; ++i) add(record.facts.steps[i]);
  for (const std::uint64_t load : journal.loads_since(seen)) loads.push_back(load);
  while (loads.size() > loads_kept) loads.pop_front();
  for (const std::uint64_t load : loads)
    if (auto action = journal.action(load)) out.loads.push_back(*std::move(action));
  return out;
}

// Makes spans of the records that have settled, as far as the outbox wants more.
void SpanExporter::Shared::fill(bool all) {
  const TimePoint now = steady_now();
  for (const AccessRecord* record = ring.front(); record != nullptr && !outbox.full();
       record = ring.front()) {
    if (!all && record->ended + settles_after > now) return;
    // The clocks may be set apart while the server runs: asked anew for each request.
    outbox.put(spans_of(*record, sources_of(*record), unix_minus_steady(), ids), now);
    ring.pop();
  }
}

// Of rows that are complete.
void SpanExporter::Shared::fill_rows() {
  const TimePoint now = steady_now();
  for (const auto* row = rows.front(); row != nullptr && !outbox.full(); row = rows.front()) {
    outbox.put(spans_of(**row, ids), now);
    rows.pop();
  }
}

std::string SpanExporter::Shared::encode() const {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans& spans = *request.add_resource_spans();
  for (const auto& [key, value] : options.resource) {
    otlp::KeyValue& attribute = *spans.mutable_resource()->add_attributes();
    attribute.set_key(key);
    attribute.mutable_value()->set_string_value(value);
  }
  otlp::ScopeSpans& scope = *spans.add_scope_spans();
  scope.mutable_scope()->set_name("carillon");
  scope.mutable_scope()->set_version(options.version);
  for (const OtlpSpan* span : outbox.batch()) *scope.add_spans() = *span;
  return request.SerializeAsString();
}

void SpanExporter::Shared::post_once(TimePoint until) {
  const Duration patience = std::min(options.patience, until - steady_now());
  const PostAnswer answer = options.post(encode(), std::max(patience, Duration{0}), [this] {
    const std::lock_guard lock(mutex);
    return ends && steady_now() >= *ends;
  });
  const auto told = outbox.answered(answer, steady_now());
  publish();
  if (told && options.log && !left) options.log("--otlp: " + *told);
}

void SpanExporter::Shared::publish() {
  const SpanCounts counts = outbox.counts();
  sent.store(counts.sent, std::memory_order_relaxed);
  dropped.store(counts.dropped, std::memory_order_relaxed);
  rejected.store(counts.rejected, std::memory_order_relaxed);
}

void SpanExporter::run(Shared& shared) {
  pthread_setname_np(pthread_self(), "carillon-otlp");
  std::unique_lock lock(shared.mutex);
  for (;;) {
    const std::optional<TimePoint> ends = shared.ends;
    lock.unlock();
    if (ends) shared.outbox.hurry();
    shared.fill_rows();
    shared.fill(ends.has_value());
    const TimePoint due = shared.outbox.due();
    const TimePoint now = steady_now();
    if (ends && (due == TimePoint::max() || now >= *ends)) break;
    if (due <= now) {
      shared.post_once(ends.value_or(TimePoint::max()));
      lock.lock();
      continue;
    }
    lock.lock();
    shared.wake.wait_for(lock, look_every, [&] { return shared.ends.has_value(); });
  }
  for (; shared.ring.front() != nullptr; shared.ring.pop())
    shared.requests_dropped.fetch_add(1, std::memory_order_relaxed);
  for (; shared.rows.front() != nullptr; shared.rows.pop())
    shared.requests_dropped.fetch_add(1, std::memory_order_relaxed);
  shared.outbox.drop_all();
  shared.publish();
}

SpanExporter::SpanExporter(SpanExporterOptions options)
    : shared_(std::make_shared<Shared>(std::move(options))) {
  shared_->thread = std::thread([shared = shared_] {
    run(*shared);
    shared->over.set_value();
  });
}

SpanExporter::~SpanExporter() {
  stop(Duration{0});
}

void SpanExporter::add(const AccessRecord& record) {
  if (!shared_->ring.push(record)) shared_->requests_dropped.fetch_add(1, std::memory_order_relaxed);
}

void SpanExporter::add(std::shared_ptr<const explain::RowSpans> row) {
  if (!shared_->rows.push(row)) shared_->requests_dropped.fetch_add(1, std::memory_order_relaxed);
}

void SpanExporter::stop(Duration patience) {
  if (!shared_->thread.joinable()) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ends = steady_now() + patience;
    shared_->wake.notify_one();
  }
  // The system may take its time to say where a collector's name leads, and nothing interrupts it.
  constexpr auto grace = std::chrono::milliseconds(500);
  if (shared_->over.get_future().wait_for(patience + grace) == std::future_status::ready)
    return shared_->thread.join();
  shared_->left = true;
  shared_->thread.detach();
}

SpanCounts SpanExporter::counts() const {
  return {.sent = shared_->sent.load(std::memory_order_relaxed),
          .dropped = shared_->dropped.load(std::memory_order_relaxed),
          .rejected = shared_->rejected.load(std::memory_order_relaxed)};
}

std::uint64_t SpanExporter::requests_dropped() const {
  return shared_->requests_dropped.load(std::memory_order_relaxed);
}

}  // namespace carillon::frontend
