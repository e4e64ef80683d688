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
  // Bins of a batch's time in a score; half the bins of which a model's solo times are made up.
  int score_bins = 8;
  int solo_bins = 32;
  // Applications of a model that are told apart, and solo times that are remembered of each. A sample counts
  // half as much as one that is a window_span younger. Distributions are made anew at most every
  // refresh_every, and seldom where little was learned.
  int most_apps = 64;
  int window = 256;
  Duration window_span = std::chrono::seconds{60};
  Duration refresh_every = std::chrono::milliseconds{500};
  // The prior of an application's solo times, in samples.
  double prior = 4;
  // What company costs is fitted to what batches took: to the last so many (they fade), and the seeds count
  // as `seed_batches` of them at first, less and less as batches run. Zero `cost_memory` keeps the seeds.
  // So many batches are reason enough to make distributions anew.
  int cost_memory = 1000;
  double seed_batches = 16;
  int enough_batches = 16;
  // An application's solo times are known well enough for the fit, and for the pace, from so many samples on.
  int enough_samples = 8;
  // A request that is to be refused runs all the same, alone, where nothing was learned of its application
  // for `trial_after`, since what is always refused would never be measured again. If that was learned to be
  // right, the next trial is twice as far, up to `trial_at_most`. All trials together take at most this share
  // of the devices' time.
  Duration trial_after = std::chrono::seconds{1};
  Duration trial_at_most = std::chrono::seconds{8};
  double trial_share = 0.1;
  // Waiting requests of which one decision makes scores anew, and those that one decision refuses, so that
  // its cost is bounded whatever waits; what is left comes next.
  int most_scored = 8;
  int most_refused = 64;
};

}  // namespace carillon::schedule
