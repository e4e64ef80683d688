#include "carillon/controller/calls/journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "carillon/base/trace_context.h"
#include "carillon/explain/trace.h"

namespace carillon::controller {
namespace {

// So long before a request's time actions are looked for that reach into it.
constexpr Duration reach = std::chrono::seconds{10};

constexpr std::size_t most_of_a_name = 64;
// Of a trace's id in a traceparent.
constexpr std::size_t trace_at = 3, trace_size = 32;
constexpr std::size_t most_of_a_message = 168;

// A step that was done; else it begins never.
void set_span(TimePoint begin, TimePoint end, TimePoint& to_begin, TimePoint& to_end) {
  if (end <= begin) return;
  to_begin = begin;
  to_end = end;
}

}  // namespace

void CallRecord::say(Text& text, std::string_view what, std::size_t most) {
  std::size_t size = std::min({what.size(), most, texts.size() - said});
  // Not in the middle of a character.
  if (size < what.size())
    while (size > 0 && (static_cast<unsigned char>(what[size]) & 0xc0U) == 0x80U) --size;
  text = {static_cast<std::uint16_t>(said), static_cast<std::uint16_t>(size)};
  std::memcpy(texts.data() + said, what.data(), size);
  said += static_cast<std::uint32_t>(size);
}

std::string_view CallRecord::read(const Text& text) const {
  return std::string_view(texts.data(), texts.size()).substr(text.begin, text.size);
}

std::size_t CallRecord::used() const {
  return offsetof(CallRecord, texts) + said;
}

std::size_t ActionRecord::used() const {
  return offsetof(ActionRecord, requests) + count * sizeof(std::uint64_t);
}

CallRecord record_of(const InferCall& call, std::uint64_t number, NameNumber model, std::int64_t version,
                     Class cls, TimePoint deadline) {
  CallRecord record{.number = number};
  record.arrival = call.arrival;
  record.deadline = deadline;
  record.handed = call.handed;
  record.at_door = call.at_door;
  record.version = version;
  record.model = model;
  record.rows = call.rows;
  record.priority = call.priority;
  record.cls = cls;
  record.deadline_from = call.deadline_from;
  if (!call.id.empty()) record.say(record.id, call.id, most_of_a_name);
  if (!call.application.empty()) record.say(record.application, call.application, most_of_a_name);
  if (!call.key.empty()) record.say(record.key, call.key, most_of_a_name);
  if (call.trace.there()) {
    const auto text = traceparent_of(call.trace);
    record.say(record.trace, std::string_view(text.data() + trace_at, trace_size), trace_size);
  }
  return record;
}

void say_message(CallRecord& record, std::string_view message) {
  record.say(record.message, message, most_of_a_message);
}

Journal::Journal(std::size_t capacity, Duration unix_minus_timeline)
    : unix_minus_timeline_(unix_minus_timeline), calls_(capacity), actions_(capacity) {}

NameNumber Journal::name(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return {found->second};
  const auto number = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  numbers_.emplace(name, number);
  return {number};
}

std::uint32_t Journal::add_device(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto device = static_cast<std::uint32_t>(devices_.size());
  devices_[device] = name;
  return device;
}

std::string Journal::name_of(NameNumber number) const {
  const std::lock_guard lock(mutex_);
  return number.value < names_.size() ? names_[number.value] : std::string();
}

std::string Journal::device_name_of(std::uint32_t device) const {
  const std::lock_guard lock(mutex_);
  const auto name = devices_.find(device);
  return name != devices_.end() ? name->second : std::string();
}

explain::RequestFacts Journal::facts(const CallRecord& call) const {
  explain::RequestFacts out;
  out.number = call.number;
  out.id = call.read(call.id);
  out.application = call.read(call.application);
  out.key = call.read(call.key);
  out.trace = call.read(call.trace);
  out.text = call.read(call.message);
  out.model = name_of(call.model);
  out.version = call.version;
  out.cls = call.cls;
  out.priority = call.priority;
  out.rows = call.rows;
  out.log_request = call.log_request;
  out.arrived_unix_us = std::chrono::duration_cast<std::chrono::microseconds>(
                            call.arrival.time_since_epoch() + unix_minus_timeline_)
                            .count();
  out.arrival = call.arrival;
  out.deadline = call.deadline;
  out.deadline_from = call.deadline_from;
  out.handed = call.handed;
  out.at_door = call.at_door;
  out.decided = call.decided;
  out.ended = call.ended;
  out.outcome = call.outcome;
  out.cause = call.cause;
  if (call.would_take >= Duration{0}) out.would_take = call.would_take;
  if (call.retry_after >= Duration{0}) out.retry_after = call.retry_after;
  if (call.has_expected)
    out.expected = explain::Expectation{.exec = call.exec,
                                        .batch = call.exec_batch,
                                        .devices = call.devices,
                                        .holding = call.holding,
                                        .device = call.device,
                                        .busy = call.busy,
                                        .actions = call.device_actions,
                                        .loading = call.loading};
  out.tries = call.tries;
  return out;
}

explain::ActionFacts Journal::facts(const ActionRecord& action) const {
  explain::ActionFacts out;
  out.entry = action.entry;
  out.kind = action.kind;
  out.again = action.again;
  out.device = action.device;
  out.model = name_of(action.model);
  out.rows = action.rows;
  out.sent = action.sent;
  out.window = action.window;
  out.predicted = action.predicted;
  if (action.status != ActionRecord::under_way)
    out.status = static_cast<schedule::ActionStatus>(action.status);
  out.lost = action.lost;
  out.ended = action.ended;
  if (out.status) {
    set_span(action.input_start, action.input_end, out.input_start, out.input_end);
    set_span(action.exec_start, action.exec_end, out.exec_start, out.exec_end);
    set_span(action.output_start, action.output_end, out.output_start, out.output_end);
  }
  out.paused = action.paused;
  out.preemptions = action.preemptions;
  out.requests.assign(action.requests.begin(), action.requests.begin() + action.count);
  return out;
}

template <typename Record>
void Journal::each(const RecordRing<Record>& ring, std::uint64_t newest,
                   const std::function<bool(const Record&)>& look) {
  Record record;
  const std::uint64_t oldest = newest - std::min<std::uint64_t>(newest, ring.capacity());
  for (std::uint64_t number = newest; number > oldest; --number)
    if (ring.get(number, record) && !look(record)) return;
}

std::vector<std::uint64_t> Journal::entries_of(const CallRecord& call) const {
  std::vector<std::uint64_t> out;
  const auto tries = static_cast<std::size_t>(std::max(0, call.tries));
  for (std::size_t i = tries - std::min(tries, CallRecord::most_actions); i < tries; ++i)
    out.push_back(call.actions[i % CallRecord::most_actions]);
  return out;
}

explain::Story Journal::story(const CallRecord& call, TimePoint now) const {
  const std::vector<std::uint64_t> entries = entries_of(call);
  const TimePoint end = call.ended != explain::never ? call.ended : now;
  const bool refused = call.outcome == explain::Outcome::refused && call.deadline != TimePoint::max();
  const TimePoint until = refused ? std::max(end, call.deadline) : end;
  std::vector<explain::ActionFacts> own, others;
  each<ActionRecord>(actions_, last_entry_.load(std::memory_order_relaxed), [&](const ActionRecord& action) {
    if (action.sent + reach < call.arrival) return false;
    const auto last = action.requests.begin() + action.count;
    const bool its = std::ranges::find(entries, action.entry) != entries.end() ||
                     std::find(action.requests.begin(), last, call.number) != last;
    if (!its && (action.sent > until || (action.ended != explain::never && action.ended < call.arrival)))
      return true;
    (its ? own : others).push_back(facts(action));
    return true;
  });
  std::ranges::sort(own, {}, &explain::ActionFacts::entry);
  explain::Surroundings around{.own = own, .others = others, .came_later = {}, .now = now};
  if (!own.empty()) {
    int later = 0;
    CallRecord other;
    for (const std::uint64_t number : own.back().requests)
      later += calls_.get(number, other) && other.arrival > call.arrival ? other.rows : 0;
    around.came_later = later;
  }
  explain::Story out = explain::tell(facts(call), around);
  if (out.last) out.device_name = device_name_of(out.last->device);
  return out;
}

std::optional<explain::Story> Journal::find(std::uint64_t number, TimePoint now,
                                            const MaySee& may_see) const {
  CallRecord call;
  if (!calls_.get(number, call) || !may_see(facts(call))) return std::nullopt;
  return story(call, now);
}

std::optional<explain::Story> Journal::find_id(std::string_view id, TimePoint now,
                                               const MaySee& may_see) const {
  std::optional<explain::Story> out;
  // A longer id is known by its beginning.
  CallRecord cut;
  cut.say(cut.id, id, most_of_a_name);
  const std::string_view wanted = cut.read(cut.id);
  each<CallRecord>(calls_, newest(), [&](const CallRecord& call) {
    if (id.empty() || call.read(call.id) != wanted || !may_see(facts(call))) return true;
    out = story(call, now);
    return false;
  });
  return out;
}

std::optional<KeptCall> Journal::call(std::uint64_t number) const {
  CallRecord record;
  if (!calls_.get(number, record)) return std::nullopt;
  KeptCall out{.request = facts(record), .own = {}, .device_name = {}};
  for (const std::uint64_t entry : entries_of(record))
    if (auto found = action(entry)) out.own.push_back(*std::move(found));
  if (!out.own.empty()) out.device_name = device_name_of(out.own.back().device);
  return out;
}

std::vector<std::uint64_t> Journal::loads_since(std::uint64_t& seen) const {
  const std::uint64_t newest = last_entry_.load(std::memory_order_relaxed);
  const std::uint64_t oldest = newest - std::min<std::uint64_t>(newest, actions_.capacity());
  std::vector<std::uint64_t> out;
  ActionRecord record;
  for (std::uint64_t entry = std::max(seen, oldest) + 1; entry <= newest; ++entry)
    if (actions_.get(entry, record) && record.kind == schedule::ActionKind::load) out.push_back(entry);
  seen = newest;
  return out;
}

std::optional<explain::ActionFacts> Journal::action(std::uint64_t entry) const {
  ActionRecord record;
  if (!actions_.get(entry, record)) return std::nullopt;
  return facts(record);
}

std::vector<explain::Story> Journal::list(std::size_t most, TimePoint now, const MaySee& wanted) const {
  std::vector<explain::Story> out;
  each<CallRecord>(calls_, newest(), [&](const CallRecord& call) {
    if (out.size() >= most) return false;
    const explain::RequestFacts request = facts(call);
    if (!wanted(request)) return true;
    std::vector<explain::ActionFacts> own;
    ActionRecord action;
    if (const auto entries = entries_of(call); !entries.empty() && actions_.get(entries.back(), action))
      own.push_back(facts(action));
    out.push_back(explain::tell(request, {.own = own, .others = {}, .came_later = {}, .now = now}));
    return true;
  });
  return out;
}

std::string Journal::trace(TimePoint since, TimePoint now,
                           const std::function<bool(std::string_view model)>& may_see) const {
  std::vector<explain::RequestFacts> requests;
  std::vector<explain::ActionFacts> actions;
  each<CallRecord>(calls_, newest(), [&](const CallRecord& call) {
    if (call.ended == explain::never || call.ended >= since) requests.push_back(facts(call));
    return true;
  });
  each<ActionRecord>(actions_, last_entry_.load(std::memory_order_relaxed), [&](const ActionRecord& action) {
    if (action.ended == explain::never || action.ended >= since) actions.push_back(facts(action));
    return true;
  });
  explain::TraceInput input{
      .requests = requests, .actions = actions, .device_names = {}, .now = now, .may_see = may_see};
  {
    const std::lock_guard lock(mutex_);
    input.device_names = devices_;
  }
  return explain::to_trace(input);
}

}  // namespace carillon::controller
