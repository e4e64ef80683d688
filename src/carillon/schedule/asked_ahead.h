#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "carillon/schedule/around.h"

namespace carillon::schedule {

// A scheduler whose driver asks for LOADs ahead of requests. The next decide() sends them.
class AskedAhead final : public Around {
 public:
  explicit AskedAhead(std::unique_ptr<Scheduler> policy) : Around(std::move(policy)) {}

  void ask(LoadAhead wanted) { wanted_.push_back(std::move(wanted)); }
  // False: the policy has not done what it was asked last, and never does.
  bool loads_ahead() const { return loads_ahead_; }

  TimePoint decide(const Event& event, TimePoint now, Actions& out) override {
    for (const LoadAhead& wanted : std::exchange(wanted_, {}))
      loads_ahead_ = load_ahead(wanted, now, out) && loads_ahead_;
    return policy_->decide(event, now, out);
  }

 private:
  std::vector<LoadAhead> wanted_;
  bool loads_ahead_ = true;
};

}  // namespace carillon::schedule
