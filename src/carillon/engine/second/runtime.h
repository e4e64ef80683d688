#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "carillon/graph/tensor.h"

// What the program sees of an engine of others, such as OpenVINO: classes of plain types, which a module
// implements (module/runtime.cpp of the engine's folder).
// It is loaded when it is first needed, by a process of its own for each model, which apart.h stands for, or
// into the program (--second-engine inside).
//
// Nothing here throws; what fails returns a text, empty where it went well.
namespace carillon::engine {
struct StopSignal;
}

namespace carillon::engine::second {

// An input or output of a model as it is in the file. Extents of -1 are open.
struct Port {
  std::string name;
  bool known = false;  // its type is one of ours
  graph::DataType type = graph::DataType::f32;
  bool ranked = false;
  graph::Shape shape;

  friend bool operator==(const Port&, const Port&) = default;
};

// What became of a run.
struct Ran {
  std::string error;  // empty: it went well
  // It failed by what is in its inputs: the next run is none the worse for it.
  bool bad_data = false;
  // What was compiled is to be compiled anew before it runs again: Compiled::renew(). A run that comes before
  // does so itself, and takes as long.
  bool stale = false;
};

// One run at a time of one model. Memory of a run is kept for the next.
class Request {
 public:
  virtual ~Request() = default;
  // Reads the inputs where they lie, `shapes[i]` the i-th's, and writes the outputs, which must come out with
  // these shapes. Where extents are bounded (graph/bounded.h) the data decide them, and they are written
  // behind the elements. After a run that went well every byte of the outputs, up to those extents, is this
  // run's: what the engine leaves unwritten is an error, or cleared.
  virtual Ran run(std::span<const std::byte* const> inputs, std::span<const graph::Shape> shapes,
                  std::span<std::byte* const> outputs, std::span<const graph::Shape> output_shapes) = 0;
  // Where a run is waited for that others do: counts up there while it is slow for want of a processor, from
  // the thread that is inside run(). Before run(); null: nowhere.
  virtual void count_steps(StopSignal* /*stop*/) {}
  // Nobody waits for the run that is under way, and what it is on hangs: ends it, whatever that costs, where
  // that can be done. From any thread, while run() is inside; without blocking.
  virtual void give_up() {}
};

// A model that runs. Requests may come from any thread; they must not outlive it.
class Compiled {
 public:
  virtual ~Compiled() = default;
  virtual std::string make_request(std::unique_ptr<Request>& into) = 0;
  // Compiles it anew where a run left it stale. The error; empty: it can run. From any thread.
  virtual std::string renew() { return {}; }
  // Why it cannot run for now, or any more; empty: it can. From any thread, cheap where it can.
  virtual std::string broken() const { return {}; }
  // Memory of the process that it is in, in bytes; 0: in this one.
  virtual std::uint64_t resident() const { return 0; }
};

// A model that was read. From one thread at a time.
class Network {
 public:
  virtual ~Network() = default;
  virtual const std::vector<Port>& inputs() const = 0;
  virtual const std::vector<Port>& outputs() const = 0;
  // The outputs' shapes where the inputs' are `inputs`, all extents known. What the data decide is bounded,
  // or -1 where nobody knows the most that it can be.
  virtual std::string shapes_at(std::span<const graph::Shape> inputs,
                                std::vector<graph::Shape>& outputs) const = 0;
  struct Options {
    // What inputs may be: extents of -1 take any.
    std::vector<graph::Shape> inputs;
    int threads = 1;
    bool bf16 = false;  // of heavy operators; else f32
    // The most bytes that a result may have whose extents the data of a run decide: a run in which data ask
    // for more fails before the operator runs (Ran::bad_data).
    std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max();
  };
  virtual std::string compile(const Options& options, std::unique_ptr<Compiled>& into) const = 0;
  // As Compiled::broken().
  virtual std::string broken() const { return {}; }
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual std::string version() const = 0;
  virtual std::string read(const std::string& file, std::unique_ptr<Network>& into) = 0;
  // Ends what reads, compiles or finds shapes, where that can be ended, and refuses what would. From any
  // thread.
  virtual void end_loading() {}
};

// The module's one symbol: makes a runtime, or says why not.
inline constexpr const char* entry_point = "carillon_module";
using EntryPoint = std::string (*)(std::unique_ptr<Runtime>& into);

}  // namespace carillon::engine::second
