#include "carillon/explain/story.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/assert.h"

namespace carillon::explain {
namespace {

using schedule::ActionKind;
using schedule::ActionStatus;
using What = Step::What;

// Shorter waits are not worth a line.
constexpr Duration least_wait = std::chrono::microseconds{20};
constexpr std::size_t most_busy = 8;

struct Span {
  TimePoint begin, end;
  bool empty() const { return end <= begin; }
};

Span both(const Span& a, const Span& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// What of `whole` none of `taken` covers.
std::vector<Span> gaps(const Span& whole, std::vector<Span> taken) {
  std::ranges::sort(taken, {}, &Span::begin);
  std::vector<Span> out;
  TimePoint at = whole.begin;
  for (const Span& each : taken) {
    if (each.begin > at) out.push_back({at, std::min(each.begin, whole.end)});
    at = std::max(at, each.end);
  }
  if (at < whole.end) out.push_back({at, whole.end});
  std::erase_if(out, [](const Span& each) { return each.end - each.begin < least_wait; });
  return out;
}

std::string batch_text(int rows) {
  return rows == 1 ? "alone" : fmt::format("a batch of {}", rows);
}

// When EXEC, or the copy, was under way, as far as is known until `now`.
Span exec_of(const ActionFacts& action, TimePoint now) {
  if (action.exec_start == never) return {never, never};
  return {action.exec_start, action.exec_end != never ? action.exec_end : now};
}

std::string why_in_vain(const ActionFacts& action) {
  if (action.lost) return "its device went";
  if (!action.status) return "no report of it came";
  switch (*action.status) {
    case ActionStatus::success:
      return "";
    case ActionStatus::too_late:
      return "the device could not start it in its window";
    case ActionStatus::no_memory:
      return "the device had no memory for it";
    case ActionStatus::not_loaded:
      return "the model was not on the device";
    case ActionStatus::failed:
      return "it failed";
    case ActionStatus::stopped:
      return "it was ended early for something else";
  }
  CARILLON_ASSERT(false);
}

class Teller {
 public:
  Teller(const RequestFacts& request, const Surroundings& around)
      : request_(request), around_(around), story_{.request = request} {}

  Story tell() {
    story_.request.tries = std::max(request_.tries, static_cast<int>(around_.own.size()));
    if (!around_.own.empty()) story_.last = around_.own.back();
    const TimePoint end = request_.ended != never ? request_.ended : around_.now;
    entrance(end);
    if (request_.decided != never) queue(end);
    for (const ActionFacts& action : around_.own) run(action, end);
    answer();
    afterwards(end);
    return finish();
  }

 private:
  void add(std::vector<Step>& to, What what, const Span& span, std::optional<std::uint32_t> device = {},
           std::string note = {}, std::optional<Duration> predicted = {}, std::string other = {}) {
    to.push_back({what, span.begin - request_.arrival, span.end - request_.arrival, device, std::move(note),
                  predicted, std::move(other)});
  }
  void add(What what, const Span& span, std::optional<std::uint32_t> device = {}, std::string note = {},
           std::optional<Duration> predicted = {}, std::string other = {}) {
    if (!span.empty()) add(story_.steps, what, span, device, std::move(note), predicted, std::move(other));
  }

  void entrance(TimePoint end) {
    const TimePoint decided = request_.decided != never ? request_.decided : end;
    const TimePoint handed = request_.handed != never ? request_.handed : request_.arrival;
    add(What::read, {request_.arrival, handed});
    if (request_.at_door == never && request_.handed != never) {
      add(What::size, {handed, decided}, {}, "plans for the size of its inputs");
      return;
    }
    const TimePoint at_door = request_.at_door != never ? request_.at_door : handed;
    add(What::size, {handed, at_door}, {}, "plans for the size of its inputs");
    add(What::door, {at_door, decided});
  }

  // What it waited for once the scheduler had heard of it, until its last action ran, or it was over.
  void queue(TimePoint end) {
    const ActionFacts* const last = around_.own.empty() ? nullptr : &around_.own.back();
    const bool runs = last != nullptr && last->exec_start != never && last->status == ActionStatus::success;
    const Span whole{request_.decided, runs ? std::min(last->exec_start, end) : end};
    if (whole.empty()) return;
    std::vector<Span> known;
    std::vector<const ActionFacts*> busy;
    for (const ActionFacts& other : around_.others) {
      if (last != nullptr && other.device != last->device) continue;
      const Span span = both(whole, exec_of(other, around_.now));
      if (span.empty()) continue;
      if (other.kind == ActionKind::load && other.model == request_.model) {
        add(What::load, span, other.device, "", other.predicted);
        known.push_back(span);
      } else if (other.kind == ActionKind::infer) {
        busy.push_back(&other);
      }
    }
    for (const ActionFacts& own : around_.own) {
      if (own.status == ActionStatus::success) continue;
      const Span span = both(whole, {own.sent, own.ended != never ? own.ended : whole.end});
      if (own.status || own.lost) add(What::tried, span, own.device, why_in_vain(own), own.predicted);
      known.push_back(span);
    }
    // The last ones say most: what was before them was over sooner.
    std::ranges::sort(busy, {}, &ActionFacts::exec_start);
    if (busy.size() > most_busy) {
      story_.left_out += busy.size() - most_busy;
      const Span span = both(whole, {exec_of(*busy.front(), around_.now).begin,
                                     exec_of(*busy[busy.size() - most_busy], around_.now).begin});
      if (!span.empty()) {
        add(What::busy, span, last != nullptr ? std::optional(last->device) : std::nullopt,
            fmt::format("{} other batches", busy.size() - most_busy));
        known.push_back(span);
      }
      busy.erase(busy.begin(), busy.end() - most_busy);
    }
    for (const ActionFacts* other : busy) {
      const Span span = both(whole, exec_of(*other, around_.now));
      add(What::busy, span, other->device,
          (other->again ? other->model + ", run again to be measured"
                        : fmt::format("{}, {}", other->model, batch_text(other->rows))),
          other->predicted, other->model);
      known.push_back(span);
    }
    wait(whole, std::move(known), last);
  }

  void wait(const Span& whole, std::vector<Span> known, const ActionFacts* last) {
    const TimePoint sent = last == nullptr ? whole.end : std::clamp(last->sent, whole.begin, whole.end);
    std::string held = "the scheduler held it";
    if (last != nullptr && around_.came_later.value_or(0) > 0)
      held += fmt::format(", until {} of its batch's {} had come", *around_.came_later, last->rows - 1);
    for (const Span& gap : gaps({whole.begin, sent}, known)) add(What::wait, gap, {}, held);
    if (last == nullptr || sent >= whole.end) return;
    const TimePoint opens = std::clamp(last->window.earliest, sent, whole.end);
    for (const Span& gap : gaps({sent, opens}, known))
      add(What::wait, gap, last->device, "until its window opened");
    if (last->input_start != never)
      known.push_back({last->input_start, last->input_end});  // stands by itself
    for (const Span& gap : gaps({opens, whole.end}, known))
      add(What::wait, gap, last->device, "on its way to the device, or in its queue");
  }

  void run(const ActionFacts& action, TimePoint end) {
    if (action.status && *action.status != ActionStatus::success) return;
    const auto to_its_place = [&](What what, const Span& span, std::string note,
                                  std::optional<Duration> predicted) {
      if (span.begin == never || span.empty()) return;
      // What its answer did not wait for.
      const bool afterwards = request_.ended != never && span.end > end;
      add(afterwards ? story_.after : story_.steps, what, span, action.device, std::move(note), predicted);
    };
    to_its_place(What::input, {action.input_start, action.input_end}, "", {});
    std::string note;
    if (action.preemptions > 0)
      note = fmt::format("made way {} time{}, for {}", action.preemptions, action.preemptions == 1 ? "" : "s",
                         milliseconds(action.paused));
    to_its_place(What::exec, exec_of(action, around_.now), std::move(note), action.predicted);
    to_its_place(What::output, {action.output_start, action.output_end}, "", {});
  }

  void answer() {
    if (request_.ended == never || around_.own.empty()) return;
    const ActionFacts& last = around_.own.back();
    if (last.status != ActionStatus::success || last.exec_end == never) return;
    const TimePoint done = last.output_end != never ? last.output_end : last.exec_end;
    add(What::answer, {done, request_.ended});
  }

  // What devices did from a refusal to the deadline that could not be kept.
  void afterwards(TimePoint end) {
    if (request_.outcome != Outcome::refused || request_.deadline == TimePoint::max()) return;
    std::vector<const ActionFacts*> ran;
    for (const ActionFacts& other : around_.others)
      if (other.kind == ActionKind::infer &&
          !both({end, request_.deadline}, exec_of(other, around_.now)).empty())
        ran.push_back(&other);
    std::ranges::sort(ran, {}, &ActionFacts::exec_start);
    if (ran.size() > most_after) {
      story_.left_out += ran.size() - most_after;
      ran.resize(most_after);
    }
    for (const ActionFacts* other : ran)
      add(story_.after, What::busy, exec_of(*other, around_.now), other->device,
          fmt::format("{}, {}", other->model, batch_text(other->rows)), other->predicted, other->model);
  }

  Story finish() {
    for (auto* steps : {&story_.steps, &story_.after})
      std::ranges::stable_sort(*steps, [](const Step& a, const Step& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
      });
    if (story_.steps.size() > most_steps) {
      const std::size_t over = story_.steps.size() - most_steps;
      story_.left_out += over;
      // From the middle: how it came, and what ended it, are the most of it.
      const auto from = story_.steps.begin() + static_cast<std::ptrdiff_t>(most_steps / 2);
      story_.steps.erase(from, from + static_cast<std::ptrdiff_t>(over));
    }
    return std::move(story_);
  }

  const RequestFacts& request_;
  const Surroundings& around_;
  Story story_;
};

}  // namespace

std::string milliseconds(Duration d) {
  return fmt::format("{:.3f} ms", to_ms(d));
}

std::string_view name_of(Step::What what) {
  switch (what) {
    case What::read:
      return "read";
    case What::size:
      return "size";
    case What::door:
      return "door";
    case What::load:
      return "load";
    case What::busy:
      return "busy";
    case What::wait:
      return "wait";
    case What::tried:
      return "tried";
    case What::input:
      return "input";
    case What::exec:
      return "exec";
    case What::output:
      return "output";
    case What::answer:
      return "answer";
  }
  CARILLON_ASSERT(false);
}

std::optional<Duration> Story::took() const {
  if (request.ended == never) return std::nullopt;
  return request.ended - request.arrival;
}

std::optional<Duration> margin(const RequestFacts& request) {
  if (!request.would_take || !request.expected || request.ended == never) return std::nullopt;
  const Expectation& e = *request.expected;
  if (e.holding == 0) return std::nullopt;
  const Duration left = *request.would_take - (request.ended - request.arrival) - e.busy - e.exec;
  return left > Duration{0} ? std::optional(left) : std::nullopt;
}

bool refused_for_margin(const RequestFacts& request) {
  const auto kept = margin(request);
  if (!kept || request.outcome != Outcome::refused || request.deadline == TimePoint::max()) return false;
  const Duration has = request.deadline - request.arrival;
  return *request.would_take > has && *request.would_take - *kept <= has;
}

Story tell(const RequestFacts& request, const Surroundings& around) {
  return Teller(request, around).tell();
}

void withhold(Story& story, const std::function<bool(std::string_view model)>& may_see, bool numbers) {
  if (story.last && !numbers) story.last->requests.clear();
  for (auto* steps : {&story.steps, &story.after})
    for (Step& step : *steps) {
      if (step.other.empty() || may_see(step.other)) continue;
      step.note = "another model";
      step.other.clear();
    }
}

}  // namespace carillon::explain
