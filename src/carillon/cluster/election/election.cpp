#include "carillon/cluster/election/election.h"

#include <algorithm>
#include <string>
#include <utility>

namespace carillon::cluster::election {

void Election::set_members(std::vector<Member> members) {
  std::erase_if(members, [&](const Member& m) { return m.id == self_; });
  std::ranges::sort(members, {}, &Member::id);
  const auto doubled = std::ranges::unique(members, {}, &Member::id);
  members.erase(doubled.begin(), doubled.end());
  others_ = std::move(members);
}

bool Election::tick(TimePoint now, Output& out) {
  now_ = now;
  awake_ = witness_.tick(now);
  // After a stall the answer may wait.
  if (awake_ && requested_at_ && now - *requested_at_ >= options_.coordinator_within) coordinator_failed();
  // Answers that waited during a stall are of a leader who may be back.
  if (!awake_) question_.reset();
  // Beats go out after a stall, too: they decide nothing, and the spares' patience may be at its end.
  if (holds_ && now - beat_at_ >= options_.beat_every && !deaf()) send_beats(out);
  advance(out);
  return awake_;
}

void Election::heard(MemberId from, const Message& message, Output& out) {
  const Epoch before = epoch();
  if (holds_ && message.kind == Kind::question && message.epoch == before) {
    send(from, Kind::hears, message.number, out);
    return;
  }
  if (const auto reply = witness_.heard(from, message)) out.messages.push_back({from, *reply});
  if (epoch() != before) begin_epoch();
  if (message.epoch != epoch()) return;
  switch (message.kind) {
    case Kind::hears:
    case Kind::silent:
      if (question_ && message.number == questions_)
        for (Asked& one : question_->asked)
          if (one.id == from) one.hears = message.kind == Kind::hears;
      break;
    case Kind::handover:
      if (message.number < witness_.last_beat()) break;  // it was overtaken, or comes again
      handed_until_ = now_ + options_.handover_within;
      break;
    case Kind::beat:
    case Kind::told:
    case Kind::question:
      break;
  }
  advance(out);
}

void Election::coordinator_said(const Leadership& value, Output& out) {
  const Epoch before = epoch();
  informed_ = true;
  spoke_at_ = now_;
  requested_at_.reset();
  witness_.coordinator_said(value);
  if (epoch() != before) begin_epoch();
  const Leadership mine{epoch(), self_, incarnation_};
  if (value == mine && epoch() > Epoch{0} && !holds_) {
    holds_ = true;
    ++counters_.won;
    send_beats(out);
  }
  advance(out);
}

void Election::coordinator_failed() {
  if (!requested_at_) return;
  ++counters_.unknown;
  requested_at_.reset();
  informed_ = false;
}

void Election::let_claim(bool may) {
  may_claim_ = may;
  if (may) return;
  suspects_ = false;
  question_.reset();
}

Result<> Election::hand_over(MemberId to, Output& out) {
  const std::string name = "member " + std::to_string(to.value);
  if (!holds_)
    return fail(ErrorCode::unavailable, "cannot hand over to " + name + ": this scheduler does not lead");
  if (handing_)
    return fail(ErrorCode::unavailable, "cannot hand over to " + name + ": a handover to member " +
                                            std::to_string(handing_->to.value) + " is under way");
  const auto found = std::ranges::find(others_, to, &Member::id);
  if (found == others_.end() || !found->scheduler)
    return invalid("cannot hand over to " + name + ": it is no other scheduler of the cluster");
  ++counters_.handovers;
  handing_ = {to, now_};
  send(to, Kind::handover, beats_, out);
  return {};
}

void Election::send(MemberId to, Kind kind, std::uint64_t number, Output& out) const {
  out.messages.push_back({to, {.kind = kind, .epoch = epoch(), .number = number}});
}

void Election::send_beats(Output& out) {
  beat_at_ = now_;
  ++beats_;
  for (const Member& member : others_) send(member.id, Kind::beat, beats_, out);
  if (handing_) send(handing_->to, Kind::handover, beats_, out);  // the first one may be lost
}

// A higher epoch became known: what belonged to the last one is over.
void Election::begin_epoch() {
  counters_.stopped += holds_ ? 1 : 0;
  holds_ = suspects_ = false;
  handing_.reset();
  question_.reset();
  handed_until_ = ask_from_ = TimePoint::min();
}

// Whatever can be done now.
void Election::advance(Output& out) {
  if (!awake_) return;
  if (holds_) {
    if (handing_ && now_ - handing_->since >= options_.handover_within) {
      handing_.reset();
      ++counters_.kept;
    }
    return;
  }
  if (suspects_ && witness_.silence() == Duration{0}) {
    suspects_ = false;
    question_.reset();
    ++counters_.withdrawn;
  }
  if (question_) return judge(out);
  if (requested_at_ || now_ < request_from_) return;
  if (!informed_) {
    request({.kind = Request::Kind::read}, out);
  } else if (!may_claim_) {
    return;
  } else if (epoch() == Epoch{0} || now_ < handed_until_) {
    claim(out);
  } else if (witness_.silence() >= patience() && now_ >= ask_from_) {
    ask(out);
  }
}

void Election::ask(Output& out) {
  counters_.suspicions += suspects_ ? 0 : 1;
  suspects_ = true;
  ++questions_;
  question_ = Question{.at = now_, .asked = {}, .reached = coordinator_reached()};
  for (const Member& member : others_)
    if (member.id != leader()) {
      question_->asked.push_back({.id = member.id, .there = member.there});
      send(member.id, Kind::question, questions_, out);
    }
  if (!question_->reached) request({.kind = Request::Kind::read}, out);
  judge(out);
}

void Election::judge(Output& out) {
  const std::size_t all = question_->asked.size();
  std::size_t hear = 0, silent = 0, awaited = 0, there = 0;
  for (const Asked& one : question_->asked) {
    if (one.hears)
      ++(*one.hears ? hear : silent);
    else
      awaited += one.there ? 1 : 0;
    there += one.there ? 1 : 0;
  }
  // Of those who were not heard of late no answer is awaited, unless nobody has answered. If most were not
  // heard, this host's link may be at fault, and just be back.
  const bool most_there = 2 * there >= all;
  const bool all_answered = awaited == 0 && hear + silent > 0 && most_there;
  const Duration age = now_ - question_->at;
  const bool ended = all_answered || age >= options_.answers_within;
  if (2 * silent > all || all == 0 || (ended && silent > hear)) {
    if (!coordinator_reached()) {
      if (age < options_.coordinator_within) return;
      ++counters_.unreached;
      question_.reset();
      ask_from_ = now_ + options_.ask_again;
    } else if (age > options_.answers_hold || !(question_->reached || most_there)) {
      ask(out);
    } else {
      ++counters_.confirmed;
      question_.reset();
      claim(out);
    }
  } else if (ended) {
    ++(hear + silent == 0 ? counters_.unanswered : counters_.denied);
    question_.reset();
    ask_from_ = now_ + options_.ask_again;
  }
}

void Election::claim(Output& out) {
  ++counters_.claims;
  request({.kind = Request::Kind::claim, .claim = {Epoch{epoch().value + 1}, self_, incarnation_}}, out);
}

void Election::request(const Request& request, Output& out) {
  requested_at_ = now_;
  request_from_ = now_ + options_.request_every;
  out.request = request;
}

bool Election::deaf() const {
  return !others_.empty() && std::ranges::none_of(others_, &Member::there);
}

// Whether the coordinator has spoken since the silence began.
bool Election::coordinator_reached() const {
  return spoke_at_ && *spoke_at_ > now_ - witness_.silence();
}

// How long a silence must be. The first of the spares that are there, by number, has the least.
Duration Election::patience() const {
  const auto before = std::ranges::count_if(others_, [&](const Member& member) {
    return member.scheduler && member.there && member.id < self_ && member.id != leader();
  });
  return (witness_.heard_leader() ? options_.silence : options_.first_beat) + before * options_.rank_step;
}

}  // namespace carillon::cluster::election
