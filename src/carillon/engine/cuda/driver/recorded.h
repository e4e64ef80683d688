#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"

// What a driver was asked, and what it answered, as a text; and whether the emulated device answers the same.
// So what the emulated device takes for the driver's rules can be held against a GPU's driver.
//
//   1 cuMemCreate 0 h7 2097152 0
//
// A line a call, in the order in which calls returned: the thread, by its number; the function; its status;
// its arguments. Handles and addresses are h1, h2, ... in the order in which the driver gave them, with what
// is added to an address (h3+4096). `-` is what does not matter or cannot be told, such as a kernel's
// parameters. What differs from device to device is written and not compared: memory, clocks, names.
namespace carillon::engine::cuda {

struct RecordingOptions {
  std::uint64_t most = std::uint64_t{4} << 20;  // bytes; calls after these are not written
};

// Writes to `file` for as long as it lives. One at a time in a process, as the table's functions have no
// object that they are of. A call that asks again what was not done before is written once.
class Recording {
 public:
  static Result<std::unique_ptr<Recording>> make(const std::string& file,
                                                 const RecordingOptions& options = {});
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // The table of `driver` with each call written. Once; the functions may be called as long as this lives.
  Driver around(const Driver& driver);

  struct State;

 private:
  explicit Recording(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct Replayed {
  std::size_t calls = 0;     // that were made again
  std::size_t left_out = 0;  // that cannot be: memory of other processes, copies of unpinned memory
  std::vector<std::string> differences;  // "line 12: cuMemMap gave ... where ... is recorded", 100 at most
};

// Makes the recorded calls on an emulated device of the recorded sizes, which computes nothing, each by a
// thread of its own where it was. A status has to be the same, but that work may be done earlier or later.
// What the driver took and the emulated device finds wrong is a difference, too. Takes the one emulated
// device of the process. invalid_argument: the text is no such recording, with the line.
Result<Replayed> replay(std::string_view text);

}  // namespace carillon::engine::cuda
