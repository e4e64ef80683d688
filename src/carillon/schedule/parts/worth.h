#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "carillon/ledger/model_info.h"

namespace carillon::schedule::parts {

// Which batch sizes are worth their time, as it is measured. A batch takes what its longest request asks for.
// Where requests of a model take very unlike times, a large batch nearly always has a long one. Such a
// batch takes more device time for each request than a small one. Its seed does not tell that. Each doubling
// of a batch is taken to add the same share to what its seed says. That share is fitted to the runs of all
// sizes. O(1) but where said. Not thread-safe.
class Worth {
 public:
  // A batch of so many rows took `times` > 0 times its seed, over what the model's runs take of late.
  // Outliers tell nothing.
  void ran(ModelId model, int rows, double times) {
    if (times > outlier) return;
    if (model.index() >= models_.size()) models_.resize(model.index() + 1);
    Fit& f = models_[model.index()];
    f.runs = std::min(f.runs + 1, most_runs);
    const double keep = 1 - 1 / f.runs;
    const double x = std::log2(static_cast<double>(rows)), off_x = x - f.x, off = times - f.times;
    f.x += off_x / f.runs;
    f.times += off / f.runs;
    f.xx = keep * (f.xx + off_x * off_x / f.runs);
    f.xt = keep * (f.xt + off_x * off / f.runs);
    f.tt = keep * (f.tt + off * off / f.runs);
  }
  void forget(ModelId model) {
    if (model.index() < models_.size()) models_[model.index()] = {};
  }
  // What a batch of so many rows takes on average, in the unit of ran().
  double times(ModelId model, int rows) const {
    const Fit& f = models_[model.index()];
    return std::max(least, f.times + f.slope() * (std::log2(static_cast<double>(rows)) - f.x));
  }
  // The place of the largest size that is worth its time; none: all are, or it is not known that some are
  // not. O(batch sizes), but mostly O(1).
  std::optional<std::size_t> largest(ModelId model, const std::vector<ledger::BatchProfile>& batches) const {
    if (model.index() >= models_.size()) return std::nullopt;
    const Fit& f = models_[model.index()];
    const double slope = f.slope();
    if (f.runs < enough || slope <= f.doubt()) return std::nullopt;
    double best = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto rows = static_cast<double>(batches[i].batch);
      const double takes = std::max(least, f.times + slope * (std::log2(rows) - f.x));
      const double each = takes * static_cast<double>(batches[i].exec.count()) / rows;
      if (i > 0 && each > (1 + more) * best) return i - 1;
      best = i == 0 ? each : std::min(best, each);
    }
    return std::nullopt;
  }

 private:
  // So many runs tell, and the last of them count.
  static constexpr double enough = 16, most_runs = 256;
  // A size is not worth its time that takes so much more for a request than a smaller one.
  static constexpr double more = 0.03;
  static constexpr double least = 0.05, outlier = 5;
  // Of `times` by the logarithm of the rows: means, variances and covariance.
  struct Fit {
    double runs = 0, x = 0, times = 0, xx = 0, xt = 0, tt = 0;
    double slope() const { return xx > 1e-9 ? xt / xx : 0; }
    // Its standard error.
    double doubt() const {
      return xx > 1e-9 ? std::sqrt(std::max(0.0, tt - xt * xt / xx) / (xx * std::max(1.0, runs - 2))) : 0;
    }
  };
  std::vector<Fit> models_;
};

}  // namespace carillon::schedule::parts
