#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/engine/cuda/plan/device.h"
#include "carillon/engine/cuda/plan/recipe.h"
#include "carillon/engine/cuda/plan/step_times.h"
#include "carillon/engine/cuda/stream/lane.h"
#include "carillon/engine/engine.h"
#include "carillon/workload/request.h"

namespace carillon::engine::cuda {

struct PlanParts {
  int batch = 1;
  std::vector<graph::TensorSpec> inputs, outputs;
  Effort effort;
  Recipe recipe;
  std::shared_ptr<const StepTimes> times;  // with what each step takes by them; or null
  std::vector<Duration> step_takes;
  // By segment of the recipe.
  std::vector<KernelRange> segments;
  std::vector<std::string> names;
  // What the segments take, as measured; empty where they were not. Where they were, the plan is one that is
  // to be stopped soon.
  std::vector<Duration> takes;
  Class cls = Class::normal;  // of the runs that it was made for
  // Where it runs: in the first part of a pair, beside what runs in the rest; or, pair 0, all over the
  // device.
  int pair = 0;
};

class CudaPlan;

// What runs of a plan in one lane keep: the plan's segments as graphs, in each part of the device that they
// ran in, for the memory that the last run had.
class CudaState final : public RunState {
 public:
  // `lane`: of the stream that runs; nullptr: one of its own. Outlives the state.
  CudaState(std::shared_ptr<const Device> device, const CudaPlan& plan, Lane* lane);
  ~CudaState() override;

  // Captures all segments for that memory and part, in a stream of its own: the lane's may have runs of other
  // plans meanwhile, which a capture would take for its own.
  Result<> capture_all(Address workspace, Address weights, const Part& part);
  // Allocates where this memory or part is new: its graphs are captured as they are asked for.
  Result<> prepare(Address workspace, Address weights, const Part& part);
  // Whether the segment's graph is there.
  bool is_ready(int segment, Address workspace, Address weights, const Part& part) const;

  // Whether runs of that class are in its lane.
  bool is_for(Class cls) const { return lane_ != nullptr && lane_->cls() == cls; }
  Lane& lane() { return *lane_; }
  // Whoever waits for its runs gives up after that (CudaPlan::run); 0: never.
  Duration longest{0};
  // A run was given up: it may still be under way.
  bool spins() const { return spins_; }
  // Of the part last prepared.
  Stream stream() const { return stream_; }
  // nullptr for a segment without steps.
  Result<GraphExec> graph(int segment);
  // Of a segment's begin (0) and end (1).
  Event event(int which) const { return events_[static_cast<std::size_t>(which)]; }

  // How long its last run took that ran undisturbed; 0 where none did.
  Duration last{0};

 private:
  using Graphs = std::vector<std::optional<GraphExec>>;  // by segment
  void drop_graphs();
  Result<> capture(int segment, Stream stream, const Part& part, GraphExec& into) const;
  Result<> capture_steps(int segment, Stream stream, const Part& part, bool ends_early, Graph& out) const;
  Result<> put_step(int step, Stream stream, const Part& part, bool ends_early) const;
  Result<> mark(int segment, Stream stream) const;

  std::shared_ptr<const Device> device_;
  const CudaPlan& plan_;
  std::unique_ptr<Lane> own_;
  Lane* lane_;
  Stream stream_ = nullptr;
  Part part_;  // last prepared
  Graphs* graphs_ = nullptr;
  std::array<Event, 2> events_{};
  std::map<Part, Graphs> by_part_;
  Address workspace_ = 0, weights_ = 0;
  bool spins_ = false;
  friend class CudaPlan;
};

// Segments, each of them a CUDA graph.
class CudaPlan final : public Plan {
 public:
  CudaPlan(std::shared_ptr<const Device> device, PlanParts parts)
      : device_(std::move(device)), parts_(std::move(parts)) {}
  int batch() const override { return parts_.batch; }
  std::span<const graph::TensorSpec> inputs() const override { return parts_.inputs; }
  std::span<const graph::TensorSpec> outputs() const override { return parts_.outputs; }
  Bytes workspace() const override { return {parts_.recipe.workspace}; }
  Effort effort() const override { return parts_.effort; }
  int kernels() const override { return static_cast<int>(parts_.segments.size()); }
  std::string_view kernel_name(int index) const override {
    return parts_.names[static_cast<std::size_t>(index)];
  }
  std::unique_ptr<RunState> make_state(Team* team) const override {
    return std::make_unique<CudaState>(device_, *this, static_cast<Lane*>(team));
  }
  // Captures the graphs of all segments for the plan's part of the device. Does nothing where the state's
  // lane is of another class than the plan.
  Result<> prepare(RunState& state, std::byte* workspace, const std::byte* weights) const override;
  bool whole_device() const override { return parts_.pair == 0; }
  Result<> run(KernelRange range, const Binding& binding, std::span<Duration> durations, StopSignal* stop,
               Pacer* pacer) const override;

  // Puts a segment into the state's stream, with the inputs' copies before the first and the outputs' after
  // the last, and does not wait. `timed`: the state's events are recorded before and after its graph. The
  // state is prepared; the device's context is current.
  Result<> enqueue(int segment, const Binding& binding, CudaState& state, bool timed = false) const;
  // Puts each step into the stream of the plan's part, by itself, and waits for it as the state says: a
  // kernel that does not run there, or does not end, is named. Also the first launch of each, which drivers
  // load kernels at.
  Result<> launch_each(const Binding& binding, CudaState& state) const;
  // What a segment takes; 0 where nobody measured it.
  Duration takes(int segment) const {
    return parts_.takes.empty() ? Duration{0} : parts_.takes[static_cast<std::size_t>(segment)];
  }
  // Its runs are to be stopped soon.
  bool divided() const { return !parts_.takes.empty(); }

  const PlanParts& parts() const { return parts_; }
  const Device& device() const { return *device_; }

 private:
  Result<> finished(CudaState& state, const std::string& what) const;
  Result<> copy_edges(const std::vector<Recipe::Edge>& edges, const Binding& binding, bool in,
                      Stream stream) const;

  std::shared_ptr<const Device> device_;
  PlanParts parts_;
};

}  // namespace carillon::engine::cuda
