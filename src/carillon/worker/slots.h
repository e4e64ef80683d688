#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/device/range_ledger.h"
#include "carillon/graph/faults.h"
#include "carillon/worker/host_model.h"
#include "carillon/worker/row_buffers.h"
#include "carillon/worker/worker.h"

namespace carillon::worker {

// What belongs to an open action beside what device::Core has of it.
struct OpenAction {
  ActionId id;
  std::uint32_t life = 0;
  ModelId model;
  ActionTimes times;
  std::string error;
};
struct LoadSlot : OpenAction {};
struct InferSlot : OpenAction {
  int batch = 0;
  std::array<RowBuffers, max_batch> rows;
  HostModel* host = nullptr;  // this and the rest: from INPUT on
  // Plans that run one after the other: one, but for rows of different lengths that must not be padded, and
  // for batches that have no plan of their own yet.
  // parts[i] takes the rows order[first, first + its batch).
  struct Part {
    PlanLayout* layout = nullptr;
    int first = 0;
    std::uint64_t io = 0;                         // from `io` below
    std::shared_ptr<SizedPlans> holds = nullptr;  // of plans that were made later
    int kernels() const { return layout->plan->kernels(); }
  };
  std::array<Part, max_batch> parts;
  int part_count = 0;
  std::array<std::uint8_t, max_batch> order;
  // Its piece of the I/O cache: where it begins, and as the host sees it.
  std::uint64_t io_offset = 0;
  std::byte* io = nullptr;

  // It has ended.
  void let_go() {
    for (Part& each : std::span(parts).first(static_cast<std::size_t>(part_count))) each.holds.reset();
  }

  // Of its run, which is the stream's thread's. `launch`: set where the core says so, under the lock.
  std::uint64_t launch = 0;
  std::uint64_t workspace = 0;  // where it begins
  int part = 0;
  graph::Faults faults;      // of the part
  std::size_t bad_before{};  // bad rows of earlier parts
  struct Segment {
    TimePoint start;
    Duration real_time;  // that real-time runs had taken by then
  } segment;             // since it last began or resumed
  // Each row of the part by itself, where nobody knows which of them has bad data.
  struct Alone {
    bool on = false;
    int row = 0;
    std::uint64_t offset = 0;  // in the I/O cache
    device::RangeLedger::Piece io;
  } alone;

  std::vector<BadRow> bad_rows;
  bool odd_time = false;
  bool device_lost = false;

  std::span<const Part> all_parts() const {
    return std::span(parts).first(static_cast<std::size_t>(part_count));
  }
  const Part& now() const { return parts[static_cast<std::size_t>(part)]; }
  // Of the parts before the present one.
  int kernels_before() const {
    int kernels = 0;
    for (const Part& each : all_parts().first(static_cast<std::size_t>(part))) kernels += each.kernels();
    return kernels;
  }
  int place(const Part& in, int i) const { return order[static_cast<std::size_t>(in.first + i)]; }
  const RowBuffers& row(const Part& in, int i) const { return rows[static_cast<std::size_t>(place(in, i))]; }
  bool is_bad(int at) const { return std::ranges::find(bad_rows, at, &BadRow::row) != bad_rows.end(); }
};

// Chooses the plans for the action's rows and sets `parts`. Returns what is wrong with the action; empty
// where it can be carried out.
std::string divide(InferSlot& action);
// I/O cache that the parts take together; requires divide().
std::uint64_t io_bytes(const InferSlot& action);
// Between the requests' buffers and `io`.
void gather(const InferSlot& action);
void scatter(const InferSlot& action);

}  // namespace carillon::worker
