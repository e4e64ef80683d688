#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/profile/distribution.h"
#include "carillon/schedule/action.h"

namespace carillon::schedule {

// What a scheduler knows of a model before it first runs: from its plans and its profile.
struct BatchProfile {
  int batch = 1;
  Duration exec;  // seed estimate of EXEC (with INPUT and OUTPUT, which are far shorter)
};
struct ModelInfo {
  ModelId id;  // dense: the model's place in the list
  std::string name;
  std::uint64_t pages = 0;            // of the page cache that its weights take; 0: it needs no LOAD
  Duration load;                      // seed estimate of LOAD
  std::vector<BatchProfile> batches;  // ascending by batch, never empty
  // For policies that plan by distributions: what a batch costs by its size and its longest request, where it
  // is known at the start (measured over sizes and inputs), and times of requests alone to start from, before
  // any sample, each above 0.
  std::optional<profile::PaddedCost> cost = std::nullopt;
  std::vector<Duration> solos = {};
};

// What a policy must know of where it runs, apart from models and devices. The defaults are those of a server
// whose clients, frontends and kernels share a machine; a simulation states its own.
struct Environment {
  Duration dispatch = 300us;  // from a decision until EXEC can start: the message, and fetching the inputs
  Duration answer = 1ms;      // from the end of EXEC until the client has its answer
  double overrun = 0.05;      // share of EXEC by which a batch may outlast its estimate
  // All three are where a policy starts, and it goes by what it sees of them from then on (Margins). False:
  // they stay, as in a simulation, which knows them.
  bool measured = false;
  Duration client{0};  // the part of `answer` that comes after a report is heard, which nobody sees here

  // From the start of an EXEC of that estimate until the client has its answer, at most.
  constexpr Duration span(Duration exec) const {
    return exec + from_ns(static_cast<double>(exec.count()) * overrun) + answer;
  }
};
// What a server starts from: the defaults, measured from then on. Half of the way back is taken to lie
// between the controller and the client.
constexpr Environment live_environment() {
  return {.measured = true, .client = 500us};
}

// Decides which request runs where and when: a pure state machine, without a clock, a thread, a socket or
// randomness.
//
// Contract, kept by whoever drives it: `now` never goes back; every Load, Unload and Infer is answered by
// exactly one ActionDone unless its device dies first; a WakeAt is answered by a Wake at or after its time.
// Contract, kept by every policy: each request that arrived gets exactly one outcome: a Refuse, or a place in
// an Infer that succeeds; after a RequestCancelled none is needed. A request whose Infer did not succeed is
// tried again or refused. Not thread-safe.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual std::string_view name() const = 0;

  // A model appears (server start, or a load on demand). Ids are dense and ascending.
  virtual void add_model(const ModelInfo& model) = 0;

  // Appends the actions that `event` calls for at time `now`.
  virtual void decide(const Event& event, TimePoint now, Actions& out) = 0;

  // Whether RequestProfiled makes it wiser: else nobody need measure.
  virtual bool learns_from_profiles() const { return false; }

  // What the policy now believes that a batch of `batch` takes on `device` (for metrics and prediction
  // errors).
  virtual Duration predicted_exec(DeviceId device, ModelId model, int batch) const = 0;
};

}  // namespace carillon::schedule
