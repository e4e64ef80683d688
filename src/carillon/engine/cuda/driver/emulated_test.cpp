#include "carillon/engine/cuda/driver/emulated.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::engine::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t page = std::uint64_t{2} << 20;

// What most tests work with: some pages that are mapped, memory of the host, streams, events and a kernel.
class Bench {
 public:
  explicit Bench(EmulatedOptions options = {}, std::uint64_t pages = 4) : device(std::move(options)) {
    // to[i] = from[i] * factor + 1, for n numbers.
    device.know(
        "scale",
        {.parameter_bytes = {sizeof(Address), sizeof(Address), sizeof(std::uint32_t), sizeof(std::uint32_t)},
         .run =
             [](const EmulatedKernel::Launch& as) {
               const auto [to, from, n, factor] = scale_of(as);
               for (std::uint32_t i = 0; i < n; ++i) {
                 std::uint32_t value = 0;
                 std::memcpy(&value, reinterpret_cast<void*>(from + Address{4} * i), 4);
                 value = value * factor + 1;
                 std::memcpy(reinterpret_cast<void*>(to + Address{4} * i), &value, 4);
               }
             },
         .accesses =
             [](const EmulatedKernel::Launch& as, std::vector<Span>& reads, std::vector<Span>& writes) {
               const auto [to, from, n, factor] = scale_of(as);
               reads.push_back({from, 4ULL * n});
               writes.push_back({to, 4ULL * n});
             },
         .duration =
             [](const EmulatedKernel::Launch& as) {
               const auto [to, from, n, factor] = scale_of(as);
               return Duration{std::int64_t{1'000'000} * n / std::max(1U, as.processors)};
             }});
    ok(d.init(0));
    ok(d.context_retain(&context, 0));
    ok(d.context_push(context));
    ok(d.reserve(&base, pages * page, 0, 0, 0));
    for (std::uint64_t i = 0; i < pages; ++i) {
      handles.emplace_back();
      ok(d.create(&handles.back(), page, &properties, 0));
      ok(d.map(base + i * page, page, 0, handles.back(), 0));
    }
    ok(d.set_access(base, pages * page, &access, 1));
    mapped = pages;
    ok(d.host_allocate(&host, page, host_is_mapped));
    for (Stream& stream : streams) ok(d.stream_create(&stream, stream_beside_the_default, 0));
    for (Event& event : events) ok(d.event_create(&event, event_without_time));
    ok(d.module_load(&module, "image"));
    ok(d.module_function(&scale, module, "scale"));
  }
  // Gives everything back, once all work is done.
  void clean() {
    ok(d.context_synchronize());
    for (const Stream stream : streams) ok(d.stream_destroy(stream));
    for (const Event event : events) ok(d.event_destroy(event));
    ok(d.module_unload(module));
    ok(d.host_free(host));
    ok(d.unmap(base, mapped * page));
    for (const Handle handle : handles) ok(d.release(handle));
    ok(d.unreserve(base, handles.size() * page));
    ok(d.context_pop(&context));
    ok(d.context_release(0));
  }
  static void ok(Status status) { EXPECT_EQ(status, done); }
  struct Scale {
    Address to, from;
    std::uint32_t n, factor;
  };
  static Scale scale_of(const EmulatedKernel::Launch& as) {
    Scale out{};
    std::memcpy(&out.to, as.parameters[0], sizeof out.to);
    std::memcpy(&out.from, as.parameters[1], sizeof out.from);
    std::memcpy(&out.n, as.parameters[2], sizeof out.n);
    std::memcpy(&out.factor, as.parameters[3], sizeof out.factor);
    return out;
  }
  Status run(int stream, Address to, Address from, std::uint32_t n = 16, std::uint32_t factor = 3) {
    void* parameters[] = {&to, &from, &n, &factor};
    return d.launch(scale, 1, 1, 1, 32, 1, 1, 0, streams[stream], parameters, nullptr);
  }
  Status fill(int stream, Address at, std::uint64_t bytes = 64, unsigned char value = 7) {
    return d.fill(at, value, bytes, streams[stream]);
  }
  void sync(int stream) { ok(d.stream_synchronize(streams[stream])); }

  Emulated device;
  const Driver d = Emulated::table();
  Properties properties;
  Access access;
  Context context = nullptr;
  Address base = 0;
  std::uint64_t mapped = 0;
  std::vector<Handle> handles;
  void* host = nullptr;
  Stream streams[3]{};
  Event events[3]{};
  Module module = nullptr;
  Function scale = nullptr;
};

TEST(CudaEmulated, ComputesWhatKernelsDo) {
  Bench b;
  auto* const host = static_cast<std::uint32_t*>(b.host);
  for (std::uint32_t i = 0; i < 16; ++i) host[i] = i;
  b.ok(b.d.copy_in(b.base, host, 64, b.streams[0]));
  b.ok(b.run(0, b.base + page, b.base));
  b.ok(b.d.copy_out(host + 100, b.base + page, 64, b.streams[0]));
  EXPECT_EQ(host[103], 0U) << "nobody waited for it yet";
  b.sync(0);
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(host[100 + i], 3 * i + 1);
  b.clean();
  EXPECT_THAT(b.device.violations(), IsEmpty());
  EXPECT_EQ(b.device.left_behind(), "");
}

// Each breaks one rule, and is found by the words.
TEST(CudaEmulated, FindsWhatAGpuWouldNotForgive) {
  struct Fault {
    const char* what;
    const char* says;
    std::function<void(Bench&)> does;
  };
  const Fault faults[] = {
      {"no event between two streams", "nothing orders it",
       [](Bench& b) {
         b.fill(0, b.base);
         b.run(1, b.base + page, b.base);
       }},
      {"the event is recorded before the work", "nothing orders it",
       [](Bench& b) {
         b.ok(b.d.event_record(b.events[0], b.streams[0]));
         b.fill(0, b.base);
         b.ok(b.d.stream_wait(b.streams[1], b.events[0], 0));
         b.run(1, b.base + page, b.base);
       }},
      {"a wait for an event that is not recorded yet", "nothing orders it",
       [](Bench& b) {
         b.fill(0, b.base);
         b.ok(b.d.stream_wait(b.streams[1], b.events[0], 0));
         b.ok(b.d.event_record(b.events[0], b.streams[0]));
         b.run(1, b.base + page, b.base);
       }},
      {"the wrong stream waits", "nothing orders it",
       [](Bench& b) {
         b.fill(0, b.base);
         b.ok(b.d.event_record(b.events[0], b.streams[0]));
         b.ok(b.d.stream_wait(b.streams[2], b.events[0], 0));
         b.run(1, b.base + page, b.base);
       }},
      {"what is read is written over", "writes bytes that scale reads",
       [](Bench& b) {
         b.fill(0, b.base);
         b.run(0, b.base + page, b.base);
         b.fill(1, b.base);
       }},
      {"two write the same", "nothing orders it",
       [](Bench& b) {
         b.fill(0, b.base);
         b.fill(1, b.base + 32);
       }},
      {"an offset that is wrong by one tensor", "nothing has written",
       [](Bench& b) {
         b.fill(0, b.base);
         b.run(0, b.base + page, b.base + 64);
       }},
      {"more is read than was written", "nothing has written",
       [](Bench& b) {
         b.fill(0, b.base, 60);
         b.run(0, b.base + page, b.base);
       }},
      {"beyond what is mapped", "not mapped", [](Bench& b) { b.fill(0, b.base + 4 * page - 32); }},
      {"memory that has no access", "not mapped",
       [](Bench& b) {
         Handle handle = 0;
         Address at = 0;
         b.ok(b.d.reserve(&at, page, 0, 0, 0));
         b.ok(b.d.create(&handle, page, &b.properties, 0));
         b.ok(b.d.map(at, page, 0, handle, 0));
         b.fill(0, at);
       }},
      {"use after unmap", "not mapped",
       [](Bench& b) {
         b.ok(b.d.unmap(b.base + 3 * page, page));
         b.fill(0, b.base + 3 * page);
       }},
      {"unmapped under work", "may use still",
       [](Bench& b) {
         b.fill(0, b.base + 3 * page);
         b.d.unmap(b.base + 3 * page, page);
       }},
      {"memory of the host freed under a copy", "may use still",
       [](Bench& b) {
         void* other = nullptr;
         b.ok(b.d.host_allocate(&other, 4096, host_is_mapped));
         b.ok(b.d.copy_in(b.base, other, 64, b.streams[0]));
         b.d.host_free(other);
       }},
      {"mapped twice", "where some is mapped", [](Bench& b) { b.d.map(b.base, page, 0, b.handles[1], 0); }},
      {"half of a mapping is unmapped", "not so, mapped", [](Bench& b) { b.d.unmap(b.base, page / 2); }},
      {"a stream destroyed with work in it", "nobody waited for",
       [](Bench& b) {
         Stream stream = nullptr;
         b.ok(b.d.stream_create(&stream, stream_beside_the_default, 0));
         b.ok(b.d.fill(b.base, 1, 64, stream));
         b.d.stream_destroy(stream);
       }},
      {"the default stream", "default stream", [](Bench& b) { b.d.fill(b.base, 1, 64, nullptr); }},
      {"a copy of memory that is not pinned", "not pinned",
       [](Bench& b) {
         const int here = 1;
         b.d.copy_in(b.base, &here, sizeof here, b.streams[0]);
       }},
      {"a wait in a capture", "cannot be captured",
       [](Bench& b) {
         Graph graph = nullptr;
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.fill(0, b.base);
         EXPECT_EQ(b.d.stream_synchronize(b.streams[0]), capture_unsupported);
         EXPECT_EQ(b.d.capture_end(b.streams[0], &graph), capture_invalidated);
       }},
      {"a capture that is not joined", "before a stream that it had forked to was joined",
       [](Bench& b) {
         Graph graph = nullptr;
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.fill(0, b.base);
         b.ok(b.d.event_record(b.events[0], b.streams[0]));
         b.ok(b.d.stream_wait(b.streams[1], b.events[0], 0));
         b.fill(1, b.base + page);
         EXPECT_EQ(b.d.capture_end(b.streams[0], &graph), capture_unjoined);
       }},
      {"a graph whose branches race", "in a graph, nothing orders",
       [](Bench& b) {
         Graph graph = nullptr;
         GraphExec executable = nullptr;
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.ok(b.d.event_record(b.events[0], b.streams[0]));
         b.ok(b.d.stream_wait(b.streams[1], b.events[0], 0));
         b.fill(0, b.base);
         b.fill(1, b.base);
         b.ok(b.d.event_record(b.events[1], b.streams[1]));
         b.ok(b.d.stream_wait(b.streams[0], b.events[1], 0));
         b.ok(b.d.capture_end(b.streams[0], &graph));
         b.ok(b.d.graph_instantiate(&executable, graph, 0));
       }},
      {"two graphs of one capture, beside each other", "nothing orders it",
       [](Bench& b) {
         Graph graph = nullptr;
         GraphExec one = nullptr, other = nullptr;
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.fill(0, b.base);
         b.ok(b.d.capture_end(b.streams[0], &graph));
         b.ok(b.d.graph_instantiate(&one, graph, 0));
         b.ok(b.d.graph_instantiate(&other, graph, 0));
         b.ok(b.d.graph_launch(one, b.streams[0]));
         b.ok(b.d.graph_launch(other, b.streams[1]));
       }},
      {"a graph destroyed under its own work", "a graph was destroyed that nobody waited for",
       [](Bench& b) {
         Graph graph = nullptr;
         GraphExec one = nullptr;
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.fill(0, b.base);
         b.ok(b.d.capture_end(b.streams[0], &graph));
         b.ok(b.d.graph_instantiate(&one, graph, 0));
         b.ok(b.d.graph_launch(one, b.streams[0]));
         b.ok(b.d.graph_exec_destroy(one));
       }},
      {"a kernel of a module that is gone", "or not any more",
       [](Bench& b) {
         b.fill(0, b.base);
         b.ok(b.d.module_unload(b.module));
         EXPECT_EQ(b.run(0, b.base + page, b.base), invalid_handle);
       }},
      {"a module unloaded under its kernel", "under work of scale",
       [](Bench& b) {
         b.fill(0, b.base);
         b.ok(b.run(0, b.base + page, b.base));
         b.ok(b.d.module_unload(b.module));
       }},
      {"a graph of a module that is gone", "of a module that is unloaded",
       [](Bench& b) {
         Graph graph = nullptr;
         GraphExec one = nullptr;
         b.fill(0, b.base);
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.ok(b.run(0, b.base + page, b.base));
         b.ok(b.d.capture_end(b.streams[0], &graph));
         b.ok(b.d.graph_instantiate(&one, graph, 0));
         b.ok(b.d.module_unload(b.module));
         EXPECT_EQ(b.d.graph_launch(one, b.streams[0]), invalid_handle);
       }},
      {"the time of an event that has none", "made without",
       [](Bench& b) {
         float milliseconds = 0;
         b.ok(b.d.event_record(b.events[0], b.streams[0]));
         b.ok(b.d.event_record(b.events[1], b.streams[0]));
         EXPECT_EQ(b.d.event_elapsed(&milliseconds, b.events[0], b.events[1]), invalid_handle);
       }},
      {"a capture ended where it was not begun", "that it had forked to",
       [](Bench& b) {
         Graph graph = nullptr;
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.ok(b.d.event_record(b.events[0], b.streams[0]));
         b.ok(b.d.stream_wait(b.streams[1], b.events[0], 0));
         EXPECT_EQ(b.d.capture_end(b.streams[1], &graph), capture_unmatched);
         EXPECT_EQ(b.d.capture_end(b.streams[0], &graph), done) << "it goes on";
       }},
      {"a stream destroyed in its capture", "while it was captured",
       [](Bench& b) {
         Stream stream = nullptr;
         b.ok(b.d.stream_create(&stream, stream_beside_the_default, 0));
         b.ok(b.d.capture_begin(stream, capture_of_this_thread));
         b.ok(b.d.stream_destroy(stream));
       }},
      {"a green context destroyed before its streams", "before its streams",
       [](Bench& b) {
         Processors all;
         Resources described = nullptr;
         GreenContext green = nullptr;
         Stream stream = nullptr;
         b.ok(b.d.processors(0, &all, of_processors));
         b.ok(b.d.describe(&described, &all, 1));
         b.ok(b.d.green_create(&green, described, 0, green_default_stream));
         b.ok(b.d.green_stream(&stream, green, stream_beside_the_default, 0));
         b.ok(b.d.green_destroy(green));
       }},
      {"blocks that are too large", "there cannot be",
       [](Bench& b) {
         Address at = b.base;
         std::uint32_t n = 1, factor = 1;
         void* parameters[] = {&at, &at, &n, &factor};
         b.d.launch(b.scale, 1, 1, 1, 1025, 1, 1, 0, b.streams[0], parameters, nullptr);
       }},
      {"an allocation freed under work", "an allocation was freed that a fill",
       [](Bench& b) {
         Address at = 0;
         b.ok(b.d.allocate(&at, 100));
         b.fill(0, at);
         b.ok(b.d.free(at));
       }},
      {"what is not the start of an allocation is freed", "freed that there is not",
       [](Bench& b) {
         Address at = 0;
         b.ok(b.d.allocate(&at, 100));
         EXPECT_EQ(b.d.free(at + 1), invalid_value);
       }},
      {"another's memory closed under work", "memory of another process was closed that a fill",
       [](Bench& b) {
         const EmulatedLoan loan(100);
         Address at = 0;
         b.ok(b.d.ipc_open(&at, loan.handle(), peers_as_needed));
         b.fill(0, at);
         b.ok(b.d.ipc_close(at));
       }},
      {"another's memory used after it was closed", "not mapped",
       [](Bench& b) {
         const EmulatedLoan loan(100);
         Address at = 0;
         b.ok(b.d.ipc_open(&at, loan.handle(), peers_as_needed));
         b.ok(b.d.ipc_close(at));
         b.fill(0, at);
       }},
      {"another's memory used beyond its end", "not mapped",
       [](Bench& b) {
         const EmulatedLoan loan(100);
         Address at = 0;
         b.ok(b.d.ipc_open(&at, loan.handle(), peers_as_needed));
         b.fill(0, at + 90, 11);
       }},
      {"another's memory closed more often than opened", "closed that is not open",
       [](Bench& b) {
         const EmulatedLoan loan(100);
         Address at = 0, again = 0;
         b.ok(b.d.ipc_open(&at, loan.handle(), peers_as_needed));
         b.ok(b.d.ipc_open(&again, loan.handle(), peers_as_needed));
         EXPECT_EQ(at, again) << "as the driver has it";
         b.ok(b.d.ipc_close(at));
         b.fill(0, at);  // it is open still
         b.sync(0);
         b.ok(b.d.ipc_close(at));
         EXPECT_EQ(b.d.ipc_close(at), invalid_value);
       }},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.what);
    Bench b;
    ASSERT_THAT(b.device.violations(), IsEmpty());
    fault.does(b);
    EXPECT_THAT(b.device.violations(), ::testing::ElementsAre(HasSubstr(fault.says)));
    b.d.context_synchronize();
  }
}

TEST(CudaEmulated, TellsHowLargeAnAllocationIs) {
  Bench b;
  const EmulatedLoan loan(1000);
  Address own = 0, other = 0, base = 0;
  std::size_t bytes = 0;
  IpcHandle handle;
  b.ok(b.d.allocate(&own, 100));
  b.ok(b.d.ipc_open(&other, loan.handle(), peers_as_needed));
  for (const auto& [start, size] : {std::pair(own, 100U), std::pair(other, 1000U)}) {
    b.ok(b.d.address_range(&base, &bytes, start + size - 1));
    EXPECT_EQ(base, start);
    EXPECT_EQ(bytes, size);
    EXPECT_EQ(b.d.address_range(&base, &bytes, start + size), not_found);
  }
  EXPECT_EQ(b.d.ipc_export(&handle, own + 1), invalid_value);
  EXPECT_EQ(b.d.ipc_export(&handle, b.base), invalid_value) << "mapped piece by piece";
  b.ok(b.d.ipc_export(&handle, own));
  EXPECT_EQ(b.d.ipc_open(&other, handle, peers_as_needed), invalid_context) << "its own";
  EXPECT_EQ(b.d.ipc_open(&other, loan.handle(), 0), invalid_value);
  b.ok(b.d.ipc_close(other));
  b.ok(b.d.free(own));
  b.clean();
  EXPECT_THAT(b.device.violations(), IsEmpty());
  EXPECT_EQ(b.device.left_behind(), "");
}

TEST(CudaEmulated, NamesWhatIsLeftBehind) {
  struct Leak {
    const char* says;
    std::function<void(Bench&)> makes;
  };
  const Leak leaks[] = {
      {"1 stream",
       [](Bench& b) {
         Stream s = nullptr;
         b.ok(b.d.stream_create(&s, stream_beside_the_default, 0));
       }},
      {"1 event",
       [](Bench& b) {
         Event e = nullptr;
         b.ok(b.d.event_create(&e, 0));
       }},
      {"1 handle",
       [](Bench& b) {
         Handle h = 0;
         b.ok(b.d.create(&h, page, &b.properties, 0));
       }},
      {"1 reservation",
       [](Bench& b) {
         Address a = 0;
         b.ok(b.d.reserve(&a, page, 0, 0, 0));
       }},
      {"1 block of the host",
       [](Bench& b) {
         void* p = nullptr;
         b.ok(b.d.host_allocate(&p, 64, 0));
       }},
      {"1 allocation",
       [](Bench& b) {
         Address a = 0;
         b.ok(b.d.allocate(&a, 64));
       }},
      {"1 open loan",
       [](Bench& b) {
         const EmulatedLoan loan(64);
         Address a = 0;
         b.ok(b.d.ipc_open(&a, loan.handle(), peers_as_needed));
       }},
      {"1 module",
       [](Bench& b) {
         Module m = nullptr;
         b.ok(b.d.module_load(&m, "image"));
       }},
      {"1 context",
       [](Bench& b) {
         Context c = nullptr;
         b.ok(b.d.context_retain(&c, 0));
       }},
      {"1 capture that nobody ended",
       [](Bench& b) {
         Stream stream = nullptr;
         b.ok(b.d.stream_create(&stream, stream_beside_the_default, 0));
         b.ok(b.d.capture_begin(stream, capture_of_this_thread));
         b.ok(b.d.stream_destroy(stream));
       }},
      {"1 graph",
       [](Bench& b) {
         Graph graph = nullptr;
         b.ok(b.d.capture_begin(b.streams[0], capture_of_this_thread));
         b.ok(b.d.capture_end(b.streams[0], &graph));
       }},
  };
  for (const Leak& leak : leaks) {
    SCOPED_TRACE(leak.says);
    Bench b;
    leak.makes(b);
    b.clean();  // which waits for all streams that there are
    EXPECT_EQ(b.device.left_behind(), leak.says);
  }
}

TEST(CudaEmulated, FailsWhereItIsToldTo) {
  {
    Bench b({.fail_create = 6});
    Handle handle = 0;
    EXPECT_EQ(b.d.create(&handle, page, &b.properties, 0), out_of_memory)
        << "four pages and a block came before";
    EXPECT_EQ(b.d.create(&handle, page, &b.properties, 0), done);
  }
  {
    Bench b({.memory = 5 * page});
    Handle handle = 0;
    EXPECT_EQ(b.d.create(&handle, page, &b.properties, 0), done);
    EXPECT_EQ(b.d.create(&handle, page, &b.properties, 0), out_of_memory);
    std::size_t left = 1, all = 0;
    EXPECT_EQ(b.d.memory_info(&left, &all), done);
    EXPECT_EQ(left, 0U);
    EXPECT_EQ(all, 5 * page);
  }
  {
    Bench b({.lose_after = 2});
    EXPECT_EQ(b.fill(0, b.base), done);
    EXPECT_EQ(b.fill(0, b.base), done);
    EXPECT_EQ(b.fill(0, b.base), uncorrectable_memory);
    for (const Status status :
         {b.fill(0, b.base), b.d.stream_synchronize(b.streams[0]), b.d.stream_query(b.streams[0]),
          b.d.context_synchronize(), b.d.event_record(b.events[0], b.streams[0])})
      EXPECT_TRUE(is_lost(status)) << "whatever is asked after it is lost";
  }
}

TEST(CudaEmulated, TimeIsWhatWorkTakes) {
  Bench b({.bytes_per_second = 1e9, .copy = Duration{0}, .enqueue = Duration{0}});
  b.fill(0, b.base, page);
  b.sync(0);
  const Duration start = b.device.now();
  // One in each direction, at once; two in one direction, one after the other.
  b.ok(b.d.copy_in(b.base + page, b.host, 1'000'000, b.streams[0]));
  b.ok(b.d.copy_out(static_cast<std::byte*>(b.host) + 1'000'000, b.base, 1'000'000, b.streams[1]));
  b.ok(b.d.copy_in(b.base + 2 * page, b.host, 1'000'000, b.streams[2]));
  EXPECT_EQ(b.device.now(), start) << "the host waits for nothing";
  b.sync(1);
  EXPECT_EQ(b.device.now() - start, from_ms(1));
  b.ok(b.d.context_synchronize());
  EXPECT_EQ(b.device.now() - start, from_ms(2));
  b.clean();
  EXPECT_THAT(b.device.violations(), IsEmpty());
}

// Of values that events order, the last one stays, whatever the host has waited for.
TEST(CudaEmulated, ValuesAreWrittenInTheOrderOfEvents) {
  Bench b;
  const auto write = [&](int stream, std::uint32_t value) {
    b.ok(b.d.write_value(b.streams[stream], b.base, value, 0));
  };
  // Writes `value` in stream 0, and one more in `stream` behind that.
  const auto expect_the_last = [&](std::uint32_t value, int stream) {
    write(0, value);
    b.ok(b.d.event_record(b.events[0], b.streams[0]));
    b.ok(b.d.stream_wait(b.streams[stream], b.events[0], 0));
    write(stream, value + 1);
    b.sync(stream);
    EXPECT_EQ(*reinterpret_cast<const std::uint32_t*>(b.base), value + 1);
  };
  // The host knows of no write when the next one is launched.
  write(0, 1);
  expect_the_last(2, 1);
  // A write behind a kernel waits for it, and so does a write that an event orders behind that.
  b.fill(0, b.base, 64);
  expect_the_last(4, 2);
  b.clean();
  EXPECT_THAT(b.device.violations(), IsEmpty());
}

// Kernels of two green contexts run at once, each on its own processors; of one, one after the other.
TEST(CudaEmulated, GreenContextsDivideTheProcessors) {
  Bench b({.groups = 16, .enqueue = Duration{0}});
  Processors all, parts[2], rest;
  b.ok(b.d.processors(0, &all, of_processors));
  EXPECT_EQ(all.count, 132U);
  unsigned count = 0;
  b.ok(b.d.split_processors(nullptr, &count, &all, nullptr, 0, 60));
  EXPECT_EQ(count, 2U) << "of 64, as parts are of eight";
  b.ok(b.d.split_processors(parts, &count, &all, &rest, 0, 60));
  EXPECT_EQ(parts[0].count, 64U);
  EXPECT_EQ(rest.count, 4U);
  GreenContext greens[2]{};
  Stream streams[2]{};
  for (int i = 0; i < 2; ++i) {
    Resources described = nullptr;
    b.ok(b.d.describe(&described, &parts[i], 1));
    b.ok(b.d.green_create(&greens[i], described, 0, green_default_stream));
    b.ok(b.d.green_stream(&streams[i], greens[i], stream_beside_the_default, 0));
  }
  b.fill(0, b.base, page);
  b.sync(0);
  const Duration start = b.device.now();
  std::swap(b.streams[0], streams[0]);
  std::swap(b.streams[1], streams[1]);
  b.ok(b.run(0, b.base + page, b.base, 64));
  b.ok(b.run(1, b.base + 2 * page, b.base, 64));
  b.ok(b.d.context_synchronize());
  EXPECT_EQ(b.device.now() - start, from_ms(1)) << "64 numbers at a millisecond each, on 64 processors";
  b.ok(b.run(0, b.base + page, b.base, 64));
  b.ok(b.run(0, b.base + page, b.base, 64));
  b.ok(b.d.context_synchronize());
  EXPECT_EQ(b.device.now() - start, from_ms(3));
  for (int i = 0; i < 2; ++i) {
    std::swap(b.streams[i], streams[i]);
    b.ok(b.d.stream_destroy(streams[i]));
    b.ok(b.d.green_destroy(greens[i]));
  }
  b.clean();
  EXPECT_EQ(b.device.left_behind(), "");
  EXPECT_THAT(b.device.violations(), IsEmpty());
}

// What an H100's driver answered: 15 groups of 8, though 132 has 16, and 12 processors that belong to none.
TEST(CudaEmulated, GroupsAreThoseOfAnH100) {
  Bench b;
  Processors all, parts[16], rest;
  b.ok(b.d.processors(0, &all, of_processors));
  EXPECT_EQ(all.least, 8U);
  unsigned count = 0;
  b.ok(b.d.split_processors(nullptr, &count, &all, nullptr, 0, 1));
  EXPECT_EQ(count, 15U);
  count = 16;
  b.ok(b.d.split_processors(parts, &count, &all, &rest, 0, 1));
  EXPECT_EQ(count, 15U);
  for (unsigned i = 0; i < count; ++i) EXPECT_EQ(parts[i].count, 8U);
  EXPECT_EQ(rest.count, 12U);
  b.clean();
}

// Blocks that wait for each other need their processors at once.
TEST(CudaEmulated, AKernelThatSpinsHoldsItsPartAndWhoWaitsIsTold) {
  Bench b;
  Processors all, parts[15], rest;
  unsigned count = 15;
  b.ok(b.d.processors(0, &all, of_processors));
  b.ok(b.d.split_processors(parts, &count, &all, &rest, 0, 1));
  Resources described = nullptr;
  GreenContext green = nullptr;
  Stream within = nullptr;
  b.ok(b.d.describe(&described, parts, 2));
  b.ok(b.d.green_create(&green, described, 0, green_default_stream));
  b.ok(b.d.green_stream(&within, green, stream_beside_the_default, 0));
  b.fill(0, b.base, page);
  b.sync(0);
  std::swap(b.streams[0], within);
  Emulated::next_needs(16);
  b.ok(b.run(0, b.base + page, b.base, 64));
  b.sync(0);
  EXPECT_THAT(b.device.violations(), IsEmpty()) << "16 are there";
  Emulated::next_needs(17);
  b.ok(b.run(0, b.base + page, b.base, 64));
  b.ok(b.d.event_record(b.events[0], b.streams[0]));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(b.d.stream_query(b.streams[0]), not_ready);
    EXPECT_EQ(b.d.event_query(b.events[0]), not_ready);
  }
  b.ok(b.run(1, b.base + 2 * page, b.base, 64));
  b.sync(1);  // the rest of the device goes on
  EXPECT_THAT(b.device.violations(), IsEmpty());
  EXPECT_EQ(b.d.stream_synchronize(b.streams[0]), launch_timeout);
  EXPECT_EQ(b.d.event_synchronize(b.events[0]), launch_timeout);
  EXPECT_EQ(b.d.context_synchronize(), launch_timeout);
  EXPECT_THAT(b.device.violations(), ::testing::Each(HasSubstr("waits for work that never ends")));
  EXPECT_EQ(b.device.violations().size(), 3U);
  std::swap(b.streams[0], within);
}

// A program that orders what must be: pieces of work on a few tensors, in a few streams, with an event after
// each and waits for those that it needs; now and then the host waits, or some are captured and launched as a
// graph. Its oracle is the same arithmetic on the host.
struct Ran {
  std::vector<std::string> violations;
  std::string left;
  std::vector<std::uint32_t> first;  // of each tensor
  Duration took{0};
};

Ran random_program(std::uint64_t seed, bool forget = false) {
  Random random(seed);
  Ran out;
  Bench b;
  constexpr std::uint64_t tensors = 6, numbers = 16;
  const auto tensor = [&](std::uint64_t i) { return b.base + i * 4096; };
  std::vector<std::uint32_t> expected(tensors);
  struct Last {
    int stream = -1;
    Event event = nullptr;
  };
  std::vector<Last> writer(tensors);
  std::vector<std::vector<Last>> readers(tensors);
  std::vector<Event> made;
  Last scratch;  // of the tensor that graphs alone write
  const auto before = [&](int stream, const Last& last) {
    if (last.stream >= 0 && last.stream != stream && !forget)
      b.ok(b.d.stream_wait(b.streams[stream], last.event, 0));
  };
  const auto after = [&](int stream) {
    made.emplace_back();
    b.ok(b.d.event_create(&made.back(), event_without_time));
    b.ok(b.d.event_record(made.back(), b.streams[stream]));
    return Last{stream, made.back()};
  };
  for (std::uint64_t i = 0; i < tensors; ++i) {
    b.ok(b.d.fill(tensor(i), 0, 4 * numbers, b.streams[0]));
    writer[i] = after(0);
  }
  std::vector<GraphExec> executables;
  std::vector<Graph> graphs;
  const int pieces = 10 + static_cast<int>(random.below(30));
  for (int piece = 0; piece < pieces; ++piece) {
    const int stream = static_cast<int>(random.below(3));
    if (random.below(12) == 0) {
      b.sync(stream);
      continue;
    }
    const std::uint64_t to = random.below(tensors);
    std::uint64_t from = random.below(tensors - 1);
    from += from >= to ? 1 : 0;
    const auto factor = static_cast<std::uint32_t>(1 + random.below(5));
    before(stream, writer[from]);
    before(stream, writer[to]);
    for (const Last& reader : readers[to]) before(stream, reader);
    if (random.below(6) == 0) {
      // A few kernels on this tensor, beside them one on a tensor that nobody else has; launched once or
      // twice, in two streams: launches of one graph come one after the other.
      Graph graph = nullptr;
      GraphExec executable = nullptr;
      const int beside = (stream + 1) % 3, again = static_cast<int>(random.below(3));
      const std::uint64_t more = random.below(3);
      b.ok(b.d.capture_begin(b.streams[stream], capture_of_this_thread));
      b.ok(b.run(stream, tensor(to), tensor(from), numbers, factor));
      const Last begun = after(stream);
      b.ok(b.d.stream_wait(b.streams[beside], begun.event, 0));
      for (std::uint64_t i = 0; i < more; ++i) b.ok(b.run(stream, tensor(to), tensor(to), numbers, 2));
      b.ok(b.d.fill(tensor(tensors), 1, 4 * numbers, b.streams[beside]));
      b.ok(b.d.stream_wait(b.streams[stream], after(beside).event, 0));
      b.ok(b.d.capture_end(b.streams[stream], &graph));
      b.ok(b.d.graph_instantiate(&executable, graph, 0));
      if (scratch.stream >= 0) b.ok(b.d.stream_wait(b.streams[stream], scratch.event, 0));
      b.ok(b.d.graph_launch(executable, b.streams[stream]));
      scratch = after(stream);
      expected[to] = expected[from] * factor + 1;
      for (std::uint64_t i = 0; i < more; ++i) expected[to] = expected[to] * 2 + 1;
      if (again != stream) {
        b.ok(b.d.graph_launch(executable, b.streams[again]));
        scratch = after(again);
      }
      graphs.push_back(graph);
      executables.push_back(executable);
      writer[to] = scratch;
      readers[to].clear();
      readers[from].push_back(scratch);
      continue;
    }
    b.ok(b.run(stream, tensor(to), tensor(from), numbers, factor));
    expected[to] = expected[from] * factor + 1;
    const Last last = after(stream);
    writer[to] = last;
    readers[to].clear();
    readers[from].push_back(last);
  }
  b.ok(b.d.context_synchronize());
  auto* const host = static_cast<std::uint32_t*>(b.host);
  for (std::uint64_t i = 0; i < tensors; ++i)
    b.ok(b.d.copy_out(host + i * numbers, tensor(i), 4 * numbers, b.streams[0]));
  b.sync(0);
  for (std::uint64_t i = 0; i < tensors; ++i) {
    out.first.push_back(host[i * numbers]);
    if (forget) continue;
    EXPECT_THAT(std::vector(host + i * numbers, host + (i + 1) * numbers), ::testing::Each(expected[i]));
  }
  for (const Event event : made) b.ok(b.d.event_destroy(event));
  for (const GraphExec each : executables) b.ok(b.d.graph_exec_destroy(each));
  for (const Graph each : graphs) b.ok(b.d.graph_destroy(each));
  out.took = b.device.now();
  b.clean();
  out.violations = b.device.violations();
  out.left = b.device.left_behind();
  return out;
}

TEST(CudaEmulated, ProgramsThatOrderWhatTheyMustBreakNothing) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const Ran ran = random_program(seed);
    ASSERT_THAT(ran.violations, IsEmpty()) << "seed " << seed;
    ASSERT_EQ(ran.left, "") << "seed " << seed;
    if (seed < 200) found += random_program(seed, true).violations.empty() ? 0 : 1;
  }
  EXPECT_GE(found, 195) << "the same programs without their waits";
}

TEST(CudaEmulated, TheSameProgramTakesTheSameTime) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Ran one = random_program(seed), other = random_program(seed);
    EXPECT_EQ(one.took, other.took);
    EXPECT_EQ(one.first, other.first);
  }
}

}  // namespace
}  // namespace carillon::engine::cuda
