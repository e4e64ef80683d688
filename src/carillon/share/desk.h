#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/device/lanes/job_sharing.h"
#include "carillon/share/messages.h"
#include "carillon/share/overview.h"

// Between whoever decides (device::JobSharing) and the jobs' processes: what they say goes in with the time, what
// is to be done with them comes out by `Hands`. No socket, process or clock: tests drive it alone.
namespace carillon::share {

// A connection. Ids are small, and come again once released.
using ClientId = Id<struct ClientTag, std::uint32_t>;

// Who a client is, as the kernel says.
struct Peer {
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
};

// A line for the log. Never written between a `stopped` and the grant that answers it.
struct Note {
  enum class Level : std::uint8_t { info, warning };
  Level level{};
  std::string_view event;  // "came", "admitted", "refused", "evicted", "ended", "lost", "hangs", ...; static
  device::JobId job;
  Peer peer;
  std::string name;  // the job's
  std::string text;  // for people
};

// What the desk has done to the world. None of these calls the desk.
class Hands {
 public:
  virtual ~Hands() = default;
  // Makes the client's page and sends it. False where that cannot be done: the client is turned away.
  virtual bool welcome(ClientId client, device::JobId job, Bytes capacity, const Counters& so_far) = 0;
  // False: it takes no packets any more.
  virtual bool say(ClientId client, std::span<const std::byte> packet) = 0;
  // The lane's memory, under a number that no other memory ever has.
  // number 0: none yet.
  virtual bool give_lane(ClientId client, device::LaneId lane, std::uint32_t number, Bytes size) = 0;
  // Sends text, however long, and hangs up.
  virtual void list(ClientId client, std::string text) = 0;
  virtual void lease(ClientId client, Lease lease) = 0;
  // What its page says: nothing of it can be believed.
  virtual Counters counters(ClientId client) = 0;
  // When it is next at a boundary, as its page lets expect; none: it says nothing of that.
  virtual std::optional<TimePoint> next_boundary(ClientId client) = 0;
  // Its page is looked at all the time from now on, or no more: then it tells of its stop by a packet.
  virtual void listen(ClientId client, bool listens) = 0;
  // What its page says of its last stop, if it has stopped more than `before` times.
  virtual std::optional<StoppedSaid> stopped(ClientId client, std::uint64_t before) = 0;
  // It waits for a grant that may come any moment until then.
  virtual void rouse(ClientId client, TimePoint until) = 0;
  // Whether its page says that it has seen its grant.
  virtual bool entered(ClientId client) = 0;
  // How long that took.
  virtual Duration freeze(ClientId client) = 0;
  virtual void thaw(ClientId client) = 0;
  virtual void kill(ClientId client) = 0;
  // Whether the process, whose socket is closed, has memory of a lane.
  virtual bool in_lanes(ClientId client) = 0;
  virtual void hang_up(ClientId client) = 0;  // its socket; its process is still looked at
  virtual void release(ClientId client) = 0;  // all of it: the id is free

  // A lane is new, or has another size. False where there is no memory for it: its jobs are evicted.
  virtual bool size_lane(device::LaneId lane, Bytes size) = 0;
  virtual void close_lane(device::LaneId lane) = 0;

  virtual void note(Note note) = 0;
};

struct DeskOptions {
  std::string policy;
  Bytes capacity;
  device::JobMemory assumed;  // of jobs that do not know
  std::uint32_t uid = 0;      // whose jobs are taken
  bool any_user = false;
  std::string device;         // whose memory lanes are, such as "cuda:0"; empty: the host's
  Duration to_say_hello = std::chrono::seconds(5);
  Duration to_end = std::chrono::seconds(1);  // after an eviction
  // How often pages are looked at while jobs run, where there are several.
  Duration look_every = std::chrono::milliseconds(10);
  // Before and after the time at which a job that was recalled should come out of its lane: see Desk::expected. 0: nobody
  // is expected.
  Duration listens{0};
};

struct Window {
  TimePoint from = TimePoint::max(), until = TimePoint::max();
};

// Not thread-safe; `now` never goes back.
class Desk {
 public:
  // `core` decides; `hands` outlives the desk.
  Desk(std::unique_ptr<device::JobSharing> core, DeskOptions options, Hands& hands);
  ~Desk();

  void came(ClientId client, Peer peer, TimePoint now);
  void said(ClientId client, const Result<Said>& said, TimePoint now);
  void hung_up(ClientId client, TimePoint now);
  void ended(ClientId client, TimePoint now);  // its process
  void wake(TimePoint now);                    // at next(), or later
  void want_device(TimePoint now);
  void free_device(TimePoint until, TimePoint now);
  // The broker ends: every job is told so, and nothing is done after that.
  void close(bool alone);

  TimePoint next() const;  // when wake() is wanted; max(): never
  // When a job that was recalled should come out of its lane, by what its page said when it was recalled: the first such
  // time that is not over, give or take `listens`, or a hundredth of its turn up to 1 ms where that is more, as longer
  // iterations differ by more. max(): nobody is expected.
  Window expected(TimePoint now) const;
  // hear() is going to be called all the time, until `until` or until listen_no_more(): those that are expected by then
  // need not tell of their stops, and whoever is to follow them stays awake.
  void listen(TimePoint until);
  // Whether one of those that were recalled has stopped, by its page.
  bool hear(TimePoint now);
  void listen_no_more(TimePoint now);
  std::size_t jobs() const { return clients_of_jobs_.size(); }
  Overview overview(TimePoint now) const;
  Totals& totals() { return totals_; }

 private:
  struct Client;

  struct LaneMemory {
    std::uint32_t number = 0;
    Bytes size;
  };

  // Now, or where something is being told already, after that.
  void tell(const device::JobEvent& event, TimePoint now);
  void tell_all(TimePoint now);
  void carry_out(const device::JobCommand& command, TimePoint now);
  void hello(Client& client, const HelloSaid& said, TimePoint now);
  void stopped(Client& client, const StoppedSaid& said, TimePoint now);
  void ask(Client& client, const AskSaid& said, TimePoint now);
  void answer(ClientId client, TimePoint now);  // what it asked for
  bool show_lane(Client& client);
  void grant(Client& client, TimePoint now);
  void start(Client& client, TimePoint now);
  void recall(Client& client, TimePoint now);
  void hold(Client& client, TimePoint now);
  // What the client says that it has run since last time; nothing, and the client evicted, where that cannot be.
  std::optional<device::IterationEnded> progress(Client& client, const Counters& counters,
                                                 std::optional<Duration> remaining, TimePoint now);
  static device::IterationEnded first_of(const Client& client);
  void look(TimePoint now);
  void look_at(Client& client, TimePoint now);
  void turn_away(Client& client, std::string_view why);
  // Of a job that whoever decides knows: it is told so too.
  void throw_out(Client& client, device::JobReason reason, std::string_view why, TimePoint now);
  void expel(Client& client, device::JobReason reason, std::string_view why, const device::JobMemory& fits,
             TimePoint now);
  void forget_job(Client& client);
  void part(Client& client, std::string_view event, std::string text, TimePoint now);
  void release(Client& client, TimePoint now);
  void overdue(Client& client, TimePoint now);
  void due(Client& client, TimePoint at);
  Client* find(ClientId id);
  Client* of(device::JobId job);
  bool blocked(const Client& client) const;
  void note(Note::Level level, std::string_view event, const Client& client, std::string text);

  const DeskOptions options_;
  Hands& hands_;
  const std::unique_ptr<device::JobSharing> core_;
  std::vector<std::unique_ptr<Client>> clients_;  // by ClientId
  std::unordered_map<device::JobId, ClientId> clients_of_jobs_;
  std::vector<ClientId> running_;  // that hold their lanes
  std::vector<ClientId> listened_to_;
  std::unordered_map<device::LaneId, LaneMemory> lanes_;
  std::vector<device::JobEvent> events_;  // that are to be told; empty between calls
  std::vector<ClientId> answers_;  // of clients that asked, and were admitted meanwhile
  device::JobCommands commands_;
  bool telling_ = false;
  std::uint32_t next_job_ = 1;
  std::uint32_t next_lane_ = 1;
  std::size_t leaving_ = 0;  // clients whose end is waited for
  TimePoint core_wake_ = TimePoint::max();
  TimePoint next_look_ = TimePoint::max();
  TimePoint next_due_ = TimePoint::max();  // of clients: hello, end
  bool wanted_ = false;
  bool closed_ = false;
  Totals totals_;
};

}  // namespace carillon::share
