// A worker that serves from an emulated CUDA device, on which whatever a GPU would not forgive is found.
#include <algorithm>
#include <array>
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

engine::cuda::EmulatedOptions options_of(Plan plan, Random& random) {
  engine::cuda::EmulatedOptions options{.memory = gib(1).count};
  if (plan == Plan::lost) options.lose_after = 1 + random.below(300);
  if (plan == Plan::full) options.fail_create = 1 + random.below(12);
  if (plan == Plan::slow) options.slow_copies = 1000;
  return options;
}

struct Outcome {
  int succeeded = 0, failed = 0, lost = 0, refused = 0, preempted = 0;
  std::vector<std::string> wrong;
};

// One device's engine and worker, and what was asked of it.
class Serving {
 public:
  Serving(OnEmulated& on, engine::cuda::DeviceNumber device, Plan plan, Random& random)
      : on_(on), device_(device), plan_(plan) {
    // No attention is measured when models are compiled, which no device disturbs then.
    auto engine = on.engine({.longest_segment = static_cast<int>(random.below(4)),
                             .bound = std::chrono::microseconds{1 + random.below(40)},
                             // Copies are slow in some, and so is a machine that others use.
                             .longest_kernel = std::chrono::hours{1},
                             .flag = random.below(2) == 0,
                             .longest_wait = Duration{0},
                             .attention = random.below(2) == 0 ? engine::cuda::AttentionWay::calls
                                                               : engine::cuda::AttentionWay::kernel},
                            device);
    if (!engine) {
      ++out.refused;
      return;
    }
    engine_ = std::move(*engine);
    // Fewer pages than models, each of which has one: LOADs fail, and models make room for each other.
    models_ = 2 + random.below(2);
    const std::uint64_t pages = 1 + random.below(models_);
    // One stream for all, or one of each class; whoever makes way does so in one of these ways.
    std::optional<device::ClassStreams> classes;
    constexpr device::Yielding ways[] = {device::Yielding::inside, device::Yielding::boundaries,
                                         device::Yielding::none, device::Yielding::turns};
    if (random.below(3) > 0) classes = {.yielding = ways[random.below(4)], .units = 2, .best_effort = 1};
    auto worker = make_worker(
        {.page_cache = page_size * pages,
         .io_cache = mib(1),
         .workspace = mib(1),
         .exec_threads = 2,
         .queue = 64,
         .max_models = 8,
         .populate = false,
         .classes = classes,
         .best_effort_idle = false,
         .make_team = [this](const engine::TeamOptions& of) { return engine_->make_team(of); },
         .make_stream = [this](const engine::StreamOptions& of) { return engine_->make_stream(of); },
         .make_memory = [this](std::uint64_t count, Bytes io,
                               Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
           return engine::cuda::CudaMemory::make(on_.driver(), device_,
                                                 {.pages = count, .io = io, .workspace = workspace});
         }},
        clock_, results_);
    if (!worker) {
      ++out.refused;
      if (plan != Plan::full && plan != Plan::lost) wrong("no worker: " + worker.error().message);
      return;
    }
    for (std::uint64_t i = 0; i < models_; ++i) {
      kinds_.push_back(random.below(6));
      engine::CompileOptions wanted{.batch_sizes = {1, 2}};
      // Measured, which takes the host long, and may lose the device.
      if (random.below(8) == 0 && plan != Plan::lost) wanted.stop_cost = 0.02;
      if (random.below(8) == 0 && plan != Plan::lost) wanted.room_cost = 0.02;
      auto compiled = engine_->compile(engine::testing::MadeModel(known(kinds_.back()).make), wanted);
      if (!compiled) {
        wrong("not compiled: " + compiled.error().message);
        return;
      }
      if (auto added = (*worker)->add_model({static_cast<std::uint32_t>(i)}, *compiled); !added)
        wrong("not added: " + added.error().message);
    }
    worker_ = std::move(*worker);
  }

  bool serves() const { return worker_ != nullptr; }
  void submit_some(Random& random) {
    constexpr Window any_time{TimePoint::min(), TimePoint::max()};
    const ModelId model{static_cast<std::uint32_t>(random.below(models_))};
    const ActionId id{next_++};
    switch (random.below(8)) {
      case 0:
        (void)worker_->submit(UnloadCommand{id, model});
        break;
      case 1:
      case 2:
        (void)worker_->submit(LoadCommand{id, model, any_time});
        break;
      default: {
        requests_.push_back(
            std::make_unique<Request>(kinds_[model.index()], id, 1 + static_cast<int>(random.below(2))));
        InferCommand command = requests_.back()->command();
        command.model = model;
        command.cls = static_cast<Class>(random.below(3));
        (void)worker_->submit(command);
        if (random.below(4) == 0) worker_->preempt(id, TimePoint::max());
        break;
      }
    }
    if (random.below(4) == 0) results_.wait_count(next_);
  }
  // Each was answered, once, and right.
  void finish() {
    results_.wait_count(next_);
    if (results_.doubles() > 0) wrong("an action was answered twice");
    for (const auto& request : requests_) {
      const ActionResult done = results_.wait(request->id);
      out.preempted += done.times.preemptions > 0 ? 1 : 0;
      if (done.status == ActionStatus::success) {
        ++out.succeeded;
        if (const double apart = request->apart(); apart > 1e-4)
          wrong("outputs are " + std::to_string(apart) + " from what they should be");
      }
      if (done.status != ActionStatus::failed) continue;
      ++out.failed;
      if (done.device_lost) ++out.lost;
      if (plan_ != Plan::lost && plan_ != Plan::full) wrong("failed: " + done.error);
      if (plan_ == Plan::lost && !done.device_lost) wrong("not told that the device is lost: " + done.error);
    }
    if (plan_ == Plan::lost && out.lost > 0 && engine_->probe())
      wrong("a device that is lost was found well");
    if (plan_ == Plan::whole)
      if (const auto probed = engine_->probe(); !probed) wrong("not well: " + probed.error().message);
  }

  Outcome out;

 private:
  void wrong(const std::string& what) {
    out.wrong.push_back("device " + std::to_string(device_) + ": " + what);
  }

  OnEmulated& on_;
  const engine::cuda::DeviceNumber device_;
  const Plan plan_;
  SteadyClock clock_;
  Results results_;
  std::uint64_t models_ = 0, next_ = 0;
  std::vector<std::size_t> kinds_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Worker> worker_;
};

// A device for each of `plans`, behind one driver, each with a worker of its own; what each of them did, with
// what the driver found wrong under the first.
std::vector<Outcome> serve(std::uint64_t seed, const std::vector<Plan>& plans) {
  Random random(seed);
  std::vector<Outcome> out;
  OnEmulated on({.devices = 0});
  for (const Plan plan : plans) on.device().add_device(options_of(plan, random));
  {
    std::vector<std::unique_ptr<Serving>> all;
    for (std::size_t i = 0; i < plans.size(); ++i)
      all.push_back(
          std::make_unique<Serving>(on, static_cast<engine::cuda::DeviceNumber>(i), plans[i], random));
    for (std::uint64_t steps = (10 + random.below(25)) * plans.size(); steps > 0; --steps)
      if (Serving& one = *all[random.below(all.size())]; one.serves()) one.submit_some(random);
    for (const auto& each : all) {
      if (each->serves()) each->finish();
      out.push_back(each->out);
    }
  }
  for (const std::string& violation : on.device().violations()) out.front().wrong.push_back(violation);
  if (const std::string left = on.device().left_behind(); !left.empty())
    out.front().wrong.push_back("left behind: " + left);
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
    const Outcome one = serve(seed, {plan}).front();
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

// Two devices of one driver at the same time: neither has to do with the other, whatever becomes of it.
TEST(CudaServing, TwoDevicesServeBesideEachOther) {
  int lost = 0, beside = 0;
  std::array<int, 2> succeeded{};
  // Whether a device is lost under requests is a matter of threads: more seeds where they were few.
  for (std::uint64_t seed = 0; seed < 200 || (lost <= 30 && seed < 600); ++seed) {
    const bool first = seed % 2 == 0;  // is the one that something happens to
    const Plan plan = seed % 5 < 3 ? Plan::lost : seed % 5 == 3 ? Plan::full : Plan::slow;
    const auto two =
        serve(seed, first ? std::vector<Plan>{plan, Plan::whole} : std::vector<Plan>{Plan::whole, plan});
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_THAT(two[i].wrong, ::testing::IsEmpty()) << "seed " << seed;
      succeeded[i] += two[i].succeeded;
    }
    if (two[first ? 0 : 1].lost == 0) continue;
    ++lost;
    beside += two[first ? 1 : 0].succeeded;
    EXPECT_EQ(two[first ? 1 : 0].failed, 0) << "seed " << seed;
  }
  EXPECT_GT(succeeded[0], 500);
  EXPECT_GT(succeeded[1], 500);
  EXPECT_GT(lost, 30) << "devices that were lost under requests";
  EXPECT_GT(beside, 150) << "requests that the other had meanwhile";
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
                                   .longest_kernel = std::chrono::hours{1},
                                   .flag = random.below(2) == 0,
                                   .longest_wait = Duration{0}});
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
        out.wrong.push_back("outputs of network " + std::to_string(request->model) + ", " +
                            std::to_string(request->rows) + " rows, are " + std::to_string(apart) +
                            " from what they should be" +
                            (done.times.padded > Duration{0} ? ", padded" : ""));
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
    // With room nobody makes way, and goes on beside.
    EXPECT_EQ(all.preempted > 0, !room) << all.preempted;
    if (room) {
      EXPECT_GT(all.padded, 20);
    }
  }
}

}  // namespace
}  // namespace carillon::worker
