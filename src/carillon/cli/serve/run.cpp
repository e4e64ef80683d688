#include "carillon/cli/serve/run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "carillon/base/heap.h"
#include "carillon/base/processors.h"
#include "carillon/cli/admission_option.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/headroom.h"
#include "carillon/cli/partition_option.h"
#include "carillon/cli/preempt_option.h"
#include "carillon/cli/serve/doors.h"
#include "carillon/controller/models/kept_times.h"
#include "carillon/frontend/grpc/external_scaler.h"
#include "carillon/profile/profile.h"
#include "carillon/roles/device_order.h"
#include "carillon/roles/metrics.h"
#include "carillon/roles/worker_host.h"
#include "carillon/schedule/log/recording.h"
#include "carillon/schedule/registry.h"
#include "carillon/transport/stream.h"

namespace carillon::cli::serving {
namespace {

// How long the end waits for what is just being compiled.
constexpr auto patience_of_loading = std::chrono::milliseconds(2000);

// Brings the models to a server that serves already, on a thread of its own.
class Loading {
 public:
  // `done` hears on that thread what became of it. What it uses, and `whole`, outlive this.
  Loading(server::WholeServer& whole, std::function<void(Result<>)> done)
      : whole_(whole), thread_([this, over = over_, done = std::move(done)] {
          pthread_setname_np(pthread_self(), "carillon-first");
          done(whole_.load());
          over->set_value();
        }) {}
  ~Loading() {
    whole_.end_load();
    if (thread_.joinable()) thread_.join();
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  // Whether it has ended, waiting for so long at most. What it is just compiling cannot be stopped. Where it
  // goes on the process is to end at once: what it uses must not go before.
  bool end(std::chrono::milliseconds patience) {
    whole_.end_load();
    if (was_over_.wait_for(patience) == std::future_status::ready) return true;
    thread_.detach();
    return false;
  }

 private:
  server::WholeServer& whole_;
  std::shared_ptr<std::promise<void>> over_ = std::make_shared<std::promise<void>>();
  std::future<void> was_over_{over_->get_future()};
  std::thread thread_;
};

// The file of --record, until the server serves: a start that fails leaves none behind.
class BegunRecord {
 public:
  explicit BegunRecord(std::string file) : file_(std::move(file)) {}
  ~BegunRecord() {
    std::error_code ignored;
    if (!file_.empty()) std::filesystem::remove(file_, ignored);
  }
  BegunRecord(const BegunRecord&) = delete;
  BegunRecord& operator=(const BegunRecord&) = delete;
  void keep() { file_.clear(); }

 private:
  std::string file_;
};

// Null where nobody trains here. What scripts have is taken out of the page cache of the CPU, `lent`.
Result<std::unique_ptr<Training>> start_training(const TrainArguments& arguments,
                                                 std::optional<DeviceId> lent, server::DeviceGroup& group,
                                                 const Clock& clock) {
  if (arguments.socket.empty()) return nullptr;
  Bytes& page_cache = group.devices[lent->index()].worker.page_cache;
  const auto memory = Training::memory_of(arguments, page_cache, page_size);
  if (!memory) return std::unexpected(memory.error());
  page_cache = Bytes{(page_cache.count - memory->count) / page_size.count * page_size.count};
  auto training = Training::start(arguments, *memory, clock);
  if (training)
    spdlog::info(
        "training: scripts share {} at {}, by {}, while no request wants the CPU; {} are left for weights",
        to_text(*memory), arguments.socket, arguments.policy, to_text(page_cache));
  return training;
}

// Those that --model names become arguments.files, else there is a repository.
Result<> find_models(Arguments& arguments) {
  for (const std::string& text : arguments.model) {
    auto file = repository::model_file(text);
    if (!file) return in_context("--model " + text, file.error());
    arguments.files.push_back(std::move(*file));
  }
  if (!arguments.files.empty())
    if (auto distinct = repository::read_repository({}, {.files = arguments.files}); !distinct)
      return in_context("--model", distinct.error());
  if (arguments.files.empty())
    if (auto there = repository::check_repository(arguments.models); !there)
      return in_context("--models", there.error());
  return {};
}

// Of --partition.
Result<std::unique_ptr<schedule::Scheduler>> divide_devices(const Arguments& arguments, PartitionFile& file,
                                                            controller::Options& options,
                                                            std::size_t devices) {
  auto division = file.read(devices);
  if (!division) return std::unexpected(division.error());
  auto made =
      schedule::make_subclusters(arguments.scheduler, environment_of(arguments), *std::move(division));
  if (!made) return std::unexpected(std::move(made.error()));
  options.subclusters = made->get();
  return std::unique_ptr<schedule::Scheduler>(*std::move(made));
}

// To the doors: GPUs have metrics, and memory that clients lend.
void show_gpus(const server::DeviceGroup& group, frontend::Options& doors) {
  std::vector<std::pair<std::string, std::shared_ptr<const engine::cuda::Nvml>>> gpus;
  for (const server::Device& device : group.devices)
    if (device.nvml) gpus.emplace_back(device.gpu_uuid, device.nvml);
  for (const server::Device& device : group.devices)
    if (device.importer) doors.importers.emplace(device.ordinal, device.importer);
  if (!gpus.empty())
    doors.more_metrics = [before = doors.more_metrics, gpus] {
      return (before ? before() : std::string()) + server::gpu_metrics(gpus);
    };
}

// Of addresses.
Bytes caches_of(const server::DeviceGroup& group) {
  Bytes caches;
  for (const server::Device& device : group.devices) {
    const worker::Options& worker = device.worker;
    caches = caches + worker.page_cache + worker.io_cache +
             worker.workspace * (worker.classes ? std::uint64_t{worker.classes->count()} : 1U);
  }
  return caches;
}

}  // namespace

int run(Arguments& arguments) {
  if (auto found = find_models(arguments); !found) return complain(exit_usage, found.error());
  begin_log(arguments);
  std::optional<roles::MemberArguments> member;
  if (!arguments.cluster.cluster.empty()) {
    transport::wait_at_own_sockets();
    auto read = member_of(arguments.cluster, cluster::Role::worker);
    if (!read) return complain(exit_usage, read.error());
    member = *std::move(read);
  }

  arguments.devices.each.hangs_after = from_ms(arguments.hang_after_ms);
  arguments.devices.each.warn = [](const std::string& text) { spdlog::warn("{}", text); };
  arguments.devices.each.processors = std::make_shared<UsableProcessors>();
  spdlog::info("processors: {}{}", to_text(arguments.devices.each.processors->limits()),
               arguments.devices.each.threads > 0
                   ? fmt::format("; --threads {} stays as it is", arguments.devices.each.threads)
                   : "");

  spare_addresses();
  if (auto room = enough_addresses(beside_caches(), "the server, without its caches,"); !room)
    return complain(exit_failure, room.error());
  if (auto room = enough_threads(threads_of_frontends(arguments) + usable_processors(), "the server"); !room)
    return complain(exit_failure, room.error());
  std::signal(SIGPIPE, SIG_IGN);
  const auto supervised = find_supervisor();
  if (!supervised) return complain(exit_failure, supervised.error());
  SignalWait signals([](const std::string& text) { spdlog::info("{}", text); });
  static const SteadyClock clock;  // outlives the threads of a device that hangs to the end
  auto scheduler = schedule::make_scheduler(arguments.scheduler, environment_of(arguments));
  if (!scheduler) return complain(exit_usage, scheduler.error());
  if (auto preempts = check_preempt(arguments.preempt, arguments.scheduler); !preempts)
    return complain(exit_usage, preempts.error());
  if (auto admits = check_admission(arguments.admission, arguments.scheduler); !admits)
    return complain(exit_usage, admits.error());
  auto doors = doors_of(arguments);
  if (!doors) return complain(exit_usage, doors.error());
  const auto spans_go_to = otlp_target(arguments);
  if (!spans_go_to) return complain(exit_usage, spans_go_to.error());
  ServiceManager& manager = *supervised->manager;
  const auto partition = std::make_shared<PartitionFile>(arguments.partition);
  signals.on_hangup([doors = *doors, &manager, partition] {
    manager.reload(clock.now(), [&] {
      reload(doors, [](const std::string& text) { spdlog::info("{}", text); });
      partition->read_again();
    });
  });
  if (const auto free = frontend::check_addresses(*doors); !free) return complain(exit_failure, free.error());
  std::optional<profile::DeviceProfile> profile;
  if (!arguments.profile.empty()) {
    auto read = profile::read_profile(arguments.profile);
    if (!read) return complain(exit_failure, in_context("--profile", read.error()).error());
    profile = std::move(*read);
  }

  controller::Options options = controller_options(arguments, clock);
  const auto lent = cpu_of(arguments);
  if (lent) {
    auto store = server::open_store(arguments.store, arguments.devices.each.warn);
    if (!store) return complain(exit_usage, store.error());
    if (*store)
      spdlog::info("store: {}, at most {}", (*store)->directory().string(), to_text((*store)->limit()));
    arguments.devices.each.weights = std::move(*store);
  }
  std::shared_ptr<const controller::KeptTimes> kept;
  // What is measured while a model is compiled decides how its kernels are made: another start may measure
  // otherwise.
  if (const auto& store = arguments.devices.each.weights;
      store != nullptr && arguments.devices.each.choose_kernels == 0 && !arguments.stop_cost)
    if (auto machine = server::machine_text())
      kept = std::make_shared<const controller::KeptTimes>(store, *std::move(machine));
  auto memory = plan_memory_of(arguments, lent && arguments.devices.each.weights == nullptr);
  if (!memory) return complain(memory.error().first, memory.error().second);
  if (arguments.plan.empty()) arguments.devices.each.memory = memory->plan;
  arguments.devices.each.process_memory = memory->plan.models;
  options.sizes.memory = memory->plan.sizes;
  doors->spans = export_spans(*spans_go_to, member ? &*member : nullptr, options.core.journal);
  if (!arguments.plan.empty())
    return run_planned(arguments, options, *doors, signals, *supervised, *memory, clock);
  if (!arguments.train.socket.empty() && !lent)
    return complain(exit_usage,
                    {ErrorCode::invalid_argument, "--train lends the CPU, but there is no --device cpu"});
  auto group = server::make_devices(arguments.devices, clock);
  if (!group) return complain(exit_usage, group.error());
  heed_pages(*group, *memory);
  auto training =
      start_training(arguments.train, lent, *group, clock);  // outlives the controller, which tells it
  if (!training) return complain(exit_usage, training.error());
  if (*training) {
    options.core.on_leisure = [to = training->get(), lent = *lent](DeviceId device,
                                                                   std::optional<TimePoint> free_until) {
      if (device == lent) to->leisure(free_until);
    };
    doors->more_metrics = [to = training->get()] { return to->metrics(); };
  }
  if (partition->given()) scheduler = divide_devices(arguments, *partition, options, group->devices.size());
  if (!scheduler) return complain(exit_usage, scheduler.error());
  show_gpus(*group, *doors);
  if (auto room = enough_addresses(beside_caches() + caches_of(*group), "the server with its caches"); !room)
    return complain(exit_failure, room.error());
  if (!arguments.record.empty()) {
    scheduler = schedule::log::RecordingScheduler::open(arguments.record, std::move(*scheduler),
                                                        arguments.scheduler, environment_of(arguments));
    if (!scheduler) return complain(exit_failure, in_context("--record", scheduler.error()).error());
  }
  BegunRecord begun(arguments.record);  // before what writes it: it ends after that
  std::optional<std::uint32_t> order = arguments.cluster.order;
  if (member && !order) order = roles::worker_order(member->id);
  roles::WorkerHost host([](const std::string& text) { spdlog::warn("{}", text); }, order,
                         rows_to(doors->spans));
  if (member)
    doors->more_metrics = [before = doors->more_metrics, &host] {
      const auto figures = host.figures();
      return (before ? before() : std::string()) + (figures ? roles::cluster_text(*figures) : std::string());
    };
  auto whole = std::make_unique<server::WholeServer>(
      server::WholeOptions{.models = arguments.models,
                           .reading = {.follow_links = arguments.follow_links, .files = arguments.files},
                           .control = arguments.control,
                           .poll = from_ms(arguments.poll_s * 1000),
                           .load = arguments.load,
                           .controller = options,
                           .profile = profile ? &*profile : nullptr,
                           .kept = std::move(kept),
                           .stop_cost = arguments.stop_cost,
                           .memory = memory->account,
                           .plans_at_once = arguments.plans_at_once,
                           .tell =
                               [&manager](const std::string& text) {
                                 spdlog::info("{}", text);
                                 manager.progress(text);
                               },
                           .tell_step =
                               [&manager](const std::string& text) {
                                 spdlog::debug("{}", text);
                                 manager.progress(text);
                               },
                           .warn = [](const std::string& text) { spdlog::warn("{}", text); },
                           .before_serving = [&signals] { signals.hold(); },
                           .decider = member ? host.decider() : controller::MakeDecider{},
                           .rows = member ? &host.rows() : nullptr},
      std::move(*scheduler), *group, clock);
  auto watched = supervised->watch(whole->service());
  Result<> loaded;
  {
    // Before the models are loaded: whoever asks is told that the server lives, and is not ready.
    auto frontend = open_doors(whole->service(), arguments, *doors, *memory);
    if (!frontend) return complain(exit_failure, frontend.error());
    spdlog::info("listening: {}; each model is served as soon as it is loaded", ports_text(**frontend));
    manager.listening("loading models");
    std::unique_ptr<frontend::ScalerServer> scaler;
    if (!arguments.keda.empty()) {
      auto opened =
          frontend::ScalerServer::start(frontend::look_once_a_second(whole->service()),
                                        {.address = arguments.keda, .tls = doors->tls, .log = doors->log});
      if (!opened) {
        (*frontend)->stop();
        return complain(exit_failure, opened.error());
      }
      scaler = std::move(*opened);
      spdlog::info("KEDA port {}", scaler->port());
    }
    if (auto started = whole->start(); !started) {
      (*frontend)->stop();
      return complain(exit_failure, started.error());
    }
    if (options.subclusters != nullptr)
      partition->begin([&whole](const schedule::GroupsOfModels& division) -> Result<bool> {
        if (whole->controller().divide(division)) return true;
        return fail(ErrorCode::unavailable, "the server does not serve yet, or any more; nothing changes");
      });
    Loading loading(*whole, [&](Result<> result) {
      loaded = std::move(result);
      if (!loaded) return signals.end();
      const std::size_t devices = group->devices.size();
      server::start_faults(*group, clock.now());
      if (member)
        if (loaded = host.join(*member, whole->controller()); !loaded) return signals.end();
      if (whole->models() == 0 && arguments.control == server::ModelControlMode::none)
        spdlog::warn("there are no models in {}: a model is a folder there, such as {}", arguments.models,
                     (std::filesystem::path(arguments.models) / "NAME" / "1" / "model.onnx").string());
      tell_ready(**frontend, arguments, manager,
                 fmt::format("{} of {} models on {} device{}", whole->ready(), whole->models(), devices,
                             devices == 1 ? "" : "s"));
    });
    // Orders that wait for the models would keep the ports open.
    serve(**frontend, arguments, signals, options, manager, *memory, doors->spans.get(),
          [&] { whole->end_load(); });
    if (!loading.end(patience_of_loading)) {
      if (!arguments.record.empty())
        spdlog::warn("--record: the log is cut off, as a model was being compiled");
      spdlog::info("stopped, while a model was compiled");
      spdlog::shutdown();
      std::fflush(nullptr);
      _exit(exit_success);
    }
  }
  partition->end();
  host.leave();
  stop_trimming_heap();  // models go one by one
  const std::vector<DeviceId> left = whole->stop();
  host.end();
  for (const DeviceId device : left)
    spdlog::warn("device {} does not come back from what it runs: it is left behind", device.value);
  if (!loaded && loaded.error().code != ErrorCode::cancelled) return complain(exit_failure, loaded.error());
  begun.keep();
  spdlog::info("stopped");
  if (left.empty()) return exit_success;
  // Their threads are in the middle of something, whose ground an ordinary end would take from under them.
  watched.reset();
  whole.reset();  // it may have a log to end
  spdlog::shutdown();
  std::fflush(nullptr);
  _exit(exit_success);
}

}  // namespace carillon::cli::serving
