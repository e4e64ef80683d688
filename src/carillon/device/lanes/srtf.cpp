#include <limits>

#include "carillon/device/lanes/job_core.h"
#include "carillon/device/lanes/job_policies.h"

namespace carillon::device {
namespace {

class Srtf final : public JobCore {
 public:
  explicit Srtf(const JobOptions& options) : JobCore(options) {}

 private:
  double left_of(const Job& job) const {
    const auto known = remaining(job);
    return known ? to_seconds(*known) : std::numeric_limits<double>::infinity();
  }
  bool one_lane() const override { return true; }
  Key turn(const Job& job) const override { return {left_of(job), job.order}; }
  Key rank(const Job& job) const override { return {left_of(job), job.order}; }
  // What comes in holds memory until its end, so only who would run does, and one besides, so that it is
  // ready when the other ends.
  bool admits(const Job& first) const override {
    return admitted() < 2 || left_of(first) < shortest_admitted();
  }
  double shortest_admitted() const {
    double least = std::numeric_limits<double>::infinity();
    each_admitted([&](const Job& job) { least = std::min(least, left_of(job)); });
    return least;
  }
  Duration slice(const Job& inside, const Job& next) const override {
    return left_of(next) < left_of(inside) ? Duration{0} : Duration::max();
  }
};

}  // namespace

std::unique_ptr<JobSharing> make_srtf(const JobOptions& options) {
  return std::make_unique<Srtf>(options);
}

}  // namespace carillon::device
