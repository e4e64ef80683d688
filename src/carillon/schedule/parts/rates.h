#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::schedule::parts {

// Arrivals a second by model, over two windows: each arrival counts less the longer it is ago, as e to the
// power of -age / window. O(1). Not thread-safe.
class Rates {
 public:
  static constexpr double brief_window = 0.2, long_window = 10;  // seconds

  void arrived(ModelId model, TimePoint now) {
    if (model.index() >= models_.size()) models_.resize(model.index() + 1);
    Model& m = models_[model.index()];
    m.brief = 1 + m.brief * keep(m, now, brief_window);
    m.lasting = 1 + m.lasting * keep(m, now, long_window);
    if (m.first == TimePoint::max()) m.first = now;
    m.seen = now;
  }
  // Over the brief window.
  double brief(ModelId model, TimePoint now) const {
    return model.index() < models_.size() ? brief(models_[model.index()], now) / brief_window : 0;
  }
  // Over the long window, or since the model's first arrival where that is less.
  double lasting(ModelId model, TimePoint now) const {
    if (model.index() >= models_.size()) return 0;
    const Model& m = models_[model.index()];
    if (m.first == TimePoint::max()) return 0;
    const double since = std::max(brief_window, to_seconds(now - m.first));
    return m.lasting * keep(m, now, long_window) / (long_window * (1 - std::exp(-since / long_window)));
  }
  // That of the long window, as far as the brief one does not contradict.
  double rate(ModelId model, TimePoint now) const {
    if (model.index() >= models_.size()) return 0;
    const double count = brief(models_[model.index()], now);
    // So many standard deviations of a count that is near to Poisson's.
    const double chance = deviations * std::sqrt(count / 2 + 1);
    return std::clamp(lasting(model, now), (count - chance) / brief_window, (count + chance) / brief_window);
  }

 private:
  static constexpr double deviations = 2;
  struct Model {
    double brief = 0, lasting = 0;  // counts, as of `seen`
    TimePoint first = TimePoint::max(), seen{};
  };
  static double keep(const Model& m, TimePoint now, double window) {
    return std::exp(-to_seconds(now - m.seen) / window);
  }
  static double brief(const Model& m, TimePoint now) { return m.brief * keep(m, now, brief_window); }

  std::vector<Model> models_;
};

}  // namespace carillon::schedule::parts
