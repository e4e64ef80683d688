#pragma once

#include <cstdint>
#include <string_view>

#include "carillon/base/time.h"

namespace carillon::schedule {

// What may end what runs on a device, to go on later.
enum class Preemption : std::uint8_t {
  none,
  deadline,  // a request that would be late behind a longer run, whose own requests have the time
};
constexpr std::string_view name_of(Preemption preemption) {
  return preemption == Preemption::deadline ? "deadline" : "none";
}

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

  // A device hangs that has reported nothing for so long though it has something to do (Watchdog). 0: nobody
  // looks.
  Duration hangs_after{0};
  // The share of finished requests, of models whose time depends on the input, that a policy that learns from
  // it may have run again by themselves while nothing else is to be done.
  double profile_share = 0;
  Preemption preemption = Preemption::none;
  // Devices have streams by class (device::ClassStreams): around any policy stands Classed, which sends
  // real-time and best-effort requests to theirs. False: the policy has all requests.
  bool classes = false;

  // From the start of an EXEC of that estimate until the client has its answer, at most.
  constexpr Duration span(Duration exec) const {
    return exec + from_ns(static_cast<double>(exec.count()) * overrun) + answer;
  }
};
// What a server starts from: the defaults, measured from then on. Half of the way back is taken to lie
// between the controller and the client.
constexpr Environment live_environment() {
  return {.measured = true, .client = 500us, .hangs_after = 1s, .profile_share = 0.05, .classes = true};
}

}  // namespace carillon::schedule
