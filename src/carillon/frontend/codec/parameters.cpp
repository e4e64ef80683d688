#include "carillon/frontend/codec/parameters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "carillon/base/assert.h"

namespace carillon::frontend {
namespace {

std::string to_text(const ParameterValue& value) {
  struct Text {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(std::uint64_t v) const { return std::to_string(v); }
    // 1000 is whole where clients write it so, and not where they write 1000.0.
    std::string operator()(double v) const {
      std::array<char, 32> digits{};
      std::string out(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), v).ptr);
      return out.find_first_not_of("-0123456789") == std::string::npos ? out + ".0" : out;
    }
    std::string operator()(std::string_view v) const {
      return "\"" + std::string(v.substr(0, 64)) + (v.size() > 64 ? "..." : "") + "\"";
    }
  };
  return std::visit(Text{}, value);
}

std::unexpected<Error> wrong(std::string_view name, const ParameterValue& value, std::string_view wanted) {
  return invalid("parameter '" + std::string(name) + "' is " + to_text(value) + "; it must be " +
                 std::string(wanted));
}

// A number in either of its integer forms, or decimal digits. Nothing for all else, negative numbers
// included.
std::optional<std::uint64_t> whole(const ParameterValue& value) {
  if (const auto* n = std::get_if<std::int64_t>(&value)) {
    if (*n < 0) return std::nullopt;
    return static_cast<std::uint64_t>(*n);
  }
  if (const auto* n = std::get_if<std::uint64_t>(&value)) return *n;
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    std::uint64_t n = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), n);
    if (error == std::errc{} && end == text->data() + text->size() && !text->empty()) return n;
  }
  return std::nullopt;
}

bool is_of_sequence(std::string_view name) {
  return name == "sequence_id" || name == "sequence_start" || name == "sequence_end";
}

// One of the three above.
Result<> set_sequence(std::string_view name, const ParameterValue& value, controller::SequenceMark& mark) {
  if (name != "sequence_id") {
    const auto on = as_bool(name, value);
    if (!on) return std::unexpected(on.error());
    (name == "sequence_start" ? mark.start : mark.end) = *on;
    return {};
  }
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    if (text->size() > longest_sequence)
      return wrong(name, value,
                   "a whole number, or text of at most " + std::to_string(longest_sequence) + " bytes");
    mark.text = *text;
    return {};
  }
  const auto number = whole(value);
  if (!number)
    return wrong(name, value,
                 "a whole number, or text of at most " + std::to_string(longest_sequence) + " bytes");
  mark.number = *number;
  return {};
}

}  // namespace

Result<bool> as_bool(std::string_view name, const ParameterValue& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b;
  return wrong(name, value, "true or false");
}

Result<std::uint64_t> as_count(std::string_view name, const ParameterValue& value) {
  if (!std::holds_alternative<std::string_view>(value))
    if (const auto n = whole(value)) return *n;
  return wrong(name, value, "a whole number, not negative");
}

bool RequestParameters::heeds(std::string_view name) {
  return name == "timeout" || name == "priority" || name == "application" || is_of_sequence(name);
}

bool may_be_real_time(const repository::ModelConfig& config, const Key* key) {
  return config.model_class == "real_time" || config.real_time_requests || (key != nullptr && key->real_time);
}

void note_unheeded(std::vector<std::string>& names, std::string_view name) {
  constexpr std::size_t noted = 8;
  constexpr std::size_t longest = 128;
  if (names.size() < noted && name != "triton_enable_empty_final_response")
    names.emplace_back(name.substr(0, longest));
}

void drop_sequence(const repository::ModelConfig& config, controller::InferCall& call,
                   std::vector<std::string>& unheeded) {
  if (!call.sequence || config.sequence != nullptr || !config.steps.empty()) return;
  note_unheeded(unheeded, "sequence_id (of a model without sequence_batching)");
  call.sequence.reset();
}

Result<> RequestParameters::set(std::string_view name, const ParameterValue& value) {
  if (name == "timeout") {
    const auto us = whole(value);
    constexpr auto longest = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(longest_timeout).count());
    if (!us)
      return wrong(name, value,
                   "a whole number of microseconds, 0 for none; more than a day (" + std::to_string(longest) +
                       ") is taken as a day");
    if (*us == 0)
      timeout_.reset();
    else
      timeout_ = std::chrono::microseconds(std::min(*us, longest));
  } else if (name == "priority") {
    const auto level = whole(value);
    if (!level || *level > std::numeric_limits<std::uint32_t>::max())
      return wrong(name, value,
                   "a whole number: 0 for the model's own class, 1 to 4294967295 for a level, of which 1 is "
                   "the first");
    priority_ = static_cast<std::uint32_t>(*level);
  } else if (is_of_sequence(name)) {
    if (!sequence_) sequence_.emplace();
    return set_sequence(name, value, *sequence_);
  } else {
    CARILLON_ASSERT(name == "application");
    const auto* text = std::get_if<std::string_view>(&value);
    if (text == nullptr || text->size() > longest_application)
      return wrong(name, value, "text of at most " + std::to_string(longest_application) + " bytes");
    application_ = *text;
  }
  return {};
}

void RequestParameters::apply(controller::InferCall& call, TimePoint arrival, TimePoint transport_deadline,
                              bool real_time) const {
  call.arrival = arrival;
  call.deadline =
      timeout_ ? std::min(saturating_add(arrival, *timeout_), transport_deadline) : transport_deadline;
  using explain::DeadlineFrom;
  call.deadline_from = call.deadline == TimePoint::max()     ? DeadlineFrom::none
                       : call.deadline == transport_deadline ? DeadlineFrom::grpc
                                                             : DeadlineFrom::timeout;
  call.class_given = priority_ != 0;
  call.cls = priority_ == 1 && real_time ? Class::real_time : Class::normal;
  call.priority = priority_;
  call.application = application_;
  call.sequence = sequence_;
}

}  // namespace carillon::frontend
