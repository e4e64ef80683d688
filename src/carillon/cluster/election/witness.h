#pragma once

#include <cstdint>
#include <optional>

#include "carillon/base/time.h"
#include "carillon/cluster/election/fence.h"
#include "carillon/cluster/election/messages.h"
#include "carillon/cluster/election/silence.h"

namespace carillon::cluster::election {

struct WitnessOptions {
  // How often the driver ticks at least. Short beside `silent`, and still only 500 wake-ups a second.
  Duration tick_every = 2ms;
  // More time than this between two ticks is a stall of the member itself. A busy host delays a thread by a
  // few milliseconds all the time.
  Duration stall = 6ms;
  // A member that has heard no beat for so long says so when it is asked. Some beats are lost on any network,
  // and four in a row hardly ever. Shorter than a spare's patience, so that members agree with the spare even
  // if its last beat came earlier than theirs.
  Duration silent = 15ms;
};

struct WitnessCounters {
  std::uint64_t beats = 0;    // of the leader
  std::uint64_t missed = 0;   // beats that later ones overtook, or that were lost
  std::uint64_t refused = 0;  // by the fence
  std::uint64_t early = 0;    // orders refused because the coordinator had not been heard yet
  std::uint64_t stalls = 0;   // of the member itself
};

// What every member keeps: the highest epoch, whether its leader is heard, and the answers to spares that
// ask.
//
// The driver ticks first whenever it wakes, at least every `tick_every`, and then passes on all that waits in
// its sockets. A process that is new asks the coordinator for its value first: an earlier process of the same
// member may have obeyed a higher epoch than the one whose order comes first.
//
//   if (!witness.obeys(order.epoch)) send(order.from, witness.told());   // what came is not done
//
// O(1). Nothing fails. Not thread-safe.
class Witness {
 public:
  explicit Witness(const WitnessOptions& options = {})
      : options_(options), silence_(options.tick_every, options.stall) {}

  // Whether something that a leader of `epoch` ordered is to be done.
  bool obeys(Epoch epoch);
  // A message, and what is to be sent back to its sender.
  std::optional<Message> heard(MemberId from, const Message& message);
  // A value that the coordinator has, or has had since this process began. Values may come in any order.
  void coordinator_said(const Leadership& value);
  // Nobody knew this member, or sent it beats, until now. What it has not heard says nothing.
  void listen_anew();
  // False after a stall of this member. Then the driver passes on all that waits, and ticks again at once.
  bool tick(TimePoint now) { return silence_.tick(now); }

  Epoch epoch() const { return fence_.highest(); }
  // Whom the coordinator or a beat named as the leader of that epoch.
  std::optional<MemberId> leader() const { return leader_; }
  // For how long no beat of the epoch came, from when it became known; `heard_leader`: any has come.
  Duration silence() const { return silence_.lasted(); }
  bool heard_leader() const { return last_beat_ > 0; }
  std::uint64_t last_beat() const { return last_beat_; }  // its number
  Message told() const { return {.kind = Message::Kind::told, .epoch = epoch()}; }
  WitnessCounters counters() const;

 private:
  bool pass(Epoch epoch);

  WitnessOptions options_;
  Fence fence_;
  Silence silence_;
  bool informed_ = false;  // by the coordinator
  std::optional<MemberId> leader_;
  std::uint64_t last_beat_ = 0;
  WitnessCounters counters_;
};

}  // namespace carillon::cluster::election
