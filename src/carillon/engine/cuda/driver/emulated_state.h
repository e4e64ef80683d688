#pragma once

// What an emulated device is made of, and the rules that it holds work to. For emulated_functions.h alone,
// whose functions act on it.

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/engine/cuda/driver/emulated.h"

namespace carillon::engine::cuda {
namespace emulation {

inline std::byte* pointer(Address at) {
  return reinterpret_cast<std::byte*>(at);
}
inline Address address(const void* at) {
  return reinterpret_cast<Address>(at);
}

inline thread_local std::vector<Context> contexts_here;
inline thread_local std::optional<Duration> next_here;  // Emulated::next_takes()
inline thread_local unsigned next_needs_here = 0;       // Emulated::next_needs()

// When work ends that does not.
inline constexpr Duration never = Duration::max() / 4;

// What is ordered before something: of each stream, at its number, its first so many pieces of work. Streams
// that are gone keep their places: whatever is launched joins two of these, so that each is a row of numbers.
using Before = std::vector<std::uint64_t>;

inline void join(Before& to, const Before& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}
inline void set(Before& before, std::uint64_t stream, std::uint64_t sequence) {
  if (before.size() <= stream) before.resize(stream + 1);
  before[stream] = sequence;
}
inline bool has(const Before& before, std::uint64_t stream, std::uint64_t sequence) {
  return stream < before.size() && before[stream] >= sequence;
}

// Bytes [first, second) that were written, as intervals that do not touch.
class Written {
 public:
  void add(std::uint64_t first, std::uint64_t last) {
    auto at = parts_.upper_bound(first);
    if (at != parts_.begin() && std::prev(at)->second >= first) {
      --at;
      first = at->first;
    }
    while (at != parts_.end() && at->first <= last) {
      last = std::max(last, at->second);
      at = parts_.erase(at);
    }
    parts_.emplace(first, last);
  }
  bool has(std::uint64_t first, std::uint64_t last) const {
    const auto at = parts_.upper_bound(first);
    return first >= last || (at != parts_.begin() && std::prev(at)->second >= last);
  }

 private:
  std::map<std::uint64_t, std::uint64_t> parts_;
};

struct Touch {
  std::uint64_t first = 0, last = 0;  // bytes of the memory
  std::uint64_t stream = 0, sequence = 0;
  bool writes = false;
  std::string what;
};

// One device of the driver. Its address is its primary context.
struct Partition;
struct Board {
  DeviceNumber number = 0;
  EmulatedOptions options;
  std::shared_ptr<Partition> whole;
  Duration bus_in{0}, bus_out{0}, busy{0};
  std::uint64_t launched = 0, made = 0, used = 0;
  int contexts = 0;
  Status lost = done;

  Board(DeviceNumber at, EmulatedOptions with);
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
};

// Memory of a device, or pinned memory of the host, which all devices may use.
struct Memory {
  Board* board = nullptr;  // none: the host's
  int file = -1;
  std::uint64_t bytes = 0;
  bool of_host() const { return board == nullptr; }
  Written written;             // all of the host's counts as written
  std::vector<Touch> touches;  // that the host has not waited for
  int mappings = 0;
  Memory(Board* of, std::uint64_t size) : board(of), bytes(size) {
    if (board != nullptr) board->used += bytes;
  }
  ~Memory() {
    if (file >= 0) close(file);
    if (board != nullptr) board->used -= bytes;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

struct Mapping {
  std::uint64_t bytes = 0;
  std::shared_ptr<Memory> memory;
  bool access = false;
};

// A piece of work as it is launched, or stands in a graph.
struct Work {
  std::string what;
  std::vector<Span> reads, writes;
  std::function<void()> run;  // null: it was done as it was launched
  std::function<Duration(const Board& board, unsigned processors)> takes;
  Module module = nullptr;  // a kernel's
  enum class On : std::uint8_t { kernels, bus_in, bus_out } on{};
};

struct Node {
  Work work;
  std::vector<std::size_t> after;  // nodes of the graph
};

struct GraphState {
  const Board* board = nullptr;
  std::vector<Node> nodes;
};

// Launches of one executable graph come one after the other, in whichever streams.
struct Executable {
  GraphState graph;
  Before before;
  Duration free_at{0};
};

struct Capture {
  std::uint64_t id = 0;
  Stream origin = nullptr;
  GraphState graph;
  std::set<Stream> forked;  // and not joined
  bool broken = false;
};

// A context, or a green one: its kernels run one after the other.
struct Partition {
  Board& board;
  unsigned processors = 0;
  Duration free_at{0};
};

inline Board::Board(DeviceNumber at, EmulatedOptions with)
    : number(at), options(std::move(with)), whole(std::make_shared<Partition>(*this, options.processors)) {}

struct StreamState {
  std::uint64_t number = 0;
  std::shared_ptr<Partition> partition;
  std::uint64_t sequence = 0;
  Before before;
  Duration free_at{0};
  // While it is captured: by which capture, and the nodes that whatever comes next is after.
  std::uint64_t capture = 0;
  std::vector<std::size_t> tips;
};

struct EventState {
  const Board* board = nullptr;
  bool recorded = false, timed = true;
  Before before;
  Duration at{0};
  std::uint64_t capture = 0;
  std::vector<std::size_t> tips;
};

struct Waiting {
  std::uint64_t stream = 0, sequence = 0;
  Work work;
};

// What a handle of an allocation holds: a file of its process that nobody can cut, as long as that process
// keeps it open. `sum` tells it from other bytes.
struct Exported {
  std::array<char, 8> mark{'e', 'm', 'u', 'l', 'a', 't', 'e', 'd'};
  std::int32_t process = 0, file = 0;
  std::uint64_t device = 0, inode = 0, bytes = 0;
  std::uint32_t here = 0;  // may be opened in its own process, which a driver refuses
  std::uint32_t sum = 0;

  std::uint32_t summed() const {
    std::uint64_t out = 0x9e3779b97f4a7c15;
    for (const std::uint64_t part :
         {std::uint64_t(static_cast<std::uint32_t>(process)), std::uint64_t(static_cast<std::uint32_t>(file)),
          device, inode, bytes, std::uint64_t{here}})
      out = (out ^ part) * 0x100000001b3;
    return static_cast<std::uint32_t>(out >> 32 ^ out);
  }
};
static_assert(sizeof(Exported) <= sizeof(IpcHandle));

// A file of so many bytes, which stays as long as that; -1: there is none to have.
inline int whole_file(std::size_t bytes) {
  const int file = memfd_create("carillon-emulated", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
    return file;
  if (file >= 0) close(file);
  return -1;
}

inline IpcHandle handle_of(int file, std::uint64_t bytes, bool here) {
  struct stat status {};
  (void)fstat(file, &status);
  Exported out;
  out.process = getpid();
  out.file = file;
  out.device = status.st_dev;
  out.inode = status.st_ino;
  out.bytes = bytes;
  out.here = here ? 1 : 0;
  out.sum = out.summed();
  IpcHandle handle;
  std::memcpy(handle.bytes, &out, sizeof out);
  return handle;
}

// Memory of another process that is open here, so many times.
struct Borrowed {
  std::uint64_t device = 0, inode = 0;
  int opened = 0;
};

}  // namespace emulation

using namespace emulation;

// One driver and its devices.
struct Emulated::State {
  mutable std::recursive_mutex mutex;
  EmulatedOptions options;
  std::deque<Board> boards;  // by number; they outlive what is theirs
  std::map<Handle, std::shared_ptr<Memory>> handles;
  std::map<Address, std::uint64_t> reservations;
  std::map<Address, Mapping> mappings;
  std::map<Address, Mapping> host;
  std::map<Address, Mapping> allocations;
  std::map<Address, Mapping> borrowed;
  std::map<Address, Borrowed> loans;  // of what is borrowed
  std::map<Stream, StreamState> streams;
  std::map<Event, EventState> events;
  std::map<GreenContext, std::shared_ptr<Partition>> greens;
  std::map<Resources, unsigned> resources;
  std::map<Module, const Board*> modules;
  std::map<Function, std::pair<std::string, Module>> functions;  // of modules that are loaded
  std::map<Graph, GraphState> graphs;
  std::map<GraphExec, Executable> executables;
  std::map<std::uint64_t, Capture> captures;
  std::map<std::string, EmulatedKernel, std::less<>> kernels;
  std::vector<std::string> violations;
  std::deque<Waiting> waiting;  // in the order of their launches
  std::map<unsigned, Duration> busy_by_processors;
  Before host_knows;
  Duration now{0};
  std::uintptr_t next = 0x100;
  std::uint64_t stream_numbers = 0, capture_numbers = 0, memory_calls = 0;

  void wrong(std::string what) {
    if (violations.size() < 1000) violations.push_back(std::move(what));
  }
  template <typename T>
  T fresh() {
    return reinterpret_cast<T>(next++);
  }

  // Calls f(memory, first, last) for each piece under the span; false where some of it is not mapped with
  // access.
  template <typename F>
  bool under(const Span& span, const F& f) {
    for (Address at = span.at; at < span.at + span.bytes;) {
      Mapping* found = nullptr;
      Address start = 0;
      for (auto* const table : {&mappings, &host, &allocations, &borrowed}) {
        auto above = table->upper_bound(at);
        if (above == table->begin()) continue;
        --above;
        if (at < above->first + above->second.bytes) {
          found = &above->second;
          start = above->first;
        }
      }
      if (found == nullptr || !found->access) return false;
      const Address end = std::min(span.at + span.bytes, start + found->bytes);
      f(*found->memory, at - start, end - start);
      at = end;
    }
    return true;
  }

  bool aligned(std::uint64_t number) const { return number % options.granularity == 0; }
  Board* board(DeviceNumber number) {
    return number >= 0 && static_cast<std::size_t>(number) < boards.size()
               ? &boards[static_cast<std::size_t>(number)]
               : nullptr;
  }
  // The device whose context is current on this thread.
  static Board* here() { return contexts_here.empty() ? nullptr : static_cast<Board*>(contexts_here.back()); }
  // The status that a call gives whatever it asks: the device is lost; else what stands in its way, or done.
  Status ready(Board* board) {
    if (board == nullptr) return invalid_context;
    if (board->lost == done && board->options.fails && board->options.fails()) lose(*board);
    return board->lost;
  }
  // Work of one device has nothing to do with another's. The driver lets some of it pass (copies, waits for
  // events, memory of peers); here each device is served by itself, and whoever mixes them up is told.
  bool foreign(const Board* owner, const std::string& what, const Board* user) {
    if (owner == nullptr || user == nullptr || owner == user) return false;
    wrong(fmt::format("{} of device {} was used by device {}", what, owner->number, user->number));
    return true;
  }
  bool foreign(const Board* owner, const std::string& what) { return foreign(owner, what, here()); }

  // --- order

  void touch(const Work& work, const StreamState& stream) {
    for (const bool writes : {false, true})
      for (const Span& span : writes ? work.writes : work.reads)
        under(span, [&](Memory& memory, std::uint64_t first, std::uint64_t last) {
          const auto conflict =
              std::find_if(memory.touches.rbegin(), memory.touches.rend(), [&](const Touch& earlier) {
                return first < earlier.last && earlier.first < last && (writes || earlier.writes) &&
                       !has(stream.before, earlier.stream, earlier.sequence);
              });
          if (conflict != memory.touches.rend())
            wrong(fmt::format("{} {} bytes that {} {}, and nothing orders it after that", work.what,
                              writes ? "writes" : "reads", conflict->what,
                              conflict->writes ? "writes" : "reads"));
          // What is covered by a write after it needs no more be looked at.
          if (writes)
            std::erase_if(memory.touches, [&](const Touch& earlier) {
              return first <= earlier.first && earlier.last <= last &&
                     has(stream.before, earlier.stream, earlier.sequence);
            });
          if (!writes && !memory.of_host() && !memory.written.has(first, last))
            wrong(fmt::format("{} reads bytes that nothing has written", work.what));
          memory.touches.push_back({first, last, stream.number, stream.sequence, writes, work.what});
        });
    for (const Span& span : work.writes)
      under(span,
            [](Memory& memory, std::uint64_t first, std::uint64_t last) { memory.written.add(first, last); });
  }
  bool mapped(const Work& work) {
    for (const auto* const spans : {&work.reads, &work.writes})
      for (const Span& span : *spans)
        if (!under(span, [](Memory&, std::uint64_t, std::uint64_t) {})) return false;
    return true;
  }
  // Says so where some of its memory is another device's.
  void look_for_foreign_memory(const Work& work, const Board& board) {
    const Board* other = nullptr;
    for (const auto* const spans : {&work.reads, &work.writes})
      for (const Span& span : *spans)
        under(span, [&](const Memory& memory, std::uint64_t, std::uint64_t) {
          if (!memory.of_host() && memory.board != &board) other = memory.board;
        });
    foreign(other, "memory that " + work.what + " uses", &board);
  }
  // Work on these bytes that the host has not waited for, or nothing.
  std::optional<std::string> outstanding(const Memory& memory, std::uint64_t first,
                                         std::uint64_t last) const {
    for (const Touch& each : memory.touches)
      if (each.first < last && first < each.last && !has(host_knows, each.stream, each.sequence))
        return each.what;
    return std::nullopt;
  }

  // --- time

  // The host's, as far as it has to do with this device.
  Duration time_at(const Board& board) const { return board.options.time ? board.options.time() : now; }
  void enqueue(const Board& board) {
    if (!board.options.time) now += board.options.enqueue;
  }
  // The host comes to that time, where it is real: whoever else calls the driver goes on meanwhile.
  static void pass_until(const Board& board, Duration at, std::unique_lock<std::recursive_mutex>& held) {
    if (!board.options.wait || board.options.time() >= at) return;
    const auto wait = board.options.wait;
    held.unlock();
    wait(at);
    held.lock();
  }

  Duration run_for(const Work& work, StreamState& stream, Duration ready) {
    Board& board = stream.partition->board;
    Duration& engine = work.on == Work::On::bus_in    ? board.bus_in
                       : work.on == Work::On::bus_out ? board.bus_out
                                                      : stream.partition->free_at;
    const Duration takes = work.takes(board, stream.partition->processors);
    const Duration start = std::max(ready, engine);
    engine = start >= never || takes >= never ? never : start + takes;
    if (engine == never) return engine;
    if (work.on == Work::On::kernels) {
      busy_by_processors[stream.partition->processors] += takes;
      board.busy += takes;
    }
    return engine;
  }
  static Duration copy_time(const EmulatedOptions& options, std::uint64_t bytes, Work::On on) {
    const double rate =
        on == Work::On::kernels ? options.memory_bytes_per_second / 2 : options.bytes_per_second;
    return from_seconds((to_seconds(options.copy) + static_cast<double>(bytes) / rate) * options.slow_copies);
  }

  // --- work

  Status add(Stream at, Work work) {
    if (const Status status = ready(here()); status != done) return status;
    const auto found = streams.find(at);
    if (found == streams.end()) {
      wrong(at == nullptr ? work.what + " runs in the default stream, which waits for all others"
                          : work.what + " is for a stream that there is not");
      return invalid_handle;
    }
    StreamState& stream = found->second;
    if (foreign(&stream.partition->board, "a stream, for " + work.what + ",")) return invalid_handle;
    if (stream.capture != 0) {
      Capture& capture = captures.at(stream.capture);
      capture.graph.nodes.push_back({std::move(work), stream.tips});
      stream.tips = {capture.graph.nodes.size() - 1};
      return done;
    }
    enqueue(stream.partition->board);
    return launch(stream, work);
  }

  Status launch(StreamState& stream, const Work& work) {
    Board& board = stream.partition->board;
    if (board.options.lose_after > 0 && board.launched >= board.options.lose_after) {
      lose(board);
      return board.lost;
    }
    ++board.launched;
    join(stream.before, host_knows);
    set(stream.before, stream.number, ++stream.sequence);
    if (!board.options.computes) {
      if (work.on == Work::On::bus_out)
        for (const Span& span : work.writes) std::memset(pointer(span.at), 0, span.bytes);
      stream.free_at = run_for(work, stream, std::max(stream.free_at, time_at(board)));
      return done;
    }
    if (!mapped(work)) wrong(work.what + " uses memory that is not mapped with access");
    look_for_foreign_memory(work, board);
    touch(work, stream);
    stream.free_at = run_for(work, stream, std::max(stream.free_at, time_at(board)));
    waiting.push_back({stream.number, stream.sequence, work});
    return done;
  }

  // No work goes on in a device that is lost: whatever is taken from it now is taken from nobody. The others
  // go on.
  void lose(Board& board) {
    board.lost = uncorrectable_memory;
    for (const auto& [handle, stream] : streams) {
      if (&stream.partition->board != &board) continue;
      join(host_knows, stream.before);
      set(host_knows, stream.number, stream.sequence);
      std::erase_if(waiting, [&](const Waiting& each) { return each.stream == stream.number; });
    }
  }

  // Whether whoever waits until then does so for ever.
  bool never_ends(Duration at, const char* call) {
    if (at < never) return false;
    wrong(std::string(call) + " waits for work that never ends");
    return true;
  }

  // The host knows that this is done, at that time: what is ordered before it is.
  void wait_for(const Board& board, const Before& before, Duration at) {
    if (!board.options.time) now = std::max(now, at);
    join(host_knows, before);
    if (!board.options.computes) return;
    for (auto each = waiting.begin(); each != waiting.end();) {
      if (!has(host_knows, each->stream, each->sequence)) {
        ++each;
        continue;
      }
      const Work work = std::move(each->work);
      each = waiting.erase(each);
      if (work.run != nullptr && mapped(work)) work.run();  // what was unmapped since was told then
    }
    const auto prune = [&](Memory& memory) {
      std::erase_if(memory.touches, [&](const Touch& t) { return has(host_knows, t.stream, t.sequence); });
    };
    for (auto& [handle, memory] : handles) prune(*memory);
    for (auto* const table : {&mappings, &host, &allocations, &borrowed})
      for (auto& [address_, mapping] : *table) prune(*mapping.memory);
  }

  // A call that cannot be captured: none of the streams that are captured goes on.
  bool breaks_capture(const StreamState* stream, const char* call) {
    if (stream == nullptr || stream->capture == 0) return false;
    captures.at(stream->capture).broken = true;
    wrong(std::string(call) + " cannot be captured");
    return true;
  }

  // --- graphs

  // Whether `later` is after `earlier`, by the ends that each node has.
  static std::vector<std::set<std::size_t>> all_before(const GraphState& graph) {
    std::vector<std::set<std::size_t>> before(graph.nodes.size());
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      for (const std::size_t parent : graph.nodes[i].after) {
        before[i].insert(parent);
        before[i].insert(before[parent].begin(), before[parent].end());
      }
    return before;
  }
  void check_order(const GraphState& graph) {
    const auto before = all_before(graph);
    const auto meet = [](const std::vector<Span>& a, const std::vector<Span>& b) {
      return std::ranges::any_of(a, [&](const Span& one) {
        return std::ranges::any_of(
            b, [&](const Span& two) { return one.at < two.at + two.bytes && two.at < one.at + one.bytes; });
      });
    };
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        if (before[i].contains(j)) continue;
        const Work &a = graph.nodes[j].work, &b = graph.nodes[i].work;
        if (meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes))
          wrong(
              fmt::format("in a graph, nothing orders {} and {}, which use the same bytes", a.what, b.what));
      }
  }
};

}  // namespace carillon::engine::cuda
