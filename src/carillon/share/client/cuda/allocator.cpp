#include "carillon/share/client/cuda/allocator.h"

#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "carillon/share/client/cuda/lanes.h"

namespace carillon::share::client::cuda {
namespace {

// Never destroyed: torch frees segments while the process ends, in whatever order.
Lanes& lanes() {
  static auto* const one = new Lanes;
  return *one;
}

std::string& trouble() {
  static auto* const text = new std::string;
  return *text;
}
// What a wait or leave answers that could not be.
int failed() {
  trouble() = lanes().why();
  return lanes().graph_in_the_way() ? 2 : 1;
}
int device_here = -1;
std::uint32_t gates_at_once = 1;
bool is_ready = false;

// The preloaded library's, which is not linked with: it is in the process already, or nothing is shared.
Lanes::Ask find_ask() {
  Lanes::Ask ask = nullptr;
  if (void* const found = dlsym(RTLD_DEFAULT, "carillon_ask"); found != nullptr)
    std::memcpy(&ask, &found, sizeof ask);
  return ask;
}

const char* keep_device(const DeviceIs* is) {
  Driver driver;
  static char no_driver[256];
  if (!open_driver(driver, no_driver, sizeof no_driver)) return no_driver;
  if (!lanes().start(driver, device_here, find_ask(), gates_at_once)) return lanes().why();
  const char* const not_so = lanes().device(*is);
  is_ready = not_so == nullptr;
  return not_so;
}
void keep_pieces(const Pieces* are, const int* descriptors) {
  lanes().pieces(*are, descriptors);
}
bool keep_lane(std::uint32_t number, std::uint64_t bytes) {
  return lanes().lane(number, bytes);
}
std::uint64_t keep_live() {
  return lanes().live();
}
std::uint64_t keep_persistent() {
  return lanes().persistent();
}
std::uint64_t keep_ephemeral() {
  return lanes().ephemeral();
}
void keep_iteration_ended() {
  lanes().iteration_ended();
}

constexpr carillon_keeper_t keeper{.device = keep_device,
                                   .pieces = keep_pieces,
                                   .lane = keep_lane,
                                   .live = keep_live,
                                   .persistent = keep_persistent,
                                   .ephemeral = keep_ephemeral,
                                   .iteration_ended = keep_iteration_ended};

}  // namespace
}  // namespace carillon::share::client::cuda

using namespace carillon::share::client::cuda;

#define CARILLON_OUT extern "C" __attribute__((visibility("default")))

CARILLON_OUT void* carillon_cuda_alloc(std::int64_t bytes, int device, void*) {
  return bytes <= 0 || device != device_here ? nullptr : lanes().take(static_cast<std::size_t>(bytes));
}

CARILLON_OUT void carillon_cuda_free(void* at, std::int64_t, int, void* stream) {
  lanes().give(at, stream);
}

CARILLON_OUT void carillon_cuda_captures(int begins) {
  begins != 0 ? lanes().capture_begins() : lanes().capture_ends();
}

CARILLON_OUT int carillon_cuda_start(int ordinal, std::uint32_t at_once) {
  Driver driver;
  char why[256] = {};
  if (!open_driver(driver, why, sizeof why)) {
    trouble() = why;
    return 1;
  }
  device_here = ordinal;
  gates_at_once = at_once;
  return 0;
}

CARILLON_OUT int carillon_cuda_ready() {
  return is_ready ? 1 : 0;
}

CARILLON_OUT const char* carillon_cuda_why() {
  return trouble().c_str();
}

CARILLON_OUT const carillon_keeper_t* carillon_cuda_keeper() {
  return &keeper;
}

CARILLON_OUT int carillon_cuda_enter() {
  const Lanes::Entered entered = lanes().enter();
  if (entered == Lanes::Entered::no_memory) trouble() = lanes().why();
  return static_cast<int>(entered);
}

CARILLON_OUT int carillon_cuda_wait(void* stream) {
  return lanes().wait(stream) ? 0 : failed();
}

CARILLON_OUT int carillon_cuda_leave(void* stream, const carillon_cuda_range_t* live, std::uint64_t count) {
  std::vector<LiveRange> ranges;
  if (live != nullptr) {
    ranges.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) ranges.push_back({live[i].at, live[i].bytes});
  }
  return lanes().leave(stream, live != nullptr ? &ranges : nullptr) ? 0 : failed();
}

CARILLON_OUT void carillon_cuda_gate(void* stream) {
  lanes().gate(stream);
}

CARILLON_OUT void carillon_cuda_note(std::uint64_t live, std::uint64_t reserved, std::uint64_t peak) {
  lanes().note(live, reserved, peak);
}

CARILLON_OUT void carillon_cuda_counters(carillon_cuda_counters_t* out) {
  const Counts c = lanes().counts();
  *out = {.lane_segments = c.lane_segments,
          .own_segments = c.own_segments,
          .lane_bytes = c.lane_bytes,
          .own_bytes = c.own_bytes,
          .segment_bytes = c.segment_bytes,
          .replaced = c.replaced,
          .replaced_bytes = c.replaced_bytes,
          .returned = c.returned,
          .asks = c.asks,
          .gates = c.gates,
          .waits = c.waits,
          .frees = c.frees,
          .held_back = c.held_back};
}
