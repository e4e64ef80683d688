#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "carillon/base/time.h"

namespace carillon::ledger {

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
  // EXECs that take less outlast it as if they took so long: what keeps a thread from its processor does not
  // grow with what it computes, and what a run of microseconds suffers says little of one of a second.
  Duration shortest{0};
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
  // A request is refused on arrival if the waiting requests leave it no time (Admission), under the policies
  // that takes_admission() names. False: the policy has all requests, and refuses later.
  bool admission = false;
  // The share of answers that may be late, in (0, 0.5], of models that do not say (ModelInfo::miss_rate).
  double miss_rate = 0.005;

  // How long an EXEC of that estimate may take.
  constexpr Duration with_overrun(Duration exec) const {
    return exec + from_ns(static_cast<double>(std::max(exec, shortest).count()) * overrun);
  }
  // From its start until the client has its answer, at most.
  constexpr Duration span(Duration exec) const { return with_overrun(exec) + answer; }
  // The longest EXEC of that span.
  constexpr Duration exec_within(Duration span) const {
    const auto rest = static_cast<double>((span - answer).count());
    const double longest = rest / (1 + overrun), least = static_cast<double>(shortest.count());
    return from_ns(longest >= least ? longest : rest - least * overrun);
  }
};
// What a server starts from: the defaults, measured from then on. Half of the way back is taken to lie
// between the controller and the client. Who lost its processor has it back after some slices of Linux's
// scheduler, which are of 0.7 to 3 ms.
constexpr Environment live_environment() {
  return {.shortest = 4ms,
          .measured = true,
          .client = 500us,
          .hangs_after = 1s,
          .profile_share = 0.05,
          .classes = true,
          .admission = true};
}

}  // namespace carillon::ledger
