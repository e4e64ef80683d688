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
  int succeeded = 0, failed = 0, lost = 0, refused = 0;
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
    // Nothing is measured when models are compiled, which no device disturbs then.
    const auto engine = on.engine({.longest_segment = static_cast<int>(random.below(4)),
                                   .attention = seed % 2 == 0 ? engine::cuda::AttentionWay::calls
                                                              : engine::cuda::AttentionWay::kernel});
    if (!engine) {
      ++out.refused;
      return out;
    }
    SteadyClock clock;
    Results results;
    // Fewer pages than models, each of which has one: LOADs fail, and models make room for each other.
    const std::uint64_t models = 2 + random.below(2), pages = 1 + random.below(models);
    auto worker =
        make_worker({.page_cache = page_size * pages,
                     .io_cache = mib(1),
                     .workspace = mib(1),
                     .exec_threads = 1,
                     .queue = 64,
                     .max_models = 8,
                     .populate = false,
                     .spin = Duration{0},
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
        auto compiled =
            (*engine)->compile(engine::testing::MadeModel(known(kinds.back()).make), {.batch_sizes = {1, 2}});
        if (!compiled) {
          wrong("not compiled: " + compiled.error().message);
          return out;
        }
        if (auto added = (*worker)->add_model({static_cast<std::uint32_t>(i)}, *compiled); !added)
          wrong("not added: " + added.error().message);
      }
      std::vector<std::unique_ptr<Request>> requests;
      std::uint64_t next = 0;
      constexpr Window any_time{TimePoint::min(), TimePoint::max()};
      for (std::uint64_t steps = 10 + random.below(25); steps > 0; --steps) {
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
            (void)(*worker)->submit(command);
            break;
          }
        }
        if (random.below(4) == 0) results.wait_count(next);
      }
      results.wait_count(next);
      if (results.doubles() > 0) wrong("an action was answered twice");
      for (const auto& request : requests) {
        const ActionResult done = results.wait(request->id);
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
    lost += one.lost > 0 ? 1 : 0;
    refused += one.refused;
  }
  EXPECT_GT(all.succeeded, 4000);
  EXPECT_GT(lost, 20) << "devices that were lost under requests";
  EXPECT_GT(refused, 20) << "that were full from the start";
}

}  // namespace
}  // namespace carillon::worker
