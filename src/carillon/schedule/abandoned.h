#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/slab.h"
#include "carillon/base/time.h"
#include "carillon/schedule/around.h"
#include "carillon/schedule/id_map.h"

namespace carillon::schedule {

// A policy whose INFERs are ended early (Stop) once the clients of all their requests have gone: nobody wants
// what they compute. One that has other requests in it runs on, and so does a Profile, which is nobody's.
// The policy hears of it as of any INFER that was stopped.
//
// An INFER costs a copy of its requests' ids; a cancellation, a look at the INFERs of its model that are
// under way. Not thread-safe.
class EndsAbandoned final : public Around {
 public:
  explicit EndsAbandoned(std::unique_ptr<Scheduler> policy) : Around(std::move(policy)) {}

  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;

 private:
  friend struct testing::Audit;
  struct Flight {
    ActionId id;
    DeviceId device;
    ModelId model;
    std::vector<RequestId> requests;  // whose clients are there; without any it was told to end
  };

  void sent(const Infer& infer);
  void ended(ActionId id);
  void lost(DeviceId device);
  void left(const RequestCancelled& gone, Actions& out);
  void forget(std::uint32_t flight);

  Slab<Flight> flights_;
  IdMap<ActionId, std::uint32_t> by_id_;
  std::vector<std::vector<std::uint32_t>> by_model_;
};

}  // namespace carillon::schedule
