#include "carillon/engine/cuda/plan/cuda_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "carillon/engine/cuda/driver/bounded_wait.h"
#include "carillon/engine/pacer.h"

namespace carillon::engine::cuda {

CudaState::CudaState(std::shared_ptr<const Device> device, const CudaPlan& plan, Lane* lane)
    : device_(std::move(device)), plan_(plan), lane_(lane) {}

CudaState::~CudaState() {
  const Device::Current current(*device_);
  drop_graphs();
  for (const Event event : events_)
    if (event != nullptr) (void)device_->driver.event_destroy(event);
}

void CudaState::drop_graphs() {
  for (const auto& [part, graphs] : by_part_)
    for (const auto& each : graphs)
      if (each && *each != nullptr) (void)device_->driver.graph_exec_destroy(*each);
  by_part_.clear();
  graphs_ = nullptr;
}

Result<> CudaState::prepare(Address workspace, Address weights, const Part& part) {
  const Driver& driver = device_->driver;
  if (lane_ == nullptr) {
    auto made = Lane::make(device_, Class::normal, false);
    if (!made) return std::unexpected(made.error());
    own_ = std::move(*made);
    lane_ = own_.get();
  }
  for (Event& event : events_)
    if (event == nullptr)
      if (auto made = device_->check(driver.event_create(&event, 0), "an event"); !made) return made;
  const auto stream = lane_->stream(part);
  if (!stream) return std::unexpected(stream.error());
  stream_ = *stream;
  part_ = part;
  if (workspace_ != workspace || weights_ != weights) drop_graphs();
  workspace_ = workspace;
  weights_ = weights;
  graphs_ = &by_part_[part];
  graphs_->resize(plan_.parts().segments.size());
  return {};
}

bool CudaState::is_ready(int segment, Address workspace, Address weights, const Part& part) const {
  const auto found = by_part_.find(part);
  return workspace_ == workspace && weights_ == weights && found != by_part_.end() &&
         found->second[static_cast<std::size_t>(segment)].has_value();
}

Result<GraphExec> CudaState::graph(int segment) {
  std::optional<GraphExec>& there = (*graphs_)[static_cast<std::size_t>(segment)];
  if (!there) {
    GraphExec made = nullptr;
    if (auto captured = capture(segment, stream_, part_, made); !captured)
      return std::unexpected(captured.error());
    there = made;
  }
  return *there;
}

Result<> CudaState::capture_all(Address workspace, Address weights, const Part& part) {
  const auto beside = Lane::make(device_, lane_->cls(), false);
  if (!beside) return std::unexpected(beside.error());
  const auto stream = (*beside)->stream(part);
  if (!stream) return std::unexpected(stream.error());
  drop_graphs();
  workspace_ = workspace;
  weights_ = weights;
  Graphs& graphs = by_part_[part];
  graphs.resize(plan_.parts().segments.size());
  for (int segment = 0; segment < plan_.kernels(); ++segment) {
    GraphExec made = nullptr;
    if (auto captured = capture(segment, *stream, part, made); !captured)
      return in_context(plan_.parts().names[static_cast<std::size_t>(segment)], captured.error());
    graphs[static_cast<std::size_t>(segment)] = made;
  }
  return {};
}

Result<> CudaState::capture(int segment, Stream stream, const Part& part, GraphExec& into) const {
  const Driver& driver = device_->driver;
  const KernelRange steps = plan_.parts().segments[static_cast<std::size_t>(segment)];
  const bool ends_early = plan_.divided() && lane_->ends_early();
  if (steps.first == steps.last && !ends_early) return {};
  Graph graph = nullptr;
  auto put = capture_steps(segment, stream, part, ends_early, graph);
  if (put) put = device_->check(driver.graph_instantiate(&into, graph, 0), "a graph");
  if (graph != nullptr) (void)driver.graph_destroy(graph);
  return put;
}

Result<> CudaState::capture_steps(int segment, Stream stream, const Part& part, bool ends_early,
                                  Graph& out) const {
  const Driver& driver = device_->driver;
  const Status begun = driver.capture_begin(stream, capture_of_this_thread);
  if (auto checked = device_->check(begun, "a capture"); !checked) return checked;
  const KernelRange steps = plan_.parts().segments[static_cast<std::size_t>(segment)];
  Result<> put;
  for (int i = steps.first; put && i < steps.last; ++i) put = put_step(i, stream, part, ends_early);
  if (put && ends_early) put = mark(segment, stream);
  const auto ended = device_->check(driver.capture_end(stream, &out), "the end of a capture");
  return put ? ended : put;
}

Result<> CudaState::put_step(int i, Stream stream, const Part& part, bool ends_early) const {
  const Step& step = plan_.parts().recipe.steps[static_cast<std::size_t>(i)];
  if (plan_.parts().times != nullptr)
    plan_.parts().times->announce(plan_.parts().step_takes[static_cast<std::size_t>(i)]);
  const auto at = [&](const Place& place) { return place.at(workspace_, weights_); };
  if (step.call != nullptr)
    return step.call->enqueue(stream, {.a = at(step.a),
                                       .b = at(step.b),
                                       .out = at(step.out),
                                       .bias = at(step.bias),
                                       .residual = at(step.residual),
                                       .workspace = at(step.scratch),
                                       .processors = device_->processors_of(part)});
  std::vector<std::byte> params = step.params;
  for (const auto& [where, place] : step.pointers) {
    const Address value = at(place);
    std::memcpy(params.data() + where, &value, sizeof value);
  }
  if (const Address flag = lane_->flag(); ends_early)
    std::memcpy(params.data() + step.launch.kernel->stop_at, &flag, sizeof flag);
  return step.chain ? device_->launch(step.chain->function, step.launch, params.data(), stream, step.name)
                    : device_->launch(step.launch, params.data(), stream, step.name);
}

// That so many segments have run, where the flag is not set.
Result<> CudaState::mark(int segment, Stream stream) const {
  kernels::MarkParams params{.value = static_cast<unsigned>(segment) + 1,
                             .output = reinterpret_cast<unsigned*>(lane_->mark()),
                             .stop = reinterpret_cast<kernels::StopFlag>(lane_->flag())};
  const auto launch = kernels::launch(params);
  if (!launch) return std::unexpected(launch.error());
  return device_->launch(*launch, &params, stream, "the end of a segment");
}

Result<> CudaPlan::copy_edges(const std::vector<Recipe::Edge>& edges, const Binding& binding, bool in,
                              Stream stream) const {
  const Address workspace = address(binding.workspace), weights = address(binding.weights);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (edges[i].bytes == 0) continue;
    const Address here = edges[i].at.at(workspace, weights);
    const Address there = in ? address(binding.inputs[i]) : address(binding.outputs[i]);
    if (auto copied =
            device_->check(device_->driver.copy(in ? here : there, in ? there : here, edges[i].bytes, stream),
                           in ? "an input" : "an output");
        !copied)
      return copied;
  }
  return {};
}

Result<> CudaPlan::enqueue(int segment, const Binding& binding, CudaState& state, bool timed) const {
  const Driver& driver = device_->driver;
  const Stream stream = state.stream();
  const auto mark = [&](int which) {
    return timed ? device_->check(driver.event_record(state.event(which), stream), "an event") : Result<>();
  };
  const auto graph = state.graph(segment);
  if (!graph) return std::unexpected(graph.error());
  if (segment == 0)
    if (auto copied = copy_edges(parts_.recipe.inputs, binding, true, stream); !copied) return copied;
  if (auto marked = mark(0); !marked) return marked;
  if (*graph != nullptr)
    if (auto launched = device_->check(driver.graph_launch(*graph, stream),
                                       parts_.names[static_cast<std::size_t>(segment)]);
        !launched)
      return launched;
  if (auto marked = mark(1); !marked) return marked;
  if (segment + 1 == kernels()) return copy_edges(parts_.recipe.outputs, binding, false, stream);
  return {};
}

Result<> CudaPlan::prepare(RunState& state, std::byte* workspace, const std::byte* weights) const {
  auto& mine = static_cast<CudaState&>(state);
  if (!mine.is_for(parts_.cls)) return {};
  const Device::Current current(*device_);
  return mine.capture_all(address(workspace), address(weights), {.pair = parts_.pair});
}

// `what`: the last in the state's stream.
Result<> CudaPlan::finished(CudaState& state, const std::string& what) const {
  const Status status = wait_for(device_->driver, state.stream(), state.longest);
  if (status != not_ready) return device_->check(status, what);
  state.spins_ = true;
  const unsigned processors = device_->processors_of({.pair = parts_.pair});
  return fail(
      ErrorCode::unavailable,
      fmt::format("cuda:{}: {} has not ended within {:g} s{}, and holds what it has of the device until "
                  "the server ends",
                  device_->number(), what, to_seconds(state.longest),
                  processors == 0 ? ""
                                  : fmt::format(" in a part of {} processors (--no-cuda-parts leaves the "
                                                "device whole)",
                                                processors)));
}

Result<> CudaPlan::launch_each(const Binding& binding, CudaState& state) const {
  const Device::Current current(*device_);
  if (auto prepared =
          state.prepare(address(binding.workspace), address(binding.weights), {.pair = parts_.pair});
      !prepared)
    return prepared;
  if (auto copied = copy_edges(parts_.recipe.inputs, binding, true, state.stream()); !copied) return copied;
  const auto& steps = parts_.recipe.steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto ran = state.put_step(static_cast<int>(i), state.stream(), state.part_, false);
    if (ran) ran = finished(state, steps[i].name);
    if (!ran) return ran;
  }
  return {};
}

Result<> CudaPlan::run(KernelRange range, const Binding& binding, std::span<Duration> durations,
                       StopSignal* stop, Pacer* pacer) const {
  const Device::Current current(*device_);
  std::unique_ptr<RunState> own;
  if (binding.state == nullptr) own = make_state(nullptr);
  auto& state = *static_cast<CudaState*>(binding.state == nullptr ? own.get() : binding.state);
  const Driver& driver = device_->driver;
  if (auto prepared =
          state.prepare(address(binding.workspace), address(binding.weights), {.pair = parts_.pair});
      !prepared)
    return prepared;
  if (divided() && state.lane().ends_early())
    if (auto begun = state.lane().begin(state.stream(), static_cast<std::uint32_t>(range.first)); !begun)
      return begun;
  if (stop != nullptr) stop->next = range.first;
  const auto names = [&](int segment) -> const std::string& {
    return parts_.names[static_cast<std::size_t>(std::clamp(segment, 0, kernels() - 1))];
  };
  const bool single = !durations.empty() || stop != nullptr || pacer != nullptr;
  if (pacer != nullptr) pacer->begin();
  for (int i = range.first; i < range.last; ++i) {
    const auto stopped = [&] { return stop != nullptr && stop->requested(); };
    if (stopped()) return finished(state, names(i));
    if (stop != nullptr) stop->step();
    if (auto put = enqueue(i, binding, state, !durations.empty()); !put) return put;
    if (single)
      if (auto ran = finished(state, names(i)); !ran) return ran;
    if (!durations.empty()) {
      float milliseconds = 0;
      if (auto measured =
              device_->check(driver.event_elapsed(&milliseconds, state.event(0), state.event(1)), "an event");
          !measured)
        return measured;
      durations[static_cast<std::size_t>(i)] =
          std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(milliseconds));
    }
    if (stop != nullptr) stop->next = i + 1;
    if (pacer != nullptr && i + 1 < range.last) pacer->rest(stopped);
  }
  auto ran = finished(state, names(range.last - 1));
  if (pacer != nullptr) pacer->end([] { return false; });
  return ran;
}

}  // namespace carillon::engine::cuda
