#pragma once

#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/provision/wanted.h"

namespace carillon::roles {

// What a scheduler knows of the devices that the load needs: it counts while it leads, and is told by the
// leader while another leads. Pure, and not thread-safe; `now` does not go back.
//
// Whoever scales asks any of the schedulers, as their service sends each call to another. So a scheduler that
// does not lead passes on what it was told. A number of the leader before is as good for a few seconds.
class WantedNews {
 public:
  // A number that is older is not given out.
  static constexpr Duration fresh_for = std::chrono::seconds{10};

  // Who leads: this scheduler, or `leader`; empty: nobody is known to lead.
  void leads(bool own, std::string leader);
  // This scheduler leads, and has looked. No groups: it has no number yet.
  void counted(std::vector<provision::WantedFigures> figures, TimePoint now);
  // `by` leads and has told this. Nothing changes while this scheduler leads.
  void told(const std::string& by, std::vector<provision::WantedFigures> figures, TimePoint now);

  // To give out at `now`, by group. Errors (unavailable) say why there is no number, and name who leads.
  Result<std::vector<provision::WantedFigures>> wanted(TimePoint now) const;
  // The same of what this scheduler counted, while it leads; else none. So one process alone gives it out.
  std::vector<provision::WantedFigures> own() const;
  // The last that was known, however old; none: nothing was. The next leader begins with it.
  const std::vector<provision::WantedFigures>& last() const { return figures_; }

 private:
  bool own_ = false;
  bool counted_ = false;  // since this scheduler leads
  std::string leader_;
  std::vector<provision::WantedFigures> figures_;
  TimePoint at_ = TimePoint::min();
};

}  // namespace carillon::roles
