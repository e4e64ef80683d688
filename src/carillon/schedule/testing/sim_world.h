#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/device/class_streams.h"
#include "carillon/device/virtual_device.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::testing {

// What one request came to.
enum class Outcome { open, on_time, late, refused, cancelled };

// For tests only: a scheduler under virtual time, devices that are the device core (device::VirtualDevice),
// and faults dealt out by a seed. What a policy must not do is put into `problems` (once a kind), and the run
// goes on.
//
//   SimWorld world(scheduler, {.seed = 7}, models, {.pages = {20}});
//   world.arrive(request, at);
//   world.run();
//   EXPECT_TRUE(world.problems().empty());
class SimWorld {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::vector<std::uint64_t> pages{1000};          // of each device
    Duration latency{0};                             // one way, between scheduler and devices
    Duration io = 50us;                              // from the end of EXEC to the answer
    double noise = 0;                                // EXEC and LOAD take 1 + noise * |normal| of the profile
    double hiccups = 0;                              // share of actions that take ten times as long
    double infer_failures = 0, load_failures = 0;    // share that runs and fails
    std::set<std::pair<DeviceId, ModelId>> lacks{};  // LOADs of such a model there fail at once
    TimePoint lacks_until = TimePoint::max();
    double not_started = 0;  // share of INFERs that ends as no_memory
    double speed = 1;        // true times over the profile's
    // Share of models, as far as there is room, whose weights a device has when it comes back; and share of
    // these of which that is not so.
    double keeps = 0, keeps_not = 0;
    bool by_app = false;   // requests take as many times as long as their application's number, 8 at most
    bool classes = false;  // devices have streams by class, and so many for best effort:
    int best_effort = 1;
    bool subclusters = false;  // ids of actions lie apart by group
  };

  SimWorld(Scheduler& scheduler, const Options& options, std::vector<ModelInfo> models);

  // Plans, before or during run().
  // Id and arrival are set. `more`: it is told as one of several that come together, and all of one instant
  // are decided on at the instant's end.
  void arrive(Request request, TimePoint at, bool more = false);
  void cancel(RequestId id, TimePoint at);
  void device(DeviceId id, bool alive, TimePoint at);
  void model(const ModelChanged& change, TimePoint at);  // of one that came at the beginning
  // From then on its batches take other times, of the same sizes: as `change` makes them.
  using Retime = std::function<void(std::vector<BatchProfile>&)>;
  void times(ModelId id, Retime change, TimePoint at);
  RequestId next_id() const { return RequestId{requests_.size()}; }

  // Runs until nothing is left to happen, or `until`.
  void run(TimePoint until = TimePoint::max());

  const std::map<std::string, std::string>& problems() const { return problems_; }
  std::string problems_text() const;

  struct RequestLog {
    Request request;
    bool more = false;
    bool heard = false;  // by the scheduler
    Outcome outcome = Outcome::open;
    TimePoint answered;
    Reason reason{};
    TimePoint would_finish;
    int batch = 0;
  };
  const std::vector<RequestLog>& requests() const { return requests_; }
  struct Counts {
    int on_time = 0, late = 0, refused = 0, cancelled = 0, open = 0;
  };
  // Of requests that arrived in [from, to).
  Counts count(TimePoint from = TimePoint::min(), TimePoint to = TimePoint::max()) const;
  int loads() const { return loads_; }
  int unloads() const { return unloads_; }
  int infers() const { return infers_; }
  // Of INFERs and LOADs that were refused by a device because it was too late, or the model was not there.
  int too_late() const { return too_late_; }
  int not_loaded() const { return not_loaded_; }
  std::uint64_t decisions() const { return decisions_; }
  // All actions so far, as text: equal for equal runs.
  std::uint64_t digest() const { return digest_; }
  // Called with each action that the scheduler takes.
  void (*on_action)(const Action&, TimePoint) = nullptr;

 private:
  enum class Step { arrive, cancel, device, there, model, times, receive, run, evict, report, wake };
  struct Entry {
    TimePoint at;
    std::uint64_t order = 0;
    Step step{};
    std::uint64_t what = 0;  // request, action, or device
    std::uint64_t stamp = 0;
    std::uint64_t detail = 0;  // of what runs
    friend bool operator<(const Entry& a, const Entry& b) {
      return std::pair(a.at, a.order) < std::pair(b.at, b.order);
    }
  };
  struct ActionLog {
    ActionId id{};
    Class cls = Class::normal;  // INFER
    ActionKind kind{};
    DeviceId device;
    ModelId model;
    std::vector<RequestId> requests;
    Window window;
    std::uint32_t version = 0;  // of the model when it was sent, and the pages that it takes
    std::uint64_t pages = 0;
    Duration duration{0};
    ActionStatus planned = ActionStatus::success;
    ActionStatus status = ActionStatus::success;
    TimePoint start, end;
    Duration busy{0};
    std::uint64_t life = 0;  // of its device
    bool reported = false;
    bool brought = false;  // by its device: nobody ordered it
  };
  struct SimDevice final : device::VirtualDevice::Host {
    void plan(TimePoint at, std::uint64_t what) override;
    Duration begins(std::uint64_t tag, Duration planned, bool resumes) override;
    void ends(std::uint64_t, ActionStatus) override {}
    void done(const device::Done& done) override;

    SimWorld* world = nullptr;
    std::uint64_t index = 0;
    bool alive = false;
    std::uint64_t life = 0;
    std::unique_ptr<device::VirtualDevice> core;
    std::map<ModelId, std::uint32_t> versions;  // of the copies that are there
    std::vector<ModelId> held;                  // as it says when it is there
  };

  void problem(const std::string& kind, const std::string& detail);
  void plan(TimePoint at, Step step, std::uint64_t what, std::uint64_t stamp = 0, std::uint64_t detail = 0);
  void decide(const Event& event);
  void change(const ModelChanged& change);
  void bring(SimDevice& device);
  void tell(const SimDevice& device);
  void take(const Action& action);
  void receive(std::uint64_t id);
  void report_later(std::uint64_t id, ActionStatus status, TimePoint at);
  void report(std::uint64_t id);
  void answer(RequestId id, TimePoint at, int batch);
  void sent_by_class(const Infer& infer, const ActionLog& log);
  Duration by_size(const Infer& infer, Duration exec) const;
  Duration by_app(const Infer& infer, Duration exec) const;
  std::size_t find(ActionId id) const;  // where it is logged; actions_.size(): nowhere

  Scheduler& scheduler_;
  ledger::Ledger ledger_;  // that it reads
  Options options_;
  std::vector<ModelInfo> models_;
  std::vector<std::uint32_t> versions_;  // by model: how often it changed
  std::vector<bool> served_;
  std::vector<ModelChanged> changes_;                // that are planned
  std::vector<std::pair<ModelId, Retime>> retimes_;  // likewise
  Random random_;
  TimePoint now_{};
  std::set<Entry> queue_;
  bool gathering_ = false;  // an AllArrived is owed
  std::uint64_t next_order_ = 0;
  std::vector<RequestLog> requests_;
  std::vector<ActionLog> actions_;
  std::uint64_t brought_ = 0;  // of them
  std::map<ActionId, std::size_t> logged_;
  std::vector<SimDevice> devices_;
  std::uint64_t wake_stamp_ = 0;
  TimePoint wake_at_ = TimePoint::max();
  Actions out_;
  std::map<std::string, std::string> problems_;
  int loads_ = 0, unloads_ = 0, infers_ = 0, too_late_ = 0, not_loaded_ = 0;
  std::uint64_t decisions_ = 0, digest_ = 1469598103934665603ULL;
};

}  // namespace carillon::schedule::testing
