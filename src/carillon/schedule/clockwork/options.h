#pragma once

#include "carillon/base/time.h"

namespace carillon::schedule {

struct ClockworkOptions {
  // New actions are sent while an executor is expected to be free within this time. What is sent early is
  // decided early, without what comes meanwhile, and stands before requests with less time:
  // docs/papers.md says what that costs.
  Duration ahead = 500us;
  // Where the way to a device takes longer than that, its time counts, up to this: the paper's, for all.
  Duration longest_ahead = 5ms;

  // Before a batch is sent, this many other queues are asked whether it would cost them answers that take
  // less time each; then a smaller batch goes, or they go first. Zero keeps to the letter of appendix B, by
  // which cheap models with near deadlines starve beside long batches under overload.
  int queues_spared = 4;

  // With Preemption::deadline: how often an INFER makes way at most, and how many queues at risk are asked,
  // the nearest first, at each event while a device is busy.
  int preemptions = 8;
  int queues_overtaking = 8;

  // Over which rates are averaged, to tell whether the devices are enough for all: a few deadlines long,
  // since a burst that is longer than that cannot be waited out.
  Duration rate_window = 250ms;

  // An INFER of a loading model is sent this long before the LOAD is expected to end. Its executor may wait
  // for it that long at most.
  Duration cold_ahead = 500us;

  // A request without a deadline that has waited this long may go before those with one, for at most
  // `patient_share` of a device's time.
  Duration patience = 1s;
  double patient_share = 0.1;

  // A model whose LOAD takes longer than its requests' deadlines leave could never be served: it is loaded
  // for those to come, where the LOAD executor is idle and some request was refused within this time.
  Duration missed_for = 1s;

  // INFERs of one request that may fail before it is refused.
  int attempts = 3;
  // The same of INFERs that came too late for their window.
  int late_attempts = 10;
  // LOADs of one model that may fail in a row before its requests are refused, and the pause after the first
  // failure, which doubles.
  int load_attempts = 5;
  Duration load_pause = 10ms;
};

}  // namespace carillon::schedule
