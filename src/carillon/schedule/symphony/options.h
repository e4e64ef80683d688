#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::schedule {

struct SymphonyOptions {
  std::string name = "symphony";

  // Share of the planned batch size below which a head may be dropped early, for a larger batch of those
  // behind it (section 3.3). The plan takes arrivals for regular, which they are not: at 1 too many heads are
  // dropped; at 0 none, and under overload all batches become small.
  double hold = 0.87;

  // With 1, heads are dropped only where that serves more, and batches are limited for the sake of models in
  // a hurry. 0 is there to measure what that is worth.
  double weigh = 1;
  double limit = 1;

  // A batch is made smaller where it would make others late that take less time each, as long as the chance
  // that a batch finds all devices busy is below this: two batches take more time than one, and that is there
  // while most find a free device. 0: never.
  double spare = 0.5;

  // With 1, under overload, heads are passed over for the largest batch that can be filled, where that serves
  // more. With 0 they are dropped by the planned size then, too.
  double fill = 1;

  // Share of requests whose batch may have to wait for a device for longer than is planned for. A batch asks
  // for a device that much before its latest start, if that is before its frontrun moment. Half of what a
  // goodput at the 99th percentile allows to be lost. 1 keeps to Algorithm 1: no batch asks early.
  double exceeded = 0.005;
  // For how many requests beyond that tail there has to be room before it is believed: its share is then
  // known to a half. Until then the plan's guess counts where that is longer.
  double known_after = 4;
  // After that time a wait that was measured counts e times less: long beside bursts, short beside the day.
  Duration wait_horizon = 10s;

  // A batch is deferred only while a request in a larger one, as far as is planned, would take less device
  // time by more than this share: where batching gains nothing, waiting only makes answers later.
  double least_gain = 0.005;

  // Nothing is deferred while at least half of the devices are free and fewer than this share of requests
  // would find all of them busy if each ran by itself: nobody needs the device time that larger batches would
  // save. 0: batches wait whatever the load.
  double leisure = 0.5;

  // Under overload a batch is put back, among those that may run, by so many times the device time that it
  // takes beyond what its requests would take in batches of the planned size. 0: the most urgent goes first.
  double waste = 2;
  // Likewise by so many times the device time that it takes beyond what as many requests take on average,
  // over all models: where not all can be served, those go first of which more can be. 0: whoever asks.
  double value = 1;

  // The longest that a batch is deferred on a device that would idle, whatever its deadline allows.
  Duration longest_wait = 500ms;

  // How often batch sizes are planned anew from the rates of arrival, and the time over which rates are
  // averaged.
  Duration plan_every = 250ms;
  Duration rate_window = 2s;

  // With a value, batches start by the clock instead of their frontrun moment: this share of the SLO after
  // the arrival of their head (section 3.4). 0 is eager scheduling.
  std::optional<double> timeout;

  // INFERs of one request that may fail before it is refused.
  int attempts = 3;
};

// "hold=0.8,exceeded=1": the defaults but for these, to measure what each is worth. The error lists the
// names.
Result<SymphonyOptions> symphony_options(std::string_view text);

}  // namespace carillon::schedule
