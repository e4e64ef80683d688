#include "carillon/controller/testing/audit.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace carillon::controller::testing {
namespace {

using ledger::Ledger;
using schedule::ActionKind;

std::string number(std::uint64_t value) {
  return std::to_string(value);
}
DeviceId device_of(std::size_t place) {
  return DeviceId{static_cast<std::uint32_t>(place)};
}

template <typename Visit>
void visit_actions(const Ledger& ledger, Visit&& visit) {
  for (std::size_t d = 0; d < ledger.devices(); ++d)
    for (const auto& lined : ledger.device(device_of(d)).under_way)
      for (const std::uint32_t place : lined) visit(ledger.at(place));
}

}  // namespace

void Audit::check(const Core& core, const Ledger& ledger, schedule::testing::Findings& found) {
  found.at("at tick " + number(ledger.tick()));
  // What a device did not take is not under way for the core; its ActionDone is yet to come.
  std::size_t not_taken = 0;
  visit_actions(ledger, [&](const Ledger::Action& action) { not_taken += action.taken ? 0 : 1; });
  found.expect(not_taken == core.local_->not_taken().size(), "core: how many were not taken", [&] {
    return number(core.local_->not_taken().size()) + ", in the ledger " + number(not_taken);
  });
  for (const schedule::ActionDone& deferred : core.local_->not_taken()) {
    const Ledger::Action* const action = ledger.action(deferred.id);
    found.expect(action != nullptr && !action->taken, "core: not taken",
                 [&] { return "action " + number(deferred.id.value); });
  }
  visit_actions(ledger, [&](const Ledger::Action& action) {
    if (core.options_.journal == nullptr || !action.taken || action.kind == ActionKind::unload) return;
    const auto detail = [&] { return "action " + number(action.id.value); };
    const auto noted =
        core.options_.journal->action(core.recorder_.records_[*ledger.place_of(action.id)].entry);
    if (!noted) return;  // newer ones have its place
    found.expect(noted->kind == action.kind && noted->again == action.profiled.has_value() &&
                     noted->sent == action.sent && noted->window == action.window &&
                     noted->predicted == action.expected && !noted->status && !noted->lost,
                 "journal: what is under way", detail);
    const std::size_t rows = action.profiled ? 1 : action.requests.size();
    found.expect(static_cast<std::size_t>(noted->rows) == rows, "journal: rows", detail);
  });
  if (core.timeline().keeps()) {
    std::vector<TimelineAction> open;
    core.timeline().read_open(open);
    std::size_t shown = 0;
    visit_actions(ledger, [&](const Ledger::Action& action) {
      if (!action.taken || action.kind == ActionKind::unload) return;
      ++shown;
      const auto at = std::ranges::find(open, action.id, &TimelineAction::id);
      found.expect(at != open.end(), "timeline: under way",
                   [&] { return "action " + number(action.id.value); });
      if (at == open.end()) return;
      const std::size_t rows = action.profiled ? 1 : action.requests.size();
      found.expect(at->device == action.device.value && at->kind == action.kind && at->cls == action.cls &&
                       at->predicted == action.expected && at->batch == rows &&
                       at->exec_begin == action.window.earliest && at->exec_end == action.window.latest,
                   "timeline: what is under way", [&] { return "action " + number(action.id.value); });
    });
    found.expect(open.size() == std::min(shown, DeviceTimeline::most_open), "timeline: how many",
                 [&] { return number(open.size()) + ", in the ledger " + number(shown); });
  }
  // Devices, and what is where.
  std::map<std::uint32_t, std::vector<DeviceId>> held_by;  // by the model's place in the statistics
  for (std::size_t d = 0; d < ledger.devices(); ++d) {
    const Ledger::Device& device = ledger.device(device_of(d));
    for (const auto& [model, copy] : device.copies)
      if (copy.held) held_by[core.book_.place_of(model)].push_back(device_of(d));
  }
  if (ledger.tick() % 16 == 0) {
    const ServerStatistics book = core.book_.snapshot();
    for (std::uint32_t i = 0; i < book.models.size(); ++i) {
      std::ranges::sort(held_by[i]);
      found.expect(book.models[i].held_by == held_by[i], "book: held by",
                   [&] { return "model " + number(i); });
    }
    for (std::size_t d = 0; d < book.devices.size() && d < ledger.devices(); ++d) {
      std::uint64_t models = 0;
      for (const auto& [model, copy] : ledger.device(device_of(d)).copies) models += copy.held ? 1 : 0;
      found.expect(
          book.devices[d].models == models && book.devices[d].alive == ledger.device(device_of(d)).alive,
          "book: devices", [&] { return "device " + number(d); });
    }
  }
  for (std::uint32_t m = 0; m < ledger.models(); ++m) {
    const Ledger::Model& model = ledger.model({m});
    const auto detail = [&] { return "model " + number(m); };
    found.expect(core.holder_.model({m}).gone == !model.served, "core: gone", detail);
    bool on_devices = model.under_way > 0;
    for (std::size_t d = 0; d < ledger.devices(); ++d) {
      const Ledger::Copy* const copy = ledger.copy(device_of(d), {m});
      on_devices = on_devices || (copy != nullptr && copy->held);
    }
    found.expect(core.uses({m}).on_devices == on_devices, "core: uses", detail);
  }
  // Rows.
  std::size_t told = 0;
  for (std::uint32_t i = 0; i < core.holder_.open_.size(); ++i) {
    const Holder::Open& open = core.holder_.open_[i];
    if (open.call == nullptr) continue;
    for (std::size_t r = 0; r < open.state.size(); ++r) {
      const RequestId id{open.first.value + r};
      const auto detail = [&] { return "request " + number(id.value); };
      const Ledger::OpenRequest* const request = ledger.request(id);
      told += request != nullptr ? 1 : 0;
      const bool over = open.closing || open.answered;
      const Ledger::Action* const action =
          request != nullptr && request->action != Ledger::none ? &ledger.at(request->action) : nullptr;
      switch (open.state[r]) {
        case Holder::Row::fresh:
        case Holder::Row::done:
          found.expect(request == nullptr, "core: row that the scheduler does not have", detail);
          break;
        case Holder::Row::waiting:
          found.expect(request != nullptr && request->withdrawn == 0 && (action == nullptr || !action->taken),
                       "core: row that waits", detail);
          break;
        case Holder::Row::flying:
          found.expect(action != nullptr && action->taken, "core: row that runs", detail);
          if (action != nullptr)
            found.expect((request->withdrawn > 0) == over, "core: row whose client has gone", detail);
          break;
        case Holder::Row::gone:
          found.expect(request == nullptr || (request->withdrawn > 0 && action != nullptr && !action->taken),
                       "core: row that is gone", detail);
          break;
      }
      if (request != nullptr)
        found.expect(request->told.model == open.model && request->told.cls == open.cls &&
                         request->told.arrival == open.arrival,
                     "core: request", detail);
    }
  }
  std::size_t left = 0;  // in what was not taken, of calls that are over
  visit_actions(ledger, [&](const Ledger::Action& action) {
    for (const RequestId id : action.requests)
      if (const auto* request = ledger.request(id);
          !action.taken && request != nullptr && request->withdrawn > 0)
        ++left;
  });
  found.expect(told <= ledger.open_requests() && ledger.open_requests() <= told + left, "core: how many rows",
               [&] { return number(told) + ", in the ledger " + number(ledger.open_requests()); });
}

}  // namespace carillon::controller::testing
