#pragma once

#include <cstddef>

#include "carillon/base/time.h"

namespace carillon::schedule {

struct OrlojOptions {
  // Parameter of the anticipated delay before a request gets its turn, Exp(b), in 1/ms (section 4.4.1).
  double b = 1e-4;

  // A request leaves the queue of a batch size when the batch's time at this quantile would miss its
  // deadline.
  double quantile = 0.5;

  // The batch size that runs: true takes the one with the earliest deadline in its queue, the largest of
  // those that are level (as the text of section 4.3.2 says); false the latest deadline, the largest (as
  // Algorithm 4.1 is printed).
  bool urgent_first = false;

  // Where all that waits for a model can be on time in the order of deadlines, that order fills its batch;
  // the scores where it cannot, or where more wait than are looked at. Zero: the scores always, as in the
  // paper.
  std::size_t most_in_order = 64;

  // Bins of a batch's time in a score, and of an application's solo times.
  int score_bins = 8;
  int solo_bins = 32;

  // Solo times that are remembered of each application: so many, and no older than that. Distributions are
  // made anew at most so often.
  int window = 1000;
  Duration window_span = std::chrono::seconds{60};
  Duration refresh_every = std::chrono::milliseconds{500};

  // c0 and c1 are fitted to what batches took: to the last so many (they fade), and the seeds count as
  // `seed_batches` of them at first, less and less as batches run. Zero `cost_memory` keeps the seeds. At
  // most `fit_at_once` batches between two refreshes are looked at.
  int cost_memory = 1000;
  double seed_batches = 16;
  int fit_at_once = 32;
  // An application's solo times are known well enough for the fit from so many samples on.
  int enough_samples = 16;
};

}  // namespace carillon::schedule
