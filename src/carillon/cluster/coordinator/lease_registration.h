#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/cluster/coordinator/lease.h"
#include "carillon/cluster/coordinator/member.h"
#include "carillon/cluster/coordinator/registration.h"

namespace carillon::cluster::kubernetes {

// For how long a Lease holds without a renewal, as its reader sees it: what stands there, within reason.
Duration lasts(const Lease& lease, std::int64_t otherwise_s);

// Keeps one member registered by a Lease of its own: makes, renews and deletes it. Kubernetes ends no Lease.
// So whoever reads one counts the time since it last changed, on the reader's clock. A Lease of another
// process is taken over once it has not changed for as long as it holds.
//
// Each write is over the resourceVersion that was seen: a write that comes late, or twice, does no harm.
// One request is out at a time.
class LeaseRegistration {
 public:
  enum class Op : std::uint8_t { create, update, read, remove };
  struct Next {
    Op op = Op::read;
    std::int64_t revision = 0;  // of the Lease that is updated or removed
  };

  LeaseRegistration(Member self, const RegistrationOptions& options)
      : self_(std::move(self)), options_(options) {}

  void tick(TimePoint now);  // tells where no renewal was done in time
  // What is to be sent now, if anything. It must then be answered or failed.
  std::optional<Next> next(TimePoint now);
  TimePoint due() const;  // when tick() or next() has something, at the latest

  void written(const Lease& lease, TimePoint now);  // it was created or updated
  void conflict(TimePoint now);                     // something else is there
  void gone(TimePoint now);                         // nothing is there: of an update, a read or a removal
  void read(const Lease& lease, TimePoint now);
  void failed(TimePoint now);  // whether it was done is unknown, or it was refused

  // What became of the Lease, as the watch or a list has it. `revision`: at which it was deleted.
  void seen(const Lease& lease, TimePoint now);
  void seen_gone(std::int64_t revision, TimePoint now);
  // The server has lost what it had: its revisions count from before.
  void set_back();

  // Renews at once: there is something new to write.
  void hurry(TimePoint now) { renew_at_ = std::min(renew_at_, now); }
  // Deletes the Lease, and ends; Unregistered tells when.
  void leave() { leaving_ = true; }

  bool registered() const { return registered_; }
  // The Lease was written and no reader may count it as over yet.
  bool is_fresh(TimePoint now) const { return registered_ && now < renewed_at_ + ttl(); }
  std::int64_t revision() const { return ours_ ? revision_ : 0; }
  std::vector<RegistrationNews> take_news() { return std::exchange(news_, {}); }

 private:
  Duration ttl() const { return std::chrono::seconds{options_.ttl_s}; }
  void lose(const std::string& why);
  void found(const Lease& lease, TimePoint now);

  const Member self_;
  const RegistrationOptions options_;
  std::optional<Op> out_;
  TimePoint sent_at_;
  TimePoint renew_at_ = TimePoint::min(), retry_at_ = TimePoint::min();
  std::int64_t revision_ = 0;  // of the Lease, as last known; 0: there is none
  std::int64_t gone_at_ = 0;   // at which the Lease was last seen to be deleted
  bool ours_ = false;          // the Lease is of this process
  bool registered_ = false, must_read_ = false, leaving_ = false, left_ = false;
  TimePoint renewed_at_;  // when the last write that was done was sent
  TimePoint free_at_;     // when the Lease of another process may be taken over
  std::string taken_;     // what was told last of the id being in use
  std::vector<RegistrationNews> news_;
};

}  // namespace carillon::cluster::kubernetes
