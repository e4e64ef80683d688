// Several devices behind one emulated driver.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/driver/emulated.h"

namespace carillon::engine::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t granule = std::uint64_t{2} << 20;

void expect_done(Status status) {
  EXPECT_EQ(status, done);
}

// What one device has: memory with its first bytes written, memory of the host, a stream, an event, a kernel
// that adds one to a byte, and that kernel as a graph.
struct Side {
  const Driver& d;
  DeviceNumber number;
  Context context = nullptr;
  Handle handle = 0;
  Address memory = 0;
  unsigned char* host = nullptr;
  Stream stream = nullptr;
  Event event = nullptr;
  Module module = nullptr;
  Function add = nullptr;
  GraphExec graph = nullptr;

  Side(const Driver& driver, DeviceNumber device) : d(driver), number(device) {
    expect_done(d.context_retain(&context, number));
    const InContext here(d, context);
    Properties properties;
    properties.location.id = number;
    Access access;
    access.location.id = number;
    expect_done(d.reserve(&memory, granule, 0, 0, 0));
    expect_done(d.create(&handle, granule, &properties, 0));
    expect_done(d.map(memory, granule, 0, handle, 0));
    expect_done(d.set_access(memory, granule, &access, 1));
    void* pinned = nullptr;
    expect_done(d.host_allocate(&pinned, granule, host_is_mapped));
    host = static_cast<unsigned char*>(pinned);
    expect_done(d.stream_create(&stream, stream_beside_the_default, 0));
    expect_done(d.event_create(&event, 0));
    expect_done(d.module_load(&module, "image"));
    expect_done(d.module_function(&add, module, "add"));
    expect_done(d.fill(memory, 7, 64, stream));
    expect_done(d.stream_synchronize(stream));
    Graph captured = nullptr;
    expect_done(d.capture_begin(stream, capture_of_this_thread));
    expect_done(run());
    expect_done(d.capture_end(stream, &captured));
    expect_done(d.graph_instantiate(&graph, captured, 0));
    expect_done(d.graph_destroy(captured));
  }
  void clean() const {
    const InContext here(d, context);
    (void)d.context_synchronize();
    expect_done(d.graph_exec_destroy(graph));
    expect_done(d.module_unload(module));
    expect_done(d.event_destroy(event));
    expect_done(d.stream_destroy(stream));
    expect_done(d.host_free(host));
    expect_done(d.unmap(memory, granule));
    expect_done(d.release(handle));
    expect_done(d.unreserve(memory, granule));
    expect_done(d.context_release(number));
  }
  Status run() const { return run(stream, add, memory); }
  Status run(Stream in, Function function, Address at) const {
    void* parameters[] = {&at};
    return d.launch(function, 1, 1, 1, 1, 1, 1, 0, in, static_cast<void**>(parameters), nullptr);
  }
  // Byte 0, as the device has it.
  int first() const {
    const InContext here(d, context);
    expect_done(d.copy_out(host, memory, 1, stream));
    expect_done(d.stream_synchronize(stream));
    return host[0];
  }
};

// Two devices, the first as `one`, the second as `two`.
struct TwoDevices {
  explicit TwoDevices(EmulatedOptions one = {}, EmulatedOptions two = {}) : device(with_none(one)) {
    expect_done(device.add_device(std::move(one)));
    EXPECT_EQ(device.add_device(std::move(two)), 1);
    device.know("add", {.parameter_bytes = {sizeof(Address)},
                        .run = [](const EmulatedKernel::Launch& as) { ++*reinterpret_cast<char*>(at(as)); },
                        .accesses =
                            [](const EmulatedKernel::Launch& as, std::vector<Span>& reads,
                               std::vector<Span>& writes) {
                              reads.push_back({at(as), 1});
                              writes.push_back({at(as), 1});
                            },
                        .duration = [](const EmulatedKernel::Launch&) { return from_ms(1); }});
    expect_done(d.init(0));
  }
  static EmulatedOptions with_none(EmulatedOptions like) {
    like.devices = 0;
    return like;
  }
  static Address at(const EmulatedKernel::Launch& as) {
    Address out = 0;
    std::memcpy(&out, as.parameters[0], sizeof out);
    return out;
  }
  Emulated device;
  const Driver d = Emulated::table();
};

TEST(CudaEmulatedDevices, AreSeveralBehindOneDriver) {
  TwoDevices two({.name = "the first", .processors = 16, .memory = 3 * granule},
                 {.name = "the second", .processors = 64, .memory = 2 * granule});
  int count = 0, processors = 0;
  expect_done(two.d.device_count(&count));
  EXPECT_EQ(count, 2);
  char name[32];
  expect_done(two.d.device_name(name, sizeof name, 1));
  EXPECT_STREQ(name, "the second");
  expect_done(two.d.device_attribute(&processors, attribute_processors, 0));
  EXPECT_EQ(processors, 16);
  EXPECT_EQ(two.d.device_get(&count, 2), invalid_device);
  EXPECT_EQ(two.d.context_push(&count), invalid_context) << "that is none";
  const Side a(two.d, 0), b(two.d, 1);
  for (const Side* side : {&a, &b}) {
    const InContext here(two.d, side->context);
    std::size_t left = 0, all = 0;
    expect_done(two.d.memory_info(&left, &all));
    EXPECT_EQ(all, (side == &a ? 3 : 2) * granule);
    EXPECT_EQ(left, all - granule) << "what the other holds is the other's";
  }
  for (int i = 0; i < 3; ++i)
    for (const Side* side : {&a, &b}) {
      const InContext here(two.d, side->context);
      expect_done(side == &a || i > 0 ? side->run() : two.d.graph_launch(side->graph, side->stream));
    }
  const Duration start = two.device.now();
  EXPECT_EQ(a.first(), 10);
  EXPECT_EQ(b.first(), 10);
  EXPECT_LT(two.device.now() - start, from_ms(3.5)) << "both at once";
  a.clean();
  b.clean();
  EXPECT_THAT(two.device.violations(), IsEmpty());
  EXPECT_EQ(two.device.left_behind(), "");
}

// Whoever uses what is one device's for the other is told, in words that name both.
TEST(CudaEmulatedDevices, MixedUpAreFound) {
  struct Fault {
    const char* what;
    const char* says;
    std::function<void(const Side& mine, const Side& other)> does;  // in the context of `mine`
  };
  const Fault faults[] = {
      {"work in the other's stream", "a stream, for add, of device 1 was used by device 0",
       [](const Side& mine, const Side& other) { (void)mine.run(other.stream, mine.add, mine.memory); }},
      {"the other's kernel", "kernel add of device 1 was used by device 0",
       [](const Side& mine, const Side& other) { (void)mine.run(mine.stream, other.add, mine.memory); }},
      {"the other's memory, by a kernel", "memory that add uses of device 1 was used by device 0",
       [](const Side& mine, const Side& other) { (void)mine.run(mine.stream, mine.add, other.memory); }},
      {"the other's memory, by a copy", "of device 1 was used by device 0",
       [](const Side& mine, const Side& other) {
         (void)mine.d.copy(mine.memory, other.memory, 8, mine.stream);
       }},
      {"work that the other's event orders", "an event that a stream is to wait for, of device 1",
       [](const Side& mine, const Side& other) {
         (void)mine.d.stream_wait(mine.stream, other.event, 0);
         (void)mine.run();
       }},
      {"an event in the other's stream", "an event that was recorded in a stream of device 1 was used by",
       [](const Side& mine, const Side& other) { (void)mine.d.event_record(other.event, mine.stream); }},
      {"a wait for the other's stream", "a stream, by cuStreamSynchronize, of device 1",
       [](const Side& mine, const Side& other) { (void)mine.d.stream_synchronize(other.stream); }},
      {"a look at the other's event", "an event, by cuEventQuery, of device 1",
       [](const Side& mine, const Side& other) { (void)mine.d.event_query(other.event); }},
      {"the other's graph", "a graph that was launched of device 1 was used by device 0",
       [](const Side& mine, const Side& other) { (void)mine.d.graph_launch(other.graph, mine.stream); }},
      {"memory made for the other", "memory that is to be made of device 1",
       [](const Side& mine, const Side& other) {
         Properties properties;
         properties.location.id = other.number;
         Handle handle = 0;
         (void)mine.d.create(&handle, granule, &properties, 0);
       }},
      {"access to the other's memory", "memory that access is given to of device 1 was used by device 0",
       [](const Side& mine, const Side& other) {
         Access access;
         access.location.id = mine.number;
         (void)mine.d.set_access(other.memory, granule, &access, 1);
       }},
      {"the other's stream, destroyed", "a stream that was destroyed of device 1 was used by device 0",
       [](const Side& mine, const Side& other) { (void)mine.d.stream_destroy(other.stream); }},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.what);
    TwoDevices two;
    const Side mine(two.d, 0), other(two.d, 1);
    ASSERT_THAT(two.device.violations(), IsEmpty());
    const InContext here(two.d, mine.context);
    fault.does(mine, other);
    EXPECT_THAT(two.device.violations(), ElementsAre(HasSubstr(fault.says)));
  }
}

TEST(CudaEmulatedDevices, OneIsLostAndTheOtherGoesOn) {
  TwoDevices two({.lose_after = 3}, {});
  const Side a(two.d, 0), b(two.d, 1);
  Status status = done;
  for (int i = 0; i < 5; ++i) {
    {
      const InContext here(two.d, a.context);
      status = a.run();
    }
    const InContext here(two.d, b.context);
    expect_done(b.run());
  }
  EXPECT_EQ(status, uncorrectable_memory);
  EXPECT_EQ(two.device.launched(0), 3U);
  {
    const InContext here(two.d, a.context);
    EXPECT_TRUE(is_lost(two.d.context_synchronize()));
    EXPECT_TRUE(is_lost(two.d.stream_synchronize(a.stream)));
    EXPECT_TRUE(is_lost(two.d.event_record(a.event, a.stream)));
  }
  {
    const InContext here(two.d, b.context);
    expect_done(two.d.context_synchronize());
  }
  EXPECT_EQ(b.first(), 12) << "all of its work was done";
  two.device.lose(1);
  {
    const InContext here(two.d, b.context);
    EXPECT_TRUE(is_lost(b.run()));
  }
  a.clean();
  b.clean();
  EXPECT_THAT(two.device.violations(), IsEmpty());
  EXPECT_EQ(two.device.left_behind(), "");
}

TEST(CudaEmulatedDevices, EachIsFullAndSlowByItself) {
  TwoDevices two({}, {.fail_create = 3, .slow_copies = 1000});
  const Side a(two.d, 0), b(two.d, 1);
  for (const Side* side : {&a, &b}) {
    const InContext here(two.d, side->context);
    void* pinned = nullptr;
    EXPECT_EQ(two.d.host_allocate(&pinned, 64, host_is_mapped), side == &a ? done : out_of_memory);
    if (pinned != nullptr) expect_done(two.d.host_free(pinned));
    const Duration start = two.device.now();
    (void)side->first();
    EXPECT_EQ(two.device.now() - start > from_ms(1), side == &b);
  }
  a.clean();
  b.clean();
  EXPECT_THAT(two.device.violations(), IsEmpty());
}

// Work takes what whoever launches it says, does nothing, and what is copied out is zeros; beside a device
// that computes.
TEST(CudaEmulatedDevices, OneMayComputeNothing) {
  TwoDevices two({.computes = false}, {});
  const Side a(two.d, 0), b(two.d, 1);
  {
    const InContext here(two.d, a.context);
    const Duration start = two.device.now();
    Emulated::next_takes(from_ms(40));
    expect_done(a.run());
    expect_done(a.run());
    expect_done(two.d.stream_synchronize(a.stream));
    EXPECT_NEAR(to_ms(two.device.now() - start), 41, 0.1) << "the second as the kernel says";
    a.host[0] = 9;
  }
  EXPECT_EQ(a.first(), 0);
  EXPECT_EQ(b.first(), 7);
  EXPECT_EQ(two.device.memory_used(), 2 * granule);
  a.clean();
  b.clean();
  EXPECT_THAT(two.device.violations(), IsEmpty());
  EXPECT_EQ(two.device.left_behind(), "");
}

// Where time is real the device waits by the clock that it was given, and takes none of its own.
TEST(CudaEmulatedDevices, TimeMayBeTheHosts) {
  Duration now{0};
  std::vector<Duration> waits;
  bool fails = false;
  EmulatedOptions real{.computes = false};
  real.time = [&] { return now; };
  real.wait = [&](Duration until) {
    waits.push_back(until);
    now = until;
  };
  real.fails = [&] { return fails; };
  TwoDevices two(real, {});
  const Side a(two.d, 0), b(two.d, 1);
  const InContext here(two.d, a.context);
  waits.clear();
  now = from_ms(100);
  for (int i = 0; i < 2; ++i) expect_done(two.d.graph_launch(a.graph, a.stream));
  EXPECT_EQ(two.d.stream_query(a.stream), not_ready);
  now = from_ms(101.5);
  expect_done(two.d.stream_synchronize(a.stream));
  EXPECT_THAT(waits, ElementsAre(from_ms(102)));
  expect_done(two.d.stream_synchronize(a.stream));
  expect_done(two.d.context_synchronize());
  EXPECT_EQ(waits.size(), 1U) << "what is over is not waited for";
  EXPECT_LT(two.device.now(), from_ms(100)) << "the other device's time is its own";
  fails = true;
  EXPECT_TRUE(is_lost(two.d.context_synchronize()));
  fails = false;
  EXPECT_TRUE(is_lost(two.d.context_synchronize())) << "for good";
  a.clean();
  const InContext there(two.d, b.context);
  expect_done(two.d.context_synchronize());
  b.clean();
  EXPECT_THAT(two.device.violations(), IsEmpty());
}

}  // namespace
}  // namespace carillon::engine::cuda
