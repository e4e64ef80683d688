#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::schedule {

// Whether the devices are enough for all that is asked for, and which models lose more than others. While
// they are enough nobody need lose, and a model that does is owed its turn, however long its batches take;
// under overload somebody must, and nobody is owed anything.
//
// What a model needs is what batches take that its rate and deadlines allow together. A pure object, not
// thread-safe.
class FairShare {
 public:
  // The devices that a model needs for `rate` requests a second, each due `slo` after it came.
  using Needs = std::function<double(ModelId model, double rate, Duration slo)>;

  // Rates are averaged over `window`, above 0.
  FairShare(Duration window, Needs needs) : window_(window), needs_(std::move(needs)) {}

  void add_model() { models_.emplace_back(); }
  // A request came, due `slo` after; `devices` are alive. O(1), and a few times a window O(models) times what
  // needs() takes.
  void asked(ModelId model, Duration slo, std::size_t devices, TimePoint now);
  // A request was answered, or lost: refused for want of time.
  void answered(ModelId model) { count(model, 1); }
  void lost(ModelId model) { count(model, 0); }

  // Of all that was asked for lately; false until that is known.
  bool enough() const { return enough_; }
  // The devices are enough, and the model lost a larger share of its last requests (some 128) than the other.
  bool owed(ModelId model, ModelId other) const {
    return enough_ && models_[model.index()].served < models_[other.index()].served;
  }

 private:
  struct Model {
    double asked = 0, slos = 0;  // since the last renewal: requests, and the sum of their SLOs in seconds
    double rate = 0;
    Duration slo{0};
    double served = 1;  // share of requests, lately
  };
  void count(ModelId model, double answered);
  void renew(std::size_t devices, TimePoint now);

  Duration window_;
  Needs needs_;
  TimePoint renewed_ = TimePoint::min();
  bool known_ = false;  // rates
  bool enough_ = false;
  std::vector<Model> models_;
};

}  // namespace carillon::schedule
