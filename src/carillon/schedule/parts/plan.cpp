#include "carillon/schedule/parts/plan.h"

#include <algorithm>
#include <variant>

namespace carillon::schedule::parts {

void Plan::hear(const Event& event, const Orders& out) {
  paces_.hear(event, out.ledger(), out.time());
  if (const auto* change = std::get_if<ModelChanged>(&event); change && change->info) {
    symphony::BatchTimes times(*change->info, environment_);
    if (change->model.index() == times_.size()) {
      times_.push_back(std::move(times));
      batches_.add_model();
    } else {
      times_[change->model.index()] = std::move(times);
      batches_.renew_model(change->model);
    }
  } else if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    const Request& request = arrival->request;
    if (request.cls != Class::best_effort)
      batches_.arrived(request.model, std::min<Duration>(request.deadline - out.time(), horizon));
  }
}

bool Plan::step(const Orders& out) {
  if (out.ledger().alive() == 0 || !batches_.due(out.time())) return false;
  const ledger::Ledger& ledger = out.ledger();
  symphony::AllTimes all;
  for (std::uint32_t m = 0; m < times_.size(); ++m) {
    // A device that takes twice as long does half as much.
    double speeds = 0, devices = 0;
    for (std::uint32_t d = 0; d < ledger.devices(); ++d) {
      if (!ledger.device(DeviceId{d}).alive) continue;
      speeds += 1 / std::max(1e-9, paces_.of(DeviceId{d}, ModelId{m}));
      ++devices;
    }
    const double pace = speeds > 0 ? devices / speeds : 1;
    const auto& batches = ledger.model(ModelId{m}).info->batches;
    for (std::size_t i = 0; i < batches.size(); ++i)
      times_[m].set_exec(static_cast<int>(i),
                         from_ns(pace * static_cast<double>(std::max(batches[i].exec, Duration{1}).count())));
    all.push_back(&times_[m]);
  }
  batches_.plan(out.time(), ledger.alive(), all);
  return true;
}

}  // namespace carillon::schedule::parts
