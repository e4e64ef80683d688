#pragma once

#include <memory>

#include "carillon/device/lanes/job_sharing.h"

namespace carillon::device {

// One job after the other, in the order in which they came: today's default.
std::unique_ptr<JobSharing> make_fifo(const JobOptions& options);
// The one with the shortest remaining time (section 2.4.2), between iterations; those of which it is not
// known last. A shorter one comes in as long as it can run beside what others hold.
std::unique_ptr<JobSharing> make_srtf(const JobOptions& options);
// As many lanes as fit, side by side (section 2.4.1); within one, turns. While a job that does not fit waits,
// others that do are let in, for JobOptions::longest_wait.
std::unique_ptr<JobSharing> make_pack(const JobOptions& options);
// Whoever fits comes in, as under pack, and all have equal device time by weight (section 2.4.3).
std::unique_ptr<JobSharing> make_fair(const JobOptions& options);
// Ours: best.cpp.
std::unique_ptr<JobSharing> make_best(const JobOptions& options);

}  // namespace carillon::device
