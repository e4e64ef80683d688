#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/access/keys.h"

namespace carillon::frontend {

// A request parameter as either protocol can carry it.
using ParameterValue = std::variant<bool, std::int64_t, std::uint64_t, double, std::string_view>;

// A longer `timeout`, or deadline of a call, is taken for this one.
inline constexpr Duration longest_timeout = std::chrono::hours(24);
inline constexpr std::size_t longest_application = 256;  // bytes
inline constexpr std::size_t longest_sequence = 128;     // bytes of a sequence's id

// The parameters of a request that say how it is scheduled.
//
//   timeout      whole microseconds from arrival to deadline, as a number or in decimal digits; 0: none
//                (Triton's meaning); more than longest_timeout: that
//   priority     0: the model's own class; 1 to 2^32-1: normal, the smaller first. 1 is real-time where
//                may_be_real_time() says so
//   application  text of at most longest_application bytes
//   sequence_id, sequence_start, sequence_end
//                of which sequence it is: a whole number, or text of at most longest_sequence bytes; 0 and ""
//                are none. true with its first and its last request
//
// Errors (invalid_argument) name the parameter, its value and what would be right.
class RequestParameters {
 public:
  static bool heeds(std::string_view name);
  // Requires heeds(name).
  Result<> set(std::string_view name, const ParameterValue& value);

  // Fills in arrival, deadline, class, priority and application. The deadline is the nearer of the timeout's
  // and `transport_deadline`. `real_time`: whether priority 1 is (may_be_real_time).
  void apply(controller::InferCall& call, TimePoint arrival, TimePoint transport_deadline,
             bool real_time) const;

 private:
  std::optional<Duration> timeout_;
  std::uint32_t priority_ = 0;
  std::string application_;
  std::optional<controller::SequenceMark> sequence_;
};

// Whether requests for the model that come with that key (null: without one) are real-time where they name
// priority 1. To Triton's clients that is an ordinary level, so somebody must have said so: the model's
// config, or whoever made the key.
bool may_be_real_time(const repository::ModelConfig& config, const Key* key);

// Notes that a parameter of this name means nothing here; the first few of a request are enough. The one that
// streams heed is not noted.
void note_unheeded(std::vector<std::string>& names, std::string_view name);
// Takes what a call says of a sequence from it, and notes it, where the model knows of none.
void drop_sequence(const repository::ModelConfig& config, controller::InferCall& call,
                   std::vector<std::string>& unheeded);

// A boolean parameter, or an error that names it.
Result<bool> as_bool(std::string_view name, const ParameterValue& value);
// A whole number >= 0, or an error that names the parameter.
Result<std::uint64_t> as_count(std::string_view name, const ParameterValue& value);

}  // namespace carillon::frontend
