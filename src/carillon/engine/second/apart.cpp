#include "carillon/engine/second/apart.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "carillon/base/bytes.h"
#include "carillon/base/clock.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/processor_wait.h"
#include "carillon/engine/second/hang_limit.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/text.h"

namespace carillon::engine::second {
namespace {

using ProcessPointer = std::shared_ptr<Process>;

constexpr std::uint64_t tensor_alignment = 64;
// Kernels that read whole vectors may read as much behind a tensor.
constexpr std::uint64_t beyond_the_last = 64;
constexpr int times_in_background = 10;  // as schedule::Watchdog's
constexpr std::size_t longest_line = 600;
constexpr const char* stopping = "the server is stopping";

// What is told of all models' processes.
class Teller {
 public:
  explicit Teller(const ApartOptions& options) : tell_(options.tell), limit_(options.lines) {}

  void tell(const std::string& text) {
    if (!tell_) return;
    std::optional<std::uint64_t> left_out;
    {
      const std::lock_guard lock(mutex_);
      left_out = limit_.line(clock_.now());
    }
    if (!left_out) return;
    tell_(text + (*left_out == 0 ? "" : " (" + std::to_string(*left_out) + " such lines were left out)"));
  }

 private:
  const std::function<void(const std::string&)> tell_;
  const SteadyClock clock_;
  std::mutex mutex_;
  LineLimit limit_;
};

// A model in processes, of which one at a time has it.
class HostedModel {
 public:
  // `process`: one that has said hello, which has no model yet.
  HostedModel(ApartOptions options, std::shared_ptr<Starter> starter, std::shared_ptr<Teller> teller,
              ProcessPointer process)
      : options_(std::move(options)),
        starter_(std::move(starter)),
        teller_(std::move(teller)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        bounds_(options_.runs),
        process_(std::move(process)) {}
  ~HostedModel() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      process_->kill(stopping);
      if (coming_ != nullptr) coming_->kill(stopping);
    }
    wake();
    if (keeper_.joinable()) keeper_.join();
    if (wake_ >= 0) ::close(wake_);
  }
  HostedModel(const HostedModel&) = delete;
  HostedModel& operator=(const HostedModel&) = delete;

  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }

  // Once, ahead of all else.
  std::string read(const std::string& file) {
    file_ = file;
    return read_by(*process_, inputs_, outputs_);
  }

  // From one thread at a time, as compile().
  std::string shapes_at(std::span<const graph::Shape> inputs, std::vector<graph::Shape>& outputs) {
    ProcessPointer process;
    if (auto error = current(process); !error.empty()) return error;
    Writer writer;
    writer.shapes(inputs);
    std::vector<std::byte> answer;
    if (!process->ask(Ask::shapes_at, writer.bytes(), answer, options_.shapes, "finding shapes"))
      return lost(*process, "finding shapes");
    Reader reader(answer);
    std::string error = reader.text();
    outputs = reader.shapes();
    const bool sound =
        reader.whole() && (!error.empty() || (outputs.size() == outputs_.size() &&
                                              std::ranges::all_of(outputs, [](const graph::Shape& shape) {
                                                return std::ranges::all_of(shape, possible);
                                              })));
    if (!sound) return garbage(*process, "finding shapes");
    return error;
  }

  std::string compile(const Network::Options& options, std::uint32_t& index) {
    ProcessPointer process;
    if (auto error = current(process); !error.empty()) return error;
    if (auto error = compile_by(*process, options); !error.empty()) return error;
    const std::lock_guard lock(mutex_);
    // What was begun in its place, without this, has begun after it was seen to end.
    if (process != process_ || process->ended()) return ended_text(*process);
    index = static_cast<std::uint32_t>(compiled_.size());
    compiled_.push_back(options);
    if (!keeper_.joinable()) keeper_ = std::thread([this] { keep(); });
    return {};
  }

  // Makes a request of what was compiled as `index`, with a socket for its runs, which is the caller's.
  std::string make_request(std::uint32_t index, ProcessPointer& process, int& socket) {
    if (auto error = current(process); !error.empty()) return error;
    std::array<int, 2> sockets{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0)
      return std::string("no socket for a request: ") + std::strerror(errno);
    Writer writer;
    writer.number(index);
    std::vector<std::byte> answer;
    const bool told = process->ask(Ask::make_request, writer.bytes(), answer, options_.shapes,
                                   "making a request", sockets[1]);
    ::close(sockets[1]);
    std::string error;
    if (!told) {
      error = lost(*process, "making a request");
    } else {
      Reader reader(answer);
      error = reader.text();
      if (!reader.whole()) error = garbage(*process, "making a request");
    }
    if (error.empty())
      socket = sockets[0];
    else
      ::close(sockets[0]);
    return error;
  }

  std::string broken() const {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return reason_;
    return process_->ended() ? ended_text(*process_) : std::string();
  }
  std::uint64_t resident() const {
    const std::lock_guard lock(mutex_);
    return process_->resident();
  }
  // What was compiled as `index` is to be compiled anew: it does not run until then.
  void renew(std::uint32_t index) {
    {
      const std::lock_guard lock(mutex_);
      stale_.insert(index);
      if (reason_.empty()) reason_ = "it is compiled anew, after a run that was refused";
    }
    wake();
  }
  bool is_current(const ProcessPointer& process) const {
    const std::lock_guard lock(mutex_);
    return process == process_ && !process->ended();
  }
  void end_loading() {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    process_->kill(stopping);
  }

  ProcessPointer process() const {
    const std::lock_guard lock(mutex_);
    return process_;
  }

  // How long a run may take, of a thread that is so placed.
  Duration run_bound(std::span<const graph::Shape> inputs, const Placement& place) const {
    const bool background = place.policy == SCHED_IDLE || place.nice > starter_->nice();
    const std::lock_guard lock(bounds_mutex_);
    return bounds_.of(inputs) * (background ? times_in_background : 1);
  }
  void took(std::span<const graph::Shape> inputs, Duration run) {
    const std::lock_guard lock(bounds_mutex_);
    bounds_.took(inputs, run, clock_.now());
  }

  // Whether it is ready, and speaks as this program does.
  static std::string greet(Process& process, const ApartOptions& options, std::string& version) {
    std::vector<std::byte> answer;
    if (!process.ask(Ask::hello, {}, answer, options.start, "starting")) return lost(process, "starting");
    Reader reader(answer);
    std::string error = reader.text();
    const auto speaks = reader.number<std::uint32_t>();
    version = reader.text();
    if (!reader.whole()) return garbage(process, "starting");
    if (error.empty() && speaks != protocol)
      error = options.process.program.string() + " is of another build than this program";
    return error;
  }

  // What a call says whose process is not there any more, or answered what is none.
  static std::string lost(Process& process, const std::string& taking) {
    return "its process was " + taking + " when " + process.end();
  }
  static std::string garbage(Process& process, const std::string& taking) {
    process.kill("what it answered is no answer");
    return lost(process, taking);
  }

 private:
  static bool possible(std::int64_t extent) {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    return (extent >= -1 && extent <= most) ||
           (graph::is_bounded(extent) && extent >= graph::bounded_dimension(most));
  }
  static std::string ended_text(Process& process) { return "its process is started again: " + process.end(); }

  std::string current(ProcessPointer& into) const {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return reason_;
    if (process_->ended()) return ended_text(*process_);
    into = process_;
    return {};
  }

  std::string read_by(Process& process, std::vector<Port>& inputs, std::vector<Port>& outputs) const {
    if (file_.size() > longest_text) return "the file's name is longer than can be";
    Writer writer;
    writer.number(nice_of_this_thread());
    writer.text(file_);
    std::vector<std::byte> answer;
    if (!process.ask(Ask::read, writer.bytes(), answer, options_.load, "reading it"))
      return lost(process, "reading it");
    Reader reader(answer);
    std::string error = reader.text();
    inputs = reader.ports();
    outputs = reader.ports();
    if (!reader.whole()) return garbage(process, "reading it");
    return error;
  }

  std::string compile_by(Process& process, const Network::Options& options) const {
    Writer writer;
    writer.number(nice_of_this_thread());
    writer.options(options);
    std::vector<std::byte> answer;
    if (!process.ask(Ask::compile, writer.bytes(), answer, options_.load, "compiling it"))
      return lost(process, "compiling it");
    Reader reader(answer);
    std::string error = reader.text();
    if (!reader.whole()) return garbage(process, "compiling it");
    return error;
  }

  // Waits for `at_most` (nothing: for ever), or until `descriptor` is readable. False: it is all over.
  bool wait(int descriptor, std::optional<Duration> at_most) const {
    std::array<pollfd, 2> waits{
        {{.fd = wake_, .events = POLLIN, .revents = 0}, {.fd = descriptor, .events = POLLIN, .revents = 0}}};
    const int timeout = at_most ? static_cast<int>(*at_most / std::chrono::milliseconds{1}) : -1;
    while (::poll(waits.data(), waits.size(), timeout) < 0 && errno == EINTR) {
    }
    const std::lock_guard lock(mutex_);
    return !ending_;
  }

  void wake() const {
    const std::uint64_t one = 1;
    if (wake_ >= 0) [[maybe_unused]]
      const ssize_t written = ::write(wake_, &one, sizeof one);
  }

  // After wait() for the process. Compiles anew what is stale. False: the process has ended.
  bool renew_stale(Process& process) {
    std::uint64_t woken = 0;
    [[maybe_unused]] const ssize_t read = ::read(wake_, &woken, sizeof woken);
    std::set<std::uint32_t> stale;
    {
      const std::lock_guard lock(mutex_);
      stale = stale_;
    }
    pollfd ends{.fd = process.descriptor(), .events = POLLIN, .revents = 0};
    if (stale.empty()) return ::poll(&ends, 1, 0) == 0;
    for (const std::uint32_t index : stale) {
      Writer writer;
      writer.number(nice_of_this_thread());
      writer.number(index);
      std::vector<std::byte> answer;
      if (!process.ask(Ask::renew, writer.bytes(), answer, options_.load, "compiling it anew")) return false;
      Reader reader(answer);
      const std::string error = reader.text();
      if (!reader.whole() || !error.empty()) {
        process.kill(error.empty() ? "what it answered is no answer" : "it was not compiled anew: " + error);
        return false;
      }
    }
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t index : stale) stale_.erase(index);
    if (stale_.empty()) reason_.clear();
    return true;
  }

  // The thread that starts it again.
  void keep() {
    pthread_setname_np(pthread_self(), "carillon-keep");
    Restarts restarts(options_.restarts);
    for (;;) {
      ProcessPointer process = this->process();
      if (!wait(process->descriptor(), std::nullopt)) return;
      if (renew_stale(*process)) continue;
      std::string how = process->end();
      if (said_stopping()) return say_broken(how);
      std::string what = "the process that runs it (" + name_of(*process) + ") is gone: ";
      for (std::string again = how; !again.empty();) {
        const auto pause = restarts.ended(clock_.now());
        say_broken(pause ? "its process is started again: " + how
                         : "its process is not started again, as it ended too often; the last time: " + how);
        tell(what + how +
             (pause ? "; it is started again in " + std::to_string(*pause / std::chrono::milliseconds{1}) +
                          " ms"
                    : "; it is not started again, as it ended too often, until the model is loaded anew"));
        if (!pause || !wait(-1, pause)) return;
        again = start_again();
        if (!again.empty()) how = again;
        what = "it could not be started again: ";
      }
      if (process = this->process(); !process->ended()) tell("it runs again (" + name_of(*process) + ")");
    }
  }

  void tell(const std::string& text) const {
    teller_->tell("model file '" + graph::printable(file_) + "': " + graph::printable(text, longest_line));
  }
  std::string name_of(const Process& process) const {
    return options_.process.program.filename().string() + " " + std::to_string(process.pid());
  }

  bool said_stopping() const {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }
  void say_broken(std::string reason) {
    const std::lock_guard lock(mutex_);
    reason_ = std::move(reason);
  }

  // Empty where it runs again.
  std::string start_again() {
    auto started = Process::start(options_.process, *starter_);
    if (!started) return started.error().message;
    std::vector<Network::Options> compiled;
    {
      const std::lock_guard lock(mutex_);
      if (ending_) return stopping;
      coming_ = *started;
      compiled = compiled_;
    }
    // Its program may have been replaced since the server began.
    std::string version;
    std::string error = greet(**started, options_, version);
    std::vector<Port> inputs, outputs;
    if (error.empty()) error = read_by(**started, inputs, outputs);
    if (error.empty() && (inputs != inputs_ || outputs != outputs_))
      error = "its file has other inputs or outputs than when it was loaded";
    for (std::size_t i = 0; error.empty() && i < compiled.size(); ++i)
      error = compile_by(**started, compiled[i]);
    const std::lock_guard lock(mutex_);
    coming_ = nullptr;
    if (!error.empty()) return error;
    process_ = std::move(*started);
    stale_.clear();
    reason_.clear();
    return {};
  }

  const ApartOptions options_;
  const std::shared_ptr<Starter> starter_;
  const std::shared_ptr<Teller> teller_;
  const SteadyClock clock_;
  const int wake_;
  std::string file_;
  std::vector<Port> inputs_, outputs_;
  std::thread keeper_;

  mutable std::mutex bounds_mutex_;
  RunBounds bounds_;

  mutable std::mutex mutex_;  // of what follows
  ProcessPointer process_;
  ProcessPointer coming_;  // that is being made ready in its place
  std::vector<Network::Options> compiled_;
  std::set<std::uint32_t> stale_;  // numbers of what is to be compiled anew
  std::string reason_;             // why it is broken; empty: it is not
  bool stopping_ = false;          // it is not to be started again
  bool ending_ = false;            // nobody has it any more
};

// Memory that a process is shown: neither side can change its size.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { drop(); }

  // At least `size` bytes; what was there is gone where it was less.
  std::string reserve(std::uint64_t size) {
    if (size <= size_) return {};
    if (size > most_memory) return "its tensors take more than a run may have";
    drop();
    constexpr std::uint64_t doubled_up_to = 64ULL << 20;
    const std::uint64_t wanted =
        size <= doubled_up_to ? std::bit_ceil(std::max<std::uint64_t>(size, 4096)) : round_up(size, 1U << 20);
    descriptor_ = ::memfd_create("carillon-run", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void* at = MAP_FAILED;
    if (descriptor_ >= 0 && ::ftruncate(descriptor_, static_cast<off_t>(wanted)) == 0 &&
        ::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
      at = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (at == MAP_FAILED) {
      std::string error = std::string("no memory for its tensors: ") + std::strerror(errno);
      drop();
      return error;
    }
    data_ = static_cast<std::byte*>(at);
    size_ = wanted;
    return {};
  }
  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  int descriptor() const { return descriptor_; }

 private:
  void drop() {
    if (data_ != nullptr) ::munmap(data_, size_);
    if (descriptor_ >= 0) ::close(descriptor_);
    data_ = nullptr;
    size_ = 0;
    descriptor_ = -1;
  }
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
};

Placement placement_of_this_thread() {
  Placement out{.policy = ::sched_getscheduler(0), .nice = nice_of_this_thread()};
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) std::memcpy(out.cores, &cores, sizeof out.cores);
  return out;
}

class ApartRequest final : public Request {
 public:
  ApartRequest(std::shared_ptr<HostedModel> model, std::uint32_t index, bool placed)
      : model_(std::move(model)), index_(index), placed_(placed) {}
  ~ApartRequest() override { disconnect(); }

  // To the process that has the model now.
  std::string connect() {
    if (process_ != nullptr && model_->is_current(process_)) return {};
    disconnect();
    shown_ = 0;
    ProcessPointer process;
    if (auto error = model_->make_request(index_, process, socket_); !error.empty()) return error;
    const std::lock_guard lock(process_mutex_);
    process_ = std::move(process);
    return {};
  }

  void give_up() override {
    ProcessPointer process;
    {
      const std::lock_guard lock(process_mutex_);
      process = process_;
    }
    // Without one it is being made a request of the model's.
    if (process == nullptr) process = model_->process();
    process->kill("its run was given up, as the device was");
  }

  void count_steps(StopSignal* stop) override { stop_ = stop; }

  Ran run(std::span<const std::byte* const> inputs, std::span<const graph::Shape> shapes,
          std::span<std::byte* const> outputs, std::span<const graph::Shape> output_shapes) override {
    if (auto error = connect(); !error.empty()) return {.error = std::move(error)};
    RunPlan plan;
    std::uint64_t end = 0;
    plan.inputs = lay_out(model_->inputs(), shapes, end);
    plan.outputs = lay_out(model_->outputs(), output_shapes, end);
    Writer writer;
    plan.write(writer);
    // It lies in front of them.
    const std::uint64_t front = round_up(writer.bytes().size(), tensor_alignment);
    for (auto* tensors : {&plan.inputs, &plan.outputs})
      for (RunPlan::Tensor& each : *tensors) each.offset += front;
    Writer placed;
    plan.write(placed);
    if (auto error = memory_.reserve(front + end + beyond_the_last); !error.empty())
      return {.error = std::move(error)};
    std::memcpy(memory_.data(), placed.bytes().data(), placed.bytes().size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (plan.inputs[i].bytes > 0)
        std::memcpy(memory_.data() + plan.inputs[i].offset, inputs[i], plan.inputs[i].bytes);
    if (Ran ran = run_there(placed.bytes().size(), shapes); !ran.error.empty()) return ran;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (plan.outputs[i].bytes > 0)
        std::memcpy(outputs[i], memory_.data() + plan.outputs[i].offset, plan.outputs[i].bytes);
    return {};
  }

 private:
  void disconnect() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
    const std::lock_guard lock(process_mutex_);
    process_ = nullptr;
  }

  static std::vector<RunPlan::Tensor> lay_out(const std::vector<Port>& ports,
                                              std::span<const graph::Shape> shapes, std::uint64_t& end) {
    std::vector<RunPlan::Tensor> out;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::uint64_t bytes = graph::memory_of(ports[i].type, shapes[i]).count;
      out.push_back({.shape = shapes[i], .offset = end, .bytes = bytes});
      end = round_up(end + bytes, tensor_alignment);
    }
    return out;
  }

  Ran run_there(std::uint64_t plan_bytes, std::span<const graph::Shape> shapes) {
    RunMessage message{.number = ++number_, .memory = memory_.size(), .plan = plan_bytes, .placement = {}};
    const Placement place = placement_of_this_thread();
    if (placed_) {
      message.placement = place;
      message.placed = 1;
    }
    const bool show = shown_ != memory_.size();
    shown_ = memory_.size();
    const auto begin = std::chrono::steady_clock::now();
    if (!send_packet(socket_, std::as_bytes(std::span(&message, 1)), show ? memory_.descriptor() : -1))
      return {.error = HostedModel::lost(*process_, "about to run")};
    const Duration bound = model_->run_bound(shapes, place);
    HangLimit limit(bound);
    ProcessorWait processor(process_->pid());
    auto looked = begin;
    std::size_t size = 0;
    int descriptor = -1;
    const Received got = receive_packet(socket_, answer_, size, descriptor, [&] {
      const auto now = std::chrono::steady_clock::now();
      const Duration passed = now - std::exchange(looked, now);
      const Duration starved = processor.longest_of_all(TimePoint{now.time_since_epoch()});
      // Whoever watches this thread sees it sleep, however slow the other process is.
      if (stop_ != nullptr && starved > passed / 2) stop_->step();
      if (limit.looked(passed, starved)) return process_->within_memory();
      process_->kill("it did not come back from a run within " +
                     std::to_string(bound / std::chrono::milliseconds{1}) + " ms");
      return false;
    });
    if (descriptor >= 0) ::close(descriptor);
    if (got == Received::closed || got == Received::ended)
      return {.error = HostedModel::lost(*process_, "in a run")};
    RunAnswer answer;
    if (got == Received::whole && size >= sizeof answer) std::memcpy(&answer, answer_.data(), sizeof answer);
    if (answer.number != number_ || answer.text != size - sizeof answer || answer.bad_data > 1 ||
        answer.stale > 1)
      return {.error = HostedModel::garbage(*process_, "in a run")};
    model_->took(shapes, std::chrono::steady_clock::now() - begin);
    std::string error(answer.text, '\0');
    std::memcpy(error.data(), answer_.data() + sizeof answer, error.size());
    if (answer.stale == 1) model_->renew(index_);
    return {.error = std::move(error), .bad_data = answer.bad_data == 1, .stale = answer.stale == 1};
  }

  const std::shared_ptr<HostedModel> model_;
  const std::uint32_t index_;
  const bool placed_;
  StopSignal* stop_ = nullptr;  // of the run that is next, or under way
  std::mutex process_mutex_;    // of what others than the run's thread read: it alone writes it
  ProcessPointer process_;
  int socket_ = -1;
  SharedMemory memory_;
  std::uint64_t shown_ = 0;  // how large the memory is that the process has; 0: none
  std::uint64_t number_ = 0;
  std::array<std::byte, sizeof(RunAnswer) + longest_text> answer_{};
};

class ApartCompiled final : public Compiled {
 public:
  ApartCompiled(std::shared_ptr<HostedModel> model, std::uint32_t index, bool one_thread)
      : model_(std::move(model)), index_(index), one_thread_(one_thread) {}

  std::string make_request(std::unique_ptr<Request>& into) override {
    // With more threads than its own the thread that runs it has the system's priority: other threads' cannot
    // be taken back.
    auto made = std::make_unique<ApartRequest>(model_, index_, one_thread_);
    if (auto error = made->connect(); !error.empty()) return error;
    into = std::move(made);
    return {};
  }
  std::string broken() const override { return model_->broken(); }
  std::uint64_t resident() const override { return model_->resident(); }

 private:
  const std::shared_ptr<HostedModel> model_;
  const std::uint32_t index_;
  const bool one_thread_;
};

// Which models are being loaded, to end that.
class Loading {
 public:
  bool add(const std::shared_ptr<HostedModel>& model) {
    const std::lock_guard lock(mutex_);
    if (!ended_) models_.insert(model);
    return !ended_;
  }
  void remove(const std::shared_ptr<HostedModel>& model) {
    const std::lock_guard lock(mutex_);
    models_.erase(model);
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    for (const auto& model : models_) model->end_loading();
  }

 private:
  std::mutex mutex_;
  std::set<std::shared_ptr<HostedModel>> models_;
  bool ended_ = false;
};

class ApartNetwork final : public Network {
 public:
  ApartNetwork(std::shared_ptr<HostedModel> model, std::shared_ptr<Loading> loading)
      : model_(std::move(model)), loading_(std::move(loading)) {}

  const std::vector<Port>& inputs() const override { return model_->inputs(); }
  const std::vector<Port>& outputs() const override { return model_->outputs(); }
  std::string shapes_at(std::span<const graph::Shape> inputs,
                        std::vector<graph::Shape>& outputs) const override {
    // A part of loading it, and what a size of a model that serves waits for.
    if (!loading_->add(model_)) return stopping;
    std::string error = model_->shapes_at(inputs, outputs);
    loading_->remove(model_);
    return error;
  }
  std::string broken() const override { return model_->broken(); }
  std::string compile(const Options& options, std::unique_ptr<Compiled>& into) const override {
    if (!loading_->add(model_)) return stopping;
    std::uint32_t index = 0;
    std::string error = model_->compile(options, index);
    loading_->remove(model_);
    if (error.empty()) into = std::make_unique<ApartCompiled>(model_, index, options.threads == 1);
    return error;
  }

 private:
  const std::shared_ptr<HostedModel> model_;
  const std::shared_ptr<Loading> loading_;
};

class ApartRuntime final : public Runtime {
 public:
  ApartRuntime(ApartOptions options, std::shared_ptr<Starter> starter)
      : options_(std::move(options)), starter_(std::move(starter)) {}

  // Starts the first process, which tells the version and then takes the first model.
  Result<> begin() {
    auto started = greet();
    if (!started) return std::unexpected(started.error());
    spare_ = std::move(*started);
    return {};
  }

  std::string version() const override { return version_; }

  std::string read(const std::string& file, std::unique_ptr<Network>& into) override {
    ProcessPointer process = std::exchange(spare_, nullptr);
    if (process == nullptr) {
      auto started = greet();
      if (!started) return started.error().message;
      process = std::move(*started);
    }
    const auto model = std::make_shared<HostedModel>(options_, starter_, teller_, std::move(process));
    if (!loading_->add(model)) return stopping;
    std::string error = model->read(file);
    loading_->remove(model);
    if (error.empty()) into = std::make_unique<ApartNetwork>(model, loading_);
    return error;
  }

  void end_loading() override { loading_->end(); }

 private:
  Result<ProcessPointer> greet() {
    auto started = Process::start(options_.process, *starter_);
    if (!started) return started;
    std::string version;
    if (auto error = HostedModel::greet(**started, options_, version); !error.empty())
      return fail(ErrorCode::unavailable, std::move(error));
    version_ = std::move(version);
    return started;
  }

  const ApartOptions options_;
  const std::shared_ptr<Starter> starter_;
  const std::shared_ptr<Loading> loading_ = std::make_shared<Loading>();
  const std::shared_ptr<Teller> teller_ = std::make_shared<Teller>(options_);
  std::string version_;
  ProcessPointer spare_;
};

}  // namespace

Result<std::shared_ptr<Runtime>> make_apart_runtime(const ApartOptions& options,
                                                    std::shared_ptr<Starter> starter) {
  auto runtime = std::make_shared<ApartRuntime>(options, std::move(starter));
  if (auto begun = runtime->begin(); !begun) return std::unexpected(begun.error());
  return runtime;
}

}  // namespace carillon::engine::second
