#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::schedule {

struct SymphonyOptions {
  std::string name = "symphony";

  // Share of the planned batch size that gathering holds on to by dropping heads early. At 1 every batch is
  // as large as regular arrivals would allow, which costs heads whenever they are not regular; at 0 heads are
  // never dropped early, and goodput collapses under overload.
  double hold = 0.87;

  // How long before its frontrun moment a batch may take a device, as a share of its head's SLO. Between
  // frontrun and latest lies only the time of one more request, often less than a device is away when many
  // models share them; a batch that misses it shrinks. 0 keeps to Algorithm 1.
  double slack = 0.08;

  // A batch is deferred only while a request in one of the planned size would take less device time than in
  // it by more than this share: where batching gains little, waiting only loses time.
  double least_gain = 0.02;
  // But only while the rates need less than this share of the devices' time: near the peak every bit of
  // batching counts.
  double least_gain_below = 0.85;

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

// "hold=0.8,slack=0": the defaults but for these, to measure what each is worth. The error lists the names.
Result<SymphonyOptions> symphony_options(std::string_view text);

}  // namespace carillon::schedule
