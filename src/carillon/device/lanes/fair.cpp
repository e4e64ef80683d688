#include <algorithm>
#include <limits>

#include "carillon/device/lanes/job_core.h"
#include "carillon/device/lanes/job_policies.h"

namespace carillon::device {
namespace {

// Device time by weight, equal within a lane but for the quantum. A job that comes begins where the others
// are: it owes nothing, and is owed nothing.
class Turns : public JobCore {
 public:
  explicit Turns(const JobOptions& options) : JobCore(options) {}

 private:
  bool admits(const Job&) const override { return true; }
  bool overtakes() const override {
    return queue().empty() || time() - job(queue().top()).waits_since < options().longest_wait;
  }
  Key rank(const Job& job) const override { return {job.virtual_time, job.order}; }
  void became_ready(Job& job) override {
    const double least = least_in(job.lane);
    if (job.virtual_time < least) begin_at(job, least);
  }
  // Virtual time elsewhere says nothing here.
  void changed_lanes(Job& job) override {
    if (!one_lane()) begin_at(job, least_in(job.lane));
  }
  static void begin_at(Job& job, double virtual_time) {
    job.virtual_time = job.virtual_from = virtual_time;
    job.virtual_since = job.attained;
  }
  // Of those that are in the lane, or were at last.
  double least_in(LaneId lane) {
    double& least = clock(lane);
    double now_least = std::numeric_limits<double>::infinity();
    each_inside([&](Index index) {
      const Job& runs = this->job(index);
      if (one_lane() || runs.lane == lane) now_least = std::min(now_least, virtual_now(runs));
    });
    if (const auto& heap = waiting(lane); !heap.empty())
      now_least = std::min(now_least, heap.top_key().first);
    if (now_least < std::numeric_limits<double>::infinity()) least = std::max(least, now_least);
    return least;
  }
  void granted(Job& job) override { clock(job.lane) = std::max(clock(job.lane), job.virtual_time); }
  Duration slice(const Job& inside, const Job& next) const override {
    const double ahead = virtual_now(inside) - next.virtual_time;
    return from_seconds((to_seconds(options().quantum) - ahead) * inside.weight);
  }
  double virtual_now(const Job& job) const {
    return job.virtual_time + to_seconds(attained(job) - job.attained) / job.weight;
  }
  // Where the one that had least was at the latest: of all jobs' one lane, or of each.
  double& clock(LaneId lane) {
    const std::size_t at = one_lane() ? 0 : lane.index();
    if (at >= clocks_.size()) clocks_.resize(at + 1, 0);
    return clocks_[at];
  }

  std::vector<double> clocks_;
};

class Fair final : public Turns {
 public:
  using Turns::Turns;

 private:
  bool one_lane() const override { return true; }
};

class Pack final : public Turns {
 public:
  using Turns::Turns;
};

}  // namespace

std::unique_ptr<JobSharing> make_fair(const JobOptions& options) {
  return std::make_unique<Fair>(options);
}
std::unique_ptr<JobSharing> make_pack(const JobOptions& options) {
  return std::make_unique<Pack>(options);
}

}  // namespace carillon::device
