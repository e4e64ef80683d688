#include "carillon/cluster/coordinator/lease_registration.h"

#include <algorithm>

namespace carillon::cluster::kubernetes {

Duration lasts(const Lease& lease, std::int64_t otherwise_s) {
  return std::chrono::seconds{std::clamp<std::int64_t>(lease.duration_s.value_or(otherwise_s), 1, 600)};
}

void LeaseRegistration::tick(TimePoint now) {
  if (registered_ && !leaving_ && now >= renewed_at_ + ttl())
    lose("its Lease was not renewed for " + std::to_string(options_.ttl_s) + " s");
}

std::optional<LeaseRegistration::Next> LeaseRegistration::next(TimePoint now) {
  if (out_) return std::nullopt;
  if (leaving_ && !must_read_ && !ours_) {
    if (!std::exchange(left_, true)) lose("it left");
    return std::nullopt;
  }
  if (now < retry_at_) return std::nullopt;
  std::optional<Next> next;
  if (must_read_)
    next = Next{Op::read, 0};
  else if (leaving_)
    next = Next{Op::remove, revision_};
  else if (ours_ && (now >= renew_at_ || !registered_))
    next = Next{Op::update, revision_};
  else if (!ours_ && revision_ == 0)
    next = Next{Op::create, 0};
  else if (!ours_ && now >= free_at_)
    next = Next{Op::update, revision_};
  if (!next) return std::nullopt;
  out_ = next->op;
  sent_at_ = now;
  return next;
}

TimePoint LeaseRegistration::due() const {
  const TimePoint lapses = registered_ && !leaving_ ? renewed_at_ + ttl() : TimePoint::max();
  if (out_) return lapses;
  if (leaving_ && !must_read_ && !ours_) return left_ ? TimePoint::max() : TimePoint::min();
  TimePoint due = retry_at_;
  if (!must_read_ && !leaving_) {
    if (ours_ && registered_) due = std::max(due, renew_at_);
    if (!ours_ && revision_ != 0) due = std::max(due, free_at_);
  }
  return std::min(due, lapses);
}

void LeaseRegistration::written(const Lease& lease, TimePoint now) {
  out_.reset();
  taken_.clear();
  // The watch may have told of a later state, or of the end of this Lease, before this answer came. A Lease
  // that only lost its label keeps its revision, and the watch told of its end at that revision. So a Lease
  // counts as gone only where its end has a higher revision than the answer.
  if (gone_at_ > lease.revision || revision_ > lease.revision) {
    must_read_ = true;
    retry_at_ = now;
    return;
  }
  revision_ = lease.revision;
  ours_ = true;
  renewed_at_ = sent_at_;
  renew_at_ = sent_at_ + ttl() / 3;
  if (!std::exchange(registered_, true)) news_.emplace_back(Registered{});
}

void LeaseRegistration::conflict(TimePoint now) {
  out_.reset();
  must_read_ = true;
  retry_at_ = now;
}

void LeaseRegistration::gone(TimePoint now) {
  out_.reset();
  must_read_ = ours_ = false;
  revision_ = 0;
  retry_at_ = now;
  if (registered_ && !leaving_) lose("its Lease in Kubernetes is gone");
}

void LeaseRegistration::read(const Lease& lease, TimePoint now) {
  out_.reset();
  must_read_ = false;
  retry_at_ = now;
  if (lease.revision >= revision_ && lease.revision >= gone_at_) found(lease, now);
}

void LeaseRegistration::failed(TimePoint now) {
  // What was sent may have been done: the Lease that is there then is of this process, and the next write
  // meets a conflict.
  out_.reset();
  retry_at_ = std::max(retry_at_, now + options_.retry);
}

void LeaseRegistration::seen(const Lease& lease, TimePoint now) {
  if (lease.revision > revision_ && lease.revision >= gone_at_) found(lease, now);
}

void LeaseRegistration::seen_gone(std::int64_t revision, TimePoint now) {
  if (revision < revision_ || revision_ == 0) return;
  gone_at_ = revision;
  revision_ = 0;
  if (std::exchange(ours_, false) || !registered_) retry_at_ = std::min(retry_at_, now);
  if (registered_ && !leaving_) lose("its Lease in Kubernetes is gone");
}

void LeaseRegistration::set_back() {
  revision_ = gone_at_ = 0;
  ours_ = false;
  must_read_ = true;
}

// What is there now.
void LeaseRegistration::found(const Lease& lease, TimePoint now) {
  revision_ = lease.revision;
  const auto other = member_of(lease.member);
  if (other && other->id == self_.id && other->incarnation == self_.incarnation) {
    ours_ = true;
    return;
  }
  free_at_ = now + lasts(lease, options_.ttl_s);
  if (!other && registered_) {
    // No process wrote this: somebody edited the Lease by hand.
    ours_ = true;
    renew_at_ = now;
    return;
  }
  ours_ = false;
  if (registered_) lose("another process has taken its Lease");
  std::string why = "id '" + self_.id + "' is in use by " +
                    (other ? "another process, at " + other->address + " (incarnation " +
                                 std::to_string(other->incarnation) + ")"
                           : "Lease '" + lease.name + "', which is no member's: " + other.error().message) +
                    "; it is free once that process has gone";
  if (why == taken_) return;
  taken_ = why;
  news_.emplace_back(IdTaken{std::move(why)});
}

void LeaseRegistration::lose(const std::string& why) {
  registered_ = false;
  news_.emplace_back(Unregistered{why});
}

}  // namespace carillon::cluster::kubernetes
