#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/orloj/orloj.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {
namespace {

using schedule::Orloj;
using schedule::OrlojOptions;

// What single requests of 30 and 90 ms and their batches take, on one device that is three quarters busy.
workload::Scenario two_modes(Duration c0, double c1) {
  workload::Scenario s;
  s.name = "two-modes";
  s.devices = 1;
  s.duration = 400s;
  s.rate = 16;
  workload::ScenarioModel m{.name = "m", .slo = 300ms, .batch_sizes = {1, 2, 4, 8, 16}};
  m.max_batch = 16;
  m.latency.modes = {{.mean = 30ms, .deviation = 5ms, .weight = 1, .app = "a"},
                     {.mean = 90ms, .deviation = 5ms, .weight = 1, .app = "b"}};
  m.latency.c0 = c0;
  m.latency.c1 = c1;
  s.models.push_back(std::move(m));
  return s;
}

// An Orloj whose seeds are those of another world.
class Misled final : public schedule::Scheduler {
 public:
  Misled(const workload::Scenario& world, const workload::Scenario& told, const OrlojOptions& options)
      : Misled(std::make_unique<Orloj>(simulate::environment(world), options), told) {}
  std::string_view name() const override { return orloj_.name(); }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    const auto* model = std::get_if<schedule::ModelChanged>(&event);
    return ledgered_.decide(model == nullptr ? event : schedule::model_comes(told_[model->model.index()]),
                            now, out);
  }
  double expected(int size) const { return to_ms(orloj_.expected_batch(ModelId{0}, AppId{2}, size)); }

 private:
  Misled(std::unique_ptr<Orloj> orloj, const workload::Scenario& told)
      : orloj_(*orloj), ledgered_(std::move(orloj)), told_(model_infos(told)) {}

  const Orloj& orloj_;
  schedule::Ledgered ledgered_;
  std::vector<schedule::ModelInfo> told_;
};

// The finish rate from `from` on.
double finish_rate(const workload::Scenario& world, schedule::Scheduler& scheduler, Duration from) {
  const Figures figures = run(world, scheduler, {.interval = 10s});
  double offered = 0, on_time = 0;
  for (std::size_t i = static_cast<std::size_t>(from / 10s); i < figures.intervals.size(); ++i) {
    offered += static_cast<double>(figures.intervals[i].offered);
    on_time += static_cast<double>(figures.intervals[i].on_time);
  }
  return on_time / offered;
}

TEST(Orloj, LearnsAWorldWhoseSeedsWereWrong) {
  const auto world = two_modes(40ms, 0.4);
  for (const auto& [c0, c1] : {std::pair(Duration{20ms}, 0.2), {80ms, 0.8}, {20ms, 0.8}, {80ms, 0.2}}) {
    Misled right(world, world, {}), misled(world, two_modes(c0, c1), {});
    // Some ten batches a second, so that 40 seconds are some hundred.
    const double best = finish_rate(world, right, 40s);
    const double learned = finish_rate(world, misled, 40s);
    EXPECT_GT(learned, best - 0.005) << to_ms(c0) << " " << c1;
    for (const int size : {1, 2, 4, 8})
      EXPECT_NEAR(misled.expected(size), right.expected(size), 0.06 * right.expected(size)) << size;
  }
}

}  // namespace
}  // namespace carillon::simulate
