#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/id_map.h"
#include "carillon/workload/request.h"

namespace carillon::schedule::parts {

// Which tenants are modest: those that ask for no more device time than a share of their max-min share. A
// tenant is an application. Requests that name none are of the tenant that is their model, or all of one
// tenant. What a tenant asks for counts less the longer it is ago, as e to the power of -age / window. So a
// burst is modest that asks for no more than the share over the window.
//
// The max-min share is the level such that all tenants have what the devices can do, where no tenant has more
// than that level or than it asks for. The level is found ten times a second, by a pass over all tenants that
// is spread over events. At most `most_applications` are told apart. All others are one tenant, until one
// that is told apart asks for nothing for three windows. Not thread-safe.
class Shares {
 public:
  static constexpr Duration window = 4s, every = 100ms;
  static constexpr std::size_t most_applications = 1024, tenants_at_a_time = 64;

  // `models`, `applications`: the share of its max-min share up to which such a tenant is modest, from 0
  // to 1. 0: those are not told apart.
  Shares(double models, double applications) : models_(models), applications_(applications) {
    tenants_.resize(unnamed + 1);
  }

  // A request came, which takes `work` seconds of a device. True: its tenant is modest, with this request.
  // O(1).
  bool asked(const Request& request, double work, TimePoint now);
  // What asked() would say. O(1).
  bool modest(const Request& request, double work, TimePoint now) const;
  // A request came that goes before all tenants. O(1).
  void urgent(double work, TimePoint now);
  // A tenant that is not modest may have its max-min share among the work of modest ones. True: it has `work`
  // more of that. The request was asked(). O(1).
  bool joins(const Request& request, double work, TimePoint now);

  // Goes on with a pass, or begins the next once it is time; `devices` are alive. O(tenants_at_a_time), and
  // at the end of a pass O(steps).
  void step(std::size_t devices, TimePoint now);
  // Device time a second; infinity while there is enough for all.
  double level() const { return level_; }
  // Tenants ask for more than there is.
  bool short_of() const { return level_ < unlimited; }
  // Applications that are told apart now.
  std::size_t applications() const { return places_.size(); }

 private:
  static constexpr double unlimited = std::numeric_limits<double>::infinity();
  // Of the first two tenants: applications that are not told apart, and requests that name none.
  static constexpr std::uint32_t crowd = 0, unnamed = 1;
  struct Tenant {
    double asks = 0, joined = 0;  // device seconds, as of `seen`
    TimePoint first = TimePoint::max(), seen = TimePoint::min();
    double weight = 0;  // the share of its max-min share up to which it is modest; 0: nobody's place
    AppId app;          // where it is told apart by that
  };
  struct Step {
    double asks = 0;
    std::uint32_t tenants = 0;
  };
  // Each is a twentieth more than the one before.
  static constexpr std::size_t steps = 512;
  static double devices_of(const Tenant& tenant, TimePoint now);

  std::uint32_t find(const Request& request) const;
  std::uint32_t find_or_make(const Request& request);
  bool modest(const Tenant& tenant, double asks, TimePoint now) const;
  void look(std::uint32_t place, TimePoint now);
  void find_level(double devices);

  double models_, applications_;
  std::vector<Tenant> tenants_;
  std::vector<std::uint32_t> of_model_;  // by model: its place in tenants_; crowd where it has none yet
  IdMap<AppId, std::uint32_t> places_;   // in tenants_
  std::vector<std::uint32_t> left_;      // places that are nobody's
  Tenant urgent_;                        // all who go before the others
  std::array<Step, steps> asked_for_{};  // by tenants that the pass has seen
  TimePoint begun_ = TimePoint::min();   // the last pass
  std::size_t next_ = 0;                 // of tenants_
  bool passing_ = false;
  double level_ = unlimited;
};

}  // namespace carillon::schedule::parts
