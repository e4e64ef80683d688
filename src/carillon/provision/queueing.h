#pragma once

#include <cstdint>
#include <vector>

#include "carillon/provision/arrivals.h"

// How long requests wait for a device that takes them in batches.
//
// The queue is the one of a served plan (simulate/plan_simulation.h): a device that is free takes what waits,
// up to the planned batch, and a batch of n takes the time of n. A batch is formed as long before the device
// is free as loading the largest batch takes; what comes later goes with the next batch. So a request's
// latency is its wait until its batch is formed, the loading, and the batch's time. For batches of one and
// Poisson arrivals this is the queue M/D/1.
//
// The queue is replayed for a sequence of arrivals. A chain of states would need phases for Gamma gaps and
// could not take recorded times; a replay of 200,000 requests takes about a millisecond and serves all of
// them.
namespace carillon::provision {

// What one workload's batches take on its device, in ms.
struct BatchTimes {
  double load_ms = 0;           // of the largest batch; beside the batch before
  std::vector<double> busy_ms;  // of n requests, at [n - 1]; one entry for each size up to the largest batch
};

struct ReplayOptions {
  double factor = 1;                     // of all times, where the model errs
  double noise = 0.03;                   // deviation of a batch's time over its mean: log-normal
  std::size_t most = most_arrivals;      // requests
  std::uint64_t most_late = UINT64_MAX;  // ends when more are late
};

struct Replayed {
  std::uint64_t requests = 0, late = 0;
  // Late requests come together: the variance of their number in a long span, over its mean. At least 1.
  double clustering = 1;

  double on_time() const {
    return requests == 0 ? 1 : 1 - static_cast<double>(late) / static_cast<double>(requests);
  }
};

// Requires rate_rps > 0, slo_ms > 0, at least one size, and times above 0 (which may be infinite). The same
// input gives the same result.
Replayed replay(const Arrivals& arrivals, double rate_rps, const BatchTimes& times, double slo_ms,
                const ReplayOptions& options = {});

// What a plan for queues promises each workload.
struct QueueRule {
  Arrivals arrivals;
  double percentile = 0.99;  // this share of requests is within the SLO, in [0.5, 0.9999]
  // Deviation of the interference model's error: all batches of a workload take a factor (log-normal, mean
  // 1). In [0, 0.5].
  double model_error = 0;
};

// A percentile is looked at over a span of 30 s: iGniter, section 5.3.
inline constexpr double promise_span_s = 30;
// The chance that a workload misses the percentile in a span. Over twenty spans of a workload, two or more
// then miss it in one of 200 cases.
inline constexpr double promise_chance = 0.005;

// Requests that one device serves.
struct QueueLoad {
  double rate_rps = 0;      // of a workload, or a part of one
  double workload_rps = 0;  // of the whole workload, of whose requests the percentile is
  double slo_ms = 0;
};

// How closely the queue is looked at: at the whole sample, or at an eighth of it, which finds a number a few
// percent off.
enum class Look : std::uint8_t { whole, quick };

// Whether a workload keeps its SLO as the rule says: in all but promise_chance of the spans. Half of that
// chance is left to errors of the model, where they are counted with. Of recorded arrivals the percentile
// holds over all of them, with the model's error at that chance. `margin` lengthens all times. Parts of a
// workload are taken to be late as often as each other.
bool keeps_promise(const QueueRule& rule, const QueueLoad& load, const BatchTimes& times, double margin = 1,
                   Look look = Look::whole);

// The chance that more than `most` are counted, where counts come in clusters: a negative binomial with this
// mean and `clustering` times the mean as its variance. Requires mean >= 0, clustering >= 1.
double chance_of_more(double mean, double clustering, double most);

// The value that a standard normal exceeds with this chance, in (0, 0.5].
double normal_exceeded(double chance);

}  // namespace carillon::provision
