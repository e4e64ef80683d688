#include "carillon/engine/cuda/driver/rules.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "carillon/engine/cuda/driver/context.h"

namespace carillon::engine::cuda {

namespace {

class Asker {
 public:
  Asker(const Driver& driver, DeviceNumber device) : d_(driver), device_(device) {
    kind_.location.id = access_.location.id = device;
  }

  void ask() {
    facts();
    addresses();
    allocations();
    streams();
    for (const auto each : {&Asker::plain_capture, &Asker::asked_capture, &Asker::outside, &Asker::unjoined,
                            &Asker::two_captures, &Asker::graph_in_capture})
      capture(each);
    parts();
  }

 private:
  void facts() {
    int number = 0;
    std::size_t bytes = 0, all = 0;
    (void)d_.driver_version(&number);
    (void)d_.device_count(&number);
    for (const int attribute :
         {attribute_major, attribute_minor, attribute_processors, attribute_virtual_memory})
      (void)d_.device_attribute(&number, attribute, device_);
    (void)d_.device_memory(&bytes, device_);
    (void)d_.memory_info(&bytes, &all);
    const char* name = nullptr;
    for (const Status status :
         {done, invalid_value, out_of_memory, invalid_context, invalid_handle, not_ready, not_supported,
          capture_unsupported, capture_invalidated, capture_unjoined})
      (void)d_.error_name(status, &name);
    int least = 0, greatest = 0;
    (void)d_.priority_range(&least, &greatest);
    Uuid uuid;
    (void)d_.device_uuid(&uuid, device_);
  }

  void addresses() {
    std::size_t granule = 0;
    if (d_.granularity(&granule, &kind_, smallest_granularity) != done || granule == 0) return;
    Handle one = 0, two = 0, none = 0;
    Address at = 0;
    (void)d_.create(&none, granule / 2, &kind_, 0);  // not of whole granules
    if (none != 0) (void)d_.release(none);
    (void)d_.create(&none, 0, &kind_, 0);
    if (d_.create(&one, granule, &kind_, 0) != done) return;
    if (d_.create(&two, granule, &kind_, 0) != done) two = 0;
    if (d_.reserve(&at, 4 * granule, 0, 0, 0) == done) {
      (void)d_.set_access(at, granule, &access_, 1);       // of what is not mapped
      (void)d_.map(at, granule, granule / 2, one, 0);      // at an offset
      (void)d_.map(at, 2 * granule, 0, one, 0);            // more than there is
      (void)d_.map(at + granule / 2, granule, 0, one, 0);  // not at a granule
      if (d_.map(at, granule, 0, one, 0) == done) {
        if (two != 0) (void)d_.map(at, granule, 0, two, 0);  // where some is
        (void)d_.unmap(at, granule / 2);                     // a part
        (void)d_.unreserve(at, 4 * granule);                 // under it
        (void)d_.set_access(at, granule, &access_, 1);
        if (two != 0 && d_.map(at + granule, granule, 0, two, 0) == done)
          (void)d_.set_access(at, 2 * granule, &access_, 1);  // of two mappings
        else
          two_is_mapped_ = false;
        (void)d_.release(one);  // what is mapped stays
        one = 0;
        if (two != 0 && two_is_mapped_) {
          (void)d_.unmap(at, 2 * granule);
        } else {
          (void)d_.unmap(at, granule);
        }
      }
      (void)d_.unmap(at, granule);          // what is not mapped
      (void)d_.unreserve(at, 2 * granule);  // not as it was reserved
      (void)d_.unreserve(at, 4 * granule);
    }
    if (one != 0) (void)d_.release(one);
    if (two != 0) (void)d_.release(two);
  }

  void allocations() {
    Address at = 0;
    void* host = nullptr;
    (void)d_.allocate(&at, 0);
    if (d_.allocate(&at, 4096) == done) (void)d_.free(at);
    (void)d_.host_allocate(&host, 0, host_is_mapped);
    if (d_.host_allocate(&host, 4096, host_is_mapped) != done) return;
    Address seen = 0;
    (void)d_.host_address(&seen, host, 0);
    (void)d_.host_free(host);
  }

  // Two streams and three events, of which the last has no time.
  void streams() {
    make();
    float took = 0;
    (void)d_.event_query(events_[0]);                       // not recorded
    (void)d_.event_synchronize(events_[0]);                 // likewise
    (void)d_.stream_wait(streams_[0], events_[0], 0);       // likewise
    (void)d_.event_elapsed(&took, events_[0], events_[1]);  // likewise
    (void)d_.event_record(events_[0], streams_[0]);
    (void)d_.event_record(events_[2], streams_[0]);
    (void)d_.stream_synchronize(streams_[0]);
    (void)d_.event_elapsed(&took, events_[0], events_[2]);  // without a time
    (void)d_.event_record(events_[1], streams_[0]);
    (void)d_.stream_wait(streams_[1], events_[1], 0);
    (void)d_.stream_synchronize(streams_[1]);
    (void)d_.event_elapsed(&took, events_[0], events_[1]);
    (void)d_.stream_query(streams_[0]);
    end();
  }

  // Each in streams and events of its own, as a capture that broke may stay.
  void capture(void (Asker::*how)()) {
    make();
    if (d_.capture_begin(streams_[0], capture_of_this_thread) == done) {
      (this->*how)();
      Graph graph = nullptr;
      (void)d_.capture_end(streams_[0], &graph);
      run(graph);
    }
    end();
  }
  void run(Graph graph) {
    GraphExec made = nullptr;
    if (graph == nullptr) return;
    if (d_.graph_instantiate(&made, graph, 0) == done) {
      for (int i = 0; i < 2; ++i) (void)d_.graph_launch(made, streams_[0]);
      (void)d_.stream_synchronize(streams_[0]);
      (void)d_.graph_exec_destroy(made);
    }
    (void)d_.graph_destroy(graph);
  }
  void plain_capture() {  // a fork that is joined; begun twice; ended in the stream that it forked to
    (void)d_.capture_begin(streams_[0], capture_of_this_thread);
    fork();
    Graph graph = nullptr;
    if (d_.capture_end(streams_[1], &graph) == done) (void)d_.graph_destroy(graph);
    (void)d_.event_record(events_[1], streams_[1]);
    (void)d_.stream_wait(streams_[0], events_[1], 0);
  }
  void asked_capture() { (void)d_.stream_query(streams_[0]); }
  void outside() {  // an event from outside of the capture
    (void)d_.event_record(events_[1], streams_[1]);
    (void)d_.stream_wait(streams_[0], events_[1], 0);
  }
  void unjoined() {
    fork();
    (void)d_.fill(memory_, 0, 4096, streams_[1]);
  }
  void two_captures() {
    if (d_.capture_begin(streams_[1], capture_of_this_thread) != done) return;
    (void)d_.event_record(events_[1], streams_[1]);
    (void)d_.stream_wait(streams_[0], events_[1], 0);
    (void)d_.event_query(events_[1]);
    Graph graph = nullptr;
    if (d_.capture_end(streams_[1], &graph) == done) (void)d_.graph_destroy(graph);
  }
  void graph_in_capture() {  // its work stands in the graph
    (void)d_.fill(memory_, 0, 4096, streams_[0]);
  }
  void fork() {
    (void)d_.fill(memory_, 0, 4096, streams_[0]);
    (void)d_.event_record(events_[0], streams_[0]);
    (void)d_.stream_wait(streams_[1], events_[0], 0);
  }

  void make() {
    for (Stream& stream : streams_) (void)d_.stream_create(&stream, stream_beside_the_default, 0);
    for (std::size_t i = 0; i < events_.size(); ++i)
      (void)d_.event_create(&events_[i], i + 1 == events_.size() ? event_without_time : 0);
    (void)d_.allocate(&memory_, 4096);
  }
  void end() {
    for (Stream& stream : streams_)
      if (stream != nullptr) {
        (void)d_.stream_synchronize(stream);
        (void)d_.stream_destroy(std::exchange(stream, nullptr));
      }
    for (Event& event : events_)
      if (event != nullptr) (void)d_.event_destroy(std::exchange(event, nullptr));
    if (memory_ != 0) (void)d_.free(std::exchange(memory_, 0));
  }

  void parts() {
    Processors all{};
    if (d_.processors(device_, &all, of_processors) != done) return;
    for (const unsigned least : {1U, 8U, 12U, 16U}) {
      unsigned count = 0;
      (void)d_.split_processors(nullptr, &count, &all, nullptr, 0, least);
      for (const unsigned wanted : {1U, count}) {
        if (count == 0 || count > 128) continue;
        std::vector<Processors> parts(count);
        Processors rest{};
        unsigned given = wanted;
        if (d_.split_processors(parts.data(), &given, &all, &rest, 0, least) == done)
          division(parts, given, rest);
      }
    }
  }
  void division(std::vector<Processors>& parts, unsigned count, const Processors& rest) {
    parts.resize(std::min<std::size_t>(count, parts.size()));
    green(parts, static_cast<unsigned>(std::min<std::size_t>(parts.size(), 2)));
    if (rest.count == 0) return;
    std::vector<Processors> left{rest};
    green(left, 1);
  }
  void green(std::vector<Processors>& parts, unsigned count) {
    Resources what = nullptr;
    GreenContext context = nullptr;
    if (d_.describe(&what, parts.data(), count) != done) return;
    if (d_.green_create(&context, what, device_, 0) == done)  // without its default stream
      (void)d_.green_destroy(context);
    if (d_.green_create(&context, what, device_, green_default_stream) != done) return;
    Stream stream = nullptr;
    if (d_.green_stream(&stream, context, 0, 0) == done) (void)d_.stream_destroy(stream);
    if (d_.green_stream(&stream, context, stream_beside_the_default, -1) == done) {
      (void)d_.stream_synchronize(stream);
      (void)d_.stream_destroy(stream);
    }
    (void)d_.green_destroy(context);
  }

  const Driver& d_;
  const DeviceNumber device_;
  Properties kind_;
  Access access_;
  bool two_is_mapped_ = true;
  std::array<Stream, 2> streams_{};
  std::array<Event, 3> events_{};
  Address memory_ = 0;
};

}  // namespace

Result<> ask_rules(const Driver& driver, DeviceNumber device) {
  const InPrimaryContext current(driver, device);
  if (current.status() != done)
    return fail(ErrorCode::unavailable, "the device cannot be used: " + name_of(driver, current.status()));
  Asker(driver, device).ask();
  return {};
}

}  // namespace carillon::engine::cuda
