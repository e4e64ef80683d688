#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/explain/facts.h"
#include "carillon/explain/story.h"
#include "carillon/schedule/action.h"

namespace carillon::explain {

// Gathers what is known of requests and actions from what goes into a scheduler and comes out of it: of a
// log, or of a simulation that is watched. Requests are numbered as the scheduler does, and an answer counts
// when the scheduler hears that EXEC has ended.
class Decisions {
 public:
  void add(const schedule::Event& event, TimePoint now, const schedule::Actions& actions);

  // In the order in which they came.
  const std::vector<RequestFacts>& requests() const { return requests_; }
  // In the order in which they were sent.
  const std::vector<ActionFacts>& actions() const { return actions_; }
  const RequestFacts* find(std::uint64_t number) const;
  TimePoint last() const { return last_; }

  // What became of a request that there is.
  Story story(const RequestFacts& request) const;

 private:
  struct Device {
    bool alive = false;
    Duration busy{0};
    int actions = 0;
    std::vector<ModelId> loaded;
  };
  struct Model {
    std::string name;
    std::uint64_t pages = 0;
    Duration exec{0};  // of its smallest batch, as far as the scheduler said
    int batch = 0;
    int loading = 0;
    std::vector<schedule::BatchProfile> batches;  // what they take, as the scheduler was told
  };
  struct Flight {
    std::size_t action = 0;  // in actions_
    ModelId model;
    std::vector<RequestId> requests;
  };

  void hear(const schedule::Event& event, TimePoint now);
  void done(const schedule::ActionDone& report, TimePoint now);
  void carry_out(const schedule::Action& action, TimePoint now);
  ActionFacts& sent(ActionId id, schedule::ActionKind kind, DeviceId device, ModelId model,
                    const Window& window, Duration expected, TimePoint now);
  void take_out(DeviceId device, TimePoint now);
  void land(Flight& flight);
  Expectation expectation(ModelId model) const;
  Device& device(DeviceId id);
  RequestFacts* open(RequestId id);

  std::vector<RequestFacts> requests_;
  std::vector<ModelId> models_of_;  // by place in requests_
  std::unordered_map<std::uint64_t, std::size_t> by_number_;
  std::vector<ActionFacts> actions_;
  std::unordered_map<std::uint64_t, Flight> flights_;
  std::vector<Device> devices_;
  std::vector<Model> models_;
  TimePoint last_ = TimePoint::min();
};

}  // namespace carillon::explain
