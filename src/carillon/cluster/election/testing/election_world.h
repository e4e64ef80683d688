#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "carillon/base/time.h"

namespace carillon::cluster::election::testing {

enum class Faults : std::uint8_t {
  all,          // of everything: links, members, coordinator
  leader,       // the leader crashes once in a world that is well otherwise
  spare,        // one spare alone, or the link between it and the leader
  stalls,       // all members but the leader stand still at once, again and again, and the leader for 15 ms
  dead_spares,  // as leader, after all spares but one have crashed, and while they are still registered
  handover,     // none; the leader hands over to a spare
};

// Mistakes that the world can make on behalf of the code under test.
enum class Plant : std::uint8_t {
  none,
  no_fence,        // members obey whatever comes
  no_compare,      // claims set the value without a look at it
  stalls_counted,  // a late tick is taken for silence of others
  no_asking,       // a spare takes everybody's `silent` for granted
  blind_claim,     // only a claim that was answered is won: whose answer is lost is lost
  no_stop,         // a leader ignores higher epochs
  no_incarnation,  // all processes of a member are taken for one
  claims_cut_off,  // a spare that nobody answers claims
  none_missed,     // members that crashed are taken for there; costs time alone
};

struct ElectionWorldFigures {
  std::optional<std::string> broken;  // a promise
  std::uint64_t events = 0, epochs = 0, orders = 0, refused = 0, handed_over = 0, claims = 0, won = 0,
                withdrawn = 0, denied = 0, unanswered = 0, stalls = 0, unknown = 0;
  Duration gap{0};   // Faults::leader and handover: nobody leads
  Duration rest{0};  // Faults::all: from the end of the faults until the last leader leads
};

// How soon after all faults end one scheduler leads, and all members obey it and nobody else. Of that, a
// scheduler waits for the coordinator's answer for 100 ms, and 210 ms at most for the first beat of an epoch
// whose winner crashed; the rest are pauses of 20 ms between requests, and questions.
inline constexpr Duration rest_within = 600ms;

// Two or three schedulers and three to eight other members in virtual time, drawn by the seed. After every
// event the promises are worked out from what the world saw alone:
// - one process at most ever leads an epoch, and the coordinator gave it to that process;
// - a leader that was told of a higher epoch does not lead;
// - a leader that stalled does not lead before it has read what waits;
// - who is told that the epoch is its own leads;
// - no member obeys a lower epoch than it ever obeyed, in this process or an earlier one;
// - the coordinator's epoch never falls;
// - Faults::all: from `rest_within` after the faults on, one leads, all obey, and the epoch stays;
// - Faults::spare and stalls: there is one election, at the start;
// - what members take each other for, there or not, changes none of this: Faults::all draws it at random;
// - Faults::handover: the spare that was named leads the next epoch.
ElectionWorldFigures run_election_world(std::uint64_t seed, Faults faults, Plant plant = Plant::none);

}  // namespace carillon::cluster::election::testing
