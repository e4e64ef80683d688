#include "carillon/provision/weighed.h"

#include <algorithm>

namespace carillon::provision {

AutoscaleWindow::Counters WeighedRequests::observe(const std::vector<ModelWork>& models, Duration busy) {
  double all_busy = 0, all_ran = 0;
  for (const ModelWork& model : models) {
    all_busy += to_seconds(model.busy);
    all_ran += static_cast<double>(model.ran);
  }
  for (const ModelWork& model : models) {
    double weight = 1;
    if (model.ran > 0 && all_busy > 0)
      weight = to_seconds(model.busy) / static_cast<double>(model.ran) / (all_busy / all_ran);
    Seen& before = seen_[{std::string(model.name), model.version}];
    requests_ += weight * static_cast<double>(model.requests - std::min(model.requests, before.requests));
    bad_ += weight * static_cast<double>(model.bad - std::min(model.bad, before.bad));
    before = {model.requests, model.bad};
  }
  return {.requests = static_cast<std::uint64_t>(requests_),
          .bad = static_cast<std::uint64_t>(bad_),
          .busy = busy};
}

}  // namespace carillon::provision
