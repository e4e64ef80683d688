#pragma once

#include <string>
#include <utility>
#include <vector>

#include "carillon/transport/messages.h"

namespace carillon::transport::testing {

inline TimePoint at(std::int64_t ns) {
  return TimePoint{Duration{ns}};
}

inline wire::Report sample_report() {
  wire::Report report{.id = ActionId{0x1122334455667788},
                      .status = ledger::ActionStatus::failed,
                      .error = "kernel \xff failed",  // no UTF-8
                      .device_lost = true,
                      .life = 3,
                      .device = DeviceId{5},
                      .bad_rows = {{2, {ErrorCode::invalid_argument, "index 7 is outside"}},
                                   {4, {ErrorCode::deadline_exceeded, ""}}},
                      .odd_time = true,
                      .delivers = true};
  report.times = {.received = at(1000),
                  .input_start = at(1100),
                  .input_end = at(1300),
                  .exec_start = at(1600),
                  .exec_end = at(2000),
                  .output_start = at(1900),  // a clock may go on in another thread
                  .output_end = at(2600),
                  .paused = 7ns,
                  .preemptions = 2,
                  .lost = 5ns,
                  .padded = 4ns,
                  .threads = 8,
                  .preempts = true};
  return report;
}

// One of each kind, by its name, no field as it is by default.
inline std::vector<std::pair<std::string, Message>> samples() {
  const Request row{.id = RequestId{0xfedcba9876543210},
                    .model = ModelId{17},
                    .app = AppId{4},
                    .cls = Class::real_time,
                    .priority = 2,
                    .arrival = at(-50),
                    .deadline = at(9'000'000'000),
                    .effort = {1'000'000'007, 4096}};
  const std::vector<RequestId> rows{RequestId{1}, RequestId{0xffffffffffffffff}};
  const Window window{at(10), at(20)};
  wire::RowTrace trace{.trace = *parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
                       .unix_zero = at(-1'700'000'000'000'000'000),
                       .clock_bound = 40us};
  trace.trace.span_id = std::exchange(trace.trace.parent_id, {});
  const RowReference reference{RequestId{9}, 2, 0x8899aabbccddeeff, trace};
  const wire::Prospect prospect{.exec = 3ms,
                                .batch = 4,
                                .devices = 5,
                                .holding = 2,
                                .loading = true,
                                .device = DeviceId{0},
                                .holds = true,
                                .runs = 6,
                                .busy = 11ms};
  return {
      {"application", Application{AppId{4}, "camera \xfe", wire::Dispatcher::Alike{ModelId{0}, 128}}},
      {"offer", Offer{row, true, 0x0102030405060708, 602'112, trace}},
      {"withdraw", Withdraw{RequestId{3}, ModelId{17}}},
      {"sent", Sent{rows, DeviceId{6}}},
      {"came_back", CameBack{rows}},
      {"ended", Ended{rows, sample_report()}},
      {"turned_down", TurnedDown{RequestId{8}, {ErrorCode::unavailable, "why"}}},
      {"lost", Lost{rows, "its device went"}},
      {"refused", wire::Verdict{{RequestId{8}, ledger::Reason::rejected_late, at(77)}, prospect}},
      {"keep", Keep{rows}},
      {"forget", Forget{rows}},
      {"load", ledger::Load{ActionId{12}, DeviceId{1}, ModelId{3}, window, 8ms}},
      {"unload", ledger::Unload{ActionId{13}, DeviceId{1}, ModelId{3}}},
      {"infer", Infer{{.id = ActionId{14},
                       .device = DeviceId{1},
                       .model = ModelId{3},
                       .requests = {RequestId{9}, RequestId{9}},
                       .window = window,
                       .expected = 6ms,
                       .cls = Class::best_effort},
                      {reference, reference}}},
      {"profile", Profile{{ActionId{15}, DeviceId{1}, ModelId{3}, RequestId{9}, window, 6ms}, reference}},
      {"stop", ledger::Stop{ActionId{14}, DeviceId{1}}},
      {"preempt", ledger::Preempt{ActionId{14}, DeviceId{1}, at(30)}},
      {"retire", Retire{DeviceId{1}, 4}},
      {"probe", Probe{DeviceId{1}}},
      {"report", sample_report()},
      {"probe_report", wire::ProbeReport{fail(ErrorCode::internal, "no answer"), 4, DeviceId{1}}},
      {"adopt", Adopt{DeviceId{1}, 4}},
      {"device_state", DeviceState{DeviceId{1},
                                   1 << 20,
                                   3,
                                   {40, 2},
                                   DeviceState::Left{{ModelId{17}, ModelId{3}},
                                                     {{ModelId{17}, Class::real_time, 4, 5ms, 6ms, 70ms},
                                                      {ModelId{3}, Class::best_effort, 1, 2ms, 1ms, 9ms}}},
                                   12}},
      {"slowness", ledger::Excuse{DeviceId{1}, ledger::Lane::load, 12ms, true}},
      {"delivered", Delivered{ActionId{14}, 3ms}},
      {"rows_at", RowsAt{"10.0.0.7:7002"}},
      {"device_count", DeviceCount{3, 4}},
      {"offer_credit", OfferCredit{40, 1024}},
      {"frontend_at", FrontendAt{2, "10.0.0.7:7002"}},
      {"leads", Leads{}},
      {"model_comes",
       ModelComes{
           {.info = {.id = ModelId{17},
                     .name = "words",
                     .pages = 7,
                     .load = 3ms,
                     .batches = {{1, 2ms}, {4, 5ms}},
                     .cost = profile::PaddedCost{1ms, 0.75},
                     .solos = {1ms, 2ms},
                     .time_varies = true,
                     .cls = Class::best_effort,
                     .miss_rate = 0.25},
            .version = 2,
            .hash = 0x0102030405060708,
            .config = "no UTF-8: \xff",
            .inputs = {{"tokens", graph::DataType::i64, {graph::batch_dimension, graph::length_dimension}},
                       {"weights", graph::DataType::f32, {graph::batch_dimension, 3}}},
            .outputs = {{"sums", graph::DataType::f16, {graph::batch_dimension, 0}}},
            .lengths = {16, 128}}}},
      {"model_goes", ModelGoes{ModelId{17}, true}},
      {"model_times", ModelTimes{ModelId{17}, {{1, 2ms}, {4, 5ms}}}},
      {"drain", Drain{true}},
      {"drains", Drains{3}},
      {"model_order", ModelOrder{5, "words", true}},
      {"model_ordered", ModelOrdered{5, fail(ErrorCode::not_found, "no such model")}},
  };
}

}  // namespace carillon::transport::testing
