#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/schedule/request_table.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/state/book.h"
#include "carillon/schedule/state/mirror.h"

namespace carillon::schedule {

struct FcfsOptions {
  std::size_t outstanding = 2;  // INFERs that a device is given at a time: one runs, the next is ready
  int attempts = 3;             // INFERs of a request that may fail before it is refused
  int load_attempts = 5;        // LOADs of a model that may fail in a row before its requests are refused
  Duration load_pause = 10ms;   // after the first failed LOAD; doubles
};

// First come, first served, as servers do that know no deadlines: the yardstick for the others. A device with
// room takes the oldest request whose model is loaded there, together with as many of the same model as wait,
// up to the largest batch size. A model that is nowhere is loaded for the oldest request in need, evicting
// the least recently used. A device that would be idle loads another copy if there is free memory. A model of
// zero pages is everywhere, and goes to an idle device where there is one. Deadlines, classes and priorities
// are ignored: late requests run too. Only failures and impossible models are refused.
//
// A decision costs O(log n) in waiting requests and models, and O(devices) for a model's devices.
class Fcfs final : public Scheduler, public LoadsAhead {
 public:
  explicit Fcfs(const FcfsOptions& options = {}) : options_(options), book_(options.attempts) {}

  std::string_view name() const override { return "fcfs"; }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) override;
  const Mirror* mirror() const override { return &state_; }
  void reads(ledger::Ledger& ledger) override { state_.reads(ledger); }

  std::size_t open() const { return requests_.size(); }  // requests without an outcome

 private:
  using Sequence = std::uint64_t;
  struct Model {
    std::set<std::pair<Sequence, RequestId>> waiting;
    std::vector<DeviceId> places;   // loading or loaded
    Sequence listed = no_sequence;  // of its oldest request, as listed in the sets below
  };
  static constexpr Sequence no_sequence = ~Sequence{0};
  using Order = std::set<std::pair<Sequence, ModelId>>;

  void model_changed(const ModelChanged& event, TimePoint now, Actions& out);
  void done(const ActionDone& event, TimePoint now, Actions& out);
  void changed(const DeviceChanged& event, TimePoint now, Actions& out);
  void give_back(const SentAction& infer, Book::Failure failure, Actions& out);
  void refuse_all(ModelId model, Reason reason, Actions& out);
  bool everywhere(ModelId model) const { return state_.model(model).pages == 0; }
  void offer(ModelId model, TimePoint now, Actions& out);
  void update_room(DeviceId device);
  void list(ModelId model);              // after its oldest request or its places changed
  void unlist(ModelId model);            // before its places change
  Sequence oldest(ModelId model) const;  // that waits for its weights
  void place(ModelId model, DeviceId device);
  void displace(ModelId model, DeviceId device);
  void fill(DeviceId device, TimePoint now, Actions& out);
  void run_loads(TimePoint now, Actions& out);
  bool try_load(DeviceId device, ModelId model, bool may_evict, TimePoint now, Actions& out);

  FcfsOptions options_;
  Mirror state_;
  RequestTable requests_;
  Book book_;
  std::vector<Model> models_;
  std::vector<Order> ready_;  // by device: models that are loading or loaded there, by their oldest request
  Order everywhere_;          // models of zero pages, likewise
  Order waiting_, homeless_;  // the others with waiting requests; those of them that are nowhere
  std::set<std::pair<std::size_t, DeviceId>> room_;  // devices that may be sent more, by how much they have
  std::vector<std::optional<std::size_t>> listed_room_;  // by device: as listed there
  std::set<ModelId> gathered_;  // of requests that came with others, and are not yet decided on
  TimePoint wake_ = TimePoint::max(), asked_wake_ = TimePoint::max();
  Sequence next_sequence_ = 0;
};

}  // namespace carillon::schedule
