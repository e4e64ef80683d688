#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/base/turns.h"
#include "carillon/dispatch/dispatch.h"
#include "carillon/hosts/membership.h"
#include "carillon/roles/follower.h"
#include "carillon/roles/leader.h"
#include "carillon/roles/metrics.h"
#include "carillon/roles/wanted_news.h"
#include "carillon/transport/desk.h"
#include "carillon/transport/stream.h"

namespace carillon::roles {

// A scheduler of a cluster, live: takes streams of frontends and workers, and decides while it leads, with a
// Leader of its own for each epoch. The thread that reads a peer's frame decides on it, if nobody decides at
// that moment; the rest is its own thread's.
class SchedulerHost final : transport::StreamOwner, transport::Desk, Out {
 public:
  struct Options {
    std::function<std::unique_ptr<schedule::Scheduler>()> make_scheduler;
    // Set if groups of devices divide the models: makes the scheduler in place of the other.
    std::function<std::unique_ptr<schedule::Subclusters>()> make_subclusters{};
    // GroupsOfModels::hash() of the division in force, if this scheduler leads, or else of the one that would
    // be in force if it led. 0: there are no groups. May be empty.
    std::function<std::uint64_t(bool leads)> division{};
    LeaderOptions leader;
    std::function<void(const std::string&)> warn;
    explain::RowSpansSink traced = {};  // gets the spans of rows of sampled requests
  };
  // Errors: an address that cannot be bound, and as hosts::Membership::open(). `clock` outlives this.
  static Result<std::unique_ptr<SchedulerHost>> open(const MemberArguments& arguments, Options options,
                                                     const Clock& clock);
  ~SchedulerHost() override;

  hosts::Membership& membership() { return *membership_; }
  // How many devices the load needs, by group: WantedNews::wanted() and own(). Any thread; waits for nobody
  // who decides.
  Result<std::vector<provision::WantedFigures>> wanted() const;
  std::vector<provision::WantedFigures> own_wanted() const;
  // Divides the models over the groups of devices from now on. False: this scheduler does not lead, and
  // nothing changes. Errors: it has no time to answer, and may divide them yet. Requires
  // Options::make_subclusters. Any thread.
  Result<bool> divide(const schedule::GroupsOfModels& division);
  // Any thread.
  ClusterFigures figures() const;

 private:
  struct Opened {
    PeerId peer = 0;
    std::shared_ptr<transport::Stream> stream;
  };
  struct Ended {
    PeerId peer = 0;
    std::string why;
  };
  struct Heard {
    PeerId peer = 0;
    const transport::Stream* from = nullptr;  // it may be gone
    transport::Frame frame;
  };
  struct Changed {
    bool leads = false;
    std::uint64_t epoch = 0;
    std::set<std::string> workers;  // that are there
    std::string leader;             // empty: not known
  };
  struct DrainOrder {
    std::string id;
    bool undo = false;
    std::shared_ptr<std::promise<Result<>>> answer;
  };
  struct DivideOrder {
    schedule::GroupsOfModels division;
    std::shared_ptr<std::promise<Result<bool>>> answer;
  };
  using News = std::variant<Opened, Ended, Heard, Changed, DrainOrder, DivideOrder>;

  SchedulerHost(transport::Hello self, Options options, const Clock& clock);
  Result<> greets(const transport::Hello& peer) override;
  void opened(const std::shared_ptr<transport::Stream>& stream) override;
  void heard(transport::Stream& stream, transport::Frame frame) override;
  void ended(transport::Stream& stream, const Error& why) override;
  // transport::Desk.
  transport::Look look() override;
  Result<> hand_over(const std::string& to) override { return membership_->hand_over(to); }
  Result<> drain(const std::string& id, bool undo) override;
  // Out, in a turn.
  void send(PeerId peer, transport::Message message) override;
  void end(PeerId peer, std::string why) override;
  void warn(std::string text) override { options_.warn(text); }
  void traced(std::shared_ptr<const explain::RowSpans> spans) override {
    if (options_.traced) options_.traced(std::move(spans));
  }

  void tell(News news);
  template <typename T>
  Result<T> answered(std::promise<Result<T>>& answer, const std::string& what) const;
  void compare_division(const transport::Look& leader);
  void run();
  void take_turn(std::unique_lock<std::mutex>& lock);
  void taken(const Heard& heard);
  TimePoint wake_at() const;
  void on(Opened& news);
  void on(Ended& news);
  void on(Heard& news);
  void on(Changed& news);
  void on(DrainOrder& news);
  void on(DivideOrder& news);
  void leave_missing(TimePoint now);
  void tell_unheard();
  void count_devices();
  void show_drains();
  void look_at_demand();
  void ask_leader();
  void join(PeerId peer, const std::shared_ptr<transport::Stream>& stream);

  transport::Hello self_;  // as it is registered
  const Options options_;
  const Clock& clock_;
  std::unique_ptr<hosts::Membership> membership_;
  std::unique_ptr<transport::StreamListener> listener_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // to ask the leader

  Troubles troubles_;  // the membership's thread's
  std::mutex mutex_;   // of what follows
  Turns turns_;
  std::vector<News> news_;
  std::deque<Heard> offers_;  // frames of frontends; all else goes first
  struct Speaker {
    PeerId id = 0;
    std::size_t waiting = 0;  // messages that wait for a turn
  };
  std::map<const transport::Stream*, Speaker> peers_;
  PeerId next_peer_ = 1;
  std::map<std::string, std::uint32_t> devices_;  // alive ones, by worker
  std::map<std::string, std::uint32_t> drains_;   // Leader::drains()
  bool ending_ = false;

  // Of whoever has the turn.
  std::vector<News> taken_;
  std::vector<std::shared_ptr<transport::Stream>> said_;  // streams with messages that have not been flushed
  std::map<PeerId, std::shared_ptr<transport::Stream>> streams_;
  std::unique_ptr<Leader> leader_;
  std::uint64_t reoffered_before_ = 0;  // Leader::reoffered() of earlier leaders
  std::uint64_t epoch_ = 0;             // the leader's
  std::uint64_t told_epoch_ = 0;        // in the log, of another's lead
  // Workers: that are there; that were, and were not left since; of these, who is missing since when.
  std::set<std::string> there_, seen_;
  std::map<std::string, TimePoint> missing_;
  TimePoint look_for_missing_ = TimePoint::max();
  std::size_t counted_ = 0;                        // devices_, all together
  std::pair<std::uint64_t, std::uint64_t> shown_;  // of drains_: the leader's epoch, and drains_version()
  TimePoint demand_at_ = TimePoint::max();         // the leader's next look
  std::thread thread_;

  std::atomic<std::uint64_t> reoffered_{0};  // of all leaders, after each turn
  std::atomic<std::size_t> moving_{0};       // Leader::moving(), after each turn

  mutable std::mutex wanted_mutex_;  // of what follows
  std::condition_variable asks_;
  bool asks_no_more_ = false;
  WantedNews wanted_;
  std::pair<std::string, std::uint64_t> other_division_;  // ask_leader()'s: a leader's, which the log has
  std::thread asking_;
};

}  // namespace carillon::roles
