#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/symphony/model_machine.h"
#include "carillon/schedule/symphony/options.h"

namespace carillon::schedule {

struct SymphonyThreadsOptions {
  Environment environment;
  // timeout, attempts, least_gain, weigh and waste have no effect here. BatchPlan and DeviceWaits know a
  // thread's own models only, and no batch is limited for the sake of others.
  SymphonyOptions symphony;
  int threads = 2;  // >= 1, the caller's own included
  // Candidates and devices are matched that long before dispatch: what two rounds take, in which a candidate
  // reaches the rank and its grant comes back.
  Duration ahead{0};
  // How many models the first thread owns, beside the rank, over what each other thread owns.
  double first_share = 0.4;
};

// A batch that goes to a device. It ends before anything else of that device starts.
struct SentBatch {
  DeviceId device;
  ModelId model;
  std::vector<Request> requests;
  TimePoint start, end;
};

// The world around the threads. `thread` is 0 .. threads - 1; calls for different threads run at the same
// time, those for one thread do not.
struct SymphonyWorld {
  // The time of the next round, not before that of the last; none to stop. Called by one thread at a time,
  // while no other runs.
  std::function<std::optional<TimePoint>()> next_round;
  // Appends the requests that have come for the models of `thread`: first <= model < end.
  std::function<void(int thread, ModelId first, ModelId end, TimePoint now, std::vector<Request>& out)>
      arrivals;
  std::function<void(int thread, SentBatch&& batch)> sent;
  std::function<void(int thread, const Request& request, TimePoint now)> dropped;
};

struct SymphonyThreadsFigures {
  std::uint64_t rounds = 0;
  std::uint64_t messages = 0;  // candidates and devices that the rank was informed of
  std::uint64_t grants = 0;
  std::uint64_t empty_grants = 0;  // nothing of the model could be on time any more
};

// Symphony on many threads (section 4.2, figure 18): each thread owns the ModelMachines of its share of the
// models, the first also the RankMachine. They share nothing and exchange messages in rounds: what is
// published in one round is read in the next, from buffers that change places between rounds, so no message
// takes a lock or an atomic operation. Of a model the newest candidate alone is sent, once a round however
// many requests came. Rounds last as long as the slowest thread needs.
//
// Outcomes do not depend on timing: the same rounds and arrivals give the same batches. With hold > 0 they
// depend on the number of threads, because each plans batch sizes for its own models, on a share of the
// devices in proportion to their number.
//
// Every request gets one outcome: a place in one SentBatch, or dropped. Devices 0 .. devices - 1 hold all
// models and are taken to be free when a batch was predicted to end. Returns when next_round says so, after
// what still waits was dropped. Starts threads - 1 threads and joins them. Callbacks must not throw.
SymphonyThreadsFigures run_symphony_threads(const SymphonyThreadsOptions& options,
                                            const std::vector<ModelInfo>& models, int devices,
                                            const SymphonyWorld& world);

}  // namespace carillon::schedule
