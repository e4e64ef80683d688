#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/schedule/around.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/state/due_work.h"
#include "carillon/schedule/state/measured_times.h"

namespace carillon::schedule {

// A factor on the work that waits: how many times as long as charged it is taken to last. It is learnt. A
// request that was admitted and refused later raises it. Each refusal on arrival lowers it a little, and so
// does each request that ran though it had hardly more room than is needed. So it rests where the share
// `late` of them all is refused later. Not thread-safe.
class Allowance {
 public:
  static constexpr double promised = 0.0025;

  // `late` in (0, 1).
  explicit Allowance(double late = promised) : late_(late) {}

  double at(TimePoint now) const;
  // A request that was admitted with so much room (DueWork::room) was refused later. The factor rises no
  // further than what would have kept it out. Where that is above the largest factor, nothing is learnt.
  void came_late(double room, TimePoint now);
  void turned_away(TimePoint now);
  // A request that was admitted with so much room runs.
  void ran(double room, TimePoint now);

 private:
  // Work is charged at the least that it can take. A model whose batches of one take three times as long a
  // request as its largest batch lives on its queue, and its queue is left alone.
  static constexpr double least = 0.5, most = 3;
  static constexpr double rise = 0.05;
  // Requests with more than so many times the room that is needed say nothing about what is needed.
  static constexpr double hardly_more = 1.5;
  // After `forgotten_after` an eighth of the factor's logarithm is left.
  static constexpr Duration half_life = forgotten_after / 3;

  void lower(TimePoint now);
  void set(double level, TimePoint now);

  double late_;
  double level_ = 0;  // its logarithm, at:
  TimePoint since_;
};

// Around Clockwork, Symphony and Carillon, live: refuses a request on arrival if the waiting requests leave
// it no time. By themselves these policies take a request in if it could be on time behind what devices were
// sent, and find out later whom they serve; under overload most refusals then come when the deadline is near.
//
// All that wait for EXEC are taken to run in the order of deadlines. A request is refused if it would be late
// behind those before it, or would make one behind it late. Each is charged for the time by
// which it lengthens the largest batch that ends before its deadline. It cannot take less. The Allowance
// corrects for the rest: smaller batches, another order, a machine that others use. A request that takes less
// than the average of late needs less room, down to a quarter: under overload, cheap requests give the most
// answers.
//
// The policy decides on all others: requests of other classes than normal, those without a deadline, those of
// two seconds and more, those that nobody's work is in the way of, and those whose model is not loaded, for
// which LOADs count and not EXEC. A request that is refused here does not come to the policy, which is only
// told of it (turned_away()).
//
// Stands within BySize, to which sizes are models of their own. A request costs O(DueWork::steps), an action
// a look-up. Not thread-safe.
class Admission final : public Around {
 public:
  // `late`: the share of refusals that may come late (Allowance).
  explicit Admission(std::unique_ptr<Scheduler> policy, double late = Allowance::promised)
      : Around(std::move(policy)), allowance_(late) {}

  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;

 private:
  // What a device's EXEC was sent, and how much of it is left.
  struct Device {
    bool alive = false;
    Duration sent{0}, left{0};
    TimePoint since;
    std::vector<ActionId> flying;

    Duration left_at(TimePoint now) const { return std::max(Duration{0}, left - (now - since)); }
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;
    std::uint32_t version = 0, times_changes = 0;
    MeasuredTimes times;
    std::vector<DeviceId> loaded;
  };
  struct Waiting {
    TimePoint due;
    Duration work{0};
    double room = 0;
  };
  struct Flight {
    ActionKind kind{};
    DeviceId device;
    ModelId model;
    std::uint32_t version = 0, times_changes = 0;
    std::size_t batch = 0;  // its index
    Duration expected{0};
  };

  std::optional<Refuse> admit(const Request& request, TimePoint now);
  void heard(const Event& event, TimePoint now);
  void done(const ActionDone& event, TimePoint now);
  void said(const Action& action, TimePoint now);
  void sent(ActionId id, Flight flight);
  std::optional<Waiting> take(RequestId id, TimePoint now);
  Duration takes(const Model& model, std::size_t index) const;
  Duration beside(Duration exec) const;
  Duration least_share(const Model& model, Duration left) const;
  double ease_of(Duration alone);
  bool loaded(ModelId model) const;
  TimePoint start(TimePoint now) const;

  TimePoint asked_ = TimePoint::max();  // the policy's last Wake
  bool more_ = false;                   // the policy was told of requests that came together
  std::vector<Model> models_;
  std::vector<Device> devices_;
  std::int64_t alive_ = 0;  // of them
  IdMap<RequestId, Waiting> waiting_;
  IdMap<ActionId, Flight> flights_;
  DueWork execs_;
  Allowance allowance_;
  double usual_ = 0;  // nanoseconds that a request takes alone, on average of those that came of late
};

}  // namespace carillon::schedule
