#include "carillon/device/lanes/job_core.h"
#include "carillon/device/lanes/job_policies.h"

namespace carillon::device {
namespace {

class Fifo final : public JobCore {
 public:
  explicit Fifo(const JobOptions& options) : JobCore(options) {}

 private:
  bool one_lane() const override { return true; }
  bool admits(const Job&) const override { return admitted() == 0; }
  Duration slice(const Job&, const Job&) const override { return Duration::max(); }
};

}  // namespace

std::unique_ptr<JobSharing> make_fifo(const JobOptions& options) {
  return std::make_unique<Fifo>(options);
}

}  // namespace carillon::device
