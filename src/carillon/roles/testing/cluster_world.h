#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "carillon/base/random.h"
#include "carillon/base/slab.h"
#include "carillon/cluster/coordinator/client.h"
#include "carillon/cluster/coordinator/testing/etcd_model.h"
#include "carillon/controller/core.h"
#include "carillon/hosts/member_core.h"
#include "carillon/roles/agent.h"
#include "carillon/roles/leader.h"
#include "carillon/roles/offering.h"
#include "carillon/roles/testing/calendar.h"
#include "carillon/roles/testing/cluster_device.h"
#include "carillon/roles/testing/host_clock.h"
#include "carillon/roles/testing/virtual_cluster.h"
#include "carillon/transport/messages.h"

// What is inside virtual_cluster.h: hosts, what travels between them, and the calendar.
namespace carillon::roles::testing::inside {

using cluster::Role;
using cluster::testing::EtcdModel;
using controller::InferAnswer;
using transport::Message;
namespace etcd = cluster::etcd;

constexpr std::size_t row_bytes = ClusterDevice::row_bytes;
constexpr std::uint32_t none = 0xffffffffU;

// The world begins at 1 s of true time.
constexpr TimePoint start_at{1s};
constexpr TimePoint calls_from{start_at + 200ms}, faults_from{start_at + 250ms};
constexpr Duration faults_for = 900ms;
constexpr Duration lease = 1s;
// Bounds are not held so long after a step: samples of before it count for a second.
constexpr Duration stepped = 1100ms;
// As roles::SchedulerHost has them.
constexpr Duration wait_for_workers = 100ms, others_follow = 15ms;

enum class What : std::uint8_t {
  // Of a host's membership.
  tick,
  datagram,
  etcd_answer,
  etcd_over,
  etcd_watch,
  etcd_wake,
  // Of its other threads.
  changed,
  core_wake,
  device,
  result,
  probe,
  dial,
  hello,
  dial_over,
  frame,
  stream_break,
  row_ask,
  row_answer,
  outputs,
  model_comes,
  cancel_call,
  // Of nobody.
  etcd_serve,
  expire,
  arrive,
  calm,
  fault,
  mend,
  restart,
};

struct Event {
  std::int64_t at = 0;
  std::uint64_t order = 0;
  std::uint64_t detail = 0;
  std::uint32_t life = 0;  // of the host's process, or of the device; the event is void in another
  std::uint16_t host = 0;
  What what{};
  std::uint8_t part = 0;
  friend bool operator<(const Event& a, const Event& b) {
    return a.at != b.at ? a.at < b.at : a.order < b.order;
  }
};

struct Fault {
  enum class What : std::uint8_t {
    crash,      // the process; it starts again
    reboot,     // the host: its peers are told nothing, and its clock begins anew
    pause,      // the host stands still, its clock does not
    freeze,     // its clock stands still, too
    step,       // of its clock
    cut,        // from one host to another
    alone,      // all links of a host, both ways or one
    etcd_gone,  // nobody reaches it
    etcd_slow,
    etcd_cut,  // a host does not reach it
    device,
    stream,
    handover,
  };
  What what{};
  std::uint16_t one = 0, other = 0;
  bool out = true, in = true;  // of a host that is alone
  Duration lasts{0};
};

// A frame of a stream on its way, or the stream's end.
struct Parcel {
  std::uint32_t stream = 0;
  bool ends = false;
  bool to_follower = false;
  transport::Frame frame;
};

struct Stream {
  std::uint16_t follower = 0, scheduler = 0;
  std::uint32_t follower_life = 0, scheduler_life = 0;
  bool follower_open = false, scheduler_open = false;
  bool follower_over = false, scheduler_over = false;
  PeerId peer = 0;
  TimePoint opened;
  TimePoint last_to_follower, last_to_scheduler;  // when the last arrives
};

// What a worker asks of a frontend's rows.
struct RowCall {
  std::uint16_t worker = 0, frontend = 0;
  std::uint32_t life = 0;  // of the worker
  std::uint64_t ticket = 0, key = 0;
  bool push = false, cancelled = false;
  std::shared_ptr<PulledRow> row;
  wire::Report report;
  Result<> pulled;
  Result<bool> taken = false;
  std::array<std::byte, row_bytes> bytes{};
  std::int64_t length = 0;
};

struct Datagram {
  std::string bytes;
  std::uint16_t from = 0;
  std::uint32_t life = 0;
};

struct EtcdCall {
  std::uint16_t host = 0;
  std::uint32_t life = 0;
  etcd::Request request;
  bool over = false;
  int uses = 0;  // events that name it
  std::variant<etcd::Answer, etcd::Failure> answer;
};

struct Watch {
  std::uint64_t id = 0;
  std::string key, range_end;
  std::int64_t next = 0;
  bool created = false;
};

struct Dial {
  bool wanted = false;
  std::uint32_t stream = none;  // the last
  bool waiting = false;         // until the next try
  Duration pause{0};
};

struct Changed {
  bool leads = false;
  std::uint64_t epoch = 0;
  std::set<std::string> workers;
};

// An order as its leader decided it.
struct Ordered {
  std::uint64_t epoch = 0;
  std::uint64_t term = 0;  // how many leaders, or streams of them, its worker had accepted
  Window window;
  std::uint16_t leader = 0;
  std::uint32_t leader_life = 0;
};

inline controller::ServedModel told_model(std::uint32_t m, const std::string& name, std::uint64_t pages) {
  controller::ServedModel served;
  served.info = {.id = {m}, .name = name, .pages = pages, .load = 2ms, .batches = {}};
  served.info.batches = {{1, 1ms}, {2, 2ms}, {4, 4ms}};
  served.input_row_bytes = {{row_bytes}};
  served.output_row_bytes = {{row_bytes}};
  served.hash = 77;
  served.inputs = {{"x", graph::DataType::u8, {graph::batch_dimension, row_bytes}}};
  served.outputs = {{"y", graph::DataType::u8, {graph::batch_dimension, row_bytes}}};
  return served;
}

class World;
struct Host;

// What a scheduler's process has beside its membership: as roles::SchedulerHost.
struct SchedulerPart final : Out {
  SchedulerPart(World& w, Host& h) : world(w), host(h) {}
  void send(PeerId peer, Message message) override;
  void end(PeerId peer, std::string why) override;
  void warn(std::string text) override;
  void changed(TimePoint now);
  void leave_missing(TimePoint now);
  void join(PeerId peer, std::uint32_t stream, TimePoint now);
  void opened(std::uint32_t stream, TimePoint now);
  void ended(std::uint32_t stream, TimePoint now);
  void heard(std::uint32_t stream, transport::Frame frame, TimePoint now);
  void count_devices(TimePoint now);
  void wake(TimePoint now);
  TimePoint wake_at() const {
    return std::min(look_for_missing, leader != nullptr ? leader->wake_at() : TimePoint::max());
  }

  World& world;
  Host& host;
  std::deque<Changed> news;
  std::map<PeerId, std::uint32_t> streams;
  PeerId next_peer = 1;
  std::unique_ptr<Leader> leader;
  std::uint64_t epoch = 0;
  std::set<std::string> there, seen;
  std::map<std::string, TimePoint> missing;
  TimePoint look_for_missing = TimePoint::max();
  std::size_t counted = 0;
  Duration deaf{0};  // the longest time in which the leader that is there heard nothing
};

// As roles::FrontendHost.
struct FrontendPart final : OfferingOut {
  FrontendPart(World& w, Host& h);
  void send(Message message) override;
  std::uint64_t open(RequestId row, transport::RowTensors tensors) override;
  void close(std::uint64_t key) override;
  void model_comes(const wire::Model& model) override;
  void model_goes(ModelId) override {}
  void models_told() override {}

  struct Row {
    std::uint32_t turn = 0;
    bool open = false;
    int taken = 0;
    RequestId id;
    transport::RowTensors tensors;
  };
  Row* find(std::uint64_t key) {
    const auto place = static_cast<std::uint32_t>(key);
    if (place >= rows.size() || rows[place].turn != key >> 32) return nullptr;
    return &rows[place];
  }
  World& world;
  Host& host;
  Slab<Row> rows;
  std::deque<wire::Model> coming;
  std::deque<std::pair<RequestId, wire::Report>> outputs;
  std::map<std::string, ModelId> names;
  Offering* offering = nullptr;
  std::unique_ptr<controller::Core> core;  // goes first
};

// As roles::WorkerHost.
struct WorkerPart final : AgentOut, ClusterDevice::World {
  WorkerPart(inside::World& w, Host& h);
  void send(Message message) override;
  std::uint64_t pull(const std::string& address, std::uint64_t key, TimePoint urgency,
                     std::shared_ptr<PulledRow> row) override;
  std::uint64_t push(const std::string& address, std::uint64_t key, std::shared_ptr<PulledRow> row,
                     const wire::Report& report) override;
  void cancel(std::uint64_t ticket) override;
  void warn(const std::string& text) override;

  TimePoint now() const override;
  void plan(ClusterDevice& device, TimePoint at, std::uint64_t what) override;
  void result(worker::ActionResult result) override;
  void probe(ClusterDevice& device) override;
  void begins(ActionId action) override;
  std::uint32_t next_generation() override;
  void heard(std::uint32_t stream, std::uint64_t order_epoch, std::vector<Message> messages,
             const std::vector<Window>& windows);

  struct Lookup final : controller::RowLookup {
    worker::RowBuffers buffers(RequestId row) const override { return agent->buffers(row); }
    bool run_again(const ledger::Profile&, worker::InferCommand&) override { return false; }
    Agent* agent = nullptr;
  };
  inside::World& world;
  Host& host;
  Lookup lookup;
  Agent* agent = nullptr;
  std::vector<std::unique_ptr<ClusterDevice>> devices;
  std::unique_ptr<controller::Core> core;
  std::vector<Ordered> ordered;  // by the agent's number
  std::set<ActionId> theirs;     // of the leader of now
  std::deque<worker::ActionResult> results;
  std::uint64_t accepted = 0;  // the highest epoch
  std::uint64_t term = 0;
};

struct Host {
  std::uint16_t index = 0;
  Role role{};
  std::string id, address;
  bool up = false, paused = false, frozen = false;
  std::uint32_t life = 0;
  std::vector<HostClock> clocks;  // by life
  TimePoint stepped_at = TimePoint::min(), paused_at;
  std::vector<Event> waiting;  // while it is paused

  std::unique_ptr<hosts::MemberCore> member;
  std::uint64_t published = 0;
  std::vector<std::uint32_t> inbox;  // datagrams

  std::unique_ptr<cluster::CoordinatorClient> etcd;
  std::vector<Watch> watches;
  int from_etcd_cut = 0;

  std::int64_t etcd_wake = 0, core_wake = 0;  // that is planned, in true time; 0: none

  // A follower's.
  std::vector<Dial> dials;  // by scheduler
  std::uint32_t leader = none;
  std::uint64_t epoch = 0;

  std::unique_ptr<SchedulerPart> scheduler;
  std::unique_ptr<FrontendPart> frontend;
  std::unique_ptr<WorkerPart> worker;

  const HostClock& clock() const { return clocks.back(); }
  controller::Core* core() const {
    return frontend ? frontend->core.get() : worker ? worker->core.get() : nullptr;
  }
};

class World {
 public:
  World(std::uint64_t seed, const ClusterOptions& options);
  ~World();
  ClusterFigures run();

  // --- for the parts
  TimePoint true_now() const { return now_; }
  TimePoint now(const Host& h) const { return h.clock().shows(now_); }
  void broken(const std::string& what) {
    if (!figures.broken) figures.broken = fmt::format("at {:.3f} ms: {}", to_ms(now_ - start_at), what);
  }
  template <typename... Parts>
  void trace(fmt::format_string<Parts...> text, Parts&&... parts) const {
    if (options.trace)
      fmt::print(stderr, "{:9.3f} {}\n", to_ms(now_ - start_at),
                 fmt::format(text, std::forward<Parts>(parts)...));
  }
  void plan(TimePoint at, What what, const Host& host, std::uint64_t detail = 0, std::uint8_t part = 0) {
    plan(at, what, host.index, host.life, detail, part);
  }
  void plan(TimePoint at, What what, std::uint16_t host, std::uint32_t life, std::uint64_t detail = 0,
            std::uint8_t part = 0) {
    calendar_.add({.at = std::max(at, now_).time_since_epoch().count(),
                   .order = order_++,
                   .detail = detail,
                   .life = life,
                   .host = host,
                   .what = what,
                   .part = part});
  }
  void post(std::uint32_t stream, bool to_follower, std::uint64_t epoch, Message message);
  void close(std::uint32_t stream, bool by_follower);
  void ask_row(Host& worker, RowCall call);
  bool convert(const Host& here, const Host& of, std::uint32_t life, Message& message);
  bool clock_known(const Host& here, const Host& of, std::uint32_t life) const;
  static std::uint64_t incarnation_of(const Host& host, std::uint32_t life) {
    return (std::uint64_t{host.index} + 1) * 1000 + life;
  }
  void leads(const Host& host, std::uint64_t epoch);
  void begins(Host& host, const Ordered& order);
  Host& host_at(const std::string& address) {
    unsigned index = 0;
    std::from_chars(address.data() + 1, address.data() + address.size(), index);
    return *hosts_[index];
  }
  Stream& stream(std::uint32_t id) { return streams_[id]; }
  Host& host(std::size_t index) { return *hosts_[index]; }
  Duration part(Duration whole) {
    return Duration{static_cast<std::int64_t>(random.uniform() * static_cast<double>(whole.count()))};
  }

  Random random;
  const ClusterOptions options;
  schedule::Environment environment;
  std::uint32_t models = 0;
  double mishaps = 0;
  std::uint32_t generations = 0;
  ClusterFigures figures;
  Slab<RowCall> row_calls;
  std::uint32_t row_turns = 0;

 private:
  struct Call {
    std::uint16_t frontend = 0;
    std::uint32_t life = 0;
    int answers = 0;
    bool rest = false;  // it came at rest
    TimePoint deadline;
  };
  struct Held {
    std::uint16_t from = 0, to = 0;
    Event event;
  };

  HostClock any_clock() {
    const Duration zero = part(1000s);
    return {zero, static_cast<std::int64_t>(random.uniform() * 200'000) - 100'000};
  }
  // Its clock has stepped, and others cannot know yet.
  bool unsure(const Host& h) const {
    return h.stepped_at > TimePoint::min() && now_ < h.stepped_at + stepped;
  }
  bool chance(double p) { return p > 0 && random.uniform() < p; }
  int& cut(std::size_t from, std::size_t to) { return cut_[from * hosts_.size() + to]; }
  Duration way(std::size_t from, std::size_t to) {
    return near_ + asymmetry_[from * hosts_.size() + to] +
           std::min(from_ns(random.exponential(tail_)), farthest_);
  }
  Duration etcd_way() {
    const Duration usual = 300us + std::min(from_ns(random.exponential(4e5)), Duration{10ms});
    return etcd_slow_ > 0 ? usual + part(80ms) : usual;
  }
  // Sends `event` from one host to another, later, or once the link is mended.
  void carry(std::size_t from, std::size_t to, TimePoint at, Event event) {
    event.at = at.time_since_epoch().count();
    event.order = order_++;
    if (cut(from, to) > 0)
      held_.push_back({static_cast<std::uint16_t>(from), static_cast<std::uint16_t>(to), event});
    else
      calendar_.add(event);
  }

  // --- processes
  void start(Host& h);
  void crash(Host& h, bool silent);
  void handle(const Event& event);
  void handle_here(Host& h, const Event& event);
  void release(const Event& event);
  void resume(Host& h);
  void rearm_core(Host& h);
  void rearm_etcd(Host& h);

  // --- membership
  void send_datagram(Host& from, const std::string& address, std::string bytes);
  void member_step(Host& h);
  void carry_out(Host& h, hosts::MemberCore::Output& out);
  void publish(Host& h);
  void check_clock(const Host& here, const Host& of, std::uint32_t life, const cluster::PeerClock& clock);

  // --- etcd
  bool etcd_reached(const Host& h) const { return etcd_gone_ == 0 && h.from_etcd_cut == 0; }
  void pump(Host& h);
  void etcd_send(Host& h, etcd::Request request);
  void etcd_serve(std::uint32_t call);
  void tell_watches();
  void tell_watch(Host& h, std::uint64_t id);
  void done_with(std::uint32_t call) {
    if (--etcd_calls_[call].uses == 0) etcd_calls_.give_back(call);
  }

  // --- streams
  void follow(Host& h);
  void dial(Host& h, std::size_t scheduler);
  void hello(Host& h, std::uint32_t id);
  void follower_heard(Host& h, std::uint32_t id, transport::Frame frame);
  void follower_ended(Host& h, std::uint32_t id);
  void send_end(std::uint32_t id, bool to_follower);
  void send_parcel(std::uint32_t parcel);
  void flush();
  void break_stream(std::uint32_t id);

  // --- rows
  void row_asked(Host& h, std::uint32_t call);
  void row_answered(Host& h, std::uint32_t call);

  // --- clients and faults
  void arrive();
  void draw_faults();
  void begin(const Fault& fault);
  void mend(const Fault& fault);
  void set_cut(std::size_t from, std::size_t to, bool cut);
  void release_held(std::size_t from, std::size_t to);
  void be_calm();
  void check_rest();
  void check_end();
  Host* leading();

  TimePoint now_ = start_at;
  Calendar<Event> calendar_;
  std::uint64_t order_ = 0;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::size_t schedulers_ = 0, frontends_ = 2, workers_ = 0;

  Duration near_{0}, farthest_{0};
  double tail_ = 0, loss_ = 0, twice_ = 0, gap_ = 0;
  std::vector<Duration> asymmetry_;
  std::vector<int> cut_;
  std::vector<Held> held_;

  EtcdModel model_;
  int etcd_gone_ = 0, etcd_slow_ = 0;
  double etcd_loss_ = 0;

  Slab<Datagram> datagrams_;
  Slab<Parcel> parcels_;
  Slab<EtcdCall> etcd_calls_;
  std::deque<Stream> streams_;
  std::vector<Parcel> outbox_;
  std::vector<Fault> faults_;

  Random asks_;
  TimePoint calls_until_, rest_at_ = TimePoint::max();
  std::vector<Call> calls_;
  bool calm_ = false, ending_ = false;
  std::map<std::uint64_t, std::pair<std::uint16_t, std::uint32_t>> led_;
};

}  // namespace carillon::roles::testing::inside
