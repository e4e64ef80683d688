#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "carillon/base/bytes.h"

// A plan of trials over devices, as `best` makes it: pure numbers, no book.
namespace carillon::tune {

inline constexpr std::uint32_t no_place = 0xffffffffU;

struct PlanTrial {
  double work = 0;          // seconds alone on a device of speed 1
  double priority = 1;      // its end counts so many times
  std::uint32_t group = 0;  // from 0 on, without gaps
  Bytes memory;             // on each device
  // Where it runs, ascending, and how wide; nothing where it waits.
  std::vector<std::uint32_t> has;
  double width = 0;
  int company = 1;                // trials on its device now, itself counted
  bool fixed = false;             // it stays as it is: an order is under way
  double cost = 0;                // seconds that it stands still where its devices change
  std::uint32_t home = no_place;  // where the memory of a waiting one lies: it goes on there without `cost`
};

struct PlanDevice {
  double rate = 1;  // speed times supply; above 0
  Bytes memory;     // for trials that run
};

struct PlanModel {
  double alpha = 1, beta = 1;
  int c = 1, d = 1;
  // How often a trial's end is followed at once by another's start, or by more work for the trial: [0, 1].
  double followed = 0;
};

struct Assignment {
  std::vector<std::uint32_t> devices;
  double width = 1;
  double start = 0, end = 0;  // seconds from now
};

struct Plan {
  std::vector<Assignment> of;        // by trial
  std::vector<std::uint32_t> order;  // in which they were given their places
  // What plans are held against each other by: the mean of the groups' last ends, and the last end of all,
  // each times its trial's priority. Of one group that is twice its makespan. Where each end is followed by
  // more work, the device time of the plan (over the devices' rates) counts in place of the last end: trials
  // to come want that time. Between the two by PlanModel::followed.
  double cost = 0;
  double makespan = 0;      // the last end alone
  double ends = 0;          // the sum of all ends
  double kept = 0;          // the cost of the kept plan, with what runs as it is
  std::uint64_t steps = 0;  // that making it took: what `effort` counts
};

// The water level: the least time within which all trials would end if each had the narrowest width that is
// fast enough and devices could be cut as liked, on `devices` devices of mean rate `rate`. A lower estimate,
// not a bound.
double water_level(std::span<const double> works, const PlanModel& model, double devices, double rate);
// The narrowest width at which `work` ends within `level` on devices of that rate, as shares of a device down
// to 1/c and whole devices up to d; the fastest where none does.
double width_for(double work, const PlanModel& model, double level, double rate);

// List scheduling: trials in `order` get `widths` devices each, those that end them first; every device runs
// one trial, or as many as share it, at a time. What is running starts at once, or the makespan is infinite.
Plan list_schedule(std::span<const PlanTrial> trials, std::span<const PlanDevice> devices,
                   const PlanModel& model, std::span<const std::uint32_t> order,
                   std::span<const double> widths);

// The best that was found within `effort` steps of list scheduling (at least one candidate of each kind is
// tried): widths of several water levels, of Algorithm 3.1, all alone and all packed, with what runs as it is
// and resized, and then improved by changes of one width, of two, or of the order. `kept` is what was planned
// before, of which some may still be to come: never worse than that, if it is given, by what is predicted,
// nor than that with what runs as it is.
struct KeptPlan {
  std::vector<std::uint32_t> order;
  std::vector<double> widths;
};
Plan make_plan(std::span<const PlanTrial> trials, std::span<const PlanDevice> devices, const PlanModel& model,
               const KeptPlan* kept, std::uint64_t effort);

}  // namespace carillon::tune
