#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "carillon/base/time.h"
#include "carillon/explain/facts.h"

namespace carillon::explain {

// Something that a request waited for, or that was done for it. Times are from its arrival.
struct Step {
  enum class What : std::uint8_t { read, size, door, load, busy, wait, tried, input, exec, output, answer };
  What what{};
  Duration begin{0}, end{0};
  std::optional<std::uint32_t> device;
  std::string note;
  std::optional<Duration> predicted;
  std::string other;  // busy: the model that ran
};
std::string_view name_of(Step::What what);

// What became of one request and why, ready to be told: docs/explain.md has the fields.
struct Story {
  RequestFacts request;
  std::string device_name;
  std::optional<ActionFacts> last;  // the last action that it was part of
  std::vector<Step> steps, after;
  std::size_t left_out = 0;  // steps, where there are too many

  // Until the answer; none while it is open.
  std::optional<Duration> took() const;
};

// The most steps of one story, and of what came after.
inline constexpr std::size_t most_steps = 24;
inline constexpr std::size_t most_after = 8;

// `own`: the actions that the request was part of, in the order in which they were sent. `others`: what
// devices did besides, as far as it is known, in any order; what does not touch the request's time is passed
// over. `came_later`: how many requests of its last batch came after it, where that is known. `now`: where an
// open request's time ends.
struct Surroundings {
  std::span<const ActionFacts> own;
  std::span<const ActionFacts> others;
  std::optional<int> came_later;
  TimePoint now;
};
Story tell(const RequestFacts& request, const Surroundings& around);

// Takes out what is not for everybody: names of models that `may_see` does not let through and, without
// `numbers`, the numbers of companions.
void withhold(Story& story, const std::function<bool(std::string_view model)>& may_see, bool numbers);

// "2025-11-24 16:00:00.123456 UTC".
std::string utc(std::int64_t unix_us);

nlohmann::ordered_json to_json(const Story& story);
// Without steps and what surrounds them, for lists.
nlohmann::ordered_json to_short_json(const Story& story);
// The whole in sentences, for people.
std::vector<std::string> sentences(const Story& story);
// Sentences and a timeline; lines end with a newline.
std::string to_text(const Story& story);
// One line of a list.
std::string to_line(const Story& story);

// What of a refusal's would_take is neither the time until then nor expected of the device that had least to
// do and of the model's own run: the policy's margin, for the ways to the device and back and for runs that
// outlast their estimates. Exact where that device had nothing to do; else at least so much, as what it had
// sent may have run in part. None where that cannot be told: no device held the model, or there is nothing
// left.
std::optional<Duration> margin(const RequestFacts& request);
// Whether the request would have kept its deadline without it.
bool refused_for_margin(const RequestFacts& request);

// "12.345 ms".
std::string milliseconds(Duration d);

}  // namespace carillon::explain
