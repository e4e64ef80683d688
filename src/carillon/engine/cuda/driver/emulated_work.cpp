// Work, in streams and in graphs, and what orders it.

#include <algorithm>
#include <cstring>
#include <utility>

#include "carillon/engine/cuda/driver/emulated_functions.h"

namespace carillon::engine::cuda {

// --- work

Work EmulatedFunctions::copying(const char* what, Address to, Address from, std::uint64_t bytes,
                                Work::On on) {
  return {.what = fmt::format("{} of {} bytes to {:#x}", what, bytes, to),
          .reads = {{from, bytes}},
          .writes = {{to, bytes}},
          .run = [=] { std::memmove(pointer(to), pointer(from), bytes); },
          .takes = [bytes, on](const Board& board,
                               unsigned) { return State::copy_time(board.options, bytes, on); },
          .on = on};
}

bool EmulatedFunctions::pinned(const void* at, std::size_t bytes) {
  const auto above = s().host.upper_bound(address(at));
  return above != s().host.begin() &&
         address(at) + bytes <= std::prev(above)->first + std::prev(above)->second.bytes;
}

Status EmulatedFunctions::copy_in(Address to, const void* from, std::size_t bytes, Stream stream) {
  const auto held = hold();
  if (!pinned(from, bytes)) {
    s().wrong("a copy reads memory of the host that is not pinned: it would wait");
    return invalid_value;
  }
  return s().add(stream, copying("a copy", to, address(from), bytes, Work::On::bus_in));
}

Status EmulatedFunctions::copy_out(void* to, Address from, std::size_t bytes, Stream stream) {
  const auto held = hold();
  if (!pinned(to, bytes)) {
    s().wrong("a copy writes memory of the host that is not pinned: it would wait");
    return invalid_value;
  }
  return s().add(stream, copying("a copy", address(to), from, bytes, Work::On::bus_out));
}

Status EmulatedFunctions::copy(Address to, Address from, std::size_t bytes, Stream stream) {
  const auto held = hold();
  return s().add(stream, copying("a copy on the device", to, from, bytes, Work::On::kernels));
}

Status EmulatedFunctions::fill(Address to, unsigned char value, std::size_t bytes, Stream stream) {
  const auto held = hold();
  return s().add(stream, {.what = fmt::format("a fill of {} bytes at {:#x}", bytes, to),
                          .reads = {},
                          .writes = {{to, bytes}},
                          .run = [=] { std::memset(pointer(to), value, bytes); },
                          .takes = [](const Board& board, unsigned) { return board.options.kernel; },
                          .on = Work::On::kernels});
}

Status EmulatedFunctions::write_value(Stream stream, Address at, std::uint32_t value, unsigned) {
  const auto held = hold();
  // Where all that is ordered before the write has been done, the value is there at once, before work of
  // other streams that the host has not waited for: such work may see the value at any time.
  const StreamState* const in = stream_of(stream);
  const bool at_once = in != nullptr && in->capture == 0 && of(*in).lost == done &&
                       std::ranges::none_of(s().waiting, [&](const Waiting& each) {
                         return each.work.run != nullptr && has(in->before, each.stream, each.sequence);
                       });
  std::function<void()> write = [=] { std::memcpy(pointer(at), &value, sizeof value); };
  if (at_once && s().under({at, sizeof value}, [](Memory&, std::uint64_t, std::uint64_t) {}) &&
      of(*in).options.computes)
    std::exchange(write, nullptr)();
  return s().add(stream, {.what = fmt::format("a value at {:#x}", at),
                          .reads = {},
                          .writes = {{at, sizeof value}},
                          .run = std::move(write),
                          .takes = [](const Board& board, unsigned) { return board.options.enqueue; },
                          .on = Work::On::kernels});
}

Status EmulatedFunctions::launch(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                 Stream stream, void** parameters, void** extra) {
  const auto held = hold();
  const auto found = s().functions.find(function);
  if (found == s().functions.end()) s().wrong("a kernel was launched that there is not, or not any more");
  if (found == s().functions.end() || extra != nullptr) return invalid_handle;
  const std::string& symbol = found->second.first;
  if (s().foreign(s().modules.at(found->second.second), "kernel " + symbol)) return invalid_handle;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024) {
    s().wrong(symbol + " was launched with a grid or blocks that there cannot be");
    return invalid_value;
  }
  const EmulatedKernel& kernel = s().kernels.find(symbol)->second;
  auto copies = std::make_shared<std::vector<std::vector<std::byte>>>();
  for (std::size_t i = 0; i < kernel.parameter_bytes.size(); ++i) {
    const auto* const from = static_cast<const std::byte*>(parameters[i]);
    copies->emplace_back(from, from + kernel.parameter_bytes[i]);
  }
  const auto with = [copies, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes](
                        unsigned processors, const auto& what) {
    std::vector<void*> pointers;
    for (auto& each : *copies) pointers.push_back(each.data());
    return what(EmulatedKernel::Launch{.parameters = pointers.data(),
                                       .grid = {grid_x, grid_y, grid_z},
                                       .block = {block_x, block_y, block_z},
                                       .shared_bytes = shared_bytes,
                                       .processors = processors});
  };
  Work work{.what = symbol,
            .reads = {},
            .writes = {},
            .run = {},
            .takes = {},
            .module = found->second.second,
            .on = Work::On::kernels};
  with(0, [&](const EmulatedKernel::Launch& as) { kernel.accesses(as, work.reads, work.writes); });
  work.run = [with, &kernel] { with(0, [&](const EmulatedKernel::Launch& as) { kernel.run(as); }); };
  work.takes = [with, &kernel, told = std::exchange(next_here, std::nullopt),
                needs = std::exchange(next_needs_here, 0)](const Board& board, unsigned processors) {
    if (processors < needs) return never;
    if (told) return *told;
    if (!kernel.duration) return board.options.kernel;
    return with(processors, [&](const EmulatedKernel::Launch& as) { return kernel.duration(as); });
  };
  return s().add(stream, std::move(work));
}

// --- streams and events

Status EmulatedFunctions::make_stream(Stream* out, unsigned flags, std::shared_ptr<Partition> partition) {
  if (flags != stream_beside_the_default) {
    s().wrong("a stream was made that waits for the default stream");
    return invalid_value;
  }
  *out = s().fresh<Stream>();
  StreamState& made = s().streams[*out];
  made.number = ++s().stream_numbers;
  made.partition = std::move(partition);
  return done;
}

Status EmulatedFunctions::stream_create(Stream* out, unsigned flags, int) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  return make_stream(out, flags, State::here()->whole);
}

// As on GPUs: numerically, the greatest is the least.
Status EmulatedFunctions::priority_range(int* least, int* greatest) {
  if (s().here() == nullptr) return invalid_context;
  *least = 0;
  *greatest = -5;
  return done;
}

StreamState* EmulatedFunctions::stream_of(Stream stream) {
  const auto found = s().streams.find(stream);
  return found == s().streams.end() ? nullptr : &found->second;
}

Status EmulatedFunctions::stream_destroy(Stream stream) {
  const auto held = hold();
  StreamState* const found = stream_of(stream);
  if (found == nullptr) return invalid_handle;
  s().foreign(&of(*found), "a stream that was destroyed");
  if (!has(s().host_knows, found->number, found->sequence) && found->sequence > 0)
    s().wrong("a stream was destroyed with work in it that nobody waited for");
  if (found->capture != 0) {
    s().wrong("a stream was destroyed while it was captured");
    s().captures.at(found->capture).broken = true;
  }
  s().streams.erase(stream);
  return done;
}

Status EmulatedFunctions::stream_query(Stream stream) {
  const auto held = hold();
  StreamState* const found = stream_of(stream);
  if (found == nullptr) return invalid_handle;
  if (of(*found).lost != done) return of(*found).lost;
  s().foreign(&of(*found), "a stream, by cuStreamQuery,");
  if (s().breaks_capture(found, "cuStreamQuery")) return capture_unsupported;
  return query(of(*found), found->before, found->free_at);
}

Status EmulatedFunctions::query(const Board& board, const Before& before, Duration at) {
  s().enqueue(board);
  if (!board.options.time && board.options.enqueue == Duration{0}) s().now += std::chrono::nanoseconds{100};
  if (s().time_at(board) < at) return not_ready;
  s().wait_for(board, before, at);
  return done;
}

Status EmulatedFunctions::stream_synchronize(Stream stream) {
  auto held = hold();
  StreamState* const found = stream_of(stream);
  if (found == nullptr) return invalid_handle;
  if (of(*found).lost != done) return of(*found).lost;
  s().foreign(&of(*found), "a stream, by cuStreamSynchronize,");
  if (s().breaks_capture(found, "cuStreamSynchronize")) return capture_unsupported;
  const Board& board = of(*found);
  const Before before = found->before;
  const Duration at = found->free_at;
  if (s().never_ends(at, "cuStreamSynchronize")) return launch_timeout;
  State::pass_until(board, at, held);
  if (board.lost != done) return board.lost;
  s().wait_for(board, before, at);
  return done;
}

Status EmulatedFunctions::stream_wait(Stream stream, Event event, unsigned) {
  const auto held = hold();
  StreamState* const waits = stream_of(stream);
  const auto found = s().events.find(event);
  if (waits == nullptr || found == s().events.end()) return invalid_handle;
  if (of(*waits).lost != done) return of(*waits).lost;
  const EventState& awaited = found->second;
  s().foreign(&of(*waits), "a stream that is to wait");
  s().foreign(awaited.board, "an event that a stream is to wait for,", &of(*waits));
  if (awaited.capture != 0) {
    const auto capture = s().captures.find(awaited.capture);
    if (capture == s().captures.end() || (waits->capture != 0 && waits->capture != awaited.capture)) {
      s().wrong("a stream waits for an event of another capture");
      return capture_unsupported;
    }
    if (waits->capture == 0) {
      waits->capture = awaited.capture;
      waits->tips.clear();
      capture->second.forked.insert(stream);
    }
    for (const std::size_t tip : awaited.tips)
      if (std::ranges::find(waits->tips, tip) == waits->tips.end()) waits->tips.push_back(tip);
    return done;
  }
  if (waits->capture != 0) {
    s().captures.at(waits->capture).broken = true;
    s().wrong("a captured stream waits for an event from outside");
    return capture_unsupported;
  }
  if (!awaited.recorded) return done;  // as the driver has it: nothing to wait for
  join(waits->before, awaited.before);
  waits->free_at = std::max(waits->free_at, awaited.at);
  return done;
}

Status EmulatedFunctions::event_create(Event* out, unsigned flags) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  *out = s().fresh<Event>();
  s().events.emplace(*out, EventState{.board = State::here(), .timed = (flags & event_without_time) == 0});
  return done;
}

Status EmulatedFunctions::event_record(Event event, Stream stream) {
  const auto held = hold();
  StreamState* const in = stream_of(stream);
  const auto found = s().events.find(event);
  if (in == nullptr || found == s().events.end()) return invalid_handle;
  if (of(*in).lost != done) return of(*in).lost;
  const Board* const board = found->second.board;
  s().foreign(&of(*in), "a stream that an event is recorded in");
  if (s().foreign(board, "an event that was recorded in a stream", &of(*in))) return invalid_handle;
  if (in->capture != 0) {
    found->second = {.board = board,
                     .recorded = false,
                     .timed = found->second.timed,
                     .before = {},
                     .at = {},
                     .capture = in->capture,
                     .tips = in->tips};
    return done;
  }
  join(in->before, s().host_knows);
  found->second = {.board = board,
                   .recorded = true,
                   .timed = found->second.timed,
                   .before = in->before,
                   .at = std::max(in->free_at, s().time_at(of(*in))),
                   .capture = 0,
                   .tips = {}};
  return done;
}

Status EmulatedFunctions::event_query(Event event) {
  const auto held = hold();
  const auto found = s().events.find(event);
  if (found == s().events.end()) return invalid_handle;
  if (found->second.board->lost != done) return found->second.board->lost;
  s().foreign(found->second.board, "an event, by cuEventQuery,");
  if (found->second.capture != 0) {
    s().wrong("cuEventQuery of an event that was captured");
    return capture_unsupported;
  }
  return found->second.recorded ? query(*found->second.board, found->second.before, found->second.at) : done;
}

Status EmulatedFunctions::event_synchronize(Event event) {
  auto held = hold();
  const auto found = s().events.find(event);
  if (found == s().events.end()) return invalid_handle;
  if (found->second.board->lost != done) return found->second.board->lost;
  s().foreign(found->second.board, "an event, by cuEventSynchronize,");
  if (found->second.capture != 0) {
    s().wrong("cuEventSynchronize of an event that was captured");
    return capture_unsupported;
  }
  if (!found->second.recorded) return done;
  const EventState awaited = found->second;
  if (s().never_ends(awaited.at, "cuEventSynchronize")) return launch_timeout;
  State::pass_until(*awaited.board, awaited.at, held);
  if (awaited.board->lost != done) return awaited.board->lost;
  s().wait_for(*awaited.board, awaited.before, awaited.at);
  return done;
}

Status EmulatedFunctions::event_elapsed(float* milliseconds, Event start, Event end) {
  const auto held = hold();
  const auto a = s().events.find(start), b = s().events.find(end);
  if (a == s().events.end() || b == s().events.end() || !a->second.recorded || !b->second.recorded)
    return invalid_handle;
  if (s().foreign(a->second.board, "the time of an event", b->second.board)) return invalid_handle;
  if (!a->second.timed || !b->second.timed) {
    s().wrong("the time was asked of an event that was made without");
    return invalid_handle;
  }
  if (s().time_at(*a->second.board) < std::max(a->second.at, b->second.at)) return not_ready;
  *milliseconds = static_cast<float>(to_ms(b->second.at - a->second.at));
  return done;
}

Status EmulatedFunctions::event_destroy(Event event) {
  const auto held = hold();
  const auto found = s().events.find(event);
  if (found == s().events.end()) return invalid_handle;
  s().foreign(found->second.board, "an event that was destroyed");
  s().events.erase(found);
  return done;
}

// --- kernels

Status EmulatedFunctions::module_load(Module* out, const void* image) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  if (image == nullptr) return invalid_value;
  *out = s().fresh<Module>();
  s().modules.emplace(*out, State::here());
  return done;
}

Status EmulatedFunctions::module_unload(Module module) {
  const auto held = hold();
  const auto found = s().modules.find(module);
  if (found == s().modules.end()) {
    s().wrong("a module was unloaded that there is not");
    return invalid_handle;
  }
  s().foreign(found->second, "a module that was unloaded");
  s().modules.erase(found);
  std::erase_if(s().functions, [&](const auto& each) { return each.second.second == module; });
  const auto waits =
      std::ranges::find_if(s().waiting, [&](const Waiting& each) { return each.work.module == module; });
  if (waits != s().waiting.end()) s().wrong("a module was unloaded under work of " + waits->work.what);
  return done;
}

Status EmulatedFunctions::module_function(Function* out, Module module, const char* name) {
  const auto held = hold();
  if (!s().modules.contains(module)) return invalid_handle;
  if (!s().kernels.contains(std::string_view(name))) return not_found;
  *out = s().fresh<Function>();
  s().functions.emplace(*out, std::pair(name, module));
  return done;
}

// --- graphs

Status EmulatedFunctions::capture_begin(Stream stream, int) {
  const auto held = hold();
  StreamState* const found = stream_of(stream);
  if (found == nullptr || found->capture != 0) return invalid_handle;
  if (of(*found).lost != done) return of(*found).lost;
  if (s().foreign(&of(*found), "a stream that is to be captured")) return invalid_handle;
  found->capture = ++s().capture_numbers;
  found->tips.clear();
  s().captures.emplace(found->capture, Capture{.id = found->capture,
                                               .origin = stream,
                                               .graph = {.board = &of(*found), .nodes = {}},
                                               .forked = {}});
  return done;
}

Status EmulatedFunctions::capture_end(Stream stream, Graph* out) {
  const auto held = hold();
  StreamState* const found = stream_of(stream);
  if (found == nullptr || found->capture == 0) return invalid_handle;
  if (s().captures.at(found->capture).origin != stream) {
    s().wrong("a capture was ended in a stream that it had forked to");
    return capture_unmatched;
  }
  Capture capture = std::move(s().captures.at(found->capture));
  s().captures.erase(found->capture);
  // Forked streams have joined where whatever they did last is before what comes next in the first one.
  const auto before = State::all_before(capture.graph);
  const auto joined = [&](std::size_t tip) {
    return std::ranges::any_of(found->tips,
                               [&](std::size_t mine) { return mine == tip || before[mine].contains(tip); });
  };
  bool unjoined = false;
  for (const Stream forked : capture.forked)
    if (StreamState* const other = stream_of(forked); other != nullptr) {
      unjoined = unjoined || !std::ranges::all_of(other->tips, joined);
      other->capture = 0;
      other->tips.clear();
    }
  found->capture = 0;
  found->tips.clear();
  if (capture.broken) return capture_invalidated;
  if (unjoined) {
    s().wrong("a capture ended before a stream that it had forked to was joined");
    return capture_unjoined;
  }
  *out = s().fresh<Graph>();
  s().graphs.emplace(*out, std::move(capture.graph));
  return done;
}

Status EmulatedFunctions::graph_destroy(Graph graph) {
  const auto held = hold();
  return s().graphs.erase(graph) > 0 ? done : invalid_handle;
}

Status EmulatedFunctions::graph_instantiate(GraphExec* out, Graph graph, unsigned long long) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  const auto found = s().graphs.find(graph);
  if (found == s().graphs.end()) return invalid_handle;
  if (s().foreign(found->second.board, "a graph")) return invalid_handle;
  s().check_order(found->second);
  *out = s().fresh<GraphExec>();
  s().executables.emplace(*out, Executable{.graph = found->second, .before = {}});
  return done;
}

Status EmulatedFunctions::graph_launch(GraphExec graph, Stream stream) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  const auto found = s().executables.find(graph);
  StreamState* const in = stream_of(stream);
  if (found == s().executables.end() || in == nullptr) return invalid_handle;
  if (s().foreign(&of(*in), "a stream that a graph is launched into") ||
      s().foreign(found->second.graph.board, "a graph that was launched", &of(*in)))
    return invalid_handle;
  if (in->capture != 0) {
    s().breaks_capture(in, "cuGraphLaunch");
    return capture_unsupported;
  }
  Executable& executable = found->second;
  for (const Node& node : executable.graph.nodes)
    if (node.work.module != nullptr && !s().modules.contains(node.work.module)) {
      s().wrong("a graph was launched with " + node.work.what + " of a module that is unloaded");
      return invalid_handle;
    }
  s().enqueue(of(*in));
  join(in->before, executable.before);
  in->free_at = std::max(in->free_at, executable.free_at);
  // In the order of the capture, which is one that the graph allows; its own order was looked at once.
  for (const Node& node : executable.graph.nodes)
    if (const Status status = s().launch(*in, node.work); status != done) return status;
  executable.before = in->before;
  executable.free_at = in->free_at;
  return done;
}

Status EmulatedFunctions::graph_exec_destroy(GraphExec graph) {
  const auto held = hold();
  const auto found = s().executables.find(graph);
  if (found == s().executables.end()) return invalid_handle;
  const Before& before = found->second.before;
  for (std::size_t stream = 0; stream < before.size(); ++stream)
    if (before[stream] > 0 && !has(s().host_knows, stream, before[stream])) {
      s().wrong("a graph was destroyed that nobody waited for");
      break;
    }
  s().executables.erase(found);
  return done;
}

}  // namespace carillon::engine::cuda
