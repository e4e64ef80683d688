#include <algorithm>

#include "carillon/device/lanes/job_core.h"
#include "carillon/device/lanes/job_policies.h"

namespace carillon::device {
namespace {

// Device time by weight, equal within a lane but for the quantum. A job that comes begins where the one that
// ran last was: it owes nothing, and is owed nothing.
class Turns : public JobCore {
 public:
  explicit Turns(const JobOptions& options) : JobCore(options) {}

 private:
  bool admits(const Job&) const override { return true; }
  Key rank(const Job& job) const override { return {job.virtual_time, job.order}; }
  void became_ready(Job& job) override {
    job.virtual_time = std::max(job.virtual_time, clock(job.lane));
  }
  void granted(Job& job) override {
    if (job.lane.index() >= clocks_.size()) clocks_.resize(job.lane.index() + 1, 0);
    clock(job.lane) = std::max(clock(job.lane), job.virtual_time);
  }
  Duration slice(const Job& inside, const Job& next) const override {
    const double ahead = inside.virtual_time - next.virtual_time;
    return from_seconds((to_seconds(options().quantum) - ahead) * inside.weight) -
           (attained(inside) - inside.attained);
  }
  // Of all jobs' one lane, or of each.
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

 private:
  bool overtakes() const override {
    return queue().empty() || now() - job(queue().top()).waits_since < options().longest_wait;
  }
};

}  // namespace

std::unique_ptr<JobSharing> make_fair(const JobOptions& options) {
  return std::make_unique<Fair>(options);
}
std::unique_ptr<JobSharing> make_pack(const JobOptions& options) {
  return std::make_unique<Pack>(options);
}

}  // namespace carillon::device
