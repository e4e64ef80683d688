#include "carillon/engine/cuda/gpu/parts.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cuda/driver/bounded_wait.h"
#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/library/measured.h"
#include "carillon/engine/cuda/memory/scratch.h"
#include "carillon/engine/cuda/plan/cuda_plan.h"
#include "carillon/engine/cuda/plan/device.h"
#include "carillon/engine/cuda/table/step_table.h"

namespace carillon::engine::cuda::gpu {

// Which it sorts.
Json quantiles(std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = [&](double q) {
    return values[std::min(values.size() - 1,
                           static_cast<std::size_t>(q * static_cast<double>(values.size())))];
  };
  return {{"count", values.size()},
          {"least", values.front()},
          {"p50", at(0.5)},
          {"p99", at(0.99)},
          {"p99.99", at(0.9999)},
          {"most", values.back()},
          {"mean", std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size())}};
}

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Calls one after the other; the first that fails is told.
class Calls {
 public:
  explicit Calls(const Driver& driver) : driver_(driver) {}
  bool operator()(Status status, const char* what) {
    if (status != done && error_.empty()) {
      error_ = std::string(what) + ": " + name_of(driver_, status);
      lost_ = is_lost(status);
    }
    return status == done;
  }
  Result<> result() const {
    if (error_.empty()) return {};
    return fail(lost_ ? ErrorCode::unavailable : ErrorCode::internal, error_);
  }

 private:
  const Driver& driver_;
  std::string error_;
  bool lost_ = false;
};

// Sizes that green contexts can have, as the driver rounds what is asked for.
Json parts_of_processors(const Rig& rig, Calls& call) {
  Processors all;
  Json out{{"sizes", Json::array()}};
  if (!call(rig.driver->processors(rig.device, &all, of_processors), "cuDeviceGetDevResource")) return out;
  out["count"] = all.count;
  out["least"] = all.least;
  out["alignment"] = all.alignment;
  for (unsigned wanted = 1; wanted <= all.count; wanted += std::max(1U, all.least / 2)) {
    Processors part, rest;
    unsigned groups = 1;
    if (rig.driver->split_processors(&part, &groups, &all, &rest, 0, wanted) != done || groups != 1) continue;
    if (out["sizes"].empty() || out["sizes"].back()["got"] != part.count)
      out["sizes"].push_back(
          {{"wanted", wanted}, {"got", part.count}, {"left", rest.type == 0 ? 0U : rest.count}});
  }
  return out;
}

// The call in a part of the device, captured and launched, beside the same in all of it: the same bytes.
Result<> runs_in_a_part(const Device& device, const TrialCall& trial) {
  if (!trial.call) return std::unexpected(trial.call.error());
  if (device.splits() == nullptr) return fail(ErrorCode::unsupported, device.undivided());
  const Call& call = **trial.call;
  const Part part{.pair = 1};
  const Driver& d = device.driver;
  const Device::Current current(device);
  const CallBytes& of = trial.bytes;
  Scratch scratch(d, device.number());
  std::uint64_t all = 0;
  const auto place = [&](std::uint64_t bytes) { return std::exchange(all, all + round_up(bytes, 256)); };
  const std::uint64_t a = place(of.a), b = place(of.b), bias = place(of.bias),
                      workspace = place(call.workspace()), outs[] = {place(of.out), place(of.out)};
  Calls status(d);
  status(scratch.take(all), "memory");
  void* host = nullptr;
  status(d.host_allocate(&host, 2 * of.out, 0), "pinned memory");
  call.size_for(device.processors_of(part));
  Result<> ran = status.result();
  Stream streams[] = {nullptr, nullptr};
  if (ran) {
    status(d.stream_create(&streams[0], stream_beside_the_default, 0), "a stream");
    status(d.green_stream(&streams[1], device.splits()->context(part), stream_beside_the_default, 0),
           "a stream of a green context");
    status(fill_with_numbers(d, scratch.at(), all, streams[0]), "numbers");
    ran = status.result();
  }
  for (const std::size_t in : {0U, 1U}) {
    if (!ran) break;
    const CallPlaces places{.a = scratch.at() + a,
                            .b = scratch.at() + b,
                            .out = scratch.at() + outs[in],
                            .bias = of.bias == 0 ? 0 : scratch.at() + bias,
                            .workspace = scratch.at() + workspace,
                            .processors = in == 0 ? 0 : device.processors_of(part)};
    ran = call.enqueue(streams[in], places);
    if (ran && !status(wait_for(d, streams[in], longest_trial), "the call")) ran = status.result();
    if (ran && !status(d.capture_begin(streams[in], capture_of_this_thread), "a capture"))
      ran = status.result();
    if (!ran) break;
    ran = call.enqueue(streams[in], places);
    Graph graph = nullptr;
    GraphExec made = nullptr;
    if (status(d.capture_end(streams[in], &graph), "the end of a capture") &&
        status(d.graph_instantiate(&made, graph, 0), "a graph") &&
        status(d.graph_launch(made, streams[in]), "a graph's launch") &&
        status(wait_for(d, streams[in], longest_trial), "a graph of the call"))
      status(d.copy_out(static_cast<std::byte*>(host) + in * of.out, places.out, of.out, streams[in]),
             "a copy");
    status(d.stream_synchronize(streams[in]), "a copy");
    if (made != nullptr) (void)d.graph_exec_destroy(made);
    if (graph != nullptr) (void)d.graph_destroy(graph);
    if (ran) ran = status.result();
  }
  if (ran && std::memcmp(host, static_cast<std::byte*>(host) + of.out, of.out) != 0)
    ran = fail(ErrorCode::internal, "it gives other numbers there than in all of the device");
  for (const Stream stream : streams)
    if (stream != nullptr) (void)d.stream_destroy(stream);
  if (host != nullptr) (void)d.host_free(host);
  return ran;
}

// What runs in a part of the device.
Json division(const Rig& rig, const TrialCall& trial) {
  Device device(rig.driver, rig.device);
  const void* const image =
      rig.emulated != nullptr ? static_cast<const void*>("emulated") : kernels::fatbin().data();
  if (auto prepared = device.prepare(image, true); !prepared)
    return {{"our kernels", prepared.error().message}};
  const auto convolved = runs_in_a_part(device, trial);
  return {
      {"our kernels", device.splits() != nullptr ? "yes" : device.undivided()},
      {rig.emulated != nullptr ? "a convolution" : "cuDNN", convolved ? "yes" : convolved.error().message}};
}

// Times of pages of 16 MiB.
Json times_of_memory(const Rig& rig, Calls& call) {
  constexpr std::size_t count = 32;
  const std::uint64_t bytes = page_size.count;
  const Driver& d = *rig.driver;
  Properties properties;
  properties.location.id = rig.device;
  Access access;
  access.location.id = rig.device;
  std::size_t unit = 0;
  call(d.granularity(&unit, &properties, smallest_granularity), "cuMemGetAllocationGranularity");
  Address base = 0;
  std::vector<double> create, map, give_access, unmap;
  std::vector<Handle> handles;
  if (call(d.reserve(&base, count * bytes, 0, 0, 0), "cuMemAddressReserve")) {
    for (std::size_t i = 0; i < count; ++i) {
      Handle handle = 0;
      auto start = Clock::now();
      if (!call(d.create(&handle, bytes, &properties, 0), "cuMemCreate")) break;
      create.push_back(since(start));
      handles.push_back(handle);
      start = Clock::now();
      if (!call(d.map(base + i * bytes, bytes, 0, handle, 0), "cuMemMap")) break;
      map.push_back(since(start));
    }
    auto start = Clock::now();
    if (map.size() == count && call(d.set_access(base, count * bytes, &access, 1), "cuMemSetAccess"))
      give_access.push_back(since(start));
    for (std::size_t i = 0; i < map.size(); ++i) {
      start = Clock::now();
      call(d.unmap(base + i * bytes, bytes), "cuMemUnmap");
      unmap.push_back(since(start));
    }
    for (const Handle handle : handles) (void)d.release(handle);
    (void)d.unreserve(base, count * bytes);
  }
  Json out{{"granularity_bytes", unit}, {"page_bytes", bytes}};
  for (const auto& [name, values] :
       {std::pair("create", &create), std::pair("map", &map), std::pair("access_of_32_at_once", &give_access),
        std::pair("unmap", &unmap)})
    if (!values->empty()) out[name] = quantiles(*values);
  return out;
}

// Bytes a second of one copy of 256 MiB of pinned memory, by events.
Json rate_of_copies(const Rig& rig, Calls& call) {
  constexpr std::uint64_t bytes = std::uint64_t{256} << 20;
  const Driver& d = *rig.driver;
  auto memory = CudaMemory::make(rig.driver, rig.device, {.pages = 1, .io = {bytes}, .workspace = kib(1)});
  if (!memory) return {{"error", memory.error().message}};
  const auto device = reinterpret_cast<Address>((*memory)->io(0));
  void* host = nullptr;
  Stream stream = nullptr;
  Event from = nullptr, to = nullptr;
  Json out;
  if (call(d.host_allocate(&host, bytes, 0), "cuMemHostAlloc") &&
      call(d.stream_create(&stream, stream_beside_the_default, 0), "a stream") &&
      call(d.event_create(&from, 0), "an event") && call(d.event_create(&to, 0), "an event")) {
    std::memset(host, 1, bytes);
    for (const bool in : {true, false}) {
      std::vector<double> rates;
      for (int i = 0; i < 8; ++i) {
        float milliseconds = 0;
        call(d.event_record(from, stream), "an event");
        call(in ? d.copy_in(device, host, bytes, stream) : d.copy_out(host, device, bytes, stream), "a copy");
        call(d.event_record(to, stream), "an event");
        call(d.stream_synchronize(stream), "a copy");
        if (call(d.event_elapsed(&milliseconds, from, to), "an event") && i > 0)
          rates.push_back(static_cast<double>(bytes) / milliseconds / 1e6);
      }
      if (!rates.empty()) out[in ? "host_to_device_gb_per_s" : "device_to_host_gb_per_s"] = quantiles(rates);
    }
  }
  if (from != nullptr) (void)d.event_destroy(from);
  if (to != nullptr) (void)d.event_destroy(to);
  if (stream != nullptr) (void)d.stream_destroy(stream);
  if (host != nullptr) (void)d.host_free(host);
  return out;
}

// The CPU's answers to the same inputs.
Result<std::vector<graph::Tensor>> by_cpu(const Loaded& loaded, int batch) {
  const auto engine = make_cpu_engine({});
  auto compiled = engine->compile(loaded.model(), {.batch_sizes = {batch}});
  if (!compiled) return in_context("on the CPU", compiled.error());
  const Plan& plan =
      *(*compiled)->plan(batch, (*compiled)->lengths().empty() ? 0 : (*compiled)->lengths().back());
  const auto room = [](std::uint64_t bytes) {
    return graph::Tensor(
        {graph::DataType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(1, bytes))}});
  };
  std::vector<const std::byte*> from;
  for (const graph::Tensor& input : loaded.inputs()) from.push_back(input.bytes().data());
  std::vector<graph::Tensor> outputs;
  for (const auto& spec : plan.outputs()) outputs.emplace_back(graph::TensorType{spec.type, spec.shape});
  std::vector<std::byte*> to;
  for (graph::Tensor& output : outputs) to.push_back(output.bytes().data());
  graph::Tensor weights = room((*compiled)->weights().count), workspace = room(plan.workspace().count);
  if (auto written = (*compiled)->write_weights(0, weights.bytes().first((*compiled)->weights().count));
      !written)
    return std::unexpected(written.error());
  const auto state = plan.make_state();
  if (auto ran = plan.run({0, plan.kernels()},
                          {.inputs = from,
                           .outputs = to,
                           .workspace = workspace.bytes().data(),
                           .weights = weights.bytes().data(),
                           .state = state.get()},
                          {});
      !ran)
    return in_context("on the CPU", ran.error());
  return outputs;
}

// How far apart, of the largest element; infinity for other than equal whole numbers.
double apart(const graph::Tensor& want, const graph::Tensor& got) {
  if (want.type().type != graph::DataType::f32)
    return std::ranges::equal(want.bytes(), got.bytes()) ? 0 : INFINITY;
  double most = 1e-30, worst = 0;
  const auto a = want.as<float>(), b = got.as<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i])));
    worst = std::isfinite(b[i]) ? std::max(worst, std::abs(static_cast<double>(a[i]) - b[i])) : INFINITY;
  }
  return worst / most;
}

Json described(const Rig& rig, const std::string& file, int batch) {
  return {{"device", rig.name}, {"libraries", rig.libraries}, {"model", file}, {"batch", batch}};
}

}  // namespace

double allowed_for(Number number, bool is_emulated) {
  return number == Number::f32 || (number == Number::tf32 && is_emulated) ? 1e-4 : 3e-2;
}

TrialCall trial_of(MathLibrary& library) {
  const Convolution spec{.number = Number::f16,
                         .channels = 64,
                         .height = 14,
                         .width = 14,
                         .filters = 64,
                         .kernel_h = 3,
                         .kernel_w = 3,
                         .out_height = 14,
                         .out_width = 14,
                         .pad_top = 1,
                         .pad_left = 1,
                         .pad_bottom = 1,
                         .pad_right = 1,
                         .in_pitch = 64,
                         .out_pitch = 64};
  return {library.convolution(spec), bytes_of(spec)};
}

Result<Json> facts(const Rig& rig, const TrialCall& trial) {
  const InPrimaryContext current(*rig.driver, rig.device);
  const Driver& d = *rig.driver;
  Calls call(d);
  Json out{{"device", rig.name}, {"libraries", rig.libraries}};
  int version = 0;
  call(d.driver_version(&version), "cuDriverGetVersion");
  out["driver"] = version;
  std::size_t memory = 0;
  call(d.device_memory(&memory, rig.device), "cuDeviceTotalMem");
  out["memory_bytes"] = memory;
  for (const auto& [name, which] :
       {std::pair("compute_major", attribute_major), std::pair("compute_minor", attribute_minor),
        std::pair("processors", attribute_processors), std::pair("clock_khz", attribute_clock_khz),
        std::pair("bus_bits", attribute_bus_bits), std::pair("l2_bytes", attribute_l2_bytes)}) {
    int value = 0;
    if (call(d.device_attribute(&value, which, rig.device), name)) out[name] = value;
  }
  out["parts"] = parts_of_processors(rig, call);
  out["division"] = division(rig, trial);
  out["memory"] = times_of_memory(rig, call);
  out["copies"] = rate_of_copies(rig, call);
  if (auto done = call.result(); !done) return std::unexpected(done.error());
  return out;
}

Result<Json> agree(const Rig& rig, const std::string& file, int batch, Number number, bool cut) {
  auto loaded = Loaded::make(rig, file, batch);
  if (!loaded) return std::unexpected(loaded.error());
  const auto want = by_cpu(*loaded, batch);
  if (!want) return std::unexpected(want.error());
  const Plan& plan = loaded->plan();
  const auto start = Clock::now();
  Result<> ran;
  if (cut)
    for (int k = 0; ran && k < plan.kernels(); ++k)
      for (int again = 0; ran && again < 2; ++again) ran = plan.run({k, k + 1}, loaded->binding(), {});
  else
    ran = plan.run({0, plan.kernels()}, loaded->binding(), {});
  if (!ran) return std::unexpected(ran.error());
  const double took = since(start);
  double worst = 0;
  const auto got = loaded->outputs();
  for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, apart((*want)[i], got[i]));
  // On a GPU, tf32 rounds; here it does not.
  const double allowed = allowed_for(number, rig.emulated != nullptr);
  Json out = described(rig, file, batch);
  out["number"] = name_of(number);
  out["segments"] = plan.kernels();
  out["cut"] = cut;
  out["workspace_bytes"] = plan.workspace().count;
  out["weights_bytes"] = loaded->compiled().weights().count;
  out["took_us"] = took;
  out["apart"] = worst;
  out["allowed"] = allowed;
  out["agrees"] = worst <= allowed;
  return out;
}

Result<std::vector<double>> run_times(const Loaded& loaded, int runs) {
  const KernelRange all{0, loaded.plan().kernels()};
  std::vector<double> out;
  for (int i = -20; i < runs; ++i) {
    const auto began = Clock::now();
    if (auto ran = loaded.plan().run(all, loaded.binding(), {}); !ran) return std::unexpected(ran.error());
    if (i >= 0) out.push_back(since(began));
  }
  return out;
}

Result<Json> speed(const Rig& rig, const std::string& file, int batch, int runs) {
  auto loaded = Loaded::make(rig, file, batch);
  if (!loaded) return std::unexpected(loaded.error());
  const Plan& plan = loaded->plan();
  const KernelRange all{0, plan.kernels()};
  const auto took = run_times(*loaded, runs);
  if (!took) return std::unexpected(took.error());
  const double whole = std::accumulate(took->begin(), took->end(), 0.0);
  // Of the device alone, by events around each segment.
  std::vector<double> on_device;
  std::vector<Duration> durations(static_cast<std::size_t>(plan.kernels()));
  for (int i = 0; i < std::min(runs, 50); ++i) {
    if (auto ran = plan.run(all, loaded->binding(), durations); !ran) return std::unexpected(ran.error());
    on_device.push_back(to_seconds(std::accumulate(durations.begin(), durations.end(), Duration{0})) * 1e6);
  }
  Json out = described(rig, file, batch);
  out["segments"] = plan.kernels();
  out["run"] = quantiles(*took);
  out["on_device"] = quantiles(on_device);
  out["per_second"] = static_cast<double>(batch) * runs / whole * 1e6;
  return out;
}

Result<Json> attention(const Rig& rig, const std::string& file, int batch, Number number,
                       const std::vector<AttentionTimes>& told) {
  const auto loaded = Loaded::make(rig, file, batch);
  if (!loaded) return std::unexpected(loaded.error());
  if (told.empty()) return invalid(file + ": it has no attention that one kernel could compute");
  Json out = described(rig, file, batch);
  out["number"] = name_of(number);
  out["attentions"] = Json::array();
  for (const AttentionTimes& each : told)
    out["attentions"].push_back({{"node", each.node},
                                 {"key", each.key},
                                 {"calls_us", to_seconds(each.calls) * 1e6},
                                 {"kernel_us", to_seconds(each.kernel) * 1e6},
                                 {"taken", each.kernel < each.calls ? "kernel" : "calls"}});
  return out;
}

Result<Json> steps(const Rig& rig, const std::string& file, int batch, Number number, int runs) {
  auto loaded = Loaded::make(rig, file, batch);
  if (!loaded) return std::unexpected(loaded.error());
  const Plan& plan = loaded->plan();
  const auto count = static_cast<std::size_t>(plan.kernels());
  std::vector<std::vector<double>> took(count);
  std::vector<Duration> durations(count);
  const InPrimaryContext current(*rig.driver, rig.device);
  const auto launch = static_cast<const CudaPlan&>(plan).device().launch_time();
  if (!launch) return std::unexpected(launch.error());
  for (int i = -3; i < runs; ++i) {
    if (auto ran = plan.run({0, plan.kernels()}, loaded->binding(), durations); !ran)
      return std::unexpected(ran.error());
    for (std::size_t k = 0; i >= 0 && k < count; ++k)
      took[k].push_back(to_us(Device::without_launch(durations[k], *launch)));
  }
  Json rows = Json::array();
  for (std::size_t k = 0; k < count; ++k) {
    std::ranges::sort(took[k]);
    rows.push_back({{"step", plan.kernel_name(static_cast<int>(k))}, {"us", took[k][took[k].size() / 2]}});
  }
  const auto lengths = loaded->compiled().lengths();
  int processors = 0;
  std::size_t memory = 0;
  Calls call(*rig.driver);
  call(rig.driver->device_attribute(&processors, attribute_processors, rig.device), "its processors");
  call(rig.driver->device_memory(&memory, rig.device), "its memory");
  if (auto done = call.result(); !done) return std::unexpected(done.error());
  return Json{{"device", rig.name},
              {"made_by", "carillon_gpu steps, " + rig.libraries},
              {"processors", processors},
              {"memory_bytes", memory},
              {"plans", Json::array({{{"model", model_of_file(file)},
                                      {"number", name_of(number)},
                                      {"batch", batch},
                                      {"length", lengths.empty() ? 0 : lengths.back()},
                                      {"steps", std::move(rows)}}})}};
}

Result<Json> load(const Rig& rig, const std::string& file, int times) {
  auto loaded = Loaded::make(rig, file, 1);
  if (!loaded) return std::unexpected(loaded.error());
  const std::uint64_t bytes = loaded->compiled().weights().count;
  if (bytes == 0) return invalid(file + ": it has no weights");
  std::vector<std::byte> written;
  const auto weights = weights_of(loaded->compiled(), written);
  if (!weights) return std::unexpected(weights.error());
  std::vector<double> rates;
  for (int i = 0; i < times; ++i) {
    const auto start = Clock::now();
    loaded->memory().copy_in(loaded->range().data, *weights);
    rates.push_back(static_cast<double>(bytes) / since(start) / 1e3);
  }
  // Runs by themselves, and while the weights come again and again to where they are not read.
  std::vector<double> runs[2];
  const Plan& plan = loaded->plan();
  auto elsewhere = CudaMemory::make(rig.driver, rig.device, {.pages = 1, .io = {bytes}, .workspace = kib(1)});
  if (!elsewhere) return std::unexpected(elsewhere.error());
  for (const bool beside : {false, true}) {
    std::atomic<bool> over{false};
    std::thread copies([&] {
      while (beside && !over) (*elsewhere)->copy_in((*elsewhere)->io(0), *weights);
    });
    Result<> ran;
    for (int i = -5; ran && i < 10 * times; ++i) {
      const auto start = Clock::now();
      ran = plan.run({0, plan.kernels()}, loaded->binding(), {});
      if (i >= 0) runs[beside ? 1 : 0].push_back(since(start));
    }
    over = true;
    copies.join();
    if (!ran) return std::unexpected(ran.error());
  }
  const InPrimaryContext current(*rig.driver, rig.device);
  Calls call(*rig.driver);
  Json out = described(rig, file, 1);
  out["run_us"] = quantiles(runs[0]);
  out["run_beside_loads_us"] = quantiles(runs[1]);
  out["bytes"] = bytes;
  out["pinned"] = written.empty();
  out["load_gb_per_s"] = quantiles(rates);
  out["bus"] = rate_of_copies(rig, call);
  if (auto done = call.result(); !done) return std::unexpected(done.error());
  return out;
}

}  // namespace carillon::engine::cuda::gpu
