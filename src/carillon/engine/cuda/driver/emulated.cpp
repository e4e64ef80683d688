#include "carillon/engine/cuda/driver/emulated.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "carillon/engine/cuda/driver/emulated_state.h"

namespace carillon::engine::cuda {

namespace {
Emulated* the_one = nullptr;
}

// What the table points to.
struct EmulatedFunctions {
  using State = Emulated::State;
  static State& s() { return *the_one->state_; }
  static std::unique_lock<std::recursive_mutex> hold() { return std::unique_lock(s().mutex); }
  static Board* board(DeviceNumber device) { return s().board(device); }
  static Status ready() { return s().ready(State::here()); }
  static Board& of(const StreamState& stream) { return stream.partition->board; }

  static Status init(unsigned) {
    const auto held = hold();
    return s().boards.empty() ? no_device : done;
  }
  static Status driver_version(int* out) {
    *out = s().options.version;
    return done;
  }
  static Status device_count(int* out) {
    const auto held = hold();
    *out = static_cast<int>(s().boards.size());
    return done;
  }
  static Status device_get(DeviceNumber* out, int ordinal) {
    const auto held = hold();
    if (board(ordinal) == nullptr) return invalid_device;
    *out = ordinal;
    return done;
  }
  static Status device_attribute(int* out, int attribute, DeviceNumber device) {
    const auto held = hold();
    const Board* const asked = board(device);
    if (asked == nullptr) return invalid_device;
    const EmulatedOptions& options = asked->options;
    switch (attribute) {
      case attribute_major:
        *out = options.major;
        return done;
      case attribute_minor:
        *out = options.minor;
        return done;
      case attribute_processors:
        *out = static_cast<int>(options.processors);
        return done;
      case attribute_virtual_memory:
        *out = options.virtual_memory ? 1 : 0;
        return done;
      case attribute_clock_khz:
        *out = 1'980'000;
        return done;
      case attribute_bus_bits:
        *out = 5120;
        return done;
      case attribute_l2_bytes:
        *out = 50 << 20;
        return done;
      default:
        return invalid_value;
    }
  }
  static Status device_name(char* out, int bytes, DeviceNumber device) {
    const auto held = hold();
    const Board* const asked = board(device);
    if (asked == nullptr || bytes < 1) return invalid_device;
    const std::string& name = asked->options.name;
    const std::size_t length = std::min<std::size_t>(name.size(), static_cast<std::size_t>(bytes) - 1);
    std::memcpy(out, name.data(), length);
    out[length] = '\0';
    return done;
  }
  static Status device_uuid(Uuid* out, DeviceNumber device) {
    const auto held = hold();
    if (board(device) == nullptr) return invalid_device;
    *out = {};
    out->bytes[0] = static_cast<unsigned char>(device + 1);
    return done;
  }
  static Status device_memory(std::size_t* out, DeviceNumber device) {
    const auto held = hold();
    const Board* const asked = board(device);
    if (asked == nullptr) return invalid_device;
    *out = asked->options.memory;
    return done;
  }
  static Status context_retain(Context* out, DeviceNumber device) {
    const auto held = hold();
    Board* const asked = board(device);
    if (asked == nullptr) return invalid_device;
    ++asked->contexts;
    *out = asked;
    return done;
  }
  static Status context_release(DeviceNumber device) {
    const auto held = hold();
    Board* const asked = board(device);
    if (asked == nullptr) return invalid_device;
    if (--asked->contexts < 0) s().wrong("a context was released more often than it was retained");
    return done;
  }
  static Status context_push(Context context) {
    const auto held = hold();
    if (std::ranges::none_of(s().boards, [&](const Board& each) { return &each == context; }))
      return invalid_context;
    contexts_here.push_back(context);
    return done;
  }
  static Status context_pop(Context* out) {
    if (contexts_here.empty()) return invalid_context;
    *out = contexts_here.back();
    contexts_here.pop_back();
    return done;
  }
  static Status context_synchronize() {
    auto held = hold();
    if (const Status status = ready(); status != done) return status;
    const Board& board = *State::here();
    Duration last{0};
    for (const auto& [handle, stream] : s().streams)
      if (&of(stream) == &board) last = std::max(last, stream.free_at);
    if (s().never_ends(last, "cuCtxSynchronize")) return launch_timeout;
    State::pass_until(board, last, held);
    for (auto& [handle, stream] : s().streams) {
      if (&of(stream) != &board) continue;
      if (s().breaks_capture(&stream, "cuCtxSynchronize")) return capture_unsupported;
      s().wait_for(board, stream.before, stream.free_at);
    }
    return done;
  }
  static Status memory_info(std::size_t* left, std::size_t* all) {
    const auto held = hold();
    const Board* const asked = State::here();
    if (asked == nullptr) return invalid_context;
    *all = asked->options.memory;
    *left = asked->options.memory - asked->used;
    return done;
  }

  // --- memory

  static Status granularity(std::size_t* out, const Properties*, int) {
    *out = s().options.granularity;
    return done;
  }
  static Status create(Handle* out, std::size_t bytes, const Properties* of, unsigned long long) {
    const auto held = hold();
    ++s().memory_calls;
    Board* const asked = board(of->location.id);
    if (of->type != 1 || of->location.type != 1 || asked == nullptr) return invalid_value;
    if (asked->lost != done) return asked->lost;
    s().foreign(asked, "memory that is to be made");
    if (bytes == 0 || !s().aligned(bytes)) {
      s().wrong("physical memory is not of whole granules");
      return invalid_value;
    }
    if (++asked->made == asked->options.fail_create || asked->used + bytes > asked->options.memory)
      return out_of_memory;
    auto memory = std::make_shared<Memory>(asked, bytes);
    if (asked->options.computes) {
      memory->file = memfd_create("carillon-emulated", MFD_CLOEXEC);
      if (memory->file < 0 || ftruncate(memory->file, static_cast<off_t>(bytes)) != 0) return out_of_memory;
    }
    *out = s().next++;
    s().handles.emplace(*out, std::move(memory));
    return done;
  }
  static Status release(Handle memory) {
    const auto held = hold();
    ++s().memory_calls;
    if (s().handles.erase(memory) == 1) return done;  // what is mapped stays
    s().wrong("memory was released that there is not");
    return invalid_value;
  }
  static Status reserve(Address* out, std::size_t bytes, std::size_t alignment, Address, unsigned long long) {
    const auto held = hold();
    ++s().memory_calls;
    if (bytes == 0 || !s().aligned(bytes)) return invalid_value;
    alignment = std::max(alignment, s().options.granularity);
    const std::size_t wide = bytes + alignment;
    void* const at = mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return out_of_memory;
    const Address start = address(at), fit = (start + alignment - 1) / alignment * alignment;
    if (fit > start) munmap(at, fit - start);
    if (fit + bytes < start + wide) munmap(pointer(fit + bytes), start + wide - fit - bytes);
    *out = fit;
    s().reservations.emplace(fit, bytes);
    return done;
  }
  static bool meets(Address a, std::uint64_t a_bytes, Address b, std::uint64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
  }
  static Status unreserve(Address at, std::size_t bytes) {
    const auto held = hold();
    ++s().memory_calls;
    const auto found = s().reservations.find(at);
    if (found == s().reservations.end() || found->second != bytes) {
      s().wrong("addresses were given back that were not reserved so");
      return invalid_value;
    }
    for (const auto& [start, mapping] : s().mappings)
      if (meets(start, mapping.bytes, at, bytes)) {
        s().wrong("addresses were given back with memory mapped there");
        return invalid_value;
      }
    munmap(pointer(at), bytes);
    s().reservations.erase(found);
    return done;
  }
  static Status map(Address at, std::size_t bytes, std::size_t offset, Handle handle, unsigned long long) {
    const auto held = hold();
    ++s().memory_calls;
    const auto found = s().handles.find(handle);
    if (found != s().handles.end() && found->second->board->lost != done) return found->second->board->lost;
    if (found != s().handles.end()) s().foreign(found->second->board, "memory that is to be mapped");
    const auto above = s().reservations.upper_bound(at);
    const bool reserved =
        above != s().reservations.begin() && at + bytes <= std::prev(above)->first + std::prev(above)->second;
    // The driver takes no offset but 0 today.
    if (found == s().handles.end() || !reserved || offset != 0 || bytes == 0 ||
        bytes > found->second->bytes || !s().aligned(at) || !s().aligned(bytes)) {
      s().wrong("memory was mapped in a way that there is not");
      return invalid_value;
    }
    for (const auto& [start, mapping] : s().mappings)
      if (meets(start, mapping.bytes, at, bytes)) {
        s().wrong("memory was mapped where some is mapped");
        return invalid_value;
      }
    if (found->second->file >= 0 &&
        mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second->file, 0) == MAP_FAILED)
      return out_of_memory;
    ++found->second->mappings;
    s().mappings.emplace(at, Mapping{.bytes = bytes, .memory = found->second});
    return done;
  }
  // Whole mappings in [at, at + bytes), one or several; empty where it is otherwise.
  static std::vector<Address> whole_mappings(Address at, std::size_t bytes) {
    std::vector<Address> out;
    for (Address next = at; next < at + bytes;) {
      const auto found = s().mappings.find(next);
      if (found == s().mappings.end() || next + found->second.bytes > at + bytes) return {};
      out.push_back(next);
      next += found->second.bytes;
    }
    return out;
  }
  static Status unmap(Address at, std::size_t bytes) {
    const auto held = hold();
    ++s().memory_calls;
    const std::vector<Address> whole = whole_mappings(at, bytes);
    if (whole.empty()) {
      s().wrong("memory was unmapped that is not, or not so, mapped");
      return invalid_value;
    }
    for (const Address each : whole) {
      Mapping& mapping = s().mappings.at(each);
      if (const auto work = s().outstanding(*mapping.memory, 0, mapping.bytes))
        s().wrong(fmt::format("memory was unmapped that {} may use still", *work));
      --mapping.memory->mappings;  // what it holds stays, wherever it is mapped next
      s().mappings.erase(each);
    }
    (void)mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return done;
  }
  static Status set_access(Address at, std::size_t bytes, const Access* what, std::size_t count) {
    const auto held = hold();
    ++s().memory_calls;
    const std::vector<Address> whole = whole_mappings(at, bytes);
    const Board* const asked = count == 1 ? board(what->location.id) : nullptr;
    if (asked == nullptr || what->flags != 3 || what->location.type != 1 || whole.empty()) {
      s().wrong("access was given in a way that there is not, or to memory that is not mapped");
      return invalid_value;
    }
    for (const Address each : whole)
      if (s().foreign(s().mappings.at(each).memory->board, "memory that access is given to", asked))
        return invalid_value;
    for (const Address each : whole) {
      Mapping& mapping = s().mappings.at(each);
      mapping.access = true;
      if (mapping.memory->file >= 0) mprotect(pointer(each), mapping.bytes, PROT_READ | PROT_WRITE);
    }
    return done;
  }

  // --- allocations, and those of other processes

  // Maps the file somewhere, and knows it there as this device's; 0: it cannot be.
  static Address map_file(Board& board, std::map<Address, Mapping>& table, int file, std::uint64_t bytes) {
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return 0;
    auto memory = std::make_shared<Memory>(&board, bytes);
    memory->file = file;
    table.emplace(address(at), Mapping{.bytes = bytes, .memory = std::move(memory), .access = true});
    return address(at);
  }
  static Status allocate(Address* out, std::size_t bytes) {
    const auto held = hold();
    if (const Status status = ready(); status != done) return status;
    Board& board = *State::here();
    if (bytes == 0) return invalid_value;
    if (++board.made == board.options.fail_create || board.used + bytes > board.options.memory)
      return out_of_memory;
    const int file = whole_file(bytes);
    if (file < 0) return out_of_memory;
    *out = map_file(board, s().allocations, file, bytes);
    if (*out != 0) return done;
    close(file);
    return out_of_memory;
  }
  static void end_mapping(std::map<Address, Mapping>& table, std::map<Address, Mapping>::iterator which,
                          const char* what) {
    if (const auto work = s().outstanding(*which->second.memory, 0, which->second.bytes))
      s().wrong(fmt::format("{} that {} may use still", what, *work));
    munmap(pointer(which->first), which->second.bytes);
    table.erase(which);
  }
  static Status free(Address at) {
    const auto held = hold();
    const auto found = s().allocations.find(at);
    if (found == s().allocations.end()) {
      s().wrong("an allocation was freed that there is not");
      return invalid_value;
    }
    end_mapping(s().allocations, found, "an allocation was freed");
    return done;
  }
  static Status address_range(Address* base, std::size_t* bytes, Address at) {
    const auto held = hold();
    for (const auto* const table : {&s().allocations, &s().borrowed, &s().mappings}) {
      const auto above = table->upper_bound(at);
      if (above == table->begin()) continue;
      const auto& [start, mapping] = *std::prev(above);
      if (at >= start + mapping.bytes) continue;
      *base = start;
      *bytes = mapping.bytes;
      return done;
    }
    return not_found;
  }
  static Status ipc_export(IpcHandle* out, Address at) {
    const auto held = hold();
    if (const Status status = ready(); status != done) return status;
    const auto found = s().allocations.find(at);
    if (found == s().allocations.end()) return invalid_value;  // what is mapped piece by piece has no handle
    *out = handle_of(found->second.memory->file, found->second.bytes, false);
    return done;
  }
  static Status ipc_open(Address* out, IpcHandle handle, unsigned flags) {
    const auto held = hold();
    if (const Status status = ready(); status != done) return status;
    Board& board = *State::here();
    Exported from;
    std::memcpy(&from, handle.bytes, sizeof from);
    if (flags != peers_as_needed || from.mark != Exported().mark || from.sum != from.summed() ||
        from.bytes == 0)
      return invalid_value;
    if (from.process == getpid() && from.here == 0) return invalid_context;
    for (auto& [at, loan] : s().loans)
      if (loan.device == from.device && loan.inode == from.inode) {
        ++loan.opened;
        *out = at;
        return done;
      }
    if (++board.made == board.options.fail_create) return out_of_memory;
    const int file = open(fmt::format("/proc/{}/fd/{}", from.process, from.file).c_str(), O_RDWR | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0 || status.st_dev != from.device ||
        status.st_ino != from.inode || static_cast<std::uint64_t>(status.st_size) < from.bytes ||
        (fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
      if (file >= 0) close(file);
      return map_failed;  // its process has ended, or freed it
    }
    *out = map_file(board, s().borrowed, file, from.bytes);
    if (*out == 0) {
      close(file);
      return map_failed;
    }
    s().borrowed.at(*out).memory->written.add(0, from.bytes);  // by whom it is
    s().loans.emplace(*out, Borrowed{.device = from.device, .inode = from.inode, .opened = 1});
    return done;
  }
  static Status ipc_close(Address at) {
    const auto held = hold();
    const auto found = s().loans.find(at);
    if (found == s().loans.end()) {
      s().wrong("memory of another process was closed that is not open");
      return invalid_value;
    }
    if (--found->second.opened > 0) return done;
    s().loans.erase(found);
    end_mapping(s().borrowed, s().borrowed.find(at), "memory of another process was closed");
    return done;
  }

  static Status host_allocate(void** out, std::size_t bytes, unsigned) {
    const auto held = hold();
    if (const Status status = ready(); status != done) return status;
    if (bytes == 0) return invalid_value;
    if (++State::here()->made == State::here()->options.fail_create) return out_of_memory;
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return out_of_memory;
    auto memory = std::make_shared<Memory>(nullptr, bytes);
    s().host.emplace(address(at), Mapping{.bytes = bytes, .memory = std::move(memory), .access = true});
    *out = at;
    return done;
  }
  static Status host_free(void* memory) {
    const auto held = hold();
    const auto found = s().host.find(address(memory));
    if (found == s().host.end()) {
      s().wrong("memory of the host was freed that there is not");
      return invalid_value;
    }
    if (const auto work = s().outstanding(*found->second.memory, 0, found->second.bytes))
      s().wrong(fmt::format("memory of the host was freed that {} may use still", *work));
    munmap(memory, found->second.bytes);
    s().host.erase(found);
    return done;
  }
  static Status host_address(Address* out, void* host, unsigned) {
    const auto held = hold();
    if (!pinned(host, 1)) return invalid_value;
    *out = address(host);
    return done;
  }

  // --- work

  static Work copying(const char* what, Address to, Address from, std::uint64_t bytes, Work::On on) {
    return {.what = fmt::format("{} of {} bytes to {:#x}", what, bytes, to),
            .reads = {{from, bytes}},
            .writes = {{to, bytes}},
            .run = [=] { std::memmove(pointer(to), pointer(from), bytes); },
            .takes = [bytes, on](const Board& board,
                                 unsigned) { return State::copy_time(board.options, bytes, on); },
            .on = on};
  }
  // Memory of the host that is not pinned is copied before the call returns.
  static bool pinned(const void* at, std::size_t bytes) {
    const auto above = s().host.upper_bound(address(at));
    return above != s().host.begin() &&
           address(at) + bytes <= std::prev(above)->first + std::prev(above)->second.bytes;
  }
  static Status copy_in(Address to, const void* from, std::size_t bytes, Stream stream) {
    const auto held = hold();
    if (!pinned(from, bytes)) {
      s().wrong("a copy reads memory of the host that is not pinned: it would wait");
      return invalid_value;
    }
    return s().add(stream, copying("a copy", to, address(from), bytes, Work::On::bus_in));
  }
  static Status copy_out(void* to, Address from, std::size_t bytes, Stream stream) {
    const auto held = hold();
    if (!pinned(to, bytes)) {
      s().wrong("a copy writes memory of the host that is not pinned: it would wait");
      return invalid_value;
    }
    return s().add(stream, copying("a copy", address(to), from, bytes, Work::On::bus_out));
  }
  static Status copy(Address to, Address from, std::size_t bytes, Stream stream) {
    const auto held = hold();
    return s().add(stream, copying("a copy on the device", to, from, bytes, Work::On::kernels));
  }
  static Status fill(Address to, unsigned char value, std::size_t bytes, Stream stream) {
    const auto held = hold();
    return s().add(stream, {.what = fmt::format("a fill of {} bytes at {:#x}", bytes, to),
                            .reads = {},
                            .writes = {{to, bytes}},
                            .run = [=] { std::memset(pointer(to), value, bytes); },
                            .takes = [](const Board& board, unsigned) { return board.options.kernel; },
                            .on = Work::On::kernels});
  }
  static Status write_value(Stream stream, Address at, std::uint32_t value, unsigned) {
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
  static Status launch(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,
                       void** parameters, void** extra) {
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

  static Status make_stream(Stream* out, unsigned flags, std::shared_ptr<Partition> partition) {
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
  static Status stream_create(Stream* out, unsigned flags, int) {
    const auto held = hold();
    if (const Status status = ready(); status != done) return status;
    return make_stream(out, flags, State::here()->whole);
  }
  // As on GPUs: numerically, the greatest is the least.
  static Status priority_range(int* least, int* greatest) {
    if (s().here() == nullptr) return invalid_context;
    *least = 0;
    *greatest = -5;
    return done;
  }
  static StreamState* stream_of(Stream stream) {
    const auto found = s().streams.find(stream);
    return found == s().streams.end() ? nullptr : &found->second;
  }
  static Status stream_destroy(Stream stream) {
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
  static Status stream_query(Stream stream) {
    const auto held = hold();
    StreamState* const found = stream_of(stream);
    if (found == nullptr) return invalid_handle;
    if (of(*found).lost != done) return of(*found).lost;
    s().foreign(&of(*found), "a stream, by cuStreamQuery,");
    if (s().breaks_capture(found, "cuStreamQuery")) return capture_unsupported;
    return query(of(*found), found->before, found->free_at);
  }
  // To ask takes time, or whoever asks again and again would ask for ever; where nothing else does, too.
  static Status query(const Board& board, const Before& before, Duration at) {
    s().enqueue(board);
    if (!board.options.time && board.options.enqueue == Duration{0}) s().now += std::chrono::nanoseconds{100};
    if (s().time_at(board) < at) return not_ready;
    s().wait_for(board, before, at);
    return done;
  }
  static Status stream_synchronize(Stream stream) {
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
  static Status stream_wait(Stream stream, Event event, unsigned) {
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
  static Status event_create(Event* out, unsigned flags) {
    const auto held = hold();
    if (const Status status = ready(); status != done) return status;
    *out = s().fresh<Event>();
    s().events.emplace(*out, EventState{.board = State::here(), .timed = (flags & event_without_time) == 0});
    return done;
  }
  static Status event_record(Event event, Stream stream) {
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
  static Status event_query(Event event) {
    const auto held = hold();
    const auto found = s().events.find(event);
    if (found == s().events.end()) return invalid_handle;
    if (found->second.board->lost != done) return found->second.board->lost;
    s().foreign(found->second.board, "an event, by cuEventQuery,");
    if (found->second.capture != 0) {
      s().wrong("cuEventQuery of an event that was captured");
      return capture_unsupported;
    }
    return found->second.recorded ? query(*found->second.board, found->second.before, found->second.at)
                                  : done;
  }
  static Status event_synchronize(Event event) {
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
  static Status event_elapsed(float* milliseconds, Event start, Event end) {
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
  static Status event_destroy(Event event) {
    const auto held = hold();
    const auto found = s().events.find(event);
    if (found == s().events.end()) return invalid_handle;
    s().foreign(found->second.board, "an event that was destroyed");
    s().events.erase(found);
    return done;
  }

  // --- kernels

  static Status module_load(Module* out, const void* image) {
    const auto held = hold();
    if (const Status status = ready(); status != done) return status;
    if (image == nullptr) return invalid_value;
    *out = s().fresh<Module>();
    s().modules.emplace(*out, State::here());
    return done;
  }
  static Status module_unload(Module module) {
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
  static Status module_function(Function* out, Module module, const char* name) {
    const auto held = hold();
    if (!s().modules.contains(module)) return invalid_handle;
    if (!s().kernels.contains(std::string_view(name))) return not_found;
    *out = s().fresh<Function>();
    s().functions.emplace(*out, std::pair(name, module));
    return done;
  }

  // --- graphs

  static Status capture_begin(Stream stream, int) {
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
  static Status capture_end(Stream stream, Graph* out) {
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
  static Status graph_destroy(Graph graph) {
    const auto held = hold();
    return s().graphs.erase(graph) > 0 ? done : invalid_handle;
  }
  static Status graph_instantiate(GraphExec* out, Graph graph, unsigned long long) {
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
  static Status graph_launch(GraphExec graph, Stream stream) {
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
  static Status graph_exec_destroy(GraphExec graph) {
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

  // --- green contexts

  static Status processors(DeviceNumber device, Processors* out, int type) {
    const auto held = hold();
    const Board* const asked = board(device);
    if (asked == nullptr || type != of_processors) return invalid_value;
    *out = {};
    out->count = asked->options.processors;
    out->least = out->alignment = asked->options.least_part;
    return done;
  }
  static Status split_processors(Processors* parts, unsigned* count, const Processors* of, Processors* rest,
                                 unsigned, unsigned least) {
    const unsigned unit = s().options.least_part;
    const unsigned size = std::max(unit, (least + unit - 1) / unit * unit);
    const unsigned most = std::min(of->count, s().options.groups * unit) / size;
    if (most == 0) return invalid_value;
    if (parts == nullptr) {
      *count = most;
      return done;
    }
    *count = std::min(*count, most);
    for (unsigned i = 0; i < *count; ++i) {
      parts[i] = *of;
      parts[i].count = size;
    }
    if (rest != nullptr) {
      *rest = *of;
      rest->count = of->count - *count * size;
      if (rest->count == 0) rest->type = 0;
    }
    return done;
  }
  static Status describe(Resources* out, Processors* parts, unsigned count) {
    const auto held = hold();
    unsigned sum = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (parts[i].type != of_processors) return invalid_value;
      sum += parts[i].count;
    }
    if (sum == 0) return invalid_value;
    *out = s().fresh<Resources>();
    s().resources.emplace(*out, sum);
    return done;
  }
  static Status green_create(GreenContext* out, Resources what, DeviceNumber device, unsigned flags) {
    const auto held = hold();
    Board* const asked = board(device);
    const auto found = s().resources.find(what);
    if (asked == nullptr || found == s().resources.end() || flags != green_default_stream ||
        found->second > asked->options.processors)
      return invalid_value;
    if (asked->lost != done) return asked->lost;
    s().foreign(asked, "a green context");
    *out = s().fresh<GreenContext>();
    s().greens.emplace(*out, std::make_shared<Partition>(*asked, found->second));
    return done;
  }
  static Status green_destroy(GreenContext context) {
    const auto held = hold();
    const auto found = s().greens.find(context);
    if (found == s().greens.end()) return invalid_handle;
    if (std::ranges::any_of(s().streams,
                            [&](const auto& each) { return each.second.partition == found->second; }))
      s().wrong("a green context was destroyed before its streams");
    s().greens.erase(found);
    return done;
  }
  static Status green_stream(Stream* out, GreenContext context, unsigned flags, int) {
    const auto held = hold();
    const auto found = s().greens.find(context);
    if (found == s().greens.end()) return invalid_handle;
    const Board& board = found->second->board;
    if (board.lost != done) return board.lost;
    s().foreign(&board, "a green context, for a stream,");
    return make_stream(out, flags, found->second);
  }

  static Status error_name(Status status, const char** out) {
    static const std::map<Status, const char*> names{
        {done, "CUDA_SUCCESS"},
        {invalid_value, "CUDA_ERROR_INVALID_VALUE"},
        {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
        {not_initialized, "CUDA_ERROR_NOT_INITIALIZED"},
        {no_device, "CUDA_ERROR_NO_DEVICE"},
        {invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
        {invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
        {map_failed, "CUDA_ERROR_MAP_FAILED"},
        {uncorrectable_memory, "CUDA_ERROR_ECC_UNCORRECTABLE"},
        {invalid_handle, "CUDA_ERROR_INVALID_HANDLE"},
        {not_found, "CUDA_ERROR_NOT_FOUND"},
        {not_ready, "CUDA_ERROR_NOT_READY"},
        {launch_timeout, "CUDA_ERROR_LAUNCH_TIMEOUT"},
        {launch_failed, "CUDA_ERROR_LAUNCH_FAILED"},
        {not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
        {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
        {capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}};
    const auto found = names.find(status);
    if (found == names.end()) return invalid_value;
    *out = found->second;
    return done;
  }
};

EmulatedLoan::EmulatedLoan(std::size_t bytes) : file_(whole_file(bytes)), bytes_(bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) std::abort();
  data_ = static_cast<std::byte*>(at);
  handle_ = handle_of(file_, bytes, true);
}

EmulatedLoan::~EmulatedLoan() {
  munmap(data_, bytes_);
  close(file_);
}

Emulated::Emulated(EmulatedOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  for (int i = 0; i < state_->options.devices; ++i) add_device(state_->options);
  contexts_here.clear();
  the_one = this;
}

Emulated::~Emulated() {
  for (const auto& [at, bytes] : state_->reservations) munmap(pointer(at), bytes);
  for (const auto* const table : {&state_->host, &state_->allocations, &state_->borrowed})
    for (const auto& [at, mapping] : *table) munmap(pointer(at), mapping.bytes);
  the_one = nullptr;
}

Driver Emulated::table() {
  Driver out;
#define CARILLON_EMULATED(member, symbol, arguments) out.member = EmulatedFunctions::member;
  CARILLON_CUDA_DRIVER(CARILLON_EMULATED)
#undef CARILLON_EMULATED
  return out;
}

void Emulated::know(std::string name, EmulatedKernel kernel) {
  const std::lock_guard held(state_->mutex);
  state_->kernels.insert_or_assign(std::move(name), std::move(kernel));
}

Duration Emulated::now() const {
  const std::lock_guard held(state_->mutex);
  return state_->now;
}
void Emulated::pass(Duration while_) {
  const std::lock_guard held(state_->mutex);
  state_->now += while_;
}
void Emulated::next_takes(Duration duration) {
  next_here = duration;
}
void Emulated::next_needs(unsigned processors) {
  next_needs_here = processors;
}

DeviceNumber Emulated::add_device(EmulatedOptions options) {
  const std::lock_guard held(state_->mutex);
  const auto number = static_cast<DeviceNumber>(state_->boards.size());
  return state_->boards.emplace_back(number, std::move(options)).number;
}
void Emulated::lose(DeviceNumber device) {
  const std::lock_guard held(state_->mutex);
  state_->lose(*state_->board(device));
}
Duration Emulated::busy() const {
  const std::lock_guard held(state_->mutex);
  Duration sum{0};
  for (const Board& board : state_->boards) sum += board.busy;
  return sum;
}
Duration Emulated::busy(unsigned processors) const {
  const std::lock_guard held(state_->mutex);
  const auto found = state_->busy_by_processors.find(processors);
  return found == state_->busy_by_processors.end() ? Duration{0} : found->second;
}
std::uint64_t Emulated::launched() const {
  const std::lock_guard held(state_->mutex);
  std::uint64_t sum = 0;
  for (const Board& board : state_->boards) sum += board.launched;
  return sum;
}
std::uint64_t Emulated::launched(DeviceNumber device) const {
  const std::lock_guard held(state_->mutex);
  return state_->board(device)->launched;
}
std::uint64_t Emulated::memory_used() const {
  const std::lock_guard held(state_->mutex);
  std::uint64_t sum = 0;
  for (const Board& board : state_->boards) sum += board.used;
  return sum;
}
std::uint64_t Emulated::memory_calls() const {
  const std::lock_guard held(state_->mutex);
  return state_->memory_calls;
}
std::vector<std::string> Emulated::violations() const {
  const std::lock_guard held(state_->mutex);
  return state_->violations;
}

std::string Emulated::left_behind() const {
  const std::lock_guard held(state_->mutex);
  std::string out;
  const auto count = [&](std::size_t many, const char* what) {
    if (many > 0) out += fmt::format("{}{} {}{}", out.empty() ? "" : ", ", many, what, many == 1 ? "" : "s");
  };
  count(state_->mappings.size(), "mapping");
  count(state_->handles.size(), "handle");
  count(state_->reservations.size(), "reservation");
  count(state_->host.size(), "block of the host");
  count(state_->allocations.size(), "allocation");
  count(state_->borrowed.size(), "open loan");
  count(state_->streams.size(), "stream");
  count(state_->events.size(), "event");
  count(state_->modules.size(), "module");
  count(state_->graphs.size(), "graph");
  count(state_->executables.size(), "graph that can be launched");
  count(state_->captures.size(), "capture that nobody ended");
  count(state_->greens.size(), "green context");
  std::size_t contexts = 0;
  for (const Board& board : state_->boards) contexts += static_cast<std::size_t>(std::max(0, board.contexts));
  count(contexts, "context");
  count(state_->waiting.size(), "piece of work that nobody waited for");
  return out;
}

}  // namespace carillon::engine::cuda
