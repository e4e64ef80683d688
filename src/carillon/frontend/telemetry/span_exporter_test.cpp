#include "carillon/frontend/telemetry/span_exporter.h"

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "otlp.pb.h"
#include <gtest/gtest.h>

#include "carillon/base/trace_context.h"

namespace carillon::frontend {
namespace {

AccessRecord sampled() {
  AccessRecord record;
  record.method = "GET";
  record.path = "/v2";
  record.status = 200;
  record.began = TimePoint{1s};
  record.ended = TimePoint{1s + 1ms};
  record.trace = *parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  return record;
}

// Takes posts, and answers them once it may.
class Collector {
 public:
  SpanPost post() {
    return [this](const std::string& body, Duration, const std::function<bool()>& given_up) {
      opentelemetry::proto::trace::v1::ExportTraceServiceRequest request;
      EXPECT_TRUE(request.ParseFromString(body));
      std::unique_lock lock(mutex_);
      ++posts_;
      changed_.notify_all();
      while (!open_ && !given_up()) changed_.wait_for(lock, 1ms);
      if (!open_) return PostAnswer{.status = 0, .retry_after = {}, .body = "given up"};
      spans_ += static_cast<std::size_t>(request.resource_spans(0).scope_spans(0).spans_size());
      resource_ = request.resource_spans(0).resource().attributes(0).value().string_value();
      return PostAnswer{.status = 200, .retry_after = {}, .body = {}};
    };
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_post() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return posts_ > 0; });
  }
  std::size_t spans() {
    const std::lock_guard lock(mutex_);
    return spans_;
  }
  std::string resource() {
    const std::lock_guard lock(mutex_);
    return resource_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  std::size_t posts_ = 0, spans_ = 0;
  std::string resource_;
};

SpanExporterOptions options_of(Collector& collector) {
  return {.post = collector.post(),
          .journal = nullptr,
          .resource = {{"service.name", "carillon"}},
          .version = "1",
          .queue = 16,
          .batch = 8,
          .linger = 1ms,
          .log = {}};
}

TEST(SpanExporter, SendsWhatItIsGiven) {
  Collector collector;
  collector.open();
  SpanExporter exporter(options_of(collector));
  for (int i = 0; i < 10; ++i) exporter.add(sampled());
  exporter.stop(60s);
  EXPECT_EQ(collector.spans(), 10U);
  EXPECT_EQ(collector.resource(), "carillon");
  EXPECT_EQ(exporter.counts().sent, 10U);
  EXPECT_EQ(exporter.counts().dropped, 0U);
  EXPECT_EQ(exporter.requests_dropped(), 0U);
}

// A collector that does not answer: those who serve go on, what has no room is counted, and the end waits no
// longer than it is told.
TEST(SpanExporter, IsBounded) {
  Collector collector;
  SpanExporter exporter(options_of(collector));
  for (int i = 0; i < 8; ++i) exporter.add(sampled());
  collector.wait_for_post();
  for (int i = 0; i < 100; ++i) exporter.add(sampled());
  EXPECT_EQ(exporter.requests_dropped(), 84U);
  const auto began = std::chrono::steady_clock::now();
  exporter.stop(10ms);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
  EXPECT_EQ(exporter.counts().sent, 0U);
  // Each record is one span here, and each is accounted for.
  EXPECT_EQ(exporter.counts().dropped + exporter.requests_dropped(), 108U);
}

// Of many threads at once; to be run under ThreadSanitizer.
TEST(SpanExporter, TakesFromManyThreads) {
  Collector collector;
  collector.open();
  SpanExporter exporter(options_of(collector));
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) exporter.add(sampled());
      });
  }
  exporter.stop(60s);
  EXPECT_EQ(exporter.counts().sent + exporter.requests_dropped(), 2000U);
  EXPECT_EQ(collector.spans(), exporter.counts().sent);
}

// Whoever looks for a collector's name may wait for long, and cannot be woken.
TEST(SpanExporter, LeavesBehindWhatDoesNotComeBack) {
  auto collector = std::make_shared<std::pair<std::mutex, std::condition_variable>>();
  auto back = std::make_shared<bool>(false);
  auto gone = std::make_shared<bool>(false);
  auto posting = std::make_shared<std::promise<void>>();
  {
    SpanExporter exporter({.post =
                               [collector, back, gone, posting](const std::string&, Duration, const auto&) {
                                 std::unique_lock lock(collector->first);
                                 posting->set_value();
                                 collector->second.wait(lock, [&] { return *back; });
                                 *gone = true;
                                 collector->second.notify_all();
                                 return PostAnswer{};
                               },
                           .journal = nullptr,
                           .resource = {},
                           .version = "1",
                           .linger = 1ms,
                           .log = [](const std::string&) { ADD_FAILURE() << "nobody is there to be told"; }});
    exporter.add(sampled());
    posting->get_future().wait();
    exporter.stop(1ms);
  }
  std::unique_lock lock(collector->first);
  *back = true;
  collector->second.notify_all();
  collector->second.wait(lock, [&] { return *gone; });
}

TEST(SpanExporter, SendsRowsOfAClusterToo) {
  Collector collector;
  collector.open();
  SpanExporter exporter(options_of(collector));
  auto row = std::make_shared<explain::RowSpans>();
  row->name = "work";
  row->begin = TimePoint{1s};
  row->begin_part("pull", TimePoint{1s});
  row->finish(TimePoint{2s});
  exporter.add(row);
  exporter.add(sampled());
  exporter.stop(60s);
  EXPECT_EQ(collector.spans(), 3U);
}

}  // namespace
}  // namespace carillon::frontend
