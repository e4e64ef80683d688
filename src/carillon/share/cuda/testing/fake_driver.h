#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "carillon/share/cuda/driver.h"

// A stand-in for CUDA's driver, without a device: physical memory is a memory file, mapped where the driver
// would map it, and streams run in virtual order. It is an oracle: whoever breaks a rule that a GPU would not
// forgive finds it among the violations, though nothing crashed.
//
// Work runs as late as it may: when somebody waits for it, or for what it is ordered before. What is not
// ordered after the work that it needs so really comes before it, and reads what was there earlier. Rules
// that are kept:
//
//   - work reads and writes memory that is mapped, with access, when it runs;
//   - memory is not unmapped while work on it is outstanding;
//   - of work that touches the same bytes, one of it writing, the later is ordered after the earlier;
//   - no two processes have work outstanding on the same physical memory;
//   - what is mapped, made, imported or reserved is given back in the end (`left_behind`).
//
// A stream can be captured. Its work is not run then, and is forgotten here, as nothing launches graphs. What
// ends a capture is (cuda.h of CUDA 13.0, and the CUDA programming guide, "Prohibited and Unhandled
// Operations"):
//
//   - a call that is not put into a stream, where the thread's mode forbids it (cuda.h:15430). The header
//     names cudaMalloc alone; here all such calls count;
//   - waiting for a captured stream, for an event of one, or for the context that has one (the guide);
//   - using the default stream beside a captured one that waits for it (the guide; cuda.h:15525).
//
// One a process, as the driver is. Any thread may call it.
namespace carillon::share::cuda::testing {

struct FakeDriverOptions {
  std::size_t granularity = std::size_t{64} * 1024;  // a GPU's is 2 MiB
  std::size_t memory = std::size_t{1} << 32;
  bool memory_needs_context = false;  // physical memory is made in a context only
  bool virtual_memory = true;         // the device can do it
  unsigned char uuid = 1;             // its first byte
  int devices = 1;
};

class FakeDriver {
 public:
  static FakeDriver& here();
  // As in a process that has just started; in the child of a fork first.
  void reset(FakeDriverOptions options = {});
  Driver table() const;

  // --- work, as kernels do it
  void fill(Stream stream, Address at, std::size_t bytes, unsigned char value);
  // A violation where any byte is another.
  void expect(Stream stream, Address at, std::size_t bytes, unsigned char value);

  // `mode` as cuStreamBeginCapture has it (0: global, 1: of this thread, 2: relaxed); `blocks`: it is a
  // stream that waits for the default one.
  Status begin_capture(Stream stream, int mode, bool blocks = false);
  // not done: the capture was ended by a call that may not be made meanwhile.
  Status end_capture(Stream stream);

  // What was done against the rules since reset(), in words.
  std::vector<std::string> violations() const;
  // What is still there: "1 mapping, 2 handles"; empty: nothing.
  std::string left_behind() const;
  std::size_t memory_used() const;
  std::size_t copied_bytes() const;
  // Of calls that change which memory is where: create, import, map, unmap, set_access.
  std::size_t memory_calls() const;
  std::size_t outstanding() const;  // pieces of work

 private:
  FakeDriver();
  ~FakeDriver();
  struct State;
  std::unique_ptr<State> state_;
  friend struct FakeFunctions;
};

}  // namespace carillon::share::cuda::testing
