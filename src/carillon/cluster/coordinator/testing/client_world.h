#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/time.h"

namespace carillon::cluster::testing {

// Clients of a coordinator in virtual time, with what happens to them. A Site has a pointer `client`, and
// `killed`: that client is neither ticked nor pumped any more.
template <typename Site>
class ClientWorld {
 public:
  void run(Duration time) {
    const TimePoint end = now + time;
    while (true) {
      for (auto& site : sites_)
        if (!site->killed) pump(*site);
      TimePoint next = end;
      if (!events_.empty()) next = std::min(next, events_.begin()->first.first);
      for (const auto& site : sites_)
        if (!site->killed) next = std::min(next, site->client->due());
      ASSERT_LT(++steps_, 2'000'000) << "it never comes to rest";
      now = std::max(now, next);
      passes();
      if (!events_.empty() && events_.begin()->first.first <= now) {
        auto event = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        event();
      } else if (now == end) {
        return;
      }
      for (auto& site : sites_)
        if (!site->killed && site->client->due() <= now) site->client->tick(now);
    }
  }
  // Events of one time come in the order in which they were told.
  void at(TimePoint time, std::function<void()> what) {
    events_.emplace(std::pair{time, ++last_event_}, std::move(what));
  }
  std::vector<std::unique_ptr<Site>>& sites() { return sites_; }

  TimePoint now;

 protected:
  ~ClientWorld() = default;
  // Sends what the client asks, and hears its news.
  virtual void pump(Site& site) = 0;
  // Time has gone on, to `now`.
  virtual void passes() {}

  std::vector<std::unique_ptr<Site>> sites_;

 private:
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t last_event_ = 0, steps_ = 0;
};

}  // namespace carillon::cluster::testing
