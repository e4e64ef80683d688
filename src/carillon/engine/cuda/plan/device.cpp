#include "carillon/engine/cuda/plan/device.h"

#include <algorithm>
#include <array>

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
