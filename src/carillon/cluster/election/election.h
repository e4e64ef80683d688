#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/election/messages.h"
#include "carillon/cluster/election/witness.h"

namespace carillon::cluster::election {

struct ElectionOptions {
  WitnessOptions witness;
  // With ticks every 2 ms, beats leave every 3 to 5 ms.
  Duration beat_every = 3ms;
  // A spare suspects the leader after so long without beats: at least five were due. A shorter time would let
  // short stalls of the leader's host end its epoch. A longer one would cost more requests after a crash.
  Duration silence = 25ms;
  // The same for a leader of whom no beat was ever heard. If a cluster is cut in halves that both reach the
  // coordinator, each half takes the lead from the other, but no more often than this.
  Duration first_beat = 200ms;
  // Spares that are there suspect one after the other, so that the first one's claim is heard before the next
  // one asks.
  Duration rank_step = 5ms;
  // Members that are alive answer a question in a millisecond or two.
  Duration answers_within = 5ms;
  // Between two questions that brought no election.
  Duration ask_again = 10ms;
  // A compare-and-set takes etcd 1 ms, and a slow disk some 10 ms. After this long its outcome is unknown.
  Duration coordinator_within = 100ms;
  // Answers to a question are too old to claim by if the coordinator speaks so much later. A member's answer
  // and the coordinator's usually come within one answers_within.
  Duration answers_hold = 10ms;
  // From one request to the coordinator to the next: 50 a second at most while it is gone.
  Duration request_every = 20ms;
  // A handover takes the spare one compare-and-set; meanwhile nobody decides.
  Duration handover_within = 100ms;
};

struct ElectionCounters {
  std::uint64_t suspicions = 0;  // silences that were long enough to ask the members
  std::uint64_t withdrawn = 0;   // suspicions that a beat ended
  std::uint64_t confirmed = 0;   // questions after which the spare claimed
  std::uint64_t denied = 0;      // questions after which it did not: others hear the leader
  std::uint64_t unanswered = 0;  // questions that nobody answered: the spare is cut off itself
  std::uint64_t unreached = 0;   // confirmed, but the coordinator did not speak: the spare may be cut off
  std::uint64_t claims = 0;      // compare-and-sets sent
  std::uint64_t unknown = 0;     // requests whose outcome the coordinator did not tell
  std::uint64_t won = 0;         // epochs that this scheduler came to lead
  std::uint64_t stopped = 0;     // epochs that it led until a higher one was told
  std::uint64_t handovers = 0;   // that it began
  std::uint64_t kept = 0;        // handovers whose spare did not claim in time
};

// A scheduler in the election of the leader: leads, or is a spare that claims the lead once the leader is
// silent. No consensus: the coordinator lets one scheduler have each epoch, and every member obeys the
// highest epoch that it knows. Whatever the clocks, links and stalls are, no two schedulers lead one epoch.
// Time only decides how soon somebody leads.
//
// A spare that hears no beat for `silence` asks all other members. It claims the next epoch if most of those
// that answer do not hear the leader either. If none answers, the spare is cut off itself and does not claim.
// In a cluster of two schedulers and no other members there is nobody to ask: the spare claims on its own
// silence. Such a cluster serves no requests, so a needless change of the leader costs nothing.
//
// A spare whose host is cut off may have members beside it that confirm the silence. Its claim would wait in
// the network, and end the epoch of a healthy leader once the link is back. So a spare claims only if the
// coordinator has spoken since the silence began: it reads the value while it asks the members.
//
// The coordinator may carry out a claim whose answer is lost, or long after the claim was sent. So only the
// coordinator's value tells the outcome: this process leads if the value names its member and incarnation.
// Sending a claim again is harmless, as the second one says the same. An earlier process of this member has
// another incarnation.
//
// What the driver does:
//
//   for (;;) {
//     wait_for_messages(options.witness.tick_every);  // at most so long
//     while (!election.tick(now(), out)) pass_on_all_that_waits();
//     pass_on_all_that_waits();  // heard(); coordinator_said() with answers and with changes of the value
//     carry_out(out);            // one request at a time
//     if (election.leads()) decide(election.epoch());  // and send the epoch with every order
//   }
//
// The coordinator must not forget its value: members refuse epochs that begin again from 0.
//
// A leader that hears no member sends no beats: its host may be cut off one way, and whoever leads must hear.
//
// Each call costs O(members). Output is appended. Not thread-safe.
class Election {
 public:
  // `incarnation` is drawn at random at the start of the process.
  Election(MemberId self, Incarnation incarnation, const ElectionOptions& options = {})
      : self_(self),
        incarnation_(incarnation),
        options_(options),
        witness_(options.witness),
        questions_(incarnation.value) {}

  // All members that are registered now, in any order; this one may be among them. Called whenever the list,
  // or who is there, changes. Members that are gone should leave the list: if no other member is alive, a
  // spare cannot tell this from being cut off.
  void set_members(std::vector<Member> members);

  // `now` is not before an earlier tick's. False after a stall of this process: nothing is decided before all
  // that waits was passed on, and another tick.
  bool tick(TimePoint now, Output& out);
  void heard(MemberId from, const Message& message, Output& out);
  // The coordinator's value, as an answer or because it changed. Values may come in any order.
  void coordinator_said(const Leadership& value, Output& out);
  // This member is registered, for the first time or anew. While it was not, nobody sent it beats.
  void registered() { witness_.listen_anew(); }
  // Whether this scheduler may claim epochs. At first it may. One that leads goes on.
  void let_claim(bool may);
  // The last request has failed, or has no answer: whether it was carried out is unknown.
  void coordinator_failed();

  // Ends this leader's epoch in favour of the scheduler `to`. This one stops deciding at once, and `to`
  // claims without any silence. If nobody has claimed after `handover_within`, this one goes on. A handover
  // message that comes later still takes effect. Fails if this scheduler does not lead or hands over already,
  // or if `to` is no other scheduler.
  Result<> hand_over(MemberId to, Output& out);

  // Whether this scheduler may act as the leader of epoch() now.
  bool leads() const { return holds_ && awake_ && !handing_; }
  Epoch epoch() const { return witness_.epoch(); }
  // Of that epoch, as far as it is known.
  std::optional<MemberId> leader() const { return witness_.leader(); }
  const Witness& witness() const { return witness_; }
  const ElectionCounters& counters() const { return counters_; }

 private:
  using Kind = Message::Kind;
  struct Asked {
    MemberId id;
    bool there = true;  // when it was asked
    std::optional<bool> hears{};
  };
  struct Question {
    TimePoint at;
    std::vector<Asked> asked;
    bool reached = false;  // coordinator_reached(), when it was asked
  };
  struct Handing {
    MemberId to;
    TimePoint since;
  };
  void send(MemberId to, Kind kind, std::uint64_t number, Output& out) const;
  void send_beats(Output& out);
  void begin_epoch();
  bool deaf() const;
  void advance(Output& out);
  void ask(Output& out);
  void judge(Output& out);
  void claim(Output& out);
  void request(const Request& request, Output& out);
  Duration patience() const;
  bool coordinator_reached() const;

  MemberId self_;
  Incarnation incarnation_;
  ElectionOptions options_;
  Witness witness_;
  std::vector<Member> others_;  // by id
  TimePoint now_;               // of the last tick
  bool awake_ = false;          // the last tick was no late one

  bool holds_ = false;  // epoch() is this process's
  TimePoint beat_at_;
  std::uint64_t beats_ = 0;  // sent
  std::optional<Handing> handing_;

  bool may_claim_ = true;
  bool suspects_ = false;
  std::optional<Question> question_;
  std::uint64_t questions_;  // the number of the last one; not that of an earlier process's
  TimePoint ask_from_ = TimePoint::min();
  TimePoint handed_until_ = TimePoint::min();  // the leader wants this spare to claim

  bool informed_ = false;                  // of the coordinator's value, since the last request that failed
  std::optional<TimePoint> spoke_at_;      // the coordinator, last
  std::optional<TimePoint> requested_at_;  // a request that has no answer yet
  TimePoint request_from_ = TimePoint::min();
  ElectionCounters counters_;
};

}  // namespace carillon::cluster::election
