#include "carillon/cluster/coordinator/kubernetes_client.h"

#include <algorithm>
#include <limits>
#include <set>
#include <variant>

#include "carillon/base/assert.h"
#include "carillon/base/mix.h"
#include "carillon/cluster/coordinator/address.h"

namespace carillon::cluster {
namespace {

using kubernetes::Answer;
using kubernetes::Lease;
using kubernetes::LeaseEvent;
using Op = kubernetes::LeaseRegistration::Op;

constexpr std::uint64_t most_transitions =
    std::numeric_limits<std::int32_t>::max();  // a Lease's are an int32
constexpr Duration longest_throttle = std::chrono::seconds{10}, usual_throttle = std::chrono::seconds{1};
constexpr int most_tries = 3;                                     // of a claim or a read, in a row
constexpr Duration stood_still = std::chrono::milliseconds{500};  // after due()
constexpr Duration lasted = std::chrono::seconds{2};              // a watch that did so was well
constexpr Duration seen_within = std::chrono::seconds{3};         // own renewals, over the watch
constexpr Duration swept_after = std::chrono::seconds{60};        // Leases of processes that were killed
constexpr Duration sweep_every = std::chrono::seconds{1}, sweep_again = std::chrono::seconds{30};
// Seconds that the server keeps a watch; then it is begun again where it ended.
constexpr std::uint64_t shortest_watch = 240, longest_watch = 300;

bool is_good(int status) {
  return status >= 200 && status < 300;
}

}  // namespace

KubernetesClient::KubernetesClient(CoordinatorOptions options, KubernetesPlace place, TimePoint now)
    : options_(std::move(options)),
      place_(std::move(place)),
      path_("/apis/coordination.k8s.io/v1/namespaces/" + place_.name_space + "/leases"),
      next_at_(now),
      opened_at_(now),
      heard_(now),
      awaited_(now) {
  CARILLON_ASSERT(kubernetes::is_dns_name(options_.name, false));
  CARILLON_ASSERT(kubernetes::is_dns_name(place_.name_space, false));
  if (!options_.self) return;
  CARILLON_ASSERT(kubernetes::is_dns_name(options_.self->id, true));
  registration_.emplace(*options_.self, options_.registration);
}

bool KubernetesClient::is_callers(Kind kind) {
  return kind == Kind::claim || kind == Kind::claim_read || kind == Kind::read_epoch;
}

// `name`: of a Lease; empty: of all.
void KubernetesClient::send(Pending pending, std::string method, const std::string& name, std::string body) {
  requests_.push_back({.id = ++last_id_,
                       .timeout = options_.request_timeout,
                       .body = kubernetes::Call{.method = std::move(method),
                                                .target = path_ + (name.empty() ? "" : "/" + name),
                                                .body = std::move(body)}});
  pending.seen = revision_;
  if (is_callers(pending.kind)) pending.call = std::get<kubernetes::Call>(requests_.back().body);
  pending_.emplace(last_id_, std::move(pending));
}

// --- The link: a list, and the watch from there

void KubernetesClient::connect(TimePoint now) {
  if (!whole_) return open_watch(now);
  link_ = Link::listing;
  send({.kind = Kind::list, .verb = "list"}, "GET", "");
  std::get<kubernetes::Call>(requests_.back().body).target +=
      "?labelSelector=carillon%2Fcluster%3D" + options_.name +
      "&limit=" + std::to_string(options_.most_members + 2);
}

void KubernetesClient::open_watch(TimePoint now) {
  link_ = Link::opening;
  next_at_ = now + options_.request_timeout;
  watch_ = ++last_id_;
  const std::uint64_t lasts =
      shortest_watch + mix(options_.seed + last_id_) % (longest_watch - shortest_watch + 1);
  requests_.push_back(
      {.id = watch_,
       .timeout = options_.request_timeout,
       .body = kubernetes::Watch{path_ + "?labelSelector=carillon%2Fcluster%3D" + options_.name +
                                 "&watch=true&allowWatchBookmarks=true&resourceVersion=" +
                                 std::to_string(revision_) + "&timeoutSeconds=" + std::to_string(lasts)}});
  pending_.emplace(watch_, Pending{.kind = Kind::watch, .verb = "watch"});
}

void KubernetesClient::disconnect(const std::string& why, TimePoint now) {
  why_ = at() + ": " + why;
  if (watch_ != 0) requests_.push_back({.id = watch_, .timeout = {}, .body = kubernetes::Cancel{}});
  watch_ = 0;
  // Other requests stay pending: each has an answer or fails.
  std::erase_if(pending_, [](const auto& each) {
    return each.second.kind == Kind::list || each.second.kind == Kind::watch;
  });
  if (link_ == Link::open && now >= opened_at_ + lasted) failures_ = 0;
  link_ = Link::waiting;
  listens_anew_ = true;
  wants_to_see_ = 0;
  Duration wait =
      std::min(options_.longest_wait, options_.first_wait * (1 << std::min<std::size_t>(failures_, 16)));
  ++failures_;
  wait = wait / 2 + Duration{static_cast<Duration::rep>(mix(options_.seed + failures_) %
                                                        static_cast<std::uint64_t>(wait.count() / 2 + 1))};
  next_at_ = std::max(now + wait, throttled_until_);
}

// The API server answers.
void KubernetesClient::heard(TimePoint now) {
  heard_ = now;
  if (link_ != Link::open || up()) return;
  up_ = true;
  news_.emplace_back(CoordinatorBack{});
}

void KubernetesClient::listed(const Answer& answer, TimePoint now) {
  auto list = kubernetes::lease_list_of(answer.body);
  if (!list) return disconnect(list.error().message, now);
  if (list->revision < revision_) {
    // As after a backup was restored: nothing that was seen is later than what is there now.
    for (auto& [id, seen] : seen_) seen.revision = 0;
    stored_revision_ = stored_gone_at_ = 0;
    if (registration_) registration_->set_back();
    trouble(at() + " has lost what it had; all is read anew");
  }
  std::set<std::string> there;
  for (const Lease& lease : list->items) there.insert(lease.name);
  std::vector<std::string> gone;
  for (const auto& [id, seen] : seen_)
    if (!there.contains(options_.name + "." + id)) gone.push_back(options_.name + "." + id);
  if (!there.contains(options_.name)) gone.push_back(options_.name);
  if (options_.self && !seen_.contains(options_.self->id) &&
      !there.contains(options_.name + "." + options_.self->id))
    gone.push_back(options_.name + "." + options_.self->id);
  left_out_ = list->more;
  revision_ = list->revision;
  for (const std::string& name : gone) apply_gone(name, list->revision, now);
  for (const Lease& lease : list->items) apply(lease, now);
  whole_ = false;
  if (left_out_) trouble("there are more members of cluster '" + options_.name + "' than are kept");
  tell_epoch();
  open_watch(now);
}

void KubernetesClient::watch_began(const Answer& answer, TimePoint now) {
  if (answer.status != 200) {
    whole_ = true;  // 410: what changed meanwhile is not known any more
    if (answer.status == 410) return disconnect("what changed meanwhile is gone; all is read anew", now);
    Pending pending = pending_.at(watch_);
    const std::uint64_t ended = std::exchange(watch_, 0);
    pending_.erase(ended);
    return refused(pending, answer, now);
  }
  link_ = Link::open;
  opened_at_ = now;
  if (std::exchange(listens_anew_, false)) listen_anew(now);
  heard(now);
}

void KubernetesClient::line(std::uint64_t id, std::string_view text, TimePoint now) {
  if (id != watch_ || link_ != Link::open) return;
  awake(now);
  auto event = kubernetes::lease_event_of(text);
  if (!event) {
    whole_ = true;
    disconnect(event.error().message, now);
  } else if (event->kind == LeaseEvent::Kind::error) {
    whole_ = true;
    disconnect(event->code == 410
                   ? "what changed meanwhile is gone; all is read anew"
                   : "the watch ended with code " + std::to_string(event->code) + ": " + event->message,
               now);
  } else {
    heard(now);
    revision_ = std::max(revision_, event->lease.revision);
    if (revision_ >= wants_to_see_) wants_to_see_ = 0;
    if (event->kind == LeaseEvent::Kind::put)
      apply(event->lease, now);
    else if (event->kind == LeaseEvent::Kind::deleted)
      apply_gone(event->lease.name, event->lease.revision, now);
    tell_epoch();
    if (whole_) disconnect("there is room again for what was left out; all is read anew", now);
  }
  go_on(now);
}

// --- Answers

void KubernetesClient::answered(std::uint64_t id, const Answer& answer, TimePoint now) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;  // of a link that was given up
  awake(now);
  const Pending pending = found->second;
  if (pending.kind != Kind::watch) pending_.erase(found);
  // Without a watch the server is of no use, whatever else it answers.
  if (link_ == Link::open && (is_good(answer.status) || answer.status == 404 || answer.status == 409))
    heard(now);
  switch (pending.kind) {
    case Kind::list:
      if (answer.status == 200)
        listed(answer, now);
      else
        refused(pending, answer, now);
      break;
    case Kind::watch:
      if (link_ == Link::opening) watch_began(answer, now);
      break;
    case Kind::registration:
      registration_answered(pending, answer, now);
      break;
    case Kind::claim:
    case Kind::claim_read:
    case Kind::read_epoch:
    case Kind::restore:
    case Kind::restore_read:
      call_answered(pending, answer, now);
      break;
    case Kind::sweep:
      sweeping_ = false;
      if (is_good(answer.status) || answer.status == 404)
        seen_.erase(pending.id);
      else if (answer.status != 409)
        refused(pending, answer, now);
      break;
  }
  tell_epoch();
  go_on(now);
}

void KubernetesClient::failed(std::uint64_t id, const kubernetes::Failure& failure, TimePoint now) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  awake(now);
  const Pending pending = found->second;
  pending_.erase(found);
  if (id == watch_) watch_ = 0;
  switch (pending.kind) {
    case Kind::watch:
      if (link_ == Link::open && failure.text.empty() && now >= opened_at_ + lasted) {
        open_watch(now);
        break;
      }
      [[fallthrough]];
    case Kind::list:
      disconnect(failure.text.empty() ? "the watch ended" : failure.text, now);
      break;
    case Kind::registration:
      // The watch is over the same way, and may not notice.
      registration_->failed(now);
      if (link_ == Link::open) disconnect(failure.text, now);
      break;
    case Kind::claim:
    case Kind::claim_read:
    case Kind::read_epoch:
      --calls_;
      call_failed(pending, at() + ": " + failure.text);
      break;
    case Kind::restore:
    case Kind::restore_read:
      restoring_ = false;
      restore_at_ = now + options_.registration.retry;
      break;
    case Kind::sweep:
      sweeping_ = false;
      break;
  }
  go_on(now);
}

// An answer that is no success, and that says nothing of the Leases.
void KubernetesClient::refused(const Pending& pending, const Answer& answer, TimePoint now) {
  const kubernetes::StatusWords said = kubernetes::status_of(answer.body);
  std::string why =
      "HTTP " + std::to_string(answer.status) + (said.message.empty() ? "" : ": " + said.message);
  if (answer.status == 429 || (answer.status == 503 && answer.retry_after)) {
    const Duration wait =
        std::clamp(answer.retry_after.value_or(usual_throttle), Duration{0}, longest_throttle);
    throttled_until_ = std::max(throttled_until_, now + wait);
    why = "it throttles (" + std::to_string(answer.status) + "), and is asked again after " +
          std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()) + " ms";
  } else if (answer.status == 401) {
    why = "it does not take " + place_.credentials + " (401 Unauthorized)";
  } else if (answer.status == 403) {
    why = "it forbids the verb '" + std::string(pending.verb) +
          "' of leases (403 Forbidden): the Role of this process needs it, for resource leases of apiGroup "
          "coordination.k8s.io in namespace '" +
          place_.name_space + "'" + (said.message.empty() ? "" : "; " + said.message);
  } else if (answer.status == 404) {
    why = said.kind == "namespaces" || pending.creates
              ? "namespace '" + place_.name_space + "' is not there (404)"
              : "it has no Leases (404); is it an API server?" +
                    (said.message.empty() ? "" : " " + said.message);
  }
  if (pending.kind != Kind::list && pending.kind != Kind::watch)
    trouble(at() + ": " + why);
  else if (answer.status >= 400 && answer.status < 500)
    trouble(at() + ": " + why);
  switch (pending.kind) {
    case Kind::list:
    case Kind::watch:
      return disconnect(why, now);
    case Kind::registration:
      return registration_->failed(now);
    case Kind::claim:
    case Kind::claim_read:
    case Kind::read_epoch:
      return call_failed(pending, at() + ": " + why);
    case Kind::restore:
    case Kind::restore_read:
      restore_at_ = now + options_.registration.retry;
      return;
    case Kind::sweep:
      sweep_at_ = now + sweep_again;
      return;
  }
}

void KubernetesClient::registration_answered(const Pending& pending, const Answer& answer, TimePoint now) {
  const bool removes = pending.op == Op::remove;
  if (answer.status == 409) {
    registration_->conflict(now);
  } else if (removes && is_good(answer.status)) {
    registration_->gone(now);
    member_gone(options_.self->id);
  } else if (answer.status == 404 && pending.op != Op::create) {
    registration_->gone(now);
  } else if (!is_good(answer.status)) {
    refused(pending, answer, now);
  } else if (const auto lease = kubernetes::lease_of(answer.body); !lease) {
    trouble(at() + ": " + lease.error().message);
    registration_->failed(now);
  } else if (pending.op == Op::read) {
    registration_->read(*lease, now);
    apply(*lease, now);
  } else {
    registration_->written(*lease, now);
    if (!std::exchange(renews_, true)) listen_anew(now);
    apply(*lease, now);
    if (wants_to_see_ == 0 && link_ == Link::open && revision_ < lease->revision) {
      wants_to_see_ = lease->revision;
      sees_by_ = now + seen_within;
    }
  }
}

// Of the Lease of the epoch.
void KubernetesClient::call_answered(const Pending& pending, const Answer& answer, TimePoint now) {
  const bool callers = is_callers(pending.kind);
  const bool writes = pending.kind == Kind::claim || pending.kind == Kind::restore;
  if (writes && answer.status == 409) {
    // What stands there instead is asked for; the call goes on.
    send({.kind = callers ? Kind::claim_read : Kind::restore_read,
          .verb = "get",
          .token = pending.token,
          .epoch = pending.epoch,
          .tries = pending.tries},
         "GET", options_.name);
    return;
  }
  if (callers && tried_again(pending, answer)) return;
  if (callers) --calls_;
  if (!callers) restoring_ = false;
  std::optional<Lease> lease;
  if (answer.status == 404 && !pending.creates) {
    epoch_gone(pending.seen);
  } else if (!is_good(answer.status)) {
    return refused(pending, answer, now);
  } else if (auto read = kubernetes::lease_of(answer.body); !read || read->name != options_.name) {
    const std::string why =
        at() + ": " + (read ? "it told of another Lease than '" + options_.name + "'" : read.error().message);
    trouble(why);
    restore_at_ = now + options_.registration.retry;
    if (callers) call_failed(pending, why);
    return;
  } else {
    lease = *std::move(read);
    apply_epoch(*lease);
  }
  if (writes) trouble_.clear();
  if (pending.kind == Kind::claim && lease && registration_) registration_->hurry(now);
  // The copy, as the core hears of it, comes first.
  tell_epoch();
  if (pending.kind == Kind::claim_read && lease && pending.tries + 1 < most_tries &&
      pending.epoch.number == (highest_ ? highest_->number : 0) + 1) {
    // Another hand has touched the Lease, and the epoch is the same: the claim is over what stands there now.
    ++calls_;
    return send_claim({.token = pending.token, .epoch = pending.epoch, .tries = pending.tries + 1},
                      stored_revision_);
  }
  if (pending.kind == Kind::read_epoch)
    news_.emplace_back(EpochRead{pending.token, record(), {}});
  else if (pending.kind == Kind::claim && lease)
    news_.emplace_back(WriteDone{.token = pending.token,
                                 .outcome = WriteDone::Outcome::done,
                                 .current = {pending.epoch, lease->revision}});
  else if (callers)
    news_.emplace_back(
        WriteDone{.token = pending.token, .outcome = WriteDone::Outcome::differs, .current = record()});
}

// An API server that fails may do so for a moment. A write that was done after all meets a conflict.
bool KubernetesClient::tried_again(const Pending& pending, const Answer& answer) {
  if (answer.status < 500 || answer.retry_after || pending.tries + 1 >= most_tries) return false;
  Pending next = pending;
  ++next.tries;
  const kubernetes::Call call = pending.call;
  send(std::move(next), call.method, "", call.body);
  std::get<kubernetes::Call>(requests_.back().body).target = call.target;
  pending_.at(last_id_).call = call;
  return true;
}

void KubernetesClient::send_claim(Pending pending, std::int64_t revision) {
  const bool creates = revision == 0;
  pending.kind = Kind::claim;
  pending.verb = creates ? "create" : "update";
  pending.creates = creates;
  const std::string body =
      kubernetes::epoch_lease({place_.name_space, options_.name}, pending.epoch, revision, place_.stamp());
  send(std::move(pending), creates ? "POST" : "PUT", creates ? "" : options_.name, body);
}

void KubernetesClient::call_failed(const Pending& pending, const std::string& why) {
  if (pending.kind == Kind::read_epoch)
    news_.emplace_back(EpochRead{pending.token, std::nullopt, why});
  else
    news_.emplace_back(WriteDone{.token = pending.token, .why = why});
}

// --- The copy

std::string KubernetesClient::id_of(const std::string& name) const {
  return name.starts_with(options_.name + ".") ? name.substr(options_.name.size() + 1) : std::string();
}

void KubernetesClient::apply(const Lease& lease, TimePoint now) {
  if (lease.name == options_.name)
    apply_epoch(lease);
  else if (const std::string id = id_of(lease.name); !id.empty())
    apply_member(id, lease, now);
  else
    trouble("Lease '" + lease.name + "' has the label of cluster '" + options_.name +
            "', and is passed over");
}

void KubernetesClient::apply_gone(const std::string& name, std::int64_t revision, TimePoint now) {
  if (name == options_.name) return epoch_gone(revision);
  const std::string id = id_of(name);
  if (id.empty()) return;
  if (registration_ && id == options_.self->id) registration_->seen_gone(revision, now);
  const auto found = seen_.find(id);
  if (found == seen_.end() || found->second.revision > revision) return;
  seen_.erase(found);
  member_gone(id);
  if (left_out_) whole_ = true;
}

// A member that cannot be read is none.
void KubernetesClient::apply_member(const std::string& id, const Lease& lease, TimePoint now) {
  if (registration_ && id == options_.self->id) registration_->seen(lease, now);
  auto found = seen_.find(id);
  if (found != seen_.end() && lease.revision <= found->second.revision) return;
  if (found == seen_.end()) {
    if (seen_.size() >= options_.most_members) {
      left_out_ = true;
      return trouble("Lease '" + lease.name + "' is passed over: there are more than " +
                     std::to_string(options_.most_members) + " members");
    }
    found = seen_.emplace(id, Seen{}).first;
  }
  Seen& seen = found->second;
  seen.revision = lease.revision;
  seen.changed_at = now;
  seen.lasts = kubernetes::lasts(lease, options_.registration.ttl_s);
  if (auto known = epoch_of(lease.epoch)) learn(*known);
  auto member = member_of(lease.member);
  if (member && member->id != id) member = invalid("it says that its id is '" + member->id + "'");
  if (!member) {
    trouble("Lease '" + lease.name + "' is passed over: " + member.error().message);
    return member_gone(id);
  }
  const auto held = members_.find(id);
  seen.alive = true;
  if (held != members_.end() && held->second == *member) return;
  members_.insert_or_assign(id, *member);
  news_.emplace_back(MemberSeen{*std::move(member)});
}

void KubernetesClient::member_gone(const std::string& id) {
  if (const auto seen = seen_.find(id); seen != seen_.end()) seen->second.alive = false;
  if (members_.erase(id) > 0) news_.emplace_back(MemberGone{id});
}

std::string KubernetesClient::epoch_words() const {
  return "epoch " + std::to_string(highest_->number) + " of '" + highest_->leader +
         "' goes on, and is written again";
}

void KubernetesClient::apply_epoch(const Lease& lease) {
  if (lease.revision <= stored_revision_ || lease.revision < stored_gone_at_) return;
  stored_revision_ = lease.revision;
  stored_well_ = false;
  const std::string name = "Lease '" + lease.name + "'";
  const auto stored = kubernetes::stored_epoch(lease);
  if (stored && (!highest_ || stored->epoch.number > highest_->number)) {
    highest_ = stored->epoch;
    if (!stored->whole)
      trouble(name + " was edited by hand: epoch " + std::to_string(highest_->number) + " begins, of '" +
              highest_->leader + "'");
    stored_well_ = stored->whole && lease.cluster == options_.name;
  } else if (!highest_) {
    trouble(name + " has no epoch: " + (stored ? "" : stored.error().message) +
            "; the next leader writes one");
  } else if (!stored) {
    trouble(name + " was edited by hand, and has no epoch: " + stored.error().message + "; " + epoch_words());
  } else if (stored->epoch.number < highest_->number) {
    trouble(name + " has epoch " + std::to_string(stored->epoch.number) + ", as if set back by hand; " +
            epoch_words());
  } else if (!stored->whole || stored->epoch.leader != highest_->leader ||
             stored->epoch.nonce != highest_->nonce) {
    trouble(name + " was edited by hand, and names '" + stored->epoch.leader + "'; " + epoch_words());
  } else {
    highest_->key = stored->epoch.key;
    stored_well_ = lease.cluster == options_.name;
  }
}

void KubernetesClient::epoch_gone(std::int64_t revision) {
  if (revision < stored_revision_) return;
  stored_gone_at_ = std::max(stored_gone_at_, revision);
  if (std::exchange(stored_revision_, 0) == 0) return;
  stored_well_ = false;
  if (highest_) trouble("Lease '" + options_.name + "' was deleted; " + epoch_words());
}

// A member's Lease says that there was such an epoch.
void KubernetesClient::learn(const Epoch& epoch) {
  if (epoch.number > most_transitions || (highest_ && epoch.number <= highest_->number)) return;
  highest_ = epoch;
  stored_well_ = false;
}

// Where there is no Lease there is no key: a scheduler with another one may then claim, as with an etcd whose
// key of the epoch was deleted by hand.
EpochRecord KubernetesClient::record() const {
  EpochRecord record{.epoch = highest_, .revision = stored_revision_};
  if (record.epoch && stored_revision_ == 0) record.epoch->key.clear();
  return record;
}

void KubernetesClient::tell_epoch() {
  if (EpochRecord now = record(); now != told_) {
    told_ = now;
    news_.emplace_back(EpochSeen{std::move(now)});
  }
}

// For a while nothing was heard of anybody's renewals.
void KubernetesClient::listen_anew(TimePoint now) {
  for (auto& [id, seen] : seen_)
    if (seen.alive) seen.changed_at = now;
}

void KubernetesClient::expire(TimePoint now) {
  if (link_ != Link::open || !renews_) return;
  std::vector<std::string> over;
  for (const auto& [id, seen] : seen_)
    if (seen.alive && now >= seen.changed_at + seen.lasts) over.push_back(id);
  for (const std::string& id : over) member_gone(id);
}

// --- What this process writes

void KubernetesClient::send_registration(TimePoint now) {
  const bool was = registration_->registered();
  registration_->tick(now);
  if (was && !registration_->registered()) renews_ = false;
  if (!may_send(now) || (link_ != Link::open && up_ != true)) return;
  const auto next = registration_->next(now);
  if (!next) return;
  const std::string name = options_.name + "." + options_.self->id;
  Pending pending{.kind = Kind::registration, .op = next->op};
  const auto body = [&] {
    return kubernetes::member_lease({place_.name_space, options_.name}, *options_.self, highest_,
                                    options_.registration.ttl_s, next->revision, place_.stamp());
  };
  switch (next->op) {
    case Op::create:
      pending.verb = "create";
      pending.creates = true;
      return send(std::move(pending), "POST", "", body());
    case Op::update:
      pending.verb = "update";
      return send(std::move(pending), "PUT", name, body());
    case Op::read:
      pending.verb = "get";
      return send(std::move(pending), "GET", name);
    case Op::remove:
      pending.verb = "delete";
      return send(std::move(pending), "DELETE", name, kubernetes::delete_options(next->revision));
  }
}

bool KubernetesClient::leads() const {
  return registered() && highest_ && highest_->leader == options_.self->id &&
         highest_->nonce == options_.self->incarnation;
}

// The leader's: the Lease of the epoch is as it should be.
void KubernetesClient::restore(TimePoint now) {
  if (!leads() || stored_well_ || restoring_ || now < restore_at_ || !may_send(now)) return;
  restoring_ = true;
  restore_at_ = now + options_.registration.retry;
  const bool creates = stored_revision_ == 0;
  send({.kind = Kind::restore, .verb = creates ? "create" : "update", .creates = creates},
       creates ? "POST" : "PUT", creates ? "" : options_.name,
       kubernetes::epoch_lease({place_.name_space, options_.name}, *highest_, stored_revision_,
                               place_.stamp()));
}

// The leader's: Leases of processes that were killed, and whose ids nobody uses again, do not pile up.
void KubernetesClient::sweep(TimePoint now) {
  if (!leads() || sweeping_ || now < sweep_at_ || !may_send(now)) return;
  sweep_at_ = now + sweep_every;
  for (const auto& [id, seen] : seen_)
    if (!seen.alive && id != options_.self->id && now >= seen.changed_at + seen.lasts + swept_after) {
      sweeping_ = true;
      return send({.kind = Kind::sweep, .verb = "delete", .id = id}, "DELETE", options_.name + "." + id,
                  kubernetes::delete_options(seen.revision));
    }
}

// --- In time

void KubernetesClient::tick(TimePoint now) {
  awake(now);
  go_on(now);
}

// If this process stood still, what others wrote meanwhile is still to be heard.
void KubernetesClient::awake(TimePoint now) {
  if (awaited_ != TimePoint::max() && now > awaited_ + stood_still)
    for (auto& [id, seen] : seen_) seen.changed_at += now - awaited_;
  awaited_ = std::max(awaited_, now);
}

// What is due by now.
void KubernetesClient::go_on(TimePoint now) {
  if (link_ == Link::opening && now >= next_at_) disconnect("no watch began in time", now);
  if (link_ == Link::open && wants_to_see_ != 0 && now >= sees_by_)
    disconnect("its watch tells nothing of what this process writes", now);
  if (link_ == Link::waiting && now >= next_at_) connect(now);
  // A client that writes nothing hears nothing where all is quiet.
  if ((registered() || link_ != Link::open) && up_ != false && now >= heard_ + lost_after()) {
    up_ = false;
    news_.emplace_back(CoordinatorLost{why_.empty() ? at() + ": no answer" : why_});
  }
  if (registration_) send_registration(now);
  expire(now);
  if (link_ == Link::open) {
    restore(now);
    sweep(now);
  }
  if (registration_)
    for (RegistrationNews& each : registration_->take_news())
      std::visit([&](auto& told) { news_.emplace_back(std::move(told)); }, each);
  awaited_ = due();
}

// A member's renewals, which are heard, are no further apart.
Duration KubernetesClient::lost_after() const {
  if (link_ != Link::open) return options_.lost_after;
  return std::max<Duration>(options_.lost_after, std::chrono::seconds{options_.registration.ttl_s});
}

TimePoint KubernetesClient::due() const {
  TimePoint due = TimePoint::max();
  const auto by = [&](TimePoint time) { due = std::min(due, time); };
  if (link_ == Link::waiting || link_ == Link::opening) by(next_at_);
  if (link_ == Link::open && wants_to_see_ != 0) by(sees_by_);
  if ((registered() || link_ != Link::open) && up_ != false) by(heard_ + lost_after());
  if (registration_ && (link_ == Link::open || up_ == true))
    by(std::max(registration_->due(), throttled_until_));
  if (link_ != Link::open) return due;
  if (renews_)
    for (const auto& [id, seen] : seen_)
      if (seen.alive) by(seen.changed_at + seen.lasts);
  if (leads() && !stored_well_ && !restoring_) by(std::max(restore_at_, throttled_until_));
  if (leads() && !sweeping_)
    for (const auto& [id, seen] : seen_)
      if (!seen.alive && id != options_.self->id)
        by(std::max({sweep_at_, throttled_until_, seen.changed_at + seen.lasts + swept_after}));
  return due;
}

// --- The caller's

Result<> KubernetesClient::can_call(TimePoint now) const {
  // Over an older copy a claim might create an epoch that there was already.
  if (link_ != Link::open)
    return fail(ErrorCode::unavailable,
                "no coordinator: " + (why_.empty() ? at() + ": no answer yet" : why_));
  if (!may_send(now)) return fail(ErrorCode::unavailable, "no coordinator: " + at() + " throttles");
  if (calls_ >= options_.most_calls)
    return fail(ErrorCode::resource_exhausted,
                "the coordinator has not yet answered " + std::to_string(options_.most_calls) + " requests");
  return {};
}

Result<> KubernetesClient::compare_and_set(std::uint64_t token, std::int64_t revision, const Epoch& epoch,
                                           TimePoint now) {
  CARILLON_ASSERT(is_name(epoch.leader));
  if (registration_ && !registration_->is_fresh(now))
    return fail(ErrorCode::unavailable, "member '" + options_.self->id + "' is not registered");
  if (auto can = can_call(now); !can) return can;
  if (epoch.number > most_transitions)
    return fail(ErrorCode::unavailable, "epoch " + std::to_string(epoch.number) +
                                            " is more than the leaseTransitions of a Lease can be");
  if (highest_ && epoch.number <= highest_->number) {
    // Nothing stands there that this may take the place of.
    news_.emplace_back(
        WriteDone{.token = token, .outcome = WriteDone::Outcome::differs, .current = record()});
    return {};
  }
  ++calls_;
  send_claim({.token = token, .epoch = epoch}, revision);
  go_on(now);
  return {};
}

Result<> KubernetesClient::read_epoch(std::uint64_t token, TimePoint now) {
  if (auto can = can_call(now); !can) return can;
  ++calls_;
  send({.kind = Kind::read_epoch, .verb = "get", .token = token}, "GET", options_.name);
  go_on(now);
  return {};
}

void KubernetesClient::leave(TimePoint now) {
  if (registration_) registration_->leave();
  go_on(now);
}

void KubernetesClient::trouble(std::string what) {
  if (what == trouble_) return;
  trouble_ = what;
  news_.emplace_back(Trouble{std::move(what)});
}

}  // namespace carillon::cluster
