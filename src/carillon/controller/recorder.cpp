#include "carillon/controller/recorder.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {

using ledger::ActionKind;
using ledger::ActionStatus;
namespace {

int rows_of(const Recorder::Action& action) {
  return action.profiled ? 1 : static_cast<int>(action.requests.size());
}

}  // namespace

std::uint32_t Recorder::add_device(std::string name) {
  devices_.push_back(journal_ != nullptr ? journal_->add_device(name) : 0);
  book_.add_device(std::move(name));
  return devices_.back();
}

std::uint64_t Recorder::begun(std::uint32_t place, const Action& action) {
  if (journal_ == nullptr) return 0;
  if (place >= records_.size()) records_.resize(place + 1);
  ActionRecord& record = records_[place];
  record.entry = journal_->next_entry();
  record.kind = action.kind;
  record.again = action.profiled.has_value();
  record.lost = false;
  record.status = ActionRecord::under_way;
  record.device = devices_[action.device.index()];
  record.model = names_[action.model.index()];
  record.rows = rows_of(action);
  record.sent = action.sent;
  record.window =
      action.kind == ActionKind::unload ? Window{TimePoint::min(), TimePoint::max()} : action.window;
  record.predicted = action.expected;
  record.ended = explain::never;
  record.paused = Duration{0};
  record.preemptions = 0;
  record.count = 0;
  return record.entry;
}

void Recorder::with(std::uint32_t place, std::uint64_t call) {
  ActionRecord& record = records_[place];
  if (record.count < ActionRecord::most_requests) record.requests[record.count++] = call;
}

void Recorder::complete(std::uint32_t place) {
  if (journal_ != nullptr) journal_->put(records_[place]);
}

void Recorder::taken(std::uint32_t place, const Action& action) {
  if (on_batch_ && action.requests.size() > 1)
    on_batch_(action.model, static_cast<int>(action.requests.size()));
  if (!timeline_.keeps()) return;
  TimelineAction begins = shown(action);
  begins.exec_begin = action.window.earliest;
  begins.exec_end = action.window.latest;
  timeline_.begin(place, begins);
}

void Recorder::not_taken(std::uint32_t place, TimePoint now) {
  if (journal_ == nullptr) return;
  ActionRecord& record = records_[place];
  record.status = static_cast<std::uint8_t>(ActionStatus::too_late);
  record.ended = now;
  journal_->put(record);
}

void Recorder::ended(std::uint32_t place, const Action& action, const wire::Report& report, bool held,
                     TimePoint now) {
  show_end(place, action, report);
  note_end(place, report, now);
  const bool success = report.status == ActionStatus::success;
  const wire::ActionTimes& times = report.times;
  switch (action.kind) {
    case ActionKind::load:
      if (success) book_.loaded(action.device, action.model, times.ran(), held);
      return;
    case ActionKind::unload:
      if (success && held) book_.unloaded(action.device, action.model);
      return;
    case ActionKind::infer:
      if (action.profiled) {
        if (success) book_.profiled(action.model);
      } else if (success) {
        book_.executed(action.device, action.model, rows_of(action), times, action.expected);
      } else if (times.exec_end > times.exec_start) {
        book_.wasted(action.device, times.ran());
      }
      return;
  }
  CARILLON_ASSERT(false);
}

void Recorder::lost(std::uint32_t place, TimePoint now) {
  timeline_.forget(place);
  if (journal_ == nullptr) return;
  ActionRecord& record = records_[place];
  record.lost = true;
  record.ended = now;
  journal_->put(record);
}

void Recorder::device_lost_over(DeviceId device, std::string_view why) {
  if (on_device_) on_device_({device, false, std::string(why)});
}

void Recorder::device_back(DeviceId device) {
  book_.device_back(device);
  if (on_device_) on_device_({device, true, {}});
}

TimelineAction Recorder::shown(const Action& action) const {
  return {.id = action.id,
          .device = action.device.value,
          .model = book_.place_of(action.model),
          .batch = static_cast<std::uint32_t>(rows_of(action)),
          .kind = action.kind,
          .status = {},
          .cls = action.cls,
          .predicted = action.expected};
}

void Recorder::show_end(std::uint32_t place, const Action& action, const wire::Report& report) {
  if (!timeline_.keeps() || action.kind == ActionKind::unload) return;
  TimelineAction ends = shown(action);
  ends.status = report.status;
  ends.input_begin = report.times.input_start;
  ends.input_end = report.times.input_end;
  ends.exec_begin = report.times.exec_start;
  ends.exec_end = report.times.exec_end;
  ends.output_begin = report.times.output_start;
  ends.output_end = report.times.output_end;
  timeline_.end(place, ends);
}

void Recorder::note_end(std::uint32_t place, const wire::Report& report, TimePoint now) {
  if (journal_ == nullptr) return;
  ActionRecord& record = records_[place];
  const wire::ActionTimes& times = report.times;
  record.status = static_cast<std::uint8_t>(report.status);
  record.ended = now;
  record.input_start = times.input_start;
  record.input_end = times.input_end;
  record.exec_start = times.exec_start;
  record.exec_end = times.exec_end;
  record.output_start = times.output_start;
  record.output_end = times.output_end;
  record.paused = times.paused;
  record.preemptions = times.preemptions;
  journal_->put(record);
}

}  // namespace carillon::controller
