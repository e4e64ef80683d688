#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/provision/autoscale.h"
#include "carillon/provision/wanted.h"

namespace carillon::provision {

struct DemandOptions {
  Duration period = std::chrono::seconds{15};  // that counts, the last. Above 0
  Duration quiet = std::chrono::minutes{5};    // WantedOptions::quiet. Above 0
};

// How many devices groups should have, for a process that hears of every request and every batch: the leader
// of a cluster. It counts them one by one, each in constant time, and looks at the counts about each second.
// Groups have the numbers of a division, from 0 on. Requests count by the device time that they take, as
// WeighedRequests counts them. Pure, and not thread-safe.
//
// A leader that has just begun knows of no load, and of few devices, as workers come one by one. A number
// that is too small would end devices that are at work. So a group has no number before it has a device,
// nor for `period` after the first look. If the leader was told an earlier leader's number, a number counts
// at once: the larger of that number and the devices that are there.
class CountedDemand {
 public:
  static constexpr Duration looks_every = std::chrono::seconds{1};
  static constexpr int most_told = 1'000'000;  // devices; of a larger number nothing is taken

  // The numbers of an earlier leader, by group.
  explicit CountedDemand(std::span<const WantedFigures> before = {}, const DemandOptions& options = {});

  // A batch of a model ran. Models have numbers of the caller's, dense from 0 on. `rows` 0: the run had no
  // result.
  void ran(std::uint32_t group, std::size_t model, std::size_t rows, Duration busy);
  // A request, or a row of one, had its outcome. `bad`: not on time, which more devices might have mended.
  void ended(std::uint32_t group, std::size_t model, bool bad);
  // `present`: the devices of each group, none below 0. `now` does not go back.
  void look(TimePoint now, std::span<const int> present);

  // As the last look found it. Groups without a number are left out.
  std::vector<WantedFigures> figures() const { return wanted_figures(wanted_); }

 private:
  struct Model {
    std::uint64_t ran = 0;  // rows
    Duration busy{0};       // of these
  };
  struct Group {
    std::vector<Model> models;
    std::uint64_t ran = 0;
    Duration ran_busy{0};          // of these
    double requests = 0, bad = 0;  // weighed
    Duration busy{0};              // of all runs
    AutoscaleWindow window;
  };
  Group& group(std::uint32_t number);
  static Model& model(Group& of, std::size_t number);

  DemandOptions options_;
  std::vector<Group> groups_;  // by number
  WantedByGroup wanted_;
  std::optional<TimePoint> first_look_;
};

}  // namespace carillon::provision
