#include "carillon/engine/second/host.h"

#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/engine/second/messages.h"

namespace carillon::engine::second {
namespace {

constexpr int broken_message = 2;

// The memory that the server shares with a request.
class Shared {
 public:
  Shared() = default;
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { drop(); }

  bool take(int descriptor, std::uint64_t size) {
    drop();
    struct stat is{};
    if (size == 0 || size > most_memory || ::fstat(descriptor, &is) != 0 ||
        static_cast<std::uint64_t>(is.st_size) != size)
      return false;
    void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) return false;
    data_ = static_cast<std::byte*>(at);
    size_ = size;
    return true;
  }
  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

 private:
  void drop() {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = nullptr;
    size_ = 0;
  }
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

// What cannot be had is left: a run is then only of another priority.
void place(const Placement& where) {
  const sched_param parameters{};
  if (where.policy == SCHED_OTHER || where.policy == SCHED_IDLE || where.policy == SCHED_BATCH)
    ::sched_setscheduler(0, where.policy, &parameters);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), where.nice);
  cpu_set_t cores;
  static_assert(sizeof cores >= sizeof where.cores);
  CPU_ZERO(&cores);
  std::memcpy(&cores, where.cores, sizeof where.cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

// The runs of one request, until its socket is closed.
void serve_runs(int socket, std::unique_ptr<Request> request) {
  Shared memory;
  std::optional<Placement> placed;
  for (;;) {
    RunMessage message;
    std::size_t size = 0;
    int descriptor = -1;
    if (receive_packet(socket, std::as_writable_bytes(std::span(&message, 1)), size, descriptor) !=
        Received::whole)
      break;
    bool sound = size == sizeof message;
    if (descriptor >= 0) {
      sound = sound && memory.take(descriptor, message.memory);
      ::close(descriptor);
    }
    sound = sound && message.memory == memory.size() && message.plan <= memory.size();
    RunPlan plan;
    if (sound) {
      Reader reader({memory.data(), static_cast<std::size_t>(message.plan)});
      sound = RunPlan::read(reader, memory.size(), plan);
    }
    if (!sound) ::_exit(broken_message);
    if (message.placed == 1 && placed != message.placement) {
      place(message.placement);
      placed = message.placement;
    }
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    std::vector<graph::Shape> input_shapes, output_shapes;
    for (RunPlan::Tensor& each : plan.inputs) {
      inputs.push_back(memory.data() + each.offset);
      input_shapes.push_back(std::move(each.shape));
    }
    for (RunPlan::Tensor& each : plan.outputs) {
      outputs.push_back(memory.data() + each.offset);
      output_shapes.push_back(std::move(each.shape));
    }
    const Ran ran = request->run(inputs, input_shapes, outputs, output_shapes);
    const std::string error = ran.error.substr(0, longest_text);
    const RunAnswer answer{.number = message.number,
                           .text = static_cast<std::uint32_t>(error.size()),
                           .bad_data = ran.bad_data ? 1U : 0U,
                           .stale = ran.stale ? 1U : 0U};
    std::vector<std::byte> packet(sizeof answer + error.size());
    std::memcpy(packet.data(), &answer, sizeof answer);
    std::memcpy(packet.data() + sizeof answer, error.data(), error.size());
    if (!send_packet(socket, packet)) break;
  }
  ::close(socket);
}

// Runs `body` on a thread of that priority, which those that it starts have from it.
template <typename Body>
void at_nice(int nice, const Body& body) {
  if (nice <= 0) return body();
  std::thread([&] {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice);
    body();
  }).join();
}

}  // namespace

int serve_model(int control, std::unique_ptr<Runtime> runtime, const std::string& error) {
  std::unique_ptr<Network> network;
  std::deque<std::unique_ptr<Compiled>> compiled;
  for (;;) {
    Ask kind{};
    std::vector<std::byte> bytes;
    int descriptor = -1;
    const Received got = receive_message(control, kind, bytes, descriptor);
    if (got == Received::closed) return 0;
    if (got != Received::whole || (descriptor >= 0) != (kind == Ask::make_request)) return broken_message;
    Reader reader(bytes);
    Writer writer;
    switch (kind) {
      case Ask::hello:
        writer.text(error);
        writer.number(protocol);
        writer.text(runtime == nullptr ? "" : runtime->version());
        break;
      case Ask::read: {
        const auto nice = reader.number<std::int32_t>();
        const std::string file = reader.text();
        if (!reader.whole() || runtime == nullptr || network != nullptr) return broken_message;
        std::string text;
        at_nice(nice, [&] { text = runtime->read(file, network); });
        writer.text(text);
        for (const auto* ports : {network == nullptr ? nullptr : &network->inputs(),
                                  network == nullptr ? nullptr : &network->outputs()}) {
          writer.number(static_cast<std::uint32_t>(ports == nullptr ? 0 : ports->size()));
          if (ports == nullptr) continue;
          for (const Port& port : *ports) writer.port(port);
        }
        break;
      }
      case Ask::shapes_at: {
        const auto inputs = reader.shapes();
        if (!reader.whole() || network == nullptr || inputs.size() != network->inputs().size())
          return broken_message;
        std::vector<graph::Shape> outputs;
        writer.text(network->shapes_at(inputs, outputs));
        writer.shapes(outputs);
        break;
      }
      case Ask::compile: {
        const auto nice = reader.number<std::int32_t>();
        const Network::Options options = reader.options();
        if (!reader.whole() || network == nullptr || options.inputs.size() != network->inputs().size())
          return broken_message;
        std::string text;
        at_nice(nice, [&] { text = network->compile(options, compiled.emplace_back()); });
        if (!text.empty()) compiled.pop_back();
        writer.text(text);
        break;
      }
      case Ask::renew: {
        const auto nice = reader.number<std::int32_t>();
        const auto which = reader.number<std::uint32_t>();
        if (!reader.whole() || which >= compiled.size()) return broken_message;
        std::string text;
        at_nice(nice, [&] { text = compiled[which]->renew(); });
        writer.text(text);
        break;
      }
      case Ask::make_request: {
        const auto which = reader.number<std::uint32_t>();
        if (!reader.whole() || which >= compiled.size()) return broken_message;
        std::unique_ptr<Request> request;
        const std::string text = compiled[which]->make_request(request);
        writer.text(text);
        if (text.empty())
          std::thread(serve_runs, descriptor, std::move(request)).detach();
        else
          ::close(descriptor);
        break;
      }
    }
    if (!send_message(control, kind, writer.bytes())) return 0;
  }
}

}  // namespace carillon::engine::second
