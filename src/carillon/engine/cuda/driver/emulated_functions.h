#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "carillon/engine/cuda/driver/emulated_state.h"

namespace carillon::engine::cuda {

// The driver's functions, which act on the one Emulated that there is. For the sources of Emulated alone.
struct EmulatedFunctions {
  static inline Emulated* the_one = nullptr;

  using State = Emulated::State;
  static State& s() { return *the_one->state_; }
  static std::unique_lock<std::recursive_mutex> hold() { return std::unique_lock(s().mutex); }
  static Board* board(DeviceNumber device) { return s().board(device); }
  static Status ready() { return s().ready(State::here()); }
  static Board& of(const StreamState& stream) { return stream.partition->board; }

#define CARILLON_EMULATED(member, symbol, arguments) static Status member arguments;
  CARILLON_CUDA_DRIVER(CARILLON_EMULATED)
#undef CARILLON_EMULATED

 private:
  static bool meets(Address a, std::uint64_t a_bytes, Address b, std::uint64_t b_bytes);
  // Whole mappings in [at, at + bytes), one or several; empty where it is otherwise.
  static std::vector<Address> whole_mappings(Address at, std::size_t bytes);
  // Maps the file somewhere, and knows it there as this device's; 0: it cannot be.
  static Address map_file(Board& board, std::map<Address, Mapping>& table, int file, std::uint64_t bytes);
  static void end_mapping(std::map<Address, Mapping>& table, std::map<Address, Mapping>::iterator which,
                          const char* what);
  static Work copying(const char* what, Address to, Address from, std::uint64_t bytes, Work::On on);
  // Memory of the host that is not pinned is copied before the call returns.
  static bool pinned(const void* at, std::size_t bytes);
  static Status make_stream(Stream* out, unsigned flags, std::shared_ptr<Partition> partition);
  static StreamState* stream_of(Stream stream);
  // To ask takes time, or whoever asks again and again would ask for ever; where nothing else does, too.
  static Status query(const Board& board, const Before& before, Duration at);
};

}  // namespace carillon::engine::cuda
