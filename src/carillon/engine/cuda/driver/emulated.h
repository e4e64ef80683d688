#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/engine/cuda/driver/driver.h"

// A CUDA device in this process, behind the driver's table: memory that is mapped piece by piece, at
// addresses that really fault where nothing is mapped; streams, events, graphs, green contexts; kernels that
// are really computed, by functions of the host; copies at the rate of a bus. Time is virtual: each piece of
// work takes what its maker says, and the host's time goes on by what it waits for.
//
// It is an oracle. Work is done as late as it may be, and whoever breaks a rule that a GPU would not forgive
// finds it among the violations, though nothing crashed:
//
//  - of two accesses to the same bytes, one of them writing, the later is ordered after the earlier: by its
//    stream, by an event, or by the host having waited;
//  - what is read was written before, and is mapped with access, as is what is written;
//  - nothing is unmapped, released, freed or destroyed under work that the host has not waited for;
//  - a capture holds nothing that cannot be captured, and joins all streams that it forked to;
//  - nothing runs in the default stream, which waits for all others;
//  - memory of another process is used while it is open alone, and closed as often as it was opened;
//  - what was made is given back in the end (left_behind()).
//
//  - what is of one device, streams, events, memory, kernels, graphs, is used by that device's work alone,
//  and
//    with that device's context current.
//
// Which lines of CUDA 13.0's cuda.h say so driver_test.cpp lists, and holds them against the header. These
// are not in it. Of the programming guide: neither a captured stream nor a context that has one is waited for
// or asked ("Prohibited and Unhandled Operations"). Stricter than the driver, as the engine is to be: graphs
// and streams are not destroyed under work, though the driver would wait by itself; nothing uses the default
// stream; copies are of pinned memory; devices have nothing to do with each other. Of an H100: its groups.
//
// One a process, as the driver is: table() is of the one that is alive. It may have several devices, each
// with memory, contexts, streams, faults and an end of its own; the host's time is one. Any thread may call
// the table, one at a time; threads of the host are taken to be ordered among each other.
namespace carillon::engine::cuda {

struct Span {
  Address at = 0;
  std::uint64_t bytes = 0;
};

// What the emulated device is to know of a kernel. `parameters`: what the launch gave, one pointer for each.
struct EmulatedKernel {
  struct Launch {
    void* const* parameters = nullptr;
    unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    unsigned processors = 0;  // of the stream's context
  };
  // Bytes of the parameters, in their order: they are copied at the launch, as the driver does.
  std::vector<std::size_t> parameter_bytes;
  std::function<void(const Launch&)> run;
  std::function<void(const Launch&, std::vector<Span>& reads, std::vector<Span>& writes)> accesses;
  std::function<Duration(const Launch&)> duration;  // without: EmulatedOptions::kernel
};

struct EmulatedOptions {
  std::string name = "emulated H100";
  int devices = 1;      // that are so, each; more may be added
  int version = 13000;  // of the driver
  int major = 9, minor = 0;
  // As an H100's driver divides it: 15 groups of 8, and 12 processors that belong to none.
  unsigned processors = 132, least_part = 8, groups = 15;
  std::uint64_t memory = std::uint64_t{1} << 32;
  std::size_t granularity = std::size_t{2} << 20;
  bool virtual_memory = true;
  double bytes_per_second = 55e9;                     // of the bus, in each direction
  double memory_bytes_per_second = 3.35e12;           // of copies on the device, which read and write
  Duration copy = std::chrono::microseconds{2};       // what a copy takes besides
  Duration kernel = std::chrono::microseconds{3};     // a kernel that does not say
  Duration enqueue = std::chrono::nanoseconds{1500};  // of the host, for each piece of work or graph
  // Without: work takes its time and does nothing, memory of the device is addresses only, what is copied out
  // is zeros, and the oracle looks neither at order nor at what is mapped.
  bool computes = true;
  // With these time is real for this device: the host's is what `time` says, and whoever waits for work is
  // kept by `wait` until the time at which it ends.
  std::function<Duration()> time{};
  std::function<void(Duration until)> wait{};

  // --- Faults
  std::uint64_t fail_create =
      0;  // the n-th call that makes memory, of the device or the host, from 1 on: out of memory
  std::uint64_t lose_after =
      0;  // so many pieces of work: the device is lost (an uncorrectable error of its memory)
  double slow_copies = 1;         // so many times as long
  std::function<bool()> fails{};  // once it says so, the device is lost
};

// Memory that another process lends, for tests: in this process, with a handle that opens as if it were
// another's. It goes with this, though not under whoever has it open.
class EmulatedLoan {
 public:
  explicit EmulatedLoan(std::size_t bytes);
  ~EmulatedLoan();
  EmulatedLoan(const EmulatedLoan&) = delete;
  EmulatedLoan& operator=(const EmulatedLoan&) = delete;

  const IpcHandle& handle() const { return handle_; }
  std::byte* data() const { return data_; }

 private:
  int file_ = -1;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
  IpcHandle handle_;
};

class Emulated {
 public:
  explicit Emulated(EmulatedOptions options = {});
  ~Emulated();  // what is still mapped is unmapped, whatever was left
  Emulated(const Emulated&) = delete;
  Emulated& operator=(const Emulated&) = delete;

  // One more, whose `granularity`, `enqueue` and `version` are the others'. Its number.
  DeviceNumber add_device(EmulatedOptions options);
  // It is lost from now on, as after `lose_after`; the others go on.
  void lose(DeviceNumber device);

  // The next kernel that this thread launches, or puts into a graph, takes so long.
  static void next_takes(Duration duration);
  // Its blocks wait for each other, and need so many processors to be there all at once: in a part with fewer
  // it never ends, nor does what comes after it there. Who waits for that without a bound is told, and gets
  // launch_timeout.
  static void next_needs(unsigned processors);

  static Driver table();
  // Modules that are loaded have all kernels that are known then. `name` is the symbol.
  void know(std::string name, EmulatedKernel kernel);

  Duration now() const;        // of the host, since the start
  void pass(Duration while_);  // the host does something else
  // Of all devices together, where none is named.
  Duration busy() const;                     // in which kernels ran, summed up over contexts
  Duration busy(unsigned processors) const;  // of those with so many processors, that were destroyed included
  std::uint64_t launched() const;            // pieces of work so far
  std::uint64_t launched(DeviceNumber device) const;
  std::uint64_t memory_used() const;
  std::uint64_t memory_calls() const;  // create, release, reserve, unreserve, map, unmap, set_access

  // What was done against the rules, in words that name the work.
  std::vector<std::string> violations() const;
  // "1 mapping, 2 streams": what was made and not given back; empty: nothing.
  std::string left_behind() const;

 private:
  struct State;
  friend struct EmulatedFunctions;
  std::unique_ptr<State> state_;
};

}  // namespace carillon::engine::cuda
