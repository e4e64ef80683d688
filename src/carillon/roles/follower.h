#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/hosts/membership.h"
#include "carillon/transport/stream.h"
#include "carillon/transport/tls.h"

namespace carillon::roles {

// How a process joins its cluster.
struct MemberArguments {
  cluster::CoordinatorAddress coordinator;
  cluster::Role role = cluster::Role::worker;
  std::string id;      // cluster::is_name()
  std::string listen;  // IP:PORT where others reach this process; its beats go there, too
  std::string key;     // that beats are signed with; the same for all members
  std::optional<std::string> other_key =
      std::nullopt;                          // while it is being changed: beats of this one are read
  std::shared_ptr<transport::Tls> tls = {};  // of streams and rows; null: none, all is in the clear
  cluster::Protocols protocols = cluster::own_protocols;
  std::string build = {};  // that others are told; cluster::is_build()
};
// With an incarnation drawn at random. Errors: an id or an address that cannot be; the text names it.
Result<hosts::MemberOptions> member_options(const MemberArguments& arguments);

// A process that ends waits so long for etcd to hear of it.
constexpr Duration leaves_within = std::chrono::milliseconds{300};

// Warns of what the coordinator has trouble with, once.
class Troubles {
 public:
  void look(const hosts::Membership::State& state);

 private:
  std::string told_;
};

// What was heard of a leader. Called from threads of streams, one at a time. Must not wait.
class FollowerHandlers {
 public:
  virtual ~FollowerHandlers() = default;
  // That scheduler leads, and is to be told all that a leader must know, over this stream. `self`: this
  // process, as it is registered.
  virtual void leads(std::shared_ptr<transport::Stream> stream, std::uint64_t epoch,
                     const transport::Hello& self) = 0;
  virtual void leader_left() = 0;
  // Of the leader of now. Times are on our clock.
  virtual void heard(std::vector<transport::Message> messages) = 0;
};

// A frontend or a worker in its cluster: streams to all schedulers, and who of them leads. What an earlier
// leader says is dropped. So is all that comes before the clocks' difference is known: its stream begins
// anew. Thread-safe.
class Follower final : transport::StreamOwner {
 public:
  // `handlers` must outlive this. Errors: as hosts::Membership::open().
  static Result<std::unique_ptr<Follower>> open(const MemberArguments& arguments, FollowerHandlers& handlers);
  // Ends all streams; then the handlers hear nothing more.
  ~Follower() override;
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  hosts::Membership& membership() { return *membership_; }
  std::uint64_t stale() const { return stale_; }  // frames of schedulers that do not lead
  // A message of the process `from`, on our clock. False: their difference is not known.
  bool to_our_time(const transport::Hello& from, transport::Message& message);

 private:
  explicit Follower(transport::Hello self, FollowerHandlers& handlers);
  Result<> greets(const transport::Hello& peer) override;
  void opened(const std::shared_ptr<transport::Stream>& stream) override;
  void heard(transport::Stream& stream, transport::Frame frame) override;
  void ended(transport::Stream& stream, const Error& why) override;
  void changed(const hosts::Membership::State& state);
  void dial();
  void tell_troubles();
  void tell_without_leader();

  transport::Hello self_;  // as it is registered
  FollowerHandlers& handlers_;
  std::unique_ptr<hosts::Membership> membership_;
  std::atomic<std::uint64_t> stale_{0};

  std::mutex mutex_;  // of streams, and of what the handlers are told
  std::map<const transport::Stream*, std::shared_ptr<transport::Stream>> streams_;
  const transport::Stream* leader_ = nullptr;
  std::uint64_t epoch_ = 0;

  Troubles troubles_;   // the membership's thread's
  std::mutex dialing_;  // of what follows
  std::condition_variable wake_;
  std::vector<std::string> wanted_;  // addresses of schedulers
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  bool ending_ = false;
  std::map<std::string, std::unique_ptr<transport::StreamDialer>> dialers_;  // the thread's, as what follows
  struct Trouble {
    std::string seen, told;
  };
  std::map<std::string, Trouble> dialing_troubles_;  // by address
  int without_leader_ = 0;  // looks in a row; no more than those after which it is told
  std::thread thread_;
};

}  // namespace carillon::roles
