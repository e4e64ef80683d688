#include "carillon/cli/bench/cluster.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <queue>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "carillon/base/clock.h"
#include "carillon/base/cpu_time.h"
#include "carillon/base/random.h"
#include "carillon/base/statistics.h"
#include "carillon/cli/commands.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/roles/follower.h"
#include "carillon/roles/offer_queue.h"
#include "carillon/roles/scheduler_host.h"
#include "carillon/schedule/registry.h"

namespace carillon::cli {
namespace network_bench {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t most_processes = 33;  // the scheduler, and up to 16 of each other role
constexpr Duration warm_time = 500ms;
constexpr Duration answered_within = 2s;  // after the last request
constexpr Duration together_within = 60s;

struct ClusterLoad {
  std::string scheduler = "symphony";
  int models = 64;
  int devices = 1024;
  int frontends = 2, workers = 2;
  double rate = 0;  // 0: the highest is looked for
  double from = 50'000, step = 1.25;
  double seconds = 2;
  double slo_ms = 100;
  double most_bad = 0.01;
  std::uint64_t seed = 1;
  bool json = false;
};

// Symphony's ResNet50.
Duration exec_time(std::size_t batch) {
  return from_ms(1.053 * static_cast<double>(batch) + 5.072);
}
constexpr int largest_batch = 64;
constexpr const char* cluster_name = "bench";

enum class Phase : std::uint8_t { gather, warm, measure, drain, end };

// What the processes share. Each stands in one place of `processes`.
struct Shared {
  struct Process {
    std::atomic<std::uint32_t> seen;   // the last turn that it has taken up
    std::atomic<std::int64_t> cpu_ns;  // of all its threads, then
    std::atomic<bool> ready;           // a frontend: knows all models and devices
    std::atomic<std::uint64_t> sent, on_time, refused, late, failed, open;  // a frontend, of a step
    std::atomic<std::int64_t> p50_ns, p99_ns;                               // likewise
    std::atomic<std::uint64_t> batches, rows;                               // a worker, of all steps
  };
  std::atomic<std::uint32_t> turn;  // goes up with each phase
  std::atomic<Phase> phase;
  std::atomic<double> rate;  // of a frontend
  std::array<Process, most_processes> processes;
};
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<Phase>::is_always_lock_free);

// A process looks at this every now and then.
bool turned(const Shared& shared, Shared::Process& mine) {
  const std::uint32_t turn = shared.turn.load(std::memory_order_acquire);
  if (mine.seen.load(std::memory_order_relaxed) == turn) return false;
  mine.cpu_ns = process_cpu_time().count();
  mine.seen.store(turn, std::memory_order_release);
  return true;
}

schedule::ModelInfo model_info(int number) {
  schedule::ModelInfo info{
      .id = ModelId{static_cast<std::uint32_t>(number)}, .name = "m" + std::to_string(number), .batches = {}};
  for (int b = 1; b <= largest_batch; ++b)
    info.batches.push_back({b, exec_time(static_cast<std::size_t>(b))});
  return info;
}

// A worker whose devices only pass time, and whose rows have no tensors.
class EmulatedWorker final : roles::FollowerHandlers {
 public:
  EmulatedWorker(const ClusterLoad& load, int devices, Shared::Process& figures)
      : load_(load), figures_(figures), devices_(static_cast<std::size_t>(devices)) {}
  Result<> join(const roles::MemberArguments& arguments) {
    auto follower = roles::Follower::open(arguments, *this);
    if (!follower) return std::unexpected(follower.error());
    follower_ = std::move(*follower);
    thread_ = std::jthread([this](const std::stop_token& ended) { run(ended); });
    return {};
  }

 private:
  struct Device {
    std::uint32_t life = 0;
    TimePoint free{};
  };
  struct End {
    TimePoint at;
    std::uint64_t order = 0;
    wire::Report report;
    friend bool operator>(const End& a, const End& b) {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };

  void leads(std::shared_ptr<transport::Stream> stream, std::uint64_t epoch,
             const transport::Hello&) override {
    const std::lock_guard lock(mutex_);
    stream_ = std::move(stream);
    epoch_ = epoch;
    for (int m = 0; m < load_.models; ++m) {
      wire::Model model;
      model.info = model_info(m);
      say(transport::ModelComes{std::move(model)});
    }
    for (std::uint32_t d = 0; d < devices_.size(); ++d)
      say(transport::DeviceState{.device = DeviceId{d}, .pages = 1'000'000});
    flush();
  }
  void leader_left() override {
    const std::lock_guard lock(mutex_);
    stream_.reset();
  }
  void heard(std::vector<transport::Message> messages) override {
    const std::lock_guard lock(mutex_);
    for (transport::Message& message : messages) std::visit([this](auto& what) { on(what); }, message);
    flush();
    wake_.notify_one();
  }

  // All below with the mutex.
  void say(transport::Message message) {
    if (stream_) (void)stream_->queue(epoch_, std::move(message));
  }
  void flush() {
    if (stream_) stream_->flush();
  }
  Device* find(DeviceId id) { return id.index() < devices_.size() ? &devices_[id.index()] : nullptr; }
  void on(transport::Retire& what) {
    if (Device* const device = find(what.device)) *device = {.life = what.life, .free = {}};
  }
  void on(transport::Probe& what) {
    if (const Device* const device = find(what.device))
      say(wire::ProbeReport{.found = {}, .life = device->life, .device = what.device});
  }
  void on(ledger::Load& what) { end(what.device, what.id, clock_.now(), clock_.now()); }
  void on(ledger::Unload& what) { end(what.device, what.id, clock_.now(), clock_.now()); }
  void on(transport::Infer& what) {
    Device* const device = find(what.order.device);
    if (device == nullptr) return;
    const TimePoint now = clock_.now();
    const TimePoint start = std::max({device->free, now, what.order.window.earliest});
    if (start > what.order.window.latest)
      return end(what.order.device, what.order.id, now, now, ledger::ActionStatus::too_late);
    device->free = start + exec_time(what.rows.size());
    figures_.batches.fetch_add(1, std::memory_order_relaxed);
    figures_.rows.fetch_add(what.rows.size(), std::memory_order_relaxed);
    end(what.order.device, what.order.id, start, device->free);
  }
  template <typename Other>
  void on(Other&) {}
  void end(DeviceId device, ActionId id, TimePoint start, TimePoint at,
           ledger::ActionStatus status = ledger::ActionStatus::success) {
    const Device* const on = find(device);
    if (on == nullptr) return;
    wire::Report report{.id = id,
                        .status = status,
                        .times = {.received = start,
                                  .input_start = start,
                                  .input_end = start,
                                  .exec_start = start,
                                  .exec_end = at,
                                  .output_start = at,
                                  .output_end = at},
                        .error = {},
                        .life = on->life,
                        .device = device};
    ends_.push({at, ++ended_, std::move(report)});
  }

  void run(const std::stop_token& ended) {
    std::unique_lock lock(mutex_);
    while (!ended.stop_requested()) {
      const TimePoint now = clock_.now();
      while (!ends_.empty() && ends_.top().at <= now) {
        const wire::Report& report = ends_.top().report;
        if (report.life == devices_[report.device.index()].life) say(report);
        ends_.pop();
      }
      flush();
      const Duration pause = ends_.empty() ? Duration{100ms} : ends_.top().at - now;
      wake_.wait_for(lock, std::min<Duration>(pause, 100ms));
    }
  }

  const ClusterLoad& load_;
  Shared::Process& figures_;
  const SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<transport::Stream> stream_;
  std::uint64_t epoch_ = 0;
  std::vector<Device> devices_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::uint64_t ended_ = 0;
  std::unique_ptr<roles::Follower> follower_;
  std::jthread thread_;
};

// A frontend whose requests come by themselves, at random times, and are judged by its own clock.
class EmulatedFrontend final : roles::FollowerHandlers {
 public:
  EmulatedFrontend(const ClusterLoad& load, std::uint64_t seed, Shared& shared, Shared::Process& figures)
      : load_(load), random_(seed), shared_(shared), figures_(figures) {
    for (int m = 0; m < load.models; ++m) queue_.add_model(exec_time(1));
  }
  Result<> join(const roles::MemberArguments& arguments) {
    address_ = arguments.listen;
    auto follower = roles::Follower::open(arguments, *this);
    if (!follower) return std::unexpected(follower.error());
    follower_ = std::move(*follower);
    return {};
  }

  // Until the end. Requests that are due leave together, every quarter of a millisecond.
  void run() {
    Phase phase = Phase::gather;
    while (true) {
      const bool changed = turned(shared_, figures_);
      if (changed) phase = shared_.phase;
      if (changed && phase == Phase::warm) begin_step();
      if (changed && phase == Phase::measure) counted_from_ = next_;
      if (changed && phase == Phase::drain) counted_to_ = next_;
      if (phase == Phase::drain) tell_figures();
      if (phase == Phase::end) return;
      if (phase == Phase::warm || phase == Phase::measure) offer_due();
      std::this_thread::sleep_for(std::chrono::microseconds{250});
    }
  }

 private:
  enum class Fate : std::uint8_t { open, on_time, late, refused, failed };
  struct Row {
    ModelId model;
    TimePoint arrival, deadline, answered;
    Fate fate = Fate::open;
  };

  void leads(std::shared_ptr<transport::Stream> stream, std::uint64_t epoch,
             const transport::Hello&) override {
    const std::lock_guard lock(mutex_);
    stream_ = std::move(stream);
    epoch_ = epoch;
    models_ = 0;
    queue_.begin();
    (void)stream_->send(epoch_, transport::RowsAt{address_});
  }
  void leader_left() override {
    const std::lock_guard lock(mutex_);
    stream_.reset();
  }
  void heard(std::vector<transport::Message> messages) override {
    const std::lock_guard lock(mutex_);
    for (transport::Message& message : messages) std::visit([this](auto& what) { on(what); }, message);
    offer_waiting();
  }
  void on(transport::OfferCredit& what) { queue_.credit(what); }
  void on(transport::ModelComes&) { look(++models_, alive_); }
  void on(transport::DeviceCount& what) { look(models_, what.alive); }
  void on(transport::Ended& what) {
    const TimePoint now = clock_.now();
    for (const RequestId id : what.rows)
      if (what.report.status == ledger::ActionStatus::success)
        if (Row* const row = open_row(id)) close(*row, now > row->deadline ? Fate::late : Fate::on_time, now);
  }
  void on(wire::Verdict& what) {
    if (Row* const row = open_row(what.refusal.request)) close(*row, Fate::refused, clock_.now());
  }
  void on(transport::TurnedDown& what) {
    if (Row* const row = open_row(what.row)) close(*row, Fate::failed, clock_.now());
  }
  template <typename Other>
  void on(Other&) {}

  void look(int models, std::uint32_t alive) {
    models_ = models;
    alive_ = alive;
    figures_.ready = models_ == load_.models && alive_ == static_cast<std::uint32_t>(load_.devices);
  }
  Row* open_row(RequestId id) {
    if (id.value < base_ || id.value - base_ >= rows_.size()) return nullptr;
    Row& row = rows_[id.value - base_];
    return row.fate == Fate::open ? &row : nullptr;
  }
  static void close(Row& row, Fate fate, TimePoint now) {
    row.fate = fate;
    row.answered = now;
  }

  void begin_step() {
    const std::lock_guard lock(mutex_);
    base_ += rows_.size();
    rows_.clear();
    rows_.reserve(static_cast<std::size_t>(shared_.rate * (load_.seconds + 2)));
    next_ = counted_from_ = 0;
    counted_to_ = 0;
    due_ = clock_.now();
  }
  void offer_due() {
    const TimePoint now = clock_.now();
    const double mean = 1e9 / shared_.rate;
    const std::lock_guard lock(mutex_);
    if (!stream_) return;
    while (due_ <= now) {
      const RequestId id{base_ + next_++};
      const auto model = static_cast<std::uint32_t>(random_.below(static_cast<std::uint64_t>(load_.models)));
      rows_.push_back({.model = ModelId{model},
                       .arrival = due_,
                       .deadline = due_ + from_ms(load_.slo_ms),
                       .answered = {}});
      const auto answer = queue_.arrive(request_of(id), now);
      if (answer.goes) offer(id);
      if (!answer.in) close(rows_.back(), Fate::refused, now);
      if (answer.displaced)
        if (Row* const row = open_row(*answer.displaced)) close(*row, Fate::refused, now);
      due_ += from_ns(random_.exponential(mean));
    }
    stream_->flush();
  }
  void offer_waiting() {
    if (!stream_) return;
    const TimePoint now = clock_.now();
    for (auto next = queue_.next(now); !next.empty(); next = queue_.next(now))
      for (const auto& each : next) {
        Row* const row = open_row(each.row);
        if (row != nullptr && each.turned_away)
          close(*row, Fate::refused, now);
        else if (row != nullptr)
          offer(each.row);
        else if (!each.turned_away)
          queue_.give_back();
      }
    stream_->flush();
  }
  Request request_of(RequestId id) const {
    const Row& row = rows_[id.value - base_];
    return {.id = id, .model = row.model, .arrival = row.arrival, .deadline = row.deadline};
  }
  void offer(RequestId id) {
    (void)stream_->queue(epoch_, transport::Offer{.row = request_of(id), .key = id.value});
  }
  void tell_figures() {
    const std::lock_guard lock(mutex_);
    std::array<std::uint64_t, 5> of{};
    LatencyHistogram times;
    for (std::size_t i = counted_from_; i < counted_to_ && i < rows_.size(); ++i) {
      ++of[static_cast<std::size_t>(rows_[i].fate)];
      if (rows_[i].fate == Fate::on_time || rows_[i].fate == Fate::late)
        times.add(rows_[i].answered - rows_[i].arrival);
    }
    figures_.sent = counted_to_ - counted_from_;
    figures_.on_time = of[static_cast<std::size_t>(Fate::on_time)];
    figures_.late = of[static_cast<std::size_t>(Fate::late)];
    figures_.refused = of[static_cast<std::size_t>(Fate::refused)];
    figures_.failed = of[static_cast<std::size_t>(Fate::failed)];
    figures_.p50_ns = times.percentile(0.5).count();
    figures_.p99_ns = times.percentile(0.99).count();
    figures_.open = of[static_cast<std::size_t>(Fate::open)];
  }

  const ClusterLoad& load_;
  Random random_;
  Shared& shared_;
  Shared::Process& figures_;
  const SteadyClock clock_;
  std::string address_;
  std::mutex mutex_;
  std::shared_ptr<transport::Stream> stream_;
  std::uint64_t epoch_ = 0;
  int models_ = 0;
  std::uint32_t alive_ = 0;
  std::uint64_t base_ = 0;  // the id of the step's first row
  std::vector<Row> rows_;   // of the step
  roles::OfferQueue queue_;
  std::size_t next_ = 0, counted_from_ = 0, counted_to_ = 0;
  TimePoint due_;
  std::unique_ptr<roles::Follower> follower_;
};

// --- The processes

struct Member {
  std::string id;
  cluster::Role role;
  std::string address;
  int devices = 0;
};

Result<std::vector<Member>> draw_members(const ClusterLoad& load) {
  std::vector<Member> members{{"scheduler", cluster::Role::scheduler, ""}};
  for (int w = 0; w < load.workers; ++w)
    members.push_back({"worker-" + std::to_string(w), cluster::Role::worker, "",
                       load.devices / load.workers + (w < load.devices % load.workers ? 1 : 0)});
  for (int f = 0; f < load.frontends; ++f)
    members.push_back({"frontend-" + std::to_string(f), cluster::Role::frontend, ""});
  using boost::asio::ip::tcp;
  boost::asio::io_context context;
  std::vector<tcp::acceptor> held;  // so that each has a port of its own
  for (Member& member : members) {
    boost::system::error_code error;
    tcp::acceptor& acceptor = held.emplace_back(context);
    const tcp::endpoint any(boost::asio::ip::address_v4::loopback(), 0);
    acceptor.open(any.protocol(), error);
    if (!error) acceptor.bind(any, error);
    if (error) return fail(ErrorCode::unavailable, "no free port of 127.0.0.1: " + error.message());
    member.address = fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port());
  }
  return members;
}

Result<> act(const Member& member, const ClusterLoad& load, const std::filesystem::path& file, Shared& shared,
             Shared::Process& mine, std::uint64_t seed) {
  auto address = cluster::parse_coordinator_address("static:" + file.string());
  if (!address) return std::unexpected(address.error());
  address->name = cluster_name;
  const roles::MemberArguments arguments{
      .coordinator = *address, .role = member.role, .id = member.id, .listen = member.address, .key = {}};
  if (member.role == cluster::Role::frontend) {
    EmulatedFrontend frontend(load, seed, shared, mine);
    if (auto joined = frontend.join(arguments); !joined) return joined;
    frontend.run();
    return {};
  }
  static const SteadyClock clock;
  std::unique_ptr<roles::SchedulerHost> scheduler;
  std::unique_ptr<EmulatedWorker> worker;
  if (member.role == cluster::Role::scheduler) {
    auto host = roles::SchedulerHost::open(
        arguments,
        {.make_scheduler = [name = load.scheduler] { return *schedule::make_scheduler(name, {}); },
         .leader = {},
         .warn = [](const std::string& text) { fmt::print(stderr, "scheduler: {}\n", text); }},
        clock);
    if (!host) return std::unexpected(host.error());
    scheduler = std::move(*host);
  } else {
    worker = std::make_unique<EmulatedWorker>(load, member.devices, mine);
    if (auto joined = worker->join(arguments); !joined) return joined;
  }
  while (shared.phase != Phase::end) {
    (void)turned(shared, mine);
    std::this_thread::sleep_for(milliseconds{2});
  }
  return {};
}

// The other processes. They end with this one.
class Processes {
 public:
  explicit Processes(const ClusterLoad& load) : load_(load) {}
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  Result<> start() {
    auto members = draw_members(load_);
    if (!members) return std::unexpected(members.error());
    members_ = *std::move(members);
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fail(ErrorCode::resource_exhausted, "no shared memory");
    shared_ = new (memory) Shared{};
    std::string made = (std::filesystem::temp_directory_path() / "carillon-bench-XXXXXX").string();
    if (mkdtemp(made.data()) == nullptr)
      return fail(ErrorCode::unavailable, made + ": " + std::strerror(errno));
    folder_ = made;
    std::ofstream file(folder_ / "bench.toml");
    file << fmt::format("name = \"{}\"\n", cluster_name);
    for (const Member& member : members_)
      file << fmt::format("[[member]]\nid = \"{}\"\nrole = \"{}\"\naddress = \"{}\"\n", member.id,
                          cluster::name_of(member.role), member.address);
    file.close();
    if (!file) return fail(ErrorCode::unavailable, "cannot write " + (folder_ / "bench.toml").string());
    transport::wait_at_own_sockets();
    const pid_t parent = getpid();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const pid_t pid = fork();
      if (pid < 0) return fail(ErrorCode::resource_exhausted, std::string("fork: ") + std::strerror(errno));
      if (pid > 0) {
        pids_.push_back(pid);
        continue;
      }
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      spdlog::set_default_logger(spdlog::stderr_logger_mt(members_[i].id));
      spdlog::set_level(spdlog::level::warn);
      const auto done =
          act(members_[i], load_, folder_ / "bench.toml", *shared_, shared_->processes[i], load_.seed + i);
      if (!done) fmt::print(stderr, "{}: {}\n", members_[i].id, done.error().message);
      std::fflush(stderr);
      _exit(done ? 0 : 1);
    }
    return wait_for("the cluster to gather", together_within, [&] {
      for (std::size_t i = 0; i < members_.size(); ++i)
        if (members_[i].role == cluster::Role::frontend && !shared_->processes[i].ready) return false;
      return true;
    });
  }

  // All processes have taken it up when this returns.
  Result<> turn(Phase phase) {
    shared_->phase = phase;
    const std::uint32_t turn = ++shared_->turn;
    return wait_for("a process to go on", 10s, [&] {
      for (std::size_t i = 0; i < members_.size(); ++i)
        if (shared_->processes[i].seen.load(std::memory_order_acquire) != turn) return false;
      return true;
    });
  }
  Result<> wait_for(const std::string& what, Duration within, const std::function<bool()>& done) {
    const SteadyClock clock;
    for (const TimePoint end = clock.now() + within; !done();) {
      for (std::size_t i = 0; i < pids_.size(); ++i) {
        int status = 0;
        if (waitpid(pids_[i], &status, WNOHANG) == pids_[i]) {
          pids_.erase(pids_.begin() + static_cast<std::ptrdiff_t>(i));
          return fail(ErrorCode::internal, "a process of the cluster has ended");
        }
      }
      if (clock.now() > end)
        return fail(ErrorCode::deadline_exceeded,
                    fmt::format("waited {:.0f} s in vain for {}", to_seconds(within), what));
      std::this_thread::sleep_for(milliseconds{1});
    }
    return {};
  }
  Shared& shared() { return *shared_; }
  const std::vector<Member>& members() const { return members_; }

 private:
  const ClusterLoad& load_;
  std::vector<Member> members_;
  std::vector<pid_t> pids_;
  Shared* shared_ = nullptr;
  std::filesystem::path folder_;
};

// --- A step

struct StepFigures {
  double rate = 0;     // asked for
  double seconds = 0;  // measured
  std::uint64_t sent = 0, on_time = 0, refused = 0, late = 0, failed = 0, unanswered = 0, batches = 0,
                rows = 0;
  Duration p50{}, p99{};                  // of answers, the worst frontend's
  std::map<cluster::Role, double> cpu_s;  // of all processes of a role
  double bad() const { return sent == 0 ? 1 : 1 - static_cast<double>(on_time) / static_cast<double>(sent); }
};

Result<StepFigures> run_step(Processes& processes, const ClusterLoad& load, double rate) {
  Shared& shared = processes.shared();
  const auto& members = processes.members();
  StepFigures figures{.rate = rate};
  const SteadyClock clock;
  const auto nap = [](Duration time) { std::this_thread::sleep_for(time); };
  shared.rate = rate / load.frontends;
  if (auto done = processes.turn(Phase::warm); !done) return std::unexpected(done.error());
  nap(warm_time);
  if (auto done = processes.turn(Phase::measure); !done) return std::unexpected(done.error());
  const TimePoint from = clock.now();
  std::vector<std::int64_t> cpu(members.size());
  std::vector<std::uint64_t> batches(members.size()), rows(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    cpu[i] = shared.processes[i].cpu_ns;
    batches[i] = shared.processes[i].batches;
    rows[i] = shared.processes[i].rows;
  }
  nap(from_seconds(load.seconds));
  if (auto done = processes.turn(Phase::drain); !done) return std::unexpected(done.error());
  figures.seconds = to_seconds(clock.now() - from);
  for (std::size_t i = 0; i < members.size(); ++i) {
    figures.cpu_s[members[i].role] += static_cast<double>(shared.processes[i].cpu_ns - cpu[i]) / 1e9;
    figures.batches += shared.processes[i].batches - batches[i];
    figures.rows += shared.processes[i].rows - rows[i];
  }
  nap(from_ms(load.slo_ms) + answered_within);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Shared::Process& one = shared.processes[i];
    if (members[i].role != cluster::Role::frontend) continue;
    figures.sent += one.sent;
    figures.on_time += one.on_time;
    figures.refused += one.refused;
    figures.late += one.late;
    figures.failed += one.failed;
    figures.unanswered += one.open;
    figures.p50 = std::max(figures.p50, Duration{one.p50_ns});
    figures.p99 = std::max(figures.p99, Duration{one.p99_ns});
  }
  return figures;
}

nlohmann::ordered_json json_of(const StepFigures& step) {
  const auto each = [&](double value, std::uint64_t count) {
    return value / static_cast<double>(std::max<std::uint64_t>(1, count));
  };
  nlohmann::ordered_json cpu;
  for (const auto& [role, seconds] : step.cpu_s)
    cpu[std::string(cluster::name_of(role))] = each(seconds * 1e6, step.sent);
  return {{"rate_rps", step.rate},
          {"requests_per_s", static_cast<double>(step.sent) / step.seconds},
          {"bad_fraction", step.bad()},
          {"requests", step.sent},
          {"refused", step.refused},
          {"late", step.late},
          {"failed", step.failed},
          {"unanswered", step.unanswered},
          {"p50_ms", to_ms(step.p50)},
          {"p99_ms", to_ms(step.p99)},
          {"mean_batch", each(static_cast<double>(step.rows), step.batches)},
          {"cpu_us_per_request", cpu}};
}

int complain(const Error& error) {
  fmt::print(stderr, "carillon bench cluster: {}\n", error.message);
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

int run_bench(const ClusterLoad& load) {
  if (auto made = schedule::make_scheduler(load.scheduler, {}); !made) return complain(made.error());
  Processes processes(load);
  if (auto started = processes.start(); !started) return complain(started.error());
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  std::optional<std::size_t> best;
  if (!load.json)
    fmt::print("{:>12} {:>9} {:>9} {:>9} {:>7} {:>34}\n", "requests/s", "bad", "p50 ms", "p99 ms", "batch",
               "CPU us a request (f, s, w)");
  for (double rate = load.rate > 0 ? load.rate : load.from;; rate *= load.step) {
    const auto step = run_step(processes, load, rate);
    if (!step) return complain(step.error());
    const auto json = json_of(*step);
    const bool good = step->bad() <= load.most_bad;
    if (good) best = steps.size();
    steps.push_back(json);
    if (!load.json) {
      const auto& cpu = json["cpu_us_per_request"];
      fmt::print("{:>12.0f} {:>8.3f}% {:>9.2f} {:>9.2f} {:>7.1f} {:>12.2f} {:>10.2f} {:>10.2f}\n",
                 json["requests_per_s"].get<double>(), 100 * step->bad(), to_ms(step->p50), to_ms(step->p99),
                 json["mean_batch"].get<double>(), cpu["frontend"].get<double>(),
                 cpu["scheduler"].get<double>(), cpu["worker"].get<double>());
      std::fflush(stdout);
    }
    if (load.rate > 0 || !good) break;
  }
  if (auto ended = processes.turn(Phase::end); !ended) (void)ended;
  if (load.json) {
    nlohmann::ordered_json out{{"scheduler", load.scheduler}, {"models", load.models},
                               {"devices", load.devices},     {"frontends", load.frontends},
                               {"workers", load.workers},     {"slo_ms", load.slo_ms},
                               {"most_bad", load.most_bad},   {"steps", steps}};
    out["best"] = best ? steps[*best] : nlohmann::ordered_json();
    fmt::print("{}\n", out.dump(2));
  } else if (best) {
    fmt::print("{:.0f} requests a second with at most {:g}% bad\n",
               steps[*best]["requests_per_s"].get<double>(), 100 * load.most_bad);
  }
  return best ? exit_success : exit_failure;
}

}  // namespace
}  // namespace network_bench

void add_bench_cluster(CLI::App& bench, int& status) {
  auto load = std::make_shared<network_bench::ClusterLoad>();
  CLI::App& command = *bench.add_subcommand(
      "cluster",
      "One leader over the network: requests a second, and what each role takes of the processors");
  command.add_option("--scheduler", load->scheduler, "Policy of the leader: " + schedule::scheduler_list())
      ->capture_default_str();
  command.add_option("--models", load->models, "Models, all like ResNet50 (1.053 b + 5.072 ms)")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  command.add_option("--devices", load->devices, "Devices of all workers, which cost no time of their own")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--frontends", load->frontends, "Processes that send requests")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  command.add_option("--workers", load->workers, "Processes that have the devices")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  command
      .add_option("--rate", load->rate,
                  "Requests a second of all frontends; else rates grow until more than --bad are bad")
      ->check(CLI::Range(1.0, 1e8));
  command.add_option("--from", load->from, "Without --rate: the first rate")
      ->check(CLI::Range(1.0, 1e8))
      ->capture_default_str();
  command.add_option("--step", load->step, "Without --rate: each rate is so many times the last")
      ->check(CLI::Range(1.01, 10.0))
      ->capture_default_str();
  command.add_option("--seconds", load->seconds, "How long each rate is measured, after half a second")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  command.add_option("--slo-ms", load->slo_ms, "Each request's deadline, by its frontend's clock")
      ->check(CLI::Range(1.0, 60'000.0))
      ->capture_default_str();
  command.add_option("--bad", load->most_bad, "The share of requests that may be refused or late")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", load->seed, "Of the requests")->capture_default_str();
  command.add_flag("--json", load->json, "Print one JSON object");
  command.footer(
      "Each member of the cluster is a process of its own on 127.0.0.1. The scheduler is the one that\n"
      "`carillon scheduler` runs. Frontends and workers say what real ones say, but have no clients, no\n"
      "tensors and no models: no row is pulled.\n"
      "Examples:\n"
      "  carillon bench cluster\n"
      "  carillon bench cluster --rate 200000 --seconds 10 --json");
  command.callback([load, &status] { status = network_bench::run_bench(*load); });
}

}  // namespace carillon::cli
