#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/time.h"
#include "carillon/base/trace_context.h"
#include "carillon/controller/calls/service.h"

namespace carillon::frontend {

// Text in a place of its own, cut to what fits: copying it allocates nothing.
template <std::size_t most>
class ShortText {
 public:
  ShortText() = default;
  ShortText& operator=(std::string_view text) {
    size_ = std::min(text.size(), most);
    std::ranges::copy(text.substr(0, size_), text_.begin());
    return *this;
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::size_t size_ = 0;
  std::array<char, most> text_;
};

// How a request ended, for its client.
enum class AccessOutcome : std::uint8_t {
  ok,         // answered; it was no inference
  on_time,    // with its outputs, by its deadline, or it had none
  late,       // with its outputs, after it
  refused,    // it could not be on time, or there was no room for it
  cancelled,  // the client went first
  invalid,    // the client's own doing: what it asked for, or who it is
  failed,
};
std::string_view to_text(AccessOutcome outcome);
// Of what was not answered with outputs.
AccessOutcome outcome_of_http(int status);
AccessOutcome outcome_of_grpc(int code);

// What the service says of one inference.
struct InferFacts {
  ShortText<128> model;
  ShortText<128> id;  // the client's
  std::int64_t version = 0;
  TimePoint arrival;
  TimePoint deadline = TimePoint::max();  // the client's, or by the model's SLO; max: neither
  TimePoint answered;
  std::optional<Duration> would_take;  // of a refusal
  std::optional<AccessOutcome> outcome;
  // For spans alone.
  static constexpr std::size_t most_steps = 16;
  std::uint64_t number = 0;                       // in the journal; 0: not there
  std::array<std::uint64_t, most_steps> steps{};  // likewise, of an ensemble's steps; the first of them
  std::size_t step_count = 0;
  ShortText<168> error;  // what the client is told
};
InferFacts facts_of(const controller::ModelView& model, std::string_view id, TimePoint arrival,
                    TimePoint deadline);
void add_answer(InferFacts& facts, const controller::InferAnswer& answer);

// One request: a line of the access log.
struct AccessRecord {
  enum class Protocol : std::uint8_t { http, grpc };

  Protocol protocol = Protocol::http;
  ShortText<64> peer;
  ShortText<64> key;  // its name
  ShortText<16> method;
  ShortText<512> path;  // or the RPC's, "/package.Service/Method"
  int status = 0;       // HTTP's; of gRPC its code
  AccessOutcome outcome = AccessOutcome::ok;
  std::uint64_t bytes_in = 0;   // of the body or message, as it came
  std::uint64_t bytes_out = 0;  // as it was sent
  TimePoint began;              // of CLOCK_MONOTONIC: its header was there
  TimePoint ended;              // its answer was handed to the system, or the client had gone
  bool of_stream = false;       // a message of a stream, whose span is this one's parent
  bool inferred = false;        // the service was asked, and `facts` are there
  InferFacts facts;
  TraceContext trace;
};

// As one line of JSON, with its end. `unix_offset`: what to add to a TimePoint to get Unix time.
std::string access_line(const AccessRecord& record, Duration unix_offset);

}  // namespace carillon::frontend
