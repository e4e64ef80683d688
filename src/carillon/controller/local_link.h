#pragma once

#include <cstdint>

#include "carillon/base/assert.h"
#include "carillon/controller/calls/row_lookup.h"
#include "carillon/wire/ends.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// The way to a worker in this process, which reads and writes rows where they are.
class LocalLink final : public wire::DeviceLink {
 public:
  // Both must outlive the link.
  LocalLink(worker::Worker& worker, RowLookup& rows) : worker_(worker), rows_(rows) {}

  void send(const ledger::Load& order) override {
    give(worker::LoadCommand{order.id, order.model, order.window});
  }
  void send(const ledger::Unload& order) override { give(worker::UnloadCommand{order.id, order.model}); }
  void send(const ledger::Infer& order) override;
  void send(const ledger::Profile& order) override;
  void stop(ActionId id) override { worker_.stop(id); }
  void preempt(ActionId id, TimePoint order) override { worker_.preempt(id, order); }
  bool cancel(ActionId id) override { return worker_.cancel(id); }
  void retire(std::uint32_t life) override;
  void probe() override { worker_.probe(); }
  ledger::Excuse slowness(ledger::Lane lane) override { return worker_.slowness(lane); }
  wire::Credit credit() const override { return worker_.credit(); }
  std::uint64_t pages() const override { return worker_.total_pages(); }
  int best_effort() const override { return worker_.best_effort(); }

 private:
  template <typename Command>
  void give(const Command& command) {
    const bool taken = worker_.submit(command);
    CARILLON_ASSERT(taken);  // the dispatcher counts
  }

  worker::Worker& worker_;
  RowLookup& rows_;
  worker::InferCommand command_{};  // large: made once
};

}  // namespace carillon::controller
