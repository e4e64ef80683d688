#include "carillon/simulate/counterfactual.h"

#include <utility>
#include <variant>

#include "carillon/schedule/registry.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {
namespace {

// Gathers what is decided until the request's outcome is known.
class Watcher final : public Observer {
 public:
  explicit Watcher(RequestPlace request) : wanted_(request) {}

  void on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions,
                   TimePoint /*wake*/) override {
    if (done_) return;
    decisions.add(event, now, actions);
    if (const auto* arrived = std::get_if<schedule::RequestArrived>(&event))
      if (arrived->request.model == wanted_.model && seen_++ == wanted_.place) {
        number = arrived->request.id.value;
        const explain::RequestFacts* own = decisions.find(*number);
        for (const explain::RequestFacts& other : decisions.requests())
          ahead += own != nullptr && other.model == own->model && other.number != *number &&
                           other.outcome == explain::Outcome::open
                       ? 1
                       : 0;
      }
    if (!number) return;
    const explain::RequestFacts* found = decisions.find(*number);
    done_ = found != nullptr && found->outcome != explain::Outcome::open;
  }
  bool done() const { return done_; }

  explain::Decisions decisions;
  std::optional<std::uint64_t> number;
  int ahead = 0;

 private:
  RequestPlace wanted_;
  std::size_t seen_ = 0;
  bool done_ = false;
};

}  // namespace

Result<Fate> simulate_fate(const workload::Scenario& scenario, const schedule::Environment& environment,
                           const std::string& policy, RequestPlace request) {
  auto scheduler = schedule::make_scheduler(policy, environment);
  if (!scheduler) return std::unexpected(scheduler.error());
  Watcher watcher(request);
  // Observers are not told of models.
  for (const schedule::ModelInfo& info : model_infos(scenario))
    watcher.decisions.add(schedule::model_comes(info), TimePoint{}, {});
  Options options;
  options.observer = &watcher;
  options.progress = [&](double) { return !watcher.done(); };
  run(scenario, **scheduler, options);
  Fate fate{.policy = policy, .story = {}, .ahead = watcher.ahead};
  if (watcher.number)
    if (const explain::RequestFacts* found = watcher.decisions.find(*watcher.number))
      fate.story = watcher.decisions.story(*found);
  return fate;
}

}  // namespace carillon::simulate
