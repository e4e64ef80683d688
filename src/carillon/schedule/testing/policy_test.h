#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/environment.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule::testing {

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

// A policy, told of one event after the other, and what it wants at each.
template <typename Kind>
class PolicyTest : public ::testing::Test {
 protected:
  // Without margins, so that times are plain numbers.
  void make(Environment environment = {}) {
    environment.dispatch = environment.answer = Duration{0};
    environment.overrun = 0;
    policy = std::make_unique<Ledgered>(std::make_unique<Kind>(environment));
  }
  Actions tell(const Event& event, Duration when) {
    Actions out;
    wake = policy->decide(event, at(when), out);
    return out;
  }
  // Its LOADs of all models that fit are reported as they are sent.
  void device(std::uint32_t id, std::uint64_t pages, Duration when, int best_effort = 1) {
    load_all(tell(DeviceChanged{DeviceId{id}, true, pages, best_effort}, when), when);
  }
  void load_all(Actions orders, Duration when) {
    while (!orders.empty()) {
      Actions next;
      for (const Load& load : of_kind<Load>(orders))
        for (const Action& order : done(load.id, when, when)) next.push_back(order);
      orders = std::move(next);
    }
  }
  void model(ModelInfo info) { tell(model_comes(info), 0ms); }
  Actions arrives(std::uint64_t id, std::uint32_t model, Duration when, TimePoint deadline,
                  Class cls = Class::normal, bool more = false) {
    const Request request{
        .id = RequestId{id}, .model = ModelId{model}, .cls = cls, .arrival = at(when), .deadline = deadline};
    return tell(RequestArrived{request, more}, when);
  }
  Actions done(ActionId id, Duration start, Duration end, ActionStatus status = ActionStatus::success) {
    return tell(
        ActionDone{.id = id, .status = status, .start = at(start), .end = at(end), .duration = end - start},
        end);
  }
  static std::vector<std::uint64_t> requests(const Infer& infer) {
    std::vector<std::uint64_t> ids;
    for (const RequestId id : infer.requests) ids.push_back(id.value);
    return ids;
  }

  std::unique_ptr<Ledgered> policy;
  TimePoint wake;
};

}  // namespace carillon::schedule::testing
