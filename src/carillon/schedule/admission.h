#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/schedule/id_map.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/state/due_work.h"
#include "carillon/schedule/state/measured_times.h"

namespace carillon::schedule {

// How many times as long as planned the work of all requests is taken to last: learnt from what became of
// them. It rises where a request was let in and refused later, and falls where one is refused at once, so
// that of a thousand refusals two or three come late. What a bad spell taught is forgotten in some ten
// seconds. Not thread-safe.
class Allowance {
 public:
  // Refusals that may come late: a quarter of what the 99th percentile leaves.
  static constexpr double promised = 0.0025;

  double at(TimePoint now) const;
  // One was refused late that had been let in with so much room (DueWork::room): no more is needed than what
  // would have kept it out. Where room was plenty, the reason was another.
  void came_late(double room, TimePoint now);
  void turned_away(TimePoint now);

 private:
  // Work is charged at the least that it can take: a model whose batches of one take three times as long a
  // request as its largest is served from queues, and those who wait there should not be turned away.
  static constexpr double least = 0.5, most = 3;
  static constexpr double rise = 0.05;
  static constexpr Duration half_life = forgotten_after;

  void set(double level, TimePoint now);

  double level_ = 0;  // its logarithm, at:
  TimePoint since_;
};

// A policy that is asked only for what can be kept (live, under Clockwork and Symphony). These policies take
// a request in if it could be on time behind what devices were sent already, and see later whom they serve;
// under overload most refusals come when the deadline is near. Here a request is refused on its arrival, if
// all that wait, in the order of deadlines, could not be on time with it: then either it or another would be
// refused later.
//
// Of what runs took a request is charged what it adds to the largest batch that its deadline allows: the
// least that it can take. So nobody is refused whom a batch of many would have served; where batches gain
// much, less is refused here. Answers that take less go first: what takes half as long alone as the requests
// of late is content with half of the room. LOADs of models that are nowhere have an account of their own, as
// they run beside EXECs. How far both are off (smaller batches, other orders than that of deadlines, a
// machine that others use) is learnt (Allowance). The policy decides on all else: requests without a
// deadline, those of two seconds and more, and those for which nobody else's work is in the way. What is
// refused here the policy hears of, as of requests whose clients went away at once: rates and shares are
// those of all that came.
//
// Stands within BySize, as sizes are models of their own there. A request costs O(DueWork::steps), an action
// a look-up. Not thread-safe.
class Admission final : public Scheduler {
 public:
  explicit Admission(std::unique_ptr<Scheduler> policy) : policy_(std::move(policy)) {}

  std::string_view name() const override { return policy_->name(); }
  std::optional<Environment> environment() const override { return policy_->environment(); }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;

 private:
  // What an executor was sent, and how much of it is left.
  struct Backlog {
    Duration sent{0}, left{0};
    TimePoint since;

    Duration at(TimePoint now) const { return std::max(Duration{0}, left - (now - since)); }
    void begin(Duration work, TimePoint now);
    void end(Duration work, TimePoint now);
  };
  struct Device {
    bool alive = false;
    std::uint32_t life = 0;
    Backlog exec, load;
  };
  // Work that stands in an account, and when it is due there; none: max().
  struct Charge {
    TimePoint due = TimePoint::max();
    Duration work{0};
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;
    std::uint32_t version = 0;
    MeasuredTimes times;
    std::size_t wanting = 0;  // requests that wait, of all models that have its weights
    std::vector<DeviceId> loading, loaded;
    Duration load_takes{0};  // as the policy expected it last
    Charge load;             // in loads_: of a LOAD that it waits for
  };
  struct Waiting {
    ModelId model, weights;
    TimePoint due;
    Duration work{0};
    double room = 0;
    Allowance* judged =
        nullptr;  // by which it was let in; none where others than those that wait may keep it
  };
  struct Flight {
    ActionKind kind{};
    DeviceId device;
    ModelId model;
    std::uint32_t life = 0, version = 0;
    std::size_t batch = 0;
    Duration expected{0};
  };

  std::optional<Refuse> admit(const Request& request, TimePoint now);
  static bool turns_away(double room, Allowance& allowance, TimePoint alone, TimePoint due, TimePoint now);
  static Refuse refusal_of(const Request& request, double room, const Allowance& allowance, TimePoint now);
  void ask(const Event& event, TimePoint now, Actions& out);
  void heard(const Event& event, TimePoint now);
  void done(const ActionDone& event, TimePoint now);
  void said(const Action& action, TimePoint now);
  void sent(ActionId id, const Flight& flight, TimePoint now);
  std::optional<Waiting> take(RequestId id, TimePoint now);
  static void charge(DueWork& account, Charge& charge, TimePoint due, Duration work, TimePoint now);
  double ease_of(Duration alone);
  static void leave(Model& model, DeviceId device);
  static Duration least_share(const Model& model, Duration left);
  ModelId home_of(ModelId model) const;
  TimePoint start(Backlog Device::*executor, TimePoint now) const;
  std::size_t alive() const;

  std::unique_ptr<Scheduler> policy_;
  TimePoint asked_ = TimePoint::max();  // the policy's last Wake
  std::vector<Model> models_;
  std::vector<Device> devices_;
  IdMap<RequestId, Waiting> waiting_;
  IdMap<ActionId, Flight> flights_;
  DueWork execs_, loads_;
  double usual_ = 0;  // nanoseconds that requests take alone, on average of those that came lately
  Allowance exec_allowance_, load_allowance_;
};

}  // namespace carillon::schedule
