#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/schedule/central.h"

namespace carillon::schedule::baselines {

// Shepherd's Flex scheduling (NSDI 2023) as Symphony, section 2.2, describes it: each model has one
// candidate, the largest batch that ends by its head's deadline; a free device takes the largest of all
// candidates at once; and where no device is free, a candidate at least `preempt` times as large as a batch
// that runs stops that batch, whose work is lost and whose requests wait again. A request costs O(log
// models), a batch that times the models that have more requests than the largest candidate, but not the
// time.
class Shepherd final : public Queued {
 public:
  explicit Shepherd(const Environment& environment, double preempt = 3.03)
      : Queued(environment), preempt_(preempt) {}
  std::string_view name() const override { return "shepherd"; }

 protected:
  void add_model(const ModelInfo& model) override {
    Queued::add_model(model);
    if (model.id.index() == order_.size()) order_.push_back({});
  }
  void arrived(ModelId model) override { arrived_ = model; }
  void step(TimePoint now, Actions& out) override;
  void reported(const Fleet::Flight& flight, const ActionDone&, TimePoint) override {
    running_.erase({static_cast<std::size_t>(flight.batch), flight.id});
  }
  void flights_changed() override {
    std::erase_if(running_, [this](const auto& entry) { return !fleet_.current(entry.second); });
  }

 private:
  // Models with requests: those that could fill the largest batch first, the nearest deadline first.
  struct Order {
    int size = 0;  // negative; 0: it has none
    TimePoint deadline;
    ModelId model;
    friend auto operator<=>(const Order&, const Order&) = default;
  };
  void queue_changed(ModelId model) override;
  // The place of the candidate's batch size if it starts at `start`; drops heads that can never be on time.
  // -1: none.
  int candidate(ModelId model, TimePoint start, TimePoint now, Actions& out);

  double preempt_;
  std::set<Order> by_size_;
  std::vector<Order> order_;                            // by model: as listed there
  std::set<std::pair<std::size_t, ActionId>> running_;  // batches that may be stopped, the smallest first
  std::optional<ModelId> arrived_;                      // since the last step
};

}  // namespace carillon::schedule::baselines
