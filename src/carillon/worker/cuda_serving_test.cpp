// A worker that serves from an emulated CUDA device, on which whatever a GPU would not forgive is found.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cuda/testing/networks.h"
#include "carillon/engine/cuda/testing/on_emulated.h"
#include "carillon/worker/fake_model.h"

namespace carillon::worker {
namespace {

using engine::cuda::testing::OnEmulated;
using schedule::ActionStatus;
using testing::Results;
namespace networks = engine::cuda::testing::networks;

constexpr int most_rows = 2;

// A network, inputs for it, and what plain kernels make of them: once, for all seeds.
struct Known {
  networks::Make make;
  engine::testing::Buffers inputs;
  engine::testing::Buffers outputs;
};
const Known& known(std::size_t which) {
  static std::map<std::size_t, Known> all;
  if (const auto found = all.find(which); found != all.end()) return found->second;
  const networks::Make makes[] = {networks::layers,   networks::residual, networks::dense_block,
                                  networks::inverted, networks::encoder,  networks::views};
  Known made{.make = makes[which], .inputs = {}, .outputs = {}};
  const auto graph = made.make(most_rows);
  made.inputs = engine::testing::random_inputs(graph, 11);
  made.outputs = engine::testing::reference(graph, made.inputs);
  return all.emplace(which, std::move(made)).first->second;
}

// One request's rows, as a frontend holds them.
struct Request {
  std::size_t model = 0;
  ActionId id;
  int rows = 0;
  std::vector<std::vector<std::vector<std::byte>>> outputs;  // by row and output
  std::array<std::vector<const std::byte*>, most_rows> in;
  std::array<std::vector<std::byte*>, most_rows> out;

  Request(std::size_t which, ActionId action, int batch)
      : model(which), id(action), rows(batch), outputs(most_rows) {
    const Known& of = known(which);
    for (int row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row);
      for (const auto& input : of.inputs)
        in[at].push_back(input->bytes().data() + at * input->bytes().size() / most_rows);
      for (const auto& output : of.outputs) outputs[at].emplace_back(output->bytes().size() / most_rows);
      for (auto& output : outputs[at]) out[at].push_back(output.data());
    }
  }
  InferCommand command() const {
    InferCommand made{.id = id, .model = {}, .window = {TimePoint::min(), TimePoint::max()}, .batch = rows};
    for (int row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row);
      made.rows[at] = {in[at], out[at]};
    }
    return made;
  }
  // How far the rows are from plain kernels' answers, of the largest element.
  double apart() const {
    double worst = 0;
    const Known& of = known(model);
    for (std::size_t i = 0; i < of.outputs.size(); ++i) {
      std::vector<std::byte> whole(of.outputs[i]->bytes().begin(), of.outputs[i]->bytes().end());
      for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
        std::ranges::copy(outputs[row][i],
                          whole.begin() + static_cast<std::ptrdiff_t>(row * outputs[row][i].size()));
      worst = std::max(worst, networks::apart(*of.outputs[i], whole));
    }
    return worst;
  }
};

enum class Plan { whole, lost, full, slow };

struct Outcome {
  int succeeded = 0, failed = 0, lost = 0, refused = 0, preempted = 0;
  std::vector<std::string> wrong;
};

Outcome serve(std::uint64_t seed, Plan plan) {
  Random random(seed);
  Outcome out;
  const auto wrong = [&](std::string what) { out.wrong.push_back(std::move(what)); };
  engine::cuda::EmulatedOptions options{.memory = gib(1).count};
  if (plan == Plan::lost) options.lose_after = 1 + random.below(300);
  if (plan == Plan::full) options.fail_create = 1 + random.below(12);
  if (plan == Plan::slow) options.slow_copies = 1000;
  OnEmulated on(options);
  {
    // No attention is measured when models are compiled, which no device disturbs then.
    const auto engine = on.engine({.longest_segment = static_cast<int>(random.below(4)),
                                   .bound = std::chrono::microseconds{1 + random.below(40)},
                                   .longest_kernel = std::chrono::seconds{1},  // copies are slow in some
                                   .gate = random.below(2) == 0 ? "gate" : nullptr,
                                   .attention = seed % 2 == 0 ? engine::cuda::AttentionWay::calls
                                                              : engine::cuda::AttentionWay::kernel});
    if (!engine) {
      ++out.refused;
      return out;
    }
    SteadyClock clock;
    Results results;
    // Fewer pages than models, each of which has one: LOADs fail, and models make room for each other.
    std::uint64_t models = 2 + random.below(2);
    const std::uint64_t pages = 1 + random.below(models);
    // One stream for all, or one of each class; whoever makes way does so in one of these ways.
    std::optional<device::ClassStreams> classes;
    constexpr device::Yielding ways[] = {device::Yielding::inside, device::Yielding::boundaries,
                                         device::Yielding::none, device::Yielding::turns};
    if (random.below(3) > 0) classes = {.yielding = ways[random.below(4)], .units = 2, .best_effort = 1};
    auto worker =
        make_worker({.page_cache = page_size * pages,
                     .io_cache = mib(1),
                     .workspace = mib(1),
                     .exec_threads = 2,
                     .queue = 64,
                     .max_models = 8,
                     .populate = false,
                     .classes = classes,
                     .best_effort_idle = false,
                     .make_team = [&](const engine::TeamOptions& of) { return (*engine)->make_team(of); },
                     .make_stream =
                         [&](const engine::StreamOptions& of) { return (*engine)->make_stream(of); },
                     .make_memory = [&](std::uint64_t count, Bytes io,
                                        Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
                       return engine::cuda::CudaMemory::make(
                           on.driver(), 0, {.pages = count, .io = io, .workspace = workspace});
                     }},
                    clock, results);
    if (!worker) {
      ++out.refused;
      if (plan != Plan::full && plan != Plan::lost) wrong("no worker: " + worker.error().message);
    } else {
      std::vector<std::size_t> kinds;
      for (std::uint64_t i = 0; i < models; ++i) {
        kinds.push_back(random.below(6));
        engine::CompileOptions wanted{.batch_sizes = {1, 2}};
        // Measured, which takes the host long.
        if (random.below(8) == 0 && plan != Plan::lost) wanted.stop_cost = 0.02;
        if (random.below(8) == 0 && plan != Plan::lost) wanted.room_cost = 0.02;
        auto compiled = (*engine)->compile(engine::testing::MadeModel(known(kinds.back()).make), wanted);
        if (!compiled) {  // what is measured may lose the device, too
          ++out.refused;
          if (plan != Plan::lost) wrong("not compiled: " + compiled.error().message);
          models = i;
          break;
        }
        if (auto added = (*worker)->add_model({static_cast<std::uint32_t>(i)}, *compiled); !added)
          wrong("not added: " + added.error().message);
      }
      std::vector<std::unique_ptr<Request>> requests;
      std::uint64_t next = 0;
      constexpr Window any_time{TimePoint::min(), TimePoint::max()};
      for (std::uint64_t steps = 10 + random.below(25); steps > 0 && models > 0; --steps) {
        const ModelId model{static_cast<std::uint32_t>(random.below(models))};
        const ActionId id{next++};
        switch (random.below(8)) {
          case 0:
            (void)(*worker)->submit(UnloadCommand{id, model});
            break;
          case 1:
          case 2:
            (void)(*worker)->submit(LoadCommand{id, model, any_time});
            break;
          default: {
            requests.push_back(
                std::make_unique<Request>(kinds[model.index()], id, 1 + static_cast<int>(random.below(2))));
            InferCommand command = requests.back()->command();
            command.model = model;
            command.cls = static_cast<Class>(random.below(3));
            (void)(*worker)->submit(command);
            if (random.below(4) == 0) (*worker)->preempt(id, TimePoint::max());
            break;
          }
        }
        if (random.below(4) == 0) results.wait_count(next);
      }
      results.wait_count(next);
      if (results.doubles() > 0) wrong("an action was answered twice");
      for (const auto& request : requests) {
        const ActionResult done = results.wait(request->id);
        out.preempted += done.times.preemptions > 0 ? 1 : 0;
        if (done.status == ActionStatus::success) {
          ++out.succeeded;
          if (const double apart = request->apart(); apart > 1e-4 && plan != Plan::lost)
            wrong("outputs are " + std::to_string(apart) + " from what they should be");
        }
        if (done.status != ActionStatus::failed) continue;
        ++out.failed;
        if (done.device_lost) ++out.lost;
        if (plan != Plan::lost && plan != Plan::full) wrong("failed: " + done.error);
        if (plan == Plan::lost && !done.device_lost) wrong("not told that the device is lost: " + done.error);
      }
    }
  }
  for (const std::string& violation : on.device().violations()) wrong(violation);
  if (const std::string left = on.device().left_behind(); !left.empty()) wrong("left behind: " + left);
  return out;
}

TEST(CudaServing, BreaksNoRuleOfTheDevice) {
  Outcome all;
  int lost = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const Plan plan = seed % 10 == 7   ? Plan::lost
                      : seed % 10 == 8 ? Plan::full
                      : seed % 10 == 9 ? Plan::slow
                                       : Plan::whole;
    const Outcome one = serve(seed, plan);
    ASSERT_THAT(one.wrong, ::testing::IsEmpty()) << "seed " << seed;
    all.succeeded += one.succeeded;
    all.preempted += one.preempted;
    lost += one.lost > 0 ? 1 : 0;
    refused += one.refused;
  }
  EXPECT_GT(all.succeeded, 4000);
  EXPECT_GT(lost, 20) << "devices that were lost under requests";
  EXPECT_GT(refused, 20) << "that were full from the start";
  EXPECT_GT(all.preempted, 100) << "runs that made way";
}

// Best-effort runs of one model without an end, and real-time runs of another that leave room, or do not.
struct Beside {
  int padded = 0, preempted = 0;
  std::vector<std::string> wrong;
};
Beside beside(std::uint64_t seed, bool room) {
  Random random(seed);
  Beside out;
  OnEmulated on({.memory = gib(1).count});
  {
    const auto engine = on.engine({.bound = std::chrono::microseconds{4 + random.below(20)},
                                   .gate = seed % 2 == 0 ? "gate" : nullptr});
    SteadyClock clock;
    Results results;
    auto worker = make_worker(
        {.page_cache = page_size * 2,
         .io_cache = mib(1),
         .workspace = mib(1),
         .exec_threads = 2,
         .queue = 256,
         .max_models = 2,
         .populate = false,
         .classes = device::ClassStreams{.units = 2, .best_effort = 1},
         .best_effort_idle = false,
         .make_team = [&](const engine::TeamOptions& of) { return (*engine)->make_team(of); },
         .make_stream = [&](const engine::StreamOptions& of) { return (*engine)->make_stream(of); },
         .make_memory = [&](std::uint64_t count, Bytes io,
                            Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
           return engine::cuda::CudaMemory::make(on.driver(), 0,
                                                 {.pages = count, .io = io, .workspace = workspace});
         }},
        clock, results);
    const std::size_t kinds[] = {4, 1};  // an encoder, best effort, and a residual network
    for (std::uint32_t i = 0; i < 2; ++i) {
      engine::CompileOptions wanted{.batch_sizes = {1, 2}};
      if (i == 0) wanted.stop_cost = 0.02;
      if (i == 1 && room) wanted.room_cost = 0.02;
      const auto compiled = (*engine)->compile(engine::testing::MadeModel(known(kinds[i]).make), wanted);
      if (!compiled || !(*worker)->add_model({i}, *compiled)) {
        out.wrong.emplace_back("not compiled, or not added");
        return out;
      }
      (void)(*worker)->submit(LoadCommand{{i}, {i}, {TimePoint::min(), TimePoint::max()}});
    }
    results.wait_count(2);
    std::vector<std::unique_ptr<Request>> requests;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const std::uint32_t model = random.below(3) == 0 ? 1 : 0;
      requests.push_back(
          std::make_unique<Request>(kinds[model], ActionId{2 + i}, 1 + static_cast<int>(random.below(2))));
      InferCommand command = requests.back()->command();
      command.model = {model};
      command.cls = model == 1 ? Class::real_time : Class::best_effort;
      (void)(*worker)->submit(command);
      if (random.below(3) == 0) results.wait(requests[random.below(requests.size())]->id);
    }
    for (const auto& request : requests) {
      const ActionResult done = results.wait(request->id);
      if (done.status != ActionStatus::success) out.wrong.push_back("failed: " + done.error);
      if (const double apart = request->apart(); apart > 1e-4)
        out.wrong.push_back("outputs are " + std::to_string(apart) + " from what they should be");
      out.padded += done.times.padded > Duration{0} ? 1 : 0;
      out.preempted += done.times.preemptions;
    }
    if (results.doubles() > 0) out.wrong.emplace_back("an action was answered twice");
  }
  for (const std::string& violation : on.device().violations()) out.wrong.push_back(violation);
  if (const std::string left = on.device().left_behind(); !left.empty()) out.wrong.push_back(left);
  return out;
}

TEST(CudaServing, RealTimeRunsLeaveRoomForBestEffort) {
  for (const bool room : {false, true}) {
    SCOPED_TRACE(room);
    Beside all;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const Beside one = beside(seed, room);
      ASSERT_THAT(one.wrong, ::testing::IsEmpty()) << "seed " << seed;
      all.padded += one.padded;
      all.preempted += one.preempted;
    }
    // With room nobody makes way; without, nobody goes on beside.
    EXPECT_EQ(all.preempted > 0, !room) << all.preempted;
    EXPECT_EQ(all.padded > 20, room) << all.padded;
  }
}

}  // namespace
}  // namespace carillon::worker
