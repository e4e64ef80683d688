#include "carillon/share/cuda/testing/fake_driver.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace carillon::share::cuda::testing {

namespace {
constexpr Status invalid_value = 1, invalid_device = 101, invalid_handle = 400, capture_is_over = 901,
                 captured_event = 907;
constexpr std::size_t trailer_bytes = 4096;

thread_local std::vector<Context> contexts_here;
thread_local int capture_mode_here = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL

std::byte* pointer(Address at) {
  return reinterpret_cast<std::byte*>(at);
}
}  // namespace

// Behind each allocation's bytes, for all processes that have it: who has work outstanding on it.
struct Trailer {
  std::atomic<std::uint32_t> owner, outstanding;
};

struct Physical {
  Physical(int file, std::size_t size, bool is_ours) : fd(file), bytes(size), made_here(is_ours) {
    struct stat status {};
    if (fstat(fd, &status) == 0) inode = status.st_ino;
    void* const at =
        mmap(nullptr, trailer_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(bytes));
    trailer = at == MAP_FAILED ? nullptr : static_cast<Trailer*>(at);
  }
  ~Physical() {
    if (trailer != nullptr) munmap(trailer, trailer_bytes);
    close(fd);
  }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  int fd;
  std::size_t bytes;
  bool made_here;
  ino_t inode = 0;
  Trailer* trailer = nullptr;
};

struct Mapping {
  std::size_t bytes;
  std::shared_ptr<Physical> memory;
  bool access = false;
};

struct Range {
  Address at;
  std::size_t bytes;
  bool meets(const Range& other) const { return at < other.at + other.bytes && other.at < at + bytes; }
};

struct Work {
  enum class Kind : std::uint8_t { kernel, record, wait } kind{};
  std::uint64_t order = 0;
  std::vector<Range> reads, writes;
  std::function<void()> run;
  Event event = nullptr;        // record, wait
  std::uint64_t of_record = 0;  // wait: the order of the record that it waits for
  std::vector<std::shared_ptr<Physical>> touches;
};

struct EventState {
  std::uint64_t recorded = 0;  // the order of its last record; 0: none
  Stream stream = nullptr;
  bool captured = false;
};

struct Capture {
  int mode = 0;
  bool blocks = false;  // waits for the default stream, and that for it
  bool over = false;
  std::thread::id by;
};

struct FakeDriver::State {
  mutable std::recursive_mutex mutex;
  FakeDriverOptions options;
  std::map<Handle, std::shared_ptr<Physical>> handles;
  std::map<Address, std::size_t> reservations;
  std::map<Address, Mapping> mappings;
  std::map<Stream, std::deque<Work>> streams;
  std::map<Event, EventState> events;
  std::map<Stream, Capture> captures;
  std::vector<std::string> violations;
  std::vector<std::weak_ptr<Physical>> held;
  std::uintptr_t next = 0x100;  // of handles, events and streams
  std::uint64_t order = 0;
  int contexts = 0;
  std::size_t copied = 0, calls = 0;

  void wrong(std::string what) { violations.push_back(std::move(what)); }

  // As cuThreadExchangeStreamCaptureMode tells it (cuda.h:15453-15466).
  Status may_call() {
    bool forbidden = false;
    for (const auto& [stream, capture] : captures) {
      const bool of_this_thread = capture.by == std::this_thread::get_id();
      forbidden = forbidden || (capture_mode_here < 2 && of_this_thread && capture.mode < 2) ||
                  (capture_mode_here == 0 && !of_this_thread && capture.mode == 0);
    }
    return forbidden ? end_captures() : done;
  }
  Status end_captures() {
    for (auto& [stream, capture] : captures) capture.over = true;
    return not_while_capturing;
  }
  bool is_captured(Stream stream) const { return captures.contains(stream); }
  // "When a blocking stream is capturing, the legacy stream is in an unusable state" (cuda.h:15530).
  bool is_barred(Stream stream) const {
    return stream == nullptr &&
           std::any_of(captures.begin(), captures.end(), [](const auto& each) { return each.second.blocks; });
  }
  // Of a call that waits for it.
  Status may_wait_for(Stream stream) {
    if (is_captured(stream)) return end_captures();
    if (is_barred(stream)) return end_captures(), default_stream_is_barred;
    return may_call();
  }

  // What was made here; or what is held here, made or imported, once or several times.
  std::size_t used(bool imported_too) const {
    std::size_t bytes = 0;
    std::set<ino_t> seen;
    for (const auto& each : held)
      if (const auto there = each.lock();
          there && (imported_too || there->made_here) && seen.insert(there->inode).second)
        bytes += there->bytes;
    return bytes;
  }

  // The physical memory under a range; nullopt-like empty where any of it is not mapped with access.
  std::vector<std::shared_ptr<Physical>> under(const Range& range) const {
    std::vector<std::shared_ptr<Physical>> out;
    Address at = range.at;
    while (at < range.at + range.bytes) {
      auto found = mappings.upper_bound(at);
      if (found == mappings.begin()) return {};
      --found;
      if (at >= found->first + found->second.bytes || !found->second.access) return {};
      out.push_back(found->second.memory);
      at = found->first + found->second.bytes;
    }
    return out;
  }

  void launch(Stream stream, std::vector<Range> reads, std::vector<Range> writes, std::function<void()> run) {
    const auto found = streams.find(stream);
    if (found == streams.end()) return wrong("work for a stream that there is not");
    if (is_captured(stream)) return;
    if (is_barred(stream)) {
      end_captures();
      return;
    }
    Work work{.kind = Work::Kind::kernel,
              .order = ++order,
              .reads = std::move(reads),
              .writes = std::move(writes),
              .run = std::move(run),
              .event = {},
              .of_record = {},
              .touches = {}};
    for (const auto* ranges : {&work.reads, &work.writes})
      for (const Range& range : *ranges)
        for (auto& memory : under(range)) work.touches.push_back(memory);
    for (const auto& memory : work.touches) {
      if (memory->trailer == nullptr) continue;
      const auto me = static_cast<std::uint32_t>(getpid());
      if (memory->trailer->outstanding > 0 && memory->trailer->owner != me)
        wrong("two processes have work outstanding on the same memory");
      memory->trailer->owner = me;
      ++memory->trailer->outstanding;
    }
    found->second.push_back(std::move(work));
  }

  // Of another stream's, and earlier: had it been ordered before `work`, it would have run.
  bool races(Stream stream, const Work& work) const {
    for (const auto& [other, queue] : streams) {
      if (other == stream) continue;
      for (const Work& earlier : queue) {
        if (earlier.order > work.order) break;
        const auto meet = [](const std::vector<Range>& a, const std::vector<Range>& b) {
          return std::any_of(a.begin(), a.end(), [&](const Range& one) {
            return std::any_of(b.begin(), b.end(), [&](const Range& two) { return one.meets(two); });
          });
        };
        if (meet(earlier.writes, work.reads) || meet(earlier.writes, work.writes) ||
            meet(earlier.reads, work.writes))
          return true;
      }
    }
    return false;
  }

  void run_one(Stream stream) {
    auto& queue = streams[stream];
    if (queue.front().kind == Work::Kind::wait) {
      const Work waiting = queue.front();
      const auto event = events.find(waiting.event);
      if (event != events.end()) run_until(event->second.stream, waiting.of_record);
    }
    Work work = std::move(queue.front());
    queue.pop_front();
    if (work.kind != Work::Kind::kernel) return;
    if (races(stream, work)) wrong("work is not ordered after earlier work on the same memory");
    bool mapped = true;
    for (const auto* ranges : {&work.reads, &work.writes})
      for (const Range& range : *ranges) mapped = mapped && !under(range).empty();
    if (mapped)
      work.run();
    else
      wrong("work used memory that is not mapped");
    for (const auto& memory : work.touches)
      if (memory->trailer != nullptr) --memory->trailer->outstanding;
  }

  void run_until(Stream stream, std::uint64_t last) {
    auto& queue = streams[stream];
    while (!queue.empty() && queue.front().order <= last) run_one(stream);
  }

  void run_all() {
    // The newest stream first: what is not ordered comes in the order that was least expected.
    for (bool more = true; more;) {
      more = false;
      for (auto at = streams.rbegin(); at != streams.rend(); ++at)
        while (!at->second.empty()) {
          run_one(at->first);
          more = true;
        }
    }
  }

  bool aligned(std::uint64_t number) const { return number % options.granularity == 0; }

  bool outstanding_on(const Range& range) const {
    for (const auto& [stream, queue] : streams)
      for (const Work& work : queue)
        for (const auto* ranges : {&work.reads, &work.writes})
          for (const Range& each : *ranges)
            if (each.meets(range)) return true;
    return false;
  }
};

// What the table points to.
struct FakeFunctions {
  static FakeDriver::State& s() { return *FakeDriver::here().state_; }
  static std::lock_guard<std::recursive_mutex> hold() { return std::lock_guard(s().mutex); }
  static bool in_context() { return !contexts_here.empty(); }
  static bool known(DeviceNumber device) { return device >= 0 && device < s().options.devices; }

  static Status init(unsigned) { return s().options.devices > 0 ? done : no_device; }
  static Status device_count(int* out) {
    *out = s().options.devices;
    return done;
  }
  static Status device_get(DeviceNumber* out, int ordinal) {
    if (!known(ordinal)) return invalid_device;
    *out = ordinal;
    return done;
  }
  static Status device_attribute(int* out, int attribute, DeviceNumber device) {
    if (!known(device)) return invalid_device;
    *out = (attribute == has_virtual_memory || attribute == has_descriptors) && s().options.virtual_memory
               ? 1
               : 0;
    return done;
  }
  static Status device_uuid(Uuid* out, DeviceNumber device) {
    if (!known(device)) return invalid_device;
    *out = Uuid{};
    out->bytes[0] = s().options.uuid;
    out->bytes[1] = static_cast<unsigned char>(device);
    return done;
  }
  static Status device_memory(std::size_t* out, DeviceNumber) {
    *out = s().options.memory;
    return done;
  }
  static Status context_retain(Context* out, DeviceNumber device) {
    const auto held = hold();
    if (!known(device)) return invalid_device;
    ++s().contexts;
    *out = &s().contexts;
    return done;
  }
  static Status context_release(DeviceNumber) {
    const auto held = hold();
    if (--s().contexts < 0) s().wrong("a context was released more often than it was retained");
    return done;
  }
  static Status context_push(Context context) {
    contexts_here.push_back(context);
    return done;
  }
  static Status context_pop(Context* out) {
    if (!in_context()) return invalid_context;
    *out = contexts_here.back();
    contexts_here.pop_back();
    return done;
  }
  static Status context_synchronize() {
    const auto held = hold();
    if (!in_context()) return invalid_context;
    if (!s().captures.empty()) return s().end_captures();
    s().run_all();
    return done;
  }
  static Status granularity(std::size_t* out, const Properties*, int) {
    *out = s().options.granularity;
    return done;
  }
  static Status create(Handle* out, std::size_t bytes, const Properties* of, unsigned long long) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    ++s().calls;
    if (s().options.memory_needs_context && !in_context()) return invalid_context;
    if (!known(of->location.id) || of->type != 1 || of->location.type != 1) return invalid_value;
    if (bytes == 0 || !s().aligned(bytes)) {
      s().wrong("physical memory is not of whole granules");
      return invalid_value;
    }
    if (s().used(false) + bytes > s().options.memory) return out_of_memory;
    const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes + trailer_bytes)) != 0) return out_of_memory;
    auto memory = std::make_shared<Physical>(fd, bytes, true);
    s().held.push_back(memory);
    *out = s().next++;
    s().handles.emplace(*out, std::move(memory));
    return done;
  }
  static Status release(Handle memory) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    if (s().handles.erase(memory) == 1) return done;
    s().wrong("a handle was released that there is not");
    return invalid_value;
  }
  static Status export_handle(void* out, Handle memory, int type, unsigned long long) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    const auto found = s().handles.find(memory);
    if (found == s().handles.end() || type != file_descriptor) return invalid_value;
    const int fd = dup(found->second->fd);
    if (fd < 0) return out_of_memory;
    std::memcpy(out, &fd, sizeof fd);
    return done;
  }
  static Status import_handle(Handle* out, void* descriptor, int type) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    ++s().calls;
    // The number itself, in place of a pointer.
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor));
    struct stat file {};
    if (type != file_descriptor || fstat(fd, &file) != 0 ||
        static_cast<std::size_t>(file.st_size) <= trailer_bytes)
      return invalid_value;
    auto memory =
        std::make_shared<Physical>(dup(fd), static_cast<std::size_t>(file.st_size) - trailer_bytes, false);
    if (memory->trailer == nullptr) return invalid_value;
    s().held.push_back(memory);
    *out = s().next++;
    s().handles.emplace(*out, std::move(memory));
    return done;
  }
  static Status reserve(Address* out, std::size_t bytes, std::size_t alignment, Address, unsigned long long) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    if (bytes == 0 || !s().aligned(bytes)) return invalid_value;
    alignment = std::max(alignment, s().options.granularity);
    const std::size_t wide = bytes + alignment;
    void* const at = mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return out_of_memory;
    const auto start = reinterpret_cast<Address>(at);
    const Address fit = (start + alignment - 1) / alignment * alignment;
    if (fit > start) munmap(at, fit - start);
    if (fit + bytes < start + wide) munmap(pointer(fit + bytes), start + wide - fit - bytes);
    *out = fit;
    s().reservations.emplace(fit, bytes);
    return done;
  }
  static Status unreserve(Address at, std::size_t bytes) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    const auto found = s().reservations.find(at);
    if (found == s().reservations.end() || found->second != bytes) {
      s().wrong("addresses were given back that were not reserved");
      return invalid_value;
    }
    for (const auto& [start, mapping] : s().mappings)
      if (Range{start, mapping.bytes}.meets({at, bytes})) {
        s().wrong("addresses were given back with memory mapped there");
        return invalid_value;
      }
    munmap(pointer(at), bytes);
    s().reservations.erase(found);
    return done;
  }
  static Status map(Address at, std::size_t bytes, std::size_t offset, Handle memory, unsigned long long) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    ++s().calls;
    const auto found = s().handles.find(memory);
    auto within = s().reservations.upper_bound(at);
    const bool reserved = within != s().reservations.begin() &&
                          at + bytes <= std::prev(within)->first + std::prev(within)->second;
    // An offset must be 0 today.
    if (found == s().handles.end() || !reserved || offset != 0 || bytes == 0 ||
        bytes > found->second->bytes || !s().aligned(at) || !s().aligned(bytes)) {
      s().wrong("memory was mapped in a way that there is not");
      return invalid_value;
    }
    for (const auto& [start, mapping] : s().mappings)
      if (Range{start, mapping.bytes}.meets({at, bytes})) {
        s().wrong("memory was mapped where some is mapped");
        return invalid_value;
      }
    if (mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second->fd, 0) == MAP_FAILED)
      return out_of_memory;
    s().mappings.emplace(at, Mapping{.bytes = bytes, .memory = found->second});
    return done;
  }
  static Status unmap(Address at, std::size_t bytes) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    ++s().calls;
    // Whole mappings, one or several.
    Address next = at;
    std::vector<Address> whole;
    while (next < at + bytes) {
      const auto found = s().mappings.find(next);
      if (found == s().mappings.end() || next + found->second.bytes > at + bytes) {
        s().wrong("memory was unmapped that is not, or not so, mapped");
        return invalid_value;
      }
      whole.push_back(next);
      next += found->second.bytes;
    }
    if (s().outstanding_on({at, bytes})) s().wrong("memory was unmapped under work on it");
    for (const Address each : whole) s().mappings.erase(each);
    (void)mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return done;
  }
  static Status set_access(Address at, std::size_t bytes, const Access* what, std::size_t count) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    ++s().calls;
    if (count != 1 || what->flags != 3 || what->location.type != 1 || !known(what->location.id))
      return invalid_value;
    Address next = at;
    while (next < at + bytes) {
      const auto found = s().mappings.find(next);
      if (found == s().mappings.end() || next + found->second.bytes > at + bytes) {
        s().wrong("access was given to memory that is not, or not so, mapped");
        return invalid_value;
      }
      found->second.access = true;
      mprotect(pointer(next), found->second.bytes, PROT_READ | PROT_WRITE);
      next += found->second.bytes;
    }
    return done;
  }
  static Status copy_async(Address to, Address from, std::size_t bytes, Stream stream) {
    const auto held = hold();
    if (!in_context()) return invalid_context;
    s().launch(stream, {{from, bytes}}, {{to, bytes}}, [to, from, bytes] {
      std::memmove(pointer(to), pointer(from), bytes);
      s().copied += bytes;
    });
    return done;
  }
  static Status event_create(Event* out, unsigned) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    if (!in_context()) return invalid_context;
    *out = reinterpret_cast<Event>(s().next++);
    s().events.emplace(*out, EventState{});
    return done;
  }
  static Status event_record(Event event, Stream stream) {
    const auto held = hold();
    if (!in_context()) return invalid_context;
    const auto found = s().events.find(event);
    const auto queue = s().streams.find(stream);
    if (found == s().events.end() || queue == s().streams.end()) return invalid_handle;
    if (s().is_barred(stream)) return s().end_captures(), default_stream_is_barred;
    found->second = {.recorded = ++s().order, .stream = stream, .captured = s().is_captured(stream)};
    if (found->second.captured) return done;
    queue->second.push_back({.kind = Work::Kind::record,
                             .order = s().order,
                             .reads = {},
                             .writes = {},
                             .run = {},
                             .event = event,
                             .of_record = {},
                             .touches = {}});
    return done;
  }
  // Each question lets one piece of work run, or whoever asks again and again would ask for ever.
  static Status event_query(Event event) {
    const auto held = hold();
    const auto found = s().events.find(event);
    if (found == s().events.end()) return invalid_handle;
    if (found->second.captured) return s().end_captures(), captured_event;
    if (const Status status = s().may_call(); status != done) return status;
    auto& queue = s().streams[found->second.stream];
    if (!queue.empty() && queue.front().order <= found->second.recorded) s().run_one(found->second.stream);
    return queue.empty() || queue.front().order > found->second.recorded ? done : not_ready;
  }
  static Status event_synchronize(Event event) {
    const auto held = hold();
    const auto found = s().events.find(event);
    if (found == s().events.end()) return invalid_handle;
    if (found->second.captured) return s().end_captures(), captured_event;
    if (const Status status = s().may_call(); status != done) return status;
    s().run_until(found->second.stream, found->second.recorded);
    return done;
  }
  static Status event_destroy(Event event) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    return s().events.erase(event) == 1 ? done : invalid_handle;
  }
  static Status stream_create(Stream* out, unsigned flags) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    if (!in_context()) return invalid_context;
    // One that waits for the default stream is not modelled.
    if (flags != stream_beside_the_default) return invalid_value;
    *out = reinterpret_cast<Stream>(s().next++);
    s().streams.try_emplace(*out);
    return done;
  }
  static Status stream_wait(Stream stream, Event event, unsigned) {
    const auto held = hold();
    const auto found = s().events.find(event);
    const auto queue = s().streams.find(stream);
    if (found == s().events.end() || queue == s().streams.end()) return invalid_handle;
    if (found->second.recorded > 0)
      queue->second.push_back({.kind = Work::Kind::wait,
                               .order = ++s().order,
                               .reads = {},
                               .writes = {},
                               .run = {},
                               .event = event,
                               .of_record = found->second.recorded,
                               .touches = {}});
    return done;
  }
  static Status stream_synchronize(Stream stream) {
    const auto held = hold();
    const auto queue = s().streams.find(stream);
    if (queue == s().streams.end()) return invalid_handle;
    if (const Status status = s().may_wait_for(stream); status != done) return status;
    while (!queue->second.empty()) s().run_one(stream);
    return done;
  }
  static Status stream_destroy(Stream stream) {
    const auto held = hold();
    if (const Status status = s().may_call(); status != done) return status;
    const auto queue = s().streams.find(stream);
    if (queue == s().streams.end() || stream == nullptr) return invalid_handle;
    if (!queue->second.empty()) s().wrong("a stream was destroyed with work in it");
    s().streams.erase(queue);
    return done;
  }
  static Status stream_capturing(Stream stream, int* out) {
    const auto held = hold();
    if (!s().streams.contains(stream)) return invalid_handle;
    if (s().is_barred(stream)) return default_stream_is_barred;  // and the capture goes on (cuda.h:15525)
    const auto found = s().captures.find(stream);
    *out = found == s().captures.end() ? is_not_capturing : found->second.over ? 2 : 1;
    return done;
  }
  static Status thread_capture_mode(int* mode) {
    if (*mode < 0 || *mode > forbids_nothing) return invalid_value;
    std::swap(*mode, capture_mode_here);
    return done;
  }
  static Status error_name(Status status, const char** out) {
    switch (status) {
      case done:
        *out = "CUDA_SUCCESS";
        return done;
      case invalid_value:
        *out = "CUDA_ERROR_INVALID_VALUE";
        return done;
      case out_of_memory:
        *out = "CUDA_ERROR_OUT_OF_MEMORY";
        return done;
      case no_device:
        *out = "CUDA_ERROR_NO_DEVICE";
        return done;
      case invalid_device:
        *out = "CUDA_ERROR_INVALID_DEVICE";
        return done;
      case invalid_context:
        *out = "CUDA_ERROR_INVALID_CONTEXT";
        return done;
      case invalid_handle:
        *out = "CUDA_ERROR_INVALID_HANDLE";
        return done;
      case not_while_capturing:
        *out = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
        return done;
      default:
        return invalid_value;
    }
  }
};

FakeDriver& FakeDriver::here() {
  static FakeDriver one;
  return one;
}

FakeDriver::FakeDriver() {
  reset();
}
FakeDriver::~FakeDriver() = default;

void FakeDriver::reset(FakeDriverOptions options) {
  contexts_here.clear();
  capture_mode_here = 0;
  auto fresh = std::make_unique<State>();
  fresh->options = options;
  fresh->streams.try_emplace(nullptr);
  if (state_ != nullptr)
    for (const auto& [at, bytes] : state_->reservations) munmap(pointer(at), bytes);
  state_ = std::move(fresh);
}

Driver FakeDriver::table() const {
  Driver out;
#define CARILLON_FAKE(member, symbol, arguments) out.member = FakeFunctions::member;
  CARILLON_CUDA_FUNCTIONS(CARILLON_FAKE)
#undef CARILLON_FAKE
  return out;
}

void FakeDriver::fill(Stream stream, Address at, std::size_t bytes, unsigned char value) {
  const std::lock_guard held(state_->mutex);
  state_->launch(stream, {}, {{at, bytes}}, [=] { std::memset(pointer(at), value, bytes); });
}

void FakeDriver::expect(Stream stream, Address at, std::size_t bytes, unsigned char value) {
  const std::lock_guard held(state_->mutex);
  state_->launch(stream, {{at, bytes}}, {}, [=, this] {
    const auto* const first = reinterpret_cast<const unsigned char*>(pointer(at));
    const auto* const other =
        std::find_if(first, first + bytes, [=](unsigned char byte) { return byte != value; });
    if (other != first + bytes)
      state_->wrong("work read " + std::to_string(*other) + " at byte " + std::to_string(other - first) +
                    ", not " + std::to_string(value));
  });
}

Status FakeDriver::begin_capture(Stream stream, int mode, bool blocks) {
  const std::lock_guard held(state_->mutex);
  // Not of the default stream, and not twice (cuda.h:15348-15352).
  if (stream == nullptr || !state_->streams.contains(stream) || state_->is_captured(stream))
    return invalid_value;
  state_->captures[stream] = {
      .mode = mode, .blocks = blocks, .over = false, .by = std::this_thread::get_id()};
  return done;
}

Status FakeDriver::end_capture(Stream stream) {
  const std::lock_guard held(state_->mutex);
  const auto found = state_->captures.find(stream);
  if (found == state_->captures.end()) return invalid_value;
  const bool over = found->second.over;
  state_->captures.erase(found);
  return over ? capture_is_over : done;
}

std::vector<std::string> FakeDriver::violations() const {
  const std::lock_guard held(state_->mutex);
  return state_->violations;
}

std::string FakeDriver::left_behind() const {
  const std::lock_guard held(state_->mutex);
  std::string out;
  const auto count = [&](std::size_t many, const char* what) {
    if (many > 0) out += (out.empty() ? "" : ", ") + std::to_string(many) + " " + what;
  };
  count(state_->mappings.size(), "mappings");
  count(state_->handles.size(), "handles");
  count(state_->reservations.size(), "reservations");
  count(state_->events.size(), "events");
  count(state_->streams.size() - 1, "streams");
  count(static_cast<std::size_t>(std::max(state_->contexts, 0)), "contexts");
  count(outstanding(), "pieces of work");
  return out;
}

std::size_t FakeDriver::outstanding() const {
  const std::lock_guard held(state_->mutex);
  std::size_t many = 0;
  for (const auto& [stream, queue] : state_->streams)
    many += static_cast<std::size_t>(std::count_if(
        queue.begin(), queue.end(), [](const Work& work) { return work.kind == Work::Kind::kernel; }));
  return many;
}

std::size_t FakeDriver::memory_used() const {
  const std::lock_guard held(state_->mutex);
  return state_->used(true);
}

std::size_t FakeDriver::copied_bytes() const {
  const std::lock_guard held(state_->mutex);
  return state_->copied;
}

std::size_t FakeDriver::memory_calls() const {
  const std::lock_guard held(state_->mutex);
  return state_->calls;
}

}  // namespace carillon::share::cuda::testing
