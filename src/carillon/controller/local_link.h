#pragma once

#include <cstdint>

#include "carillon/controller/calls/holder.h"
#include "carillon/wire/ends.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// The way to a worker in this process, which reads and writes rows where the holder has them.
class LocalLink final : public wire::DeviceLink {
 public:
  // Both must outlive the link.
  LocalLink(worker::Worker& worker, Holder& holder) : worker_(worker), holder_(holder) {}

  wire::Taken send(const ledger::Load& order) override {
    return taken(worker_.submit(worker::LoadCommand{order.id, order.model, order.window}));
  }
  wire::Taken send(const ledger::Unload& order) override {
    return taken(worker_.submit(worker::UnloadCommand{order.id, order.model}));
  }
  wire::Taken send(const ledger::Infer& order) override;
  wire::Taken send(const ledger::Profile& order) override;
  void stop(ActionId id) override { worker_.stop(id); }
  void preempt(ActionId id, TimePoint order) override { worker_.preempt(id, order); }
  void retire(std::uint32_t life) override;
  void probe() override { worker_.probe(); }
  ledger::Excuse slowness(ledger::Lane lane) override { return worker_.slowness(lane); }
  std::uint64_t pages() const override { return worker_.total_pages(); }
  int best_effort() const override { return worker_.best_effort(); }

 private:
  static wire::Taken taken(bool yes) { return yes ? wire::Taken::yes : wire::Taken::full; }

  worker::Worker& worker_;
  Holder& holder_;
  worker::InferCommand command_{};  // large: made once
};

}  // namespace carillon::controller
