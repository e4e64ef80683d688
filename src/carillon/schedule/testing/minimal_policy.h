#pragma once

#include <algorithm>
#include <string_view>

#include "carillon/schedule/central.h"

namespace carillon::schedule::testing {

// The least that a policy can be: an idle device takes the model whose oldest request has waited longest,
// with as many of its requests as there is a batch size for.
class MinimalPolicy final : public Queued {
 public:
  explicit MinimalPolicy(const Environment& environment = {}) : Queued(environment) {}
  std::string_view name() const override { return "minimal"; }

 protected:
  void step(TimePoint now, Actions& out) override {
    expire(now, out);
    for (auto next = ready_devices().begin(); next != ready_devices().end();) {
      const DeviceId device = *next;
      const auto oldest = std::ranges::find_if(
          waiting(), [&](const auto& entry) { return fleet_.loaded(device, entry.second); });
      if (ready(device, now) && oldest != waiting().end()) {
        const ModelId model = oldest->second;
        send_first(device, model, fleet_.batch_index(model, queue(model).size()), TimePoint::max(), now, out);
      }
      next = ready_devices().upper_bound(device);
    }
  }
};

}  // namespace carillon::schedule::testing
