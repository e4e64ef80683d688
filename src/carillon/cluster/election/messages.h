#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"

namespace carillon::cluster::election {

// The time that one scheduler leads. Epochs only grow; 0: nobody has led yet.
using Epoch = Id<struct EpochTag, std::uint64_t>;

// No cluster gets so far: an epoch each nanosecond would take 146 years. A larger one is a broken message.
inline constexpr Epoch most_epoch{std::uint64_t{1} << 62};

// A member of the cluster. The driver numbers the members and knows their names and addresses. No message has
// such a number in it, so two hosts may number them differently.
using MemberId = Id<struct MemberTag, std::uint64_t>;

// Tells a process from an earlier one of the same member: a random number, drawn at its start.
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;

struct Member {
  MemberId id;
  bool scheduler = false;  // may lead
  // Was heard of late. No promise rests on it: spares do not wait for the ranks, or the answers, of others.
  bool there = true;
};

// What members tell each other of the election. Whoever carries a message knows its sender. Messages may be
// lost, late, doubled, or overtake each other.
struct Message {
  enum class Kind : std::uint8_t {
    beat,      // the leader of `epoch` is alive
    told,      // the sender knows `epoch`; the receiver had sent something of a lower one
    question,  // of a spare: does the receiver hear the leader of `epoch`?
    hears,     // an answer: yes
    silent,    // an answer: no
    handover,  // the leader of `epoch` wants the receiver to claim the next one
  };
  Kind kind = Kind::beat;
  Epoch epoch;  // the highest that the sender knows
  // Of a beat, 1 or more and growing; of a handover, the last beat's; of a question, repeated by its answers.
  std::uint64_t number = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

// The one value that the coordinator holds: who leads.
struct Leadership {
  Epoch epoch;
  MemberId leader;
  Incarnation incarnation;  // the leader's
  friend bool operator==(const Leadership&, const Leadership&) = default;
};

// What a scheduler wants of the coordinator. Either is answered with the value that the coordinator then has.
struct Request {
  enum class Kind : std::uint8_t {
    read,   // tell the value, not from a copy that may be old
    claim,  // set the value to `claim` if its epoch is the one before claim.epoch (compare-and-set)
  };
  Kind kind = Kind::read;
  Leadership claim{};
};

// What the driver has to do next.
struct Output {
  struct Send {
    MemberId to;
    Message message;
  };
  std::vector<Send> messages;
  std::optional<Request> request;
};

}  // namespace carillon::cluster::election
