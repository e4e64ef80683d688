#include <algorithm>
#include <array>
#include <ctime>

#include <fmt/format.h>

#include "carillon/base/assert.h"
#include "carillon/explain/story.h"

namespace carillon::explain {
namespace {

using What = Step::What;

std::string origin(DeadlineFrom from) {
  switch (from) {
    case DeadlineFrom::none:
    case DeadlineFrom::given:
      return "";
    case DeadlineFrom::timeout:
      return " (its parameter timeout)";
    case DeadlineFrom::grpc:
      return " (its call's deadline)";
    case DeadlineFrom::slo:
      return " (its model's slo_ms)";
    case DeadlineFrom::server:
      return " (--default-deadline)";
  }
  CARILLON_ASSERT(false);
}

std::string device_text(const Story& story, std::uint32_t device) {
  if (story.last && story.last->device == device && !story.device_name.empty())
    return fmt::format("device {} ({})", device, story.device_name);
  return fmt::format("device {}", device);
}

std::string came(const Story& story) {
  const RequestFacts& r = story.request;
  std::string text = fmt::format("Request {}", r.number);
  if (!r.id.empty()) text += fmt::format(" (id \"{}\")", r.id);
  text += fmt::format(" for model {}", r.model);
  if (r.version != 0) text += fmt::format(" version {}", r.version);
  if (r.rows > 1) text += fmt::format(", of {} rows,", r.rows);
  if (r.cls != Class::normal) text += r.cls == Class::real_time ? ", real-time," : ", best effort,";
  if (!r.application.empty()) text += fmt::format(" of application \"{}\"", r.application);
  text += " came";
  if (r.arrived_unix_us != 0) text += " at " + utc(r.arrived_unix_us);
  if (r.deadline == TimePoint::max()) return text + ", without a deadline.";
  return text + fmt::format(", with a deadline {} later{}.", milliseconds(r.deadline - r.arrival),
                            origin(r.deadline_from));
}

std::string why(Cause cause) {
  switch (cause) {
    case Cause::none:
      return "";
    case Cause::cannot_finish:
      return "no schedule that the policy saw on its arrival would have ended by its deadline";
    case Cause::deadline_passed:
      return "it could have been on time, but other work went first";
    case Cause::device_failed:
      return "its execution failed, or its device went";
    case Cause::no_device:
      return "no device has room for its model";
    case Cause::rejected_late:
      return "a device could not start it in its window, too often or with no time for another try";
    case Cause::no_model:
      return "its model was not served any more";
    case Cause::shed:
      return "requests came faster than they could be decided on, and the door turned it away";
    case Cause::too_near:
      return "its deadline was here, or too near for a decision";
    case Cause::size:
      return "there was no plan for the size of its inputs, and no time to wait for one, or it cannot be "
             "made";
    case Cause::queue_policy:
      return "as many requests of its model and priority waited as its queue policy says";
    case Cause::sequence:
      return "as many sequences, so much of their state, or as many requests of its sequence were there as "
             "may be";
    case Cause::not_serving:
      return "the server was starting or stopping";
    case Cause::full:
      return "as many rows were open as may be";
    case Cause::bad_data:
      return "its own data, or its deadline, are to blame";
    case Cause::client_gone:
      return "its client went away";
    case Cause::error:
      return "something failed";
  }
  CARILLON_ASSERT(false);
}

std::string ended(const Story& story) {
  const RequestFacts& r = story.request;
  const std::string took = story.took() ? milliseconds(*story.took()) : std::string();
  switch (r.outcome) {
    case Outcome::open:
      return "It has no answer yet.";
    case Outcome::on_time:
      if (r.deadline == TimePoint::max()) return fmt::format("Its answer came after {}.", took);
      return fmt::format("Its answer came after {}, {} before its deadline.", took,
                         milliseconds(r.deadline - r.ended));
    case Outcome::late:
      return fmt::format("Its answer came after {}, {} after its deadline.", took,
                         milliseconds(r.ended - r.deadline));
    case Outcome::refused:
      return fmt::format("It was refused after {} ({}): {}.", took, name_of(r.cause), why(r.cause));
    case Outcome::cancelled:
      return fmt::format("It was cancelled after {}: {}.", took, why(r.cause));
    case Outcome::failed:
      return fmt::format("It failed after {} ({}): {}.", took, name_of(r.cause), why(r.cause));
  }
  CARILLON_ASSERT(false);
}

// The numbers behind a refusal.
void refusal(const Story& story, std::vector<std::string>& out) {
  const RequestFacts& r = story.request;
  if (r.would_take) {
    std::string text =
        fmt::format("It would have finished {} after its arrival", milliseconds(*r.would_take));
    if (r.deadline != TimePoint::max() && r.arrival + *r.would_take > r.deadline)
      text += fmt::format(", {} after its deadline: a deadline of that length would have been kept",
                          milliseconds(r.arrival + *r.would_take - r.deadline));
    out.push_back(text + ".");
  }
  if (r.expected) {
    const Expectation& e = *r.expected;
    out.push_back(fmt::format(
        "At that moment {} of {} device{} alive held the model{}; of {}, device {} had "
        "least to do: {} action{}, expected to run for {}. The model's own run was "
        "expected to take {} (at a batch size of {}).",
        e.holding, e.devices, e.devices == 1 ? "" : "s", e.loading ? ", and it was being loaded" : "",
        e.holding > 0 ? "these" : "all", e.device, e.actions, e.actions == 1 ? "" : "s", milliseconds(e.busy),
        milliseconds(e.exec), e.batch));
    if (r.deadline != TimePoint::max() && r.deadline - r.arrival < e.exec)
      out.push_back("Its deadline was shorter than that: no other try would be kept, either.");
    if (const auto kept = margin(r)) {
      std::string text = fmt::format(
          "Beyond waiting and that run {}{} were kept for the ways to the device and back and for runs that "
          "take "
          "longer than expected (the policy's margin, as measured of late)",
          e.actions > 0 ? "at least " : "", milliseconds(*kept));
      if (refused_for_margin(r))
        text += fmt::format(": it is what refused the request, which had {} to spare without it",
                            milliseconds(r.deadline - r.arrival - (*r.would_take - *kept)));
      out.push_back(text + ".");
    }
  }
  if (r.retry_after)
    out.push_back(fmt::format("Waiting would help: after {} it would fit, if nothing else came.",
                              milliseconds(*r.retry_after)));
  if (!r.text.empty()) out.push_back(fmt::format("Its client was told: \"{}\".", r.text));
}

std::string step_text(const Story& story, const Step& step) {
  const std::string length = milliseconds(step.end - step.begin);
  switch (step.what) {
    case What::read:
      return fmt::format("Reading its body took {}.", length);
    case What::size:
      return fmt::format("It waited {} for plans for the size of its inputs.", length);
    case What::door:
      return fmt::format("It waited {} at the door, for the controller's thread.", length);
    case What::load:
      return fmt::format("Its model was being loaded onto {} for {} of its wait.",
                         device_text(story, step.device.value_or(0)), length);
    case What::busy:
      return fmt::format("From {} to {} {} ran {}.", milliseconds(step.begin), milliseconds(step.end),
                         step.device ? device_text(story, *step.device) : "its device", step.note);
    case What::wait:
      return fmt::format("From {} to {} it waited: {}.", milliseconds(step.begin), milliseconds(step.end),
                         step.note);
    case What::tried:
      return fmt::format("An action on {}, from {} to {}, brought nothing: {}.",
                         device_text(story, step.device.value_or(0)), milliseconds(step.begin),
                         milliseconds(step.end), step.note);
    case What::input:
      return fmt::format("From {} to {} its inputs were copied to {}, which took {}.",
                         milliseconds(step.begin), milliseconds(step.end),
                         device_text(story, step.device.value_or(0)), length);
    // run() and way_back() tell these.
    case What::output:
    case What::exec:
    case What::answer:
      return "";
  }
  CARILLON_ASSERT(false);
}

// Behind its run: how its results came to whoever asked.
void way_back(const Story& story, std::vector<std::string>& out) {
  const auto length = [&](What what) -> std::optional<Duration> {
    const auto step = std::ranges::find(story.steps, what, &Step::what);
    return step == story.steps.end() ? std::nullopt : std::optional(step->end - step->begin);
  };
  const auto copied = length(What::output), answered = length(What::answer);
  if (copied && answered)
    out.push_back(fmt::format("Copying its results back took {}, and answering {} more.",
                              milliseconds(*copied), milliseconds(*answered)));
  else if (copied)
    out.push_back(fmt::format("Copying its results back took {}.", milliseconds(*copied)));
  else if (answered)
    out.push_back(fmt::format("Its answer was given {} after that.", milliseconds(*answered)));
}

std::string numbers_text(const std::vector<std::uint64_t>& numbers, std::uint64_t own) {
  std::string out;
  for (const std::uint64_t number : numbers)
    if (number != own) out += fmt::format("{}{}", out.empty() ? "" : ", ", number);
  return out;
}

void run(const Story& story, std::vector<std::string>& out) {
  const auto exec = std::ranges::find(story.steps, What::exec, &Step::what);
  if (exec == story.steps.end() || !story.last) return;
  std::string text = fmt::format("It ran on {}", device_text(story, story.last->device));
  const std::string with = numbers_text(story.last->requests, story.request.number);
  text += story.last->rows == 1 ? ", alone" : fmt::format(", in a batch of {}", story.last->rows);
  if (!with.empty()) text += fmt::format(" with {}", with);
  const Duration took = exec->end - exec->begin - story.last->paused;
  text += fmt::format(", from {} to {}: {}", milliseconds(exec->begin), milliseconds(exec->end),
                      milliseconds(took));
  const Duration over = took - story.last->predicted;
  text +=
      fmt::format(", {} {} than the {} that were expected", milliseconds(over < Duration{0} ? -over : over),
                  over < Duration{0} ? "less" : "more", milliseconds(story.last->predicted));
  if (story.last->preemptions > 0)
    text += fmt::format(", having made way {} time{}, for {}", story.last->preemptions,
                        story.last->preemptions == 1 ? "" : "s", milliseconds(story.last->paused));
  out.push_back(text + ".");
  // What made it late.
  if (story.request.outcome != Outcome::late) return;
  const Duration lateness = story.request.ended - story.request.deadline;
  if (over >= lateness)
    out.push_back("Had its run taken what was expected, it would have been on time.");
  else if (story.last->paused >= lateness)
    out.push_back("Had it not made way, it would have been on time.");
  else if (story.last->window.latest != TimePoint::max() && story.last->exec_start != never &&
           story.last->exec_start <= story.last->window.latest)
    out.push_back(
        "It began in its window, so that the scheduler took what came after its start for shorter: "
        "its run, or the way back of its answer.");
}

}  // namespace

std::string utc(std::int64_t unix_us) {
  const std::time_t seconds = unix_us / 1'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06} UTC", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, unix_us % 1'000'000);
}

std::vector<std::string> sentences(const Story& story) {
  std::vector<std::string> out{came(story), ended(story)};
  const Outcome outcome = story.request.outcome;
  if (outcome == Outcome::refused || outcome == Outcome::failed) refusal(story, out);
  for (const Step& step : story.steps)
    if (std::string text = step_text(story, step); !text.empty()) out.push_back(std::move(text));
  run(story, out);
  way_back(story, out);
  if (story.left_out > 0)
    out.push_back(fmt::format("Of {} further steps nothing is told here.", story.left_out));
  if (!story.after.empty() && outcome == Outcome::refused) {
    std::string text = "Until its deadline devices ran";
    for (std::size_t i = 0; i < story.after.size(); ++i) {
      const Step& step = story.after[i];
      text += fmt::format("{} {} (device {}, {} to {})", i == 0 ? ":" : ";",
                          step.note.empty() ? "its own action" : step.note, step.device.value_or(0),
                          milliseconds(step.begin), milliseconds(step.end));
    }
    out.push_back(text + ".");
  } else if (!story.after.empty()) {
    out.push_back(fmt::format("What it was part of went on until {}.",
                              milliseconds(std::ranges::max(story.after, {}, &Step::end).end)));
  }
  return out;
}

std::string to_line(const Story& story) {
  const RequestFacts& r = story.request;
  return fmt::format(
      "{:>10}  {:<20} {:<10} {:<16} {:>12} {:>12}  {}\n", r.number, r.model, name_of(r.outcome),
      name_of(r.cause), story.took() ? fmt::format("{:.3f}", to_ms(*story.took())) : "-",
      r.deadline != TimePoint::max() ? fmt::format("{:.3f}", to_ms(r.deadline - r.arrival)) : "-", r.id);
}

std::string to_text(const Story& story) {
  std::string out;
  for (const std::string& sentence : sentences(story)) out += sentence + "\n";
  Duration last{0};
  for (const auto* steps : {&story.steps, &story.after})
    for (const Step& step : *steps) last = std::max(last, step.end);
  if (last <= Duration{0}) return out;
  constexpr std::int64_t width = 40;
  out +=
      fmt::format("\n{:>12} {:>12}  {:<7}{:<8}|{:<{}}|\n", "begin ms", "end ms", "step", "device", "", width);
  const auto row = [&](const Step& step, std::string_view mark) {
    const auto place = [&](Duration at) {
      return std::clamp<std::int64_t>(
          static_cast<std::int64_t>(static_cast<double>(at.count()) / static_cast<double>(last.count()) *
                                    static_cast<double>(width)),
          0, width - 1);
    };
    const std::int64_t from = place(step.begin);
    const std::int64_t to = std::max(from, step.end > step.begin ? place(step.end - Duration{1}) : from);
    std::string bar(static_cast<std::size_t>(width), ' ');
    for (std::int64_t i = from; i <= to; ++i) bar[static_cast<std::size_t>(i)] = mark.front();
    out += fmt::format("{:>12.3f} {:>12.3f}  {:<7}{:<8}|{}|{}{}\n", to_ms(step.begin), to_ms(step.end),
                       name_of(step.what), step.device ? std::to_string(*step.device) : "-", bar,
                       step.note.empty() ? "" : " ", step.note);
  };
  for (const Step& step : story.steps) row(step, step.what == What::exec ? "#" : "=");
  for (const Step& step : story.after) row(step, ".");
  return out;
}

}  // namespace carillon::explain
