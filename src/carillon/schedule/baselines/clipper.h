#pragma once

#include <algorithm>
#include <vector>

#include "carillon/schedule/central.h"

namespace carillon::schedule::baselines {

// Clipper's adaptive batching (NSDI 2017, section 4.3): each model has a largest batch size that grows by one
// with every full batch whose execution stays within the latency objective (here the SLO), and shrinks by a
// tenth where one does not. Deadlines order nothing: a device that falls idle takes the model whose oldest
// request has waited longest, with as many of its requests as are allowed. A request is answered by its
// deadline or not at all: one whose deadline has passed is dropped, as Clipper answers then without it; a
// batch that can only end late still runs. A batch costs O(log models) where all models are loaded
// everywhere.
class Clipper final : public Queued {
 public:
  explicit Clipper(const Environment& environment) : Queued(environment) {}
  std::string_view name() const override { return "clipper"; }
  // The largest batch that the model is given now.
  int limit(ModelId model) const { return static_cast<int>(limits_[model.index()]); }

 protected:
  void add_model(const ModelInfo& model) override {
    Queued::add_model(model);
    limits_.resize(std::max(limits_.size(), model.id.index() + 1));
    limits_[model.id.index()] = 1;
  }
  void step(TimePoint now, Actions& out) override;
  void reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint now) override;

 private:
  std::vector<double> limits_;
};

}  // namespace carillon::schedule::baselines
