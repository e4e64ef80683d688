#include "carillon/cluster/election/witness.h"

namespace carillon::cluster::election {

bool Witness::pass(Epoch epoch) {
  switch (fence_.pass(epoch)) {
    case Fence::Verdict::refused:
      return false;
    case Fence::Verdict::current:
      return true;
    case Fence::Verdict::higher:
      leader_.reset();
      listen_anew();  // its leader has yet to be heard
      return true;
  }
  return false;
}

void Witness::listen_anew() {
  last_beat_ = 0;
  silence_.heard();
}

bool Witness::obeys(Epoch epoch) {
  if (!pass(epoch)) return false;
  counters_.early += informed_ ? 0 : 1;
  return informed_;
}

std::optional<Message> Witness::heard(MemberId from, const Message& message) {
  using Kind = Message::Kind;
  if (!pass(message.epoch)) {
    if (message.epoch > epoch() || message.kind == Kind::told) return std::nullopt;
    return told();
  }
  switch (message.kind) {
    case Kind::beat:
      // A beat that others overtook says nothing of now.
      if (message.number <= last_beat_) return std::nullopt;
      ++counters_.beats;
      if (last_beat_ > 0) counters_.missed += message.number - last_beat_ - 1;
      last_beat_ = message.number;
      leader_ = from;
      silence_.heard();
      return std::nullopt;
    case Kind::question: {
      Message answer = message;
      if (silence() >= options_.silent) {
        answer.kind = Kind::silent;
      } else if (heard_leader()) {
        answer.kind = Kind::hears;
      } else {
        return std::nullopt;  // has listened for too short a time to know
      }
      return answer;
    }
    case Kind::told:
    case Kind::hears:
    case Kind::silent:
    case Kind::handover:
      return std::nullopt;
  }
  return std::nullopt;
}

void Witness::coordinator_said(const Leadership& value) {
  informed_ = true;
  if (value.epoch < epoch() || !pass(value.epoch)) return;
  if (value.epoch > Epoch{0}) leader_ = value.leader;
}

WitnessCounters Witness::counters() const {
  WitnessCounters counters = counters_;
  counters.refused = fence_.refused();
  counters.stalls = silence_.stalls();
  return counters;
}

}  // namespace carillon::cluster::election
