#pragma once

#include <cstddef>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/door.h"
#include "carillon/transport/messages.h"

namespace carillon::roles {

// A frontend's rows on their way to the leader. The leader says how many it may have offered and not heard
// of as taken. The others wait here, or are turned away (schedule::Door): so a leader to whom more is offered
// than it can decide on loses no time with rows that it could only refuse.
//
// Not thread-safe; `now` never goes back.
class OfferQueue {
 public:
  // Ids ascend by one from zero. `shortest`: how long a request of the model takes at the least.
  void add_model(Duration shortest);
  void set_shortest(ModelId model, Duration shortest);

  // A leader begins, or there is none: nothing waits, and nothing may go before its first credit.
  void begin();
  // Rows taken that were not under way do not count: the word comes from another host.
  void credit(const transport::OfferCredit& credit);

  struct Answer {
    bool goes = false;     // it is to be offered now
    bool in = true;        // it goes, or waits; else it is turned away
    bool hurried = false;  // then: few others wait; it is its own deadline that is too near
    std::optional<RequestId> displaced = std::nullopt;  // this one is turned away for it
  };
  [[nodiscard]] Answer arrive(const Request& row, TimePoint now);

  // Rows that waited and may go now, in their order; some are to be turned away instead. They may be gone by
  // now: then give_back() follows, and next() once more.
  struct Next {
    RequestId row;
    bool turned_away = false;
    bool hurried = false;  // as Answer's
  };
  [[nodiscard]] std::vector<Next> next(TimePoint now);
  void give_back() { --under_way_; }

  std::size_t waiting() const { return door_.waiting_rows(); }
  std::size_t under_way() const { return under_way_; }

 private:
  std::size_t room() const { return most_ > under_way_ ? most_ - under_way_ : 0; }

  schedule::Door door_;
  std::vector<Duration> shortest_;  // by model
  std::size_t under_way_ = 0, most_ = 0;
};

}  // namespace carillon::roles
