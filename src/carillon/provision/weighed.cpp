#include "carillon/provision/weighed.h"

#include <algorithm>

namespace carillon::provision {

double request_weight(Duration busy, std::uint64_t ran, Duration all_busy, std::uint64_t all_ran) {
  if (ran == 0 || all_busy <= Duration{0}) return 1;
  return to_seconds(busy) / static_cast<double>(ran) / (to_seconds(all_busy) / static_cast<double>(all_ran));
}

AutoscaleWindow::Counters WeighedRequests::observe(const std::vector<ModelWork>& models, Duration busy) {
  Duration all_busy{0};
  std::uint64_t all_ran = 0;
  for (const ModelWork& model : models) {
    all_busy += model.busy;
    all_ran += model.ran;
  }
  for (const ModelWork& model : models) {
    const double weight = request_weight(model.busy, model.ran, all_busy, all_ran);
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
