#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "carillon/schedule/id_map.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {

// What must hold in every run, whatever goes wrong in it, checked at every event:
//   - each request has exactly one outcome, and is never run or refused after it;
//   - on time means by the deadline, late means after it;
//   - no request is refused before it arrived, or by an id that never was;
//   - an INFER holds requests of its model only, in a batch size of the model, each once;
//   - no action is sent to a device that is dead, nor with an id that was used before;
//   - nothing starts outside its window by its device's clock; no executor does two things at once;
//   - a device's weights never take more pages than it has;
//   - time does not run backwards, and no wake is asked for in the past.
// A broken promise is put into problems() (the first of a kind), and the run goes on.
class Checker final : public Observer {
 public:
  // `clock_offset`: how far devices' clocks may be off.
  Checker(const workload::Scenario& scenario, Duration clock_offset = Duration{0});

  void on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions) override;
  void on_outcome(const Request& request, Outcome outcome, TimePoint at) override;
  void on_start(ActionId id, DeviceId device, TimePoint at) override;
  void on_end(ActionId id, DeviceId device, schedule::ActionStatus status, TimePoint at) override;

  // Call it after the run: requests that are still without an outcome.
  void finish(const Figures& figures);
  const std::map<std::string, std::string>& problems() const { return problems_; }
  std::string text() const;
  std::uint64_t checks() const { return checks_; }

 private:
  enum class State : std::uint8_t { unknown, open, closed };
  enum class Kind : std::uint8_t { load, unload, infer };
  struct Action {
    Kind kind{};
    DeviceId device;
    ModelId model;
    Window window;
    std::uint64_t life = 0;
    bool started = false;
  };
  struct Device {
    bool alive = false;
    std::uint64_t life = 0;
    std::uint64_t pages = 0, used = 0;
    std::set<ModelId> holds;
    int running[2] = {0, 0};  // EXEC, LOAD
  };
  void problem(const std::string& kind, const std::string& detail, TimePoint at);
  void take(ActionId id, Action action, TimePoint now);
  Device& device(DeviceId id);

  std::vector<schedule::ModelInfo> infos_;
  Duration clock_offset_;
  std::vector<State> requests_;
  std::vector<ModelId> models_of_;
  schedule::IdMap<ActionId, Action> actions_;
  ActionId next_action_{};
  std::vector<Device> devices_;
  TimePoint last_ = TimePoint::min();
  std::uint64_t checks_ = 0;
  std::map<std::string, std::string> problems_;
};

}  // namespace carillon::simulate
