#include "carillon/hosts/member_core.h"

#include <algorithm>
#include <utility>

namespace carillon::hosts {
namespace election = cluster::election;

namespace {

bool any_of(const std::vector<std::string>& keys, const std::vector<std::string>& others) {
  return std::ranges::any_of(keys, [&](const auto& key) { return std::ranges::count(others, key) > 0; });
}

}  // namespace

std::vector<std::string> fingerprints_of(const MemberOptions& options) {
  std::vector<std::string> keys{transport::fingerprint_of(options.cluster, options.key)};
  if (options.other_key) keys.push_back(transport::fingerprint_of(options.cluster, *options.other_key));
  return keys;
}

MemberCore::MemberCore(MemberOptions options)
    : options_(std::move(options)),
      codec_(options_.cluster, options_.key, options_.other_key,
             options_.self.protocols.value_or(cluster::own_protocols)),
      keys_(fingerprints_of(options_)),
      witness_(options_.election.witness) {
  const election::MemberId self = number_of(options_.self.id);
  names_[self.value] = options_.self.id;
  if (options_.self.role == cluster::Role::scheduler)
    election_.emplace(self, election::Incarnation{options_.self.incarnation}, options_.election);
}

bool MemberCore::tick(TimePoint now, Output& out) {
  now_ = now;
  bool changed = false;
  for (auto& [id, known] : known_) {
    known.silence.tick(now);
    changed = judge(known) || changed;
  }
  if (changed) members_changed();
  election::Output said;
  const bool awake = election_ ? election_->tick(now, said) : witness_.tick(now);
  pass_on(said, out);
  for (auto& [id, known] : known_)
    if (saturating_add(known.spoken_at, options_.speak_every) <= now) say(known, std::nullopt, out);
  look();
  return awake;
}

void MemberCore::heard(std::string_view bytes, TimePoint now, Output& out) {
  now_ = std::max(now_, now);
  auto datagram = codec_.decode(bytes, {options_.self.id, options_.self.incarnation});
  if (!datagram) {
    ++counters_.refused;
    return;
  }
  const auto found = known_.find(datagram->from);
  if (found == known_.end() || found->second.member.incarnation != datagram->incarnation) {
    ++counters_.unknown;
    return;
  }
  Known& from = found->second;
  ++counters_.heard;
  // One that was overtaken has an older time, and would make a worse sample of the next answer. After a
  // silence it may be of a host that was started anew, whose clock is earlier.
  if (!from.last || from.last->sent < datagram->sent || !from.there)
    from.last = {.sent = datagram->sent, .received = now};
  from.heard = true;
  if (!from.member.protocols) from.protocol = datagram->protocol;
  from.silence.heard();
  if (judge(from)) members_changed();
  if (const auto sample = transport::sample_of(*datagram, now)) {
    using Verdict = cluster::PeerClock::Verdict;
    const Verdict verdict = from.clock.add(*sample);
    counters_.clock_jumps += verdict == Verdict::jumped ? 1 : 0;
    if (verdict != Verdict::impossible)
      round_trips_[from.member.role].add((sample->heard - sample->sent) -
                                         (sample->replied - sample->received));
    out.clocks.push_back(datagram->from);
  }
  if (!datagram->message) return;
  const election::MemberId id = number_of(datagram->from);
  if (election_) {
    election::Output said;
    election_->heard(id, *datagram->message, said);
    pass_on(said, out);
  } else if (const auto reply = witness_.heard(id, *datagram->message)) {
    say(from, reply, out);
  }
  look();
}

void MemberCore::coordinator_said(const cluster::CoordinatorNews& news, Output& out) {
  std::visit([&](const auto& each) { on(each, out); }, news);
  look();
}

void MemberCore::on(const cluster::CoordinatorBack&, Output& out) {
  up_ = true;
  epoch_is(record_, out);
}

void MemberCore::on(const cluster::MemberSeen& seen, Output& out) {
  if (seen.member.id == options_.self.id) return;
  const auto found = known_.find(seen.member.id);
  // Of another process nothing is known any more.
  if (found != known_.end() && found->second.member.incarnation == seen.member.incarnation) {
    found->second.member = seen.member;
    found->second.protocol = settle_with(seen.member);
  } else {
    version_ += found != known_.end() && found->second.there ? 1 : 0;
    out.clocks.push_back(seen.member.id);
    const election::WitnessOptions& usual = options_.election.witness;
    known_.insert_or_assign(seen.member.id, Known{.member = seen.member,
                                                  .clock = cluster::PeerClock(options_.clock),
                                                  .silence = election::Silence(usual.tick_every, usual.stall),
                                                  .protocol = settle_with(seen.member)});
    names_[number_of(seen.member.id).value] = seen.member.id;
  }
  members_changed();
}

void MemberCore::on(const cluster::MemberGone& gone, Output& out) {
  if (leader() != gone.id) names_.erase(number_of(gone.id).value);
  const auto found = known_.find(gone.id);
  if (found == known_.end()) return;
  version_ += found->second.there ? 1 : 0;
  out.clocks.push_back(gone.id);
  known_.erase(found);
  members_changed();
}

void MemberCore::on(const cluster::EpochSeen& seen, Output& out) {
  const bool gone = seen.record.revision == 0;
  deleted_ = gone ? std::max(deleted_, record_.revision) : 0;
  // Those who have the next key need not be started again. On Kubernetes the epoch goes on without a key.
  const bool anew = gone && !seen.record.epoch && is_stranger() && !leads();
  record_ = seen.record;  // also where etcd has lost what it had
  if (anew) begin_anew();
  epoch_is(record_, out);
}

// What leaders with another key had begun is nothing to this process.
void MemberCore::begin_anew() {
  led_epoch_ = 0;
  witness_ = election::Witness(options_.election.witness);
  if (!election_) return;
  election_.emplace(number_of(options_.self.id), election::Incarnation{options_.self.incarnation},
                    options_.election);
  members_changed();
}

void MemberCore::on(const cluster::WriteDone& done, Output& out) {
  if (done.token != token_) return;
  if (done.outcome == cluster::WriteDone::Outcome::unknown)
    request_failed();
  else
    epoch_is(done.current, out);
}

void MemberCore::on(const cluster::EpochRead& read, Output& out) {
  // A late answer says as much: a slow coordinator would never be heard else.
  if (read.record)
    epoch_is(*read.record, out);
  else if (read.token == token_)
    request_failed();
}

void MemberCore::on(const cluster::Registered&, Output&) {
  id_taken_ = false;
  if (election_)
    election_->registered();
  else
    witness_.listen_anew();
}

void MemberCore::request_failed() {
  if (election_) election_->coordinator_failed();
}

std::optional<std::string> MemberCore::leader() const {
  const auto id = witness().leader();
  if (!id) return std::nullopt;
  const auto found = names_.find(id->value);
  return found == names_.end() ? std::nullopt : std::optional(found->second);
}

bool MemberCore::obeys(std::uint64_t epoch) {
  return !election_ && witness_.obeys(election::Epoch{epoch});
}

Result<> MemberCore::hand_over(const std::string& to, Output& out) {
  if (!election_)
    return fail(ErrorCode::unavailable, options_.self.id + " is no scheduler, and leads nothing");
  if (!election_->leads())
    return fail(ErrorCode::unavailable, options_.self.id + " does not lead, or hands over already");
  if (to.empty()) {
    // Another one each time: a spare that drains does not take the lead.
    const auto is_spare = [](const auto& one) {
      return one.second.there && one.second.member.role == cluster::Role::scheduler;
    };
    auto spare = std::find_if(known_.upper_bound(last_heir_), known_.end(), is_spare);
    if (spare == known_.end()) spare = std::ranges::find_if(known_, is_spare);
    if (spare == known_.end()) return fail(ErrorCode::unavailable, "no other scheduler is there");
    last_heir_ = spare->first;
    return hand_over(std::string(spare->first), out);
  }
  if (to == options_.self.id) return invalid(to + " leads already");
  const auto next = known_.find(to);
  if (next == known_.end()) return invalid("cannot hand over to " + to + ": no such member is registered");
  if (next->second.member.role != cluster::Role::scheduler)
    return invalid("cannot hand over to " + to + ": it is no other scheduler of the cluster");
  if (is_stranger(next->second.member))
    return invalid("cannot hand over to " + to + ": it has another --cluster-key than " + options_.self.id);
  if (!next->second.protocol)
    return in_context("cannot hand over to " + to, Error(next->second.protocol.error()));
  election::Output said;
  auto done = election_->hand_over(number_of(to), said);
  pass_on(said, out);
  look();
  return done;
}

Result<> MemberCore::drain(bool undo, Output& out) {
  if (!election_)
    return fail(ErrorCode::unavailable, options_.self.id + " is no scheduler, and leads nothing");
  if (!undo && election_->leads())
    if (auto handed = hand_over("", out); !handed) return handed;
  drains_ = !undo;
  ++version_;
  let_claim();
  return {};
}

void MemberCore::let_claim() {
  election_->let_claim(!drains_ && !is_stranger() && !is_outnumbered());
}

bool MemberCore::is_stranger() const {
  const auto& epoch = record_.epoch;
  return epoch && !epoch->key.empty() && !any_of(keys_, {epoch->key});
}

bool MemberCore::is_stranger(const cluster::Member& member) const {
  return !member.keys.empty() && !any_of(keys_, member.keys);
}

Result<std::uint32_t> MemberCore::settle_with(const cluster::Member& member) const {
  const cluster::Protocols speaks = options_.self.protocols.value_or(cluster::own_protocols);
  if (!member.protocols) return speaks.oldest;
  return cluster::settle({"'" + options_.self.id + "'", speaks}, {"'" + member.id + "'", *member.protocols});
}

bool MemberCore::is_outnumbered() const {
  const auto goes = [](const auto& one) { return one.second.protocol.has_value(); };
  const auto mates = 1 + std::ranges::count_if(known_, goes);
  const auto others = static_cast<std::ptrdiff_t>(known_.size()) + 1 - mates;
  if (others != mates || !record_.epoch) return others > mates;
  const auto leader = known_.find(record_.epoch->leader);
  return leader != known_.end() && !leader->second.protocol;
}

std::string MemberCore::trouble() const {
  if (is_stranger())
    return "this process has another --cluster-key than '" + record_.epoch->leader +
           "', the leader of epoch " + std::to_string(record_.epoch->number) +
           ": it neither hears the others nor leads. Give it the cluster's key. If the cluster has another "
           "key now, "
           "and nobody leads, delete " +
           (options_.epoch_place.empty() ? "/carillon/" + options_.cluster + "/epoch in etcd"
                                         : options_.epoch_place);
  for (const auto& [id, known] : known_)
    if (is_stranger(known.member))
      return "member '" + id + "' has another --cluster-key than this process, and is not heard";
  for (const auto& [id, known] : known_)
    if (!known.protocol)
      return known.protocol.error().message + ". Until then neither hears the other" +
             (election_ && !leads() && is_outnumbered() ? ", and '" + options_.self.id + "' does not lead"
                                                        : "");
  return {};
}

// Whether `known` has come or gone.
bool MemberCore::judge(Known& known) {
  const bool there = known.heard && known.silence.lasted() < options_.gone_after;
  if (there == known.there) return false;
  known.there = there;
  ++version_;
  return true;
}

// Whether somebody else leads.
void MemberCore::look() {
  Lead lead{leads(), epoch(), leader()};
  if (lead == lead_) return;
  if (lead.leader && lead.epoch > led_epoch_)
    counters_.leader_changes += std::exchange(led_epoch_, lead.epoch) > 0 ? 1 : 0;
  lead_ = std::move(lead);
  ++version_;
}

std::optional<cluster::PeerClock> MemberCore::clock_of(std::string_view id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? std::nullopt : std::optional(found->second.clock);
}

std::optional<cluster::PeerClock> MemberCore::clock_of(std::string_view id, std::uint64_t incarnation) const {
  return incarnation_of(id) == incarnation ? clock_of(id) : std::nullopt;
}

std::optional<std::uint64_t> MemberCore::incarnation_of(std::string_view id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? std::nullopt : std::optional(found->second.member.incarnation);
}

std::vector<MemberCore::Peer> MemberCore::peers(TimePoint now) const {
  std::vector<Peer> all;
  for (const auto& [id, known] : known_) {
    Peer peer{.member = known.member, .there = known.there, .clock = std::nullopt};
    if (known.clock.settled()) peer.clock = known.clock.at(now);
    all.push_back(std::move(peer));
  }
  return all;
}

MemberFigures MemberCore::figures(TimePoint now) const {
  const election::WitnessCounters beats = witness().counters();
  MemberFigures figures{.role = options_.self.role,
                        .leads = leads(),
                        .epoch = epoch(),
                        .leader_changes = counters_.leader_changes,
                        .beats = beats.beats,
                        .beats_missed = beats.missed,
                        .round_trips = round_trips_,
                        .clocks = {}};
  for (const auto& [id, known] : known_)
    if (known.there && known.clock.settled()) figures.clocks.push_back({id, known.clock.at(now)->bound});
  return figures;
}

MemberCore::Known* MemberCore::find(election::MemberId id) {
  const auto name = names_.find(id.value);
  if (name == names_.end()) return nullptr;
  const auto found = known_.find(name->second);
  return found == known_.end() ? nullptr : &found->second;
}

void MemberCore::say(Known& to, const std::optional<election::Message>& message, Output& out) {
  to.spoken_at = now_;
  if (!to.protocol) return;
  const transport::Datagram datagram{.from = options_.self.id,
                                     .incarnation = options_.self.incarnation,
                                     .message = message,
                                     .sent = now_,
                                     .echo = to.last,
                                     .protocol = *to.protocol};
  out.datagrams.push_back(
      {to.member.address, codec_.encode(datagram, {to.member.id, to.member.incarnation})});
}

void MemberCore::pass_on(election::Output& from, Output& out) {
  for (const auto& [to, message] : from.messages)
    if (Known* const known = find(to)) say(*known, message, out);
  if (!from.request) return;
  if (!up_ || id_taken_) return election_->coordinator_failed();
  ++token_;
  const election::Leadership& claim = from.request->claim;
  // The compare-and-set is over a revision: so the value that it is over must be the one before.
  const std::uint64_t known = record_.epoch ? record_.epoch->number : 0;
  out.read = from.request->kind == election::Request::Kind::read || known + 1 != claim.epoch.value;
  if (out.read) {
    out.claim.reset();
    return;
  }
  out.claim = cluster::Epoch{claim.epoch.value, options_.self.id, options_.self.incarnation, keys_.front()};
  out.claim_over = record_.revision;
}

void MemberCore::members_changed() {
  if (!election_) return;
  let_claim();
  std::vector<election::Member> members;
  for (const auto& [id, known] : known_)
    if (!is_stranger(known.member) && known.protocol)
      members.push_back({.id = number_of(id),
                         .scheduler = known.member.role == cluster::Role::scheduler,
                         .there = known.there});
  election_->set_members(std::move(members));
}

void MemberCore::epoch_is(const cluster::EpochRecord& record, Output& out) {
  // An answer may be from before what was seen. One that says that there is no epoch may be from before the
  // first: whether an epoch was deleted, only the copy tells.
  if (record.revision >= record_.revision && (record.revision == 0 || record.revision > deleted_))
    record_ = record;
  if (!up_) return;  // the copy is not whole yet
  const cluster::Epoch value = record_.epoch.value_or(cluster::Epoch{});
  if (!value.leader.empty()) names_[number_of(value.leader).value] = value.leader;
  const election::Leadership leadership{election::Epoch{value.number}, number_of(value.leader),
                                        election::Incarnation{value.nonce}};
  if (!election_) return witness_.coordinator_said(leadership);
  let_claim();
  election::Output said;
  election_->coordinator_said(leadership, said);
  pass_on(said, out);
}

election::MemberId number_of(std::string_view id) {
  // FNV-1a.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return election::MemberId{hash};
}

}  // namespace carillon::hosts
