#include "carillon/engine/cuda/plan/device.h"

#include <algorithm>
#include <array>

#include "carillon/engine/cuda/driver/bounded_wait.h"
#include "carillon/engine/cuda/driver/time_graph.h"
#include "carillon/engine/cuda/memory/scratch.h"

namespace carillon::engine::cuda {
namespace {

// A stream and two events, and graphs of kernels that write one word.
class Marks {
 public:
  explicit Marks(const Device& device) : device_(device), word_(device.driver, device.number()) {}
  ~Marks() {
    const Driver& driver = device_.driver;
    if (stream_ != nullptr) (void)driver.stream_synchronize(stream_);
    for (const Event event : events_)
      if (event != nullptr) (void)driver.event_destroy(event);
    if (stream_ != nullptr) (void)driver.stream_destroy(stream_);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  Result<> prepare() {
    const Driver& driver = device_.driver;
    if (auto made = check(word_.take(sizeof(unsigned))); !made) return made;
    if (auto made = check(driver.stream_create(&stream_, stream_beside_the_default, 0)); !made) return made;
    for (Event& event : events_)
      if (auto made = check(driver.event_create(&event, 0)); !made) return made;
    return {};
  }

  // The least time of a graph of so many.
  Result<Duration> least(int kernels) const {
    const Driver& driver = device_.driver;
    if (auto begun = check(driver.capture_begin(stream_, capture_of_this_thread)); !begun)
      return std::unexpected(begun.error());
    kernels::MarkParams params{
        .value = 0, .output = reinterpret_cast<unsigned*>(word_.at()), .stop = nullptr};
    Result<> put;
    for (int i = 0; put && i < kernels; ++i)
      if (const auto launch = kernels::launch(params))
        put = device_.launch(*launch, &params, stream_, name);
      else
        put = std::unexpected(launch.error());
    Graph graph = nullptr;
    GraphExec made = nullptr;
    Status status = driver.capture_end(stream_, &graph);
    if (put && status == done) status = driver.graph_instantiate(&made, graph, 0);
    if (graph != nullptr) (void)driver.graph_destroy(graph);
    if (!put) return std::unexpected(put.error());
    Duration least{0};
    if (status == done) status = time_graph(driver, made, stream_, events_, rounds, least);
    if (made != nullptr) (void)driver.graph_exec_destroy(made);
    if (auto measured = check(status); !measured) return std::unexpected(measured.error());
    return least;
  }

 private:
  static constexpr const char* name = "measuring a launch";
  static constexpr int rounds = 10;
  Result<> check(Status status) const { return device_.check(status, name); }

  const Device& device_;
  Scratch word_;
  Stream stream_ = nullptr;
  std::array<Event, 2> events_{};
};

}  // namespace

Result<> Device::try_parts() {
  const auto refused = [](const std::string& why) { return fail(ErrorCode::unsupported, why); };
  if (splits_->count() > 0 && !splits_->prepare(1)) return refused("the driver gives no green context");
  const GreenContext within = splits_->context({.pair = splits_->count() > 0 ? 1 : 0});
  if (within == nullptr) return refused("the driver names no groups of its processors");
  constexpr Duration longest = std::chrono::seconds{10};
  Stream stream = nullptr;
  Event event = nullptr;
  Graph graph = nullptr;
  GraphExec made = nullptr;
  Scratch word(driver, number_);
  const char* what = "a stream of a green context";
  Status status = driver.green_stream(&stream, within, stream_beside_the_default, 0);
  const auto next = [&](const char* name, const auto& call) {
    if (status != done) return;
    what = name;
    status = call();
  };
  next("an event", [&] { return driver.event_create(&event, event_without_time); });
  next("an event in a green context's stream", [&] { return driver.event_record(event, stream); });
  next("waiting for a green context's stream", [&] { return driver.stream_synchronize(stream); });
  next("asking for an event in a green context's stream", [&] { return driver.event_query(event); });
  // Without memory for what it writes the kernel is captured, and not launched.
  const bool has_word = status == done && word.take(sizeof(unsigned)) == done;
  kernels::MarkParams params{
      .value = 0, .output = reinterpret_cast<unsigned*>(has_word ? word.at() : 0), .stop = nullptr};
  const auto mark = kernels::launch(params);
  if (!mark) return std::unexpected(mark.error());
  next("a capture in a green context's stream",
       [&] { return driver.capture_begin(stream, capture_of_this_thread); });
  Result<> put;
  if (status == done) {
    put = launch(*mark, &params, stream, "a kernel that is captured in a green context's stream");
    next("the end of a capture in a green context's stream",
         [&] { return driver.capture_end(stream, &graph); });
  }
  next("a graph of a green context's stream", [&] { return driver.graph_instantiate(&made, graph, 0); });
  if (put && has_word) {
    next("a graph's launch in a green context's stream", [&] { return driver.graph_launch(made, stream); });
    next("a graph in a green context's stream", [&] { return wait_for(driver, stream, longest); });
  }
  if (status == not_ready) {  // what it uses stays with it
    word.leave();
    return refused(
        fmt::format("a kernel in a green context has not ended within {:g} s", to_seconds(longest)));
  }
  if (made != nullptr) (void)driver.graph_exec_destroy(made);
  if (graph != nullptr) (void)driver.graph_destroy(graph);
  if (event != nullptr) (void)driver.event_destroy(event);
  if (stream != nullptr) (void)driver.stream_destroy(stream);
  if (!put) return put;
  return status == done ? Result<>() : refused(fmt::format("{}: {}", what, name_of(driver, status)));
}

Result<Duration> Device::launch_time() const {
  const std::lock_guard lock(measuring_);
  if (launch_time_) return *launch_time_;
  constexpr int many = 64;
  Marks marks(*this);
  if (auto prepared = marks.prepare(); !prepared) return std::unexpected(prepared.error());
  const auto one = marks.least(1), all = marks.least(many);
  if (!one || !all) return std::unexpected((one ? all : one).error());
  launch_time_ = std::max(Duration{0}, *one - *all / many);
  return *launch_time_;
}

}  // namespace carillon::engine::cuda
