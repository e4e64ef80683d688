#include "carillon/share/cuda/testing/fake_driver.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/share/testing/child.h"

// That the stand-in sees what it is there to see: each rule is broken once.
namespace carillon::share::cuda::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t granule = std::size_t{64} * 1024;

struct FakeDriverRules : ::testing::Test {
  FakeDriver& fake = FakeDriver::here();
  Driver cuda = fake.table();
  Stream first = nullptr, second = nullptr;

  void SetUp() override {
    fake.reset();
    Context context = nullptr;
    cuda.context_retain(&context, 0);
    cuda.context_push(context);
    cuda.stream_create(&first, stream_beside_the_default);
    cuda.stream_create(&second, stream_beside_the_default);
  }
  Handle make(std::size_t bytes = granule) {
    Handle out = 0;
    const Properties properties;
    EXPECT_EQ(cuda.create(&out, bytes, &properties, 0), done);
    return out;
  }
  Address reserve(std::size_t bytes = 4 * granule) {
    Address at = 0;
    EXPECT_EQ(cuda.reserve(&at, bytes, 0, 0, 0), done);
    return at;
  }
  Address mapped(Handle memory) {
    const Address at = reserve(granule);
    const Access access;
    EXPECT_EQ(cuda.map(at, granule, 0, memory, 0), done);
    EXPECT_EQ(cuda.set_access(at, granule, &access, 1), done);
    return at;
  }
  void expect_found(const char* what) { EXPECT_THAT(fake.violations(), Contains(HasSubstr(what))); }
};

TEST_F(FakeDriverRules, KeptNothingIsFound) {
  const Handle memory = make();
  const Address at = mapped(memory), to = mapped(make());
  Event event = nullptr;
  cuda.event_create(&event, event_without_time);
  fake.fill(first, at, granule, 7);
  cuda.event_record(event, first);
  cuda.stream_wait(second, event, 0);
  cuda.copy_async(to, at, granule, second);
  fake.expect(second, to, granule, 7);
  EXPECT_EQ(fake.outstanding(), 3U);
  EXPECT_EQ(cuda.stream_synchronize(second), done);
  EXPECT_EQ(fake.outstanding(), 0U);
  EXPECT_EQ(cuda.event_query(event), done);
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST_F(FakeDriverRules, UnmappedMemoryInUse) {
  fake.fill(first, reserve(), granule, 1);
  cuda.context_synchronize();
  expect_found("not mapped");
}

TEST_F(FakeDriverRules, MappedMemoryWithoutAccessInUse) {
  const Address at = reserve();
  cuda.map(at, granule, 0, make(), 0);
  fake.fill(first, at, granule, 1);
  cuda.context_synchronize();
  expect_found("not mapped");
}

TEST_F(FakeDriverRules, UnmappedUnderWork) {
  const Address at = mapped(make());
  fake.fill(first, at, granule, 1);
  cuda.unmap(at, granule);
  expect_found("under work");
}

TEST_F(FakeDriverRules, PartOfAMappingIsNotUnmapped) {
  const Address at = reserve();
  const Handle memory = make(2 * granule);
  cuda.map(at, 2 * granule, 0, memory, 0);
  EXPECT_NE(cuda.unmap(at, granule), done);
  expect_found("unmapped that is not");
  EXPECT_NE(cuda.map(at + 2 * granule, granule, granule, memory, 0),
            done);  // nor is any from an offset on mapped
}

TEST_F(FakeDriverRules, ACopyThatIsNotOrderedAfterItsSource) {
  const Address at = mapped(make()), to = mapped(make());
  fake.fill(first, at, granule, 7);
  cuda.copy_async(to, at, granule, second);
  fake.expect(second, to, granule, 7);
  cuda.stream_synchronize(second);
  expect_found("not ordered");
  expect_found("read 0");  // and it has really come too early
}

TEST_F(FakeDriverRules, AnEventOfEarlierWorkOrdersNothing) {
  const Address at = mapped(make()), to = mapped(make());
  Event event = nullptr;
  cuda.event_create(&event, event_without_time);
  cuda.event_record(event, first);
  fake.fill(first, at, granule, 7);
  cuda.stream_wait(second, event, 0);
  cuda.copy_async(to, at, granule, second);
  cuda.context_synchronize();
  expect_found("not ordered");
}

TEST_F(FakeDriverRules, WhatIsLeftBehind) {
  const Handle memory = make();
  const Address at = mapped(memory);
  EXPECT_EQ(fake.left_behind(), "1 mappings, 1 handles, 1 reservations, 2 streams, 1 contexts");
  EXPECT_NE(cuda.unreserve(at, granule), done);
  expect_found("with memory mapped");
  cuda.release(memory);
  EXPECT_EQ(fake.memory_used(), granule);  // it is mapped
  cuda.unmap(at, granule);
  EXPECT_EQ(fake.memory_used(), 0U);
  cuda.unreserve(at, granule);
  cuda.stream_destroy(first);
  cuda.stream_destroy(second);
  cuda.context_release(0);
  EXPECT_EQ(fake.left_behind(), "");
}

TEST_F(FakeDriverRules, WithoutAContextNothingRuns) {
  Context context = nullptr;
  cuda.context_pop(&context);
  Stream stream = nullptr;
  EXPECT_EQ(cuda.stream_create(&stream, stream_beside_the_default), invalid_context);
  EXPECT_EQ(cuda.copy_async(0, 0, 1, first), invalid_context);
  EXPECT_EQ(cuda.context_synchronize(), invalid_context);
}

TEST_F(FakeDriverRules, WhatEndsACapture) {
  constexpr int global = 0, of_this_thread = 1, relaxed = 2;
  constexpr Status over = 901, event_is_captured = 907;
  const Address at = mapped(make());
  Event event = nullptr, captured = nullptr;
  cuda.event_create(&event, event_without_time);
  cuda.event_create(&captured, event_without_time);
  cuda.event_record(event, second);
  const auto ends = [&](int mode, auto call, Status answer) {
    fake.begin_capture(first, mode);
    cuda.event_record(captured, first);
    EXPECT_EQ(call(), answer);
    return fake.end_capture(first) == over;
  };
  int status = 0;
  EXPECT_FALSE(ends(
      global, [&] { return cuda.stream_capturing(first, &status); }, done));
  EXPECT_EQ(status, 1);
  EXPECT_FALSE(ends(
      global, [&] { return cuda.event_record(event, second); }, done));
  for (const int mode : {global, of_this_thread, relaxed}) {
    EXPECT_TRUE(ends(
        mode, [&] { return cuda.context_synchronize(); }, not_while_capturing));
    EXPECT_TRUE(ends(
        mode, [&] { return cuda.stream_synchronize(first); }, not_while_capturing));
    EXPECT_TRUE(ends(
        mode, [&] { return cuda.event_query(captured); }, event_is_captured));
    EXPECT_TRUE(ends(
        mode, [&] { return cuda.event_synchronize(captured); }, event_is_captured));
    const auto asks = [&] { return cuda.event_synchronize(event); };
    EXPECT_EQ(ends(mode, asks, mode == relaxed ? done : not_while_capturing), mode != relaxed);
    Status answer = done;
    const auto elsewhere = [&] { return std::thread([&] { answer = asks(); }).join(), answer; };
    EXPECT_EQ(ends(mode, elsewhere, mode == global ? not_while_capturing : done), mode == global);
    int here = relaxed;
    EXPECT_EQ(cuda.thread_capture_mode(&here), done);
    EXPECT_EQ(here, global);  // where a thread begins
    EXPECT_FALSE(ends(mode, asks, done));
    EXPECT_FALSE(ends(
        mode, [&] { return cuda.unmap(at, 0); }, done));
    cuda.thread_capture_mode(&here);
  }
  // The default stream beside one that waits for it.
  fake.begin_capture(first, global, /*blocks=*/true);
  EXPECT_EQ(cuda.stream_capturing(nullptr, &status), default_stream_is_barred);
  EXPECT_EQ(fake.end_capture(first), done);
  fake.begin_capture(first, global, /*blocks=*/true);
  EXPECT_EQ(cuda.stream_synchronize(nullptr), default_stream_is_barred);
  EXPECT_EQ(fake.end_capture(first), over);
  // What is captured does not run.
  fake.begin_capture(first, global);
  fake.fill(first, at, granule, 1);
  fake.end_capture(first);
  EXPECT_EQ(fake.outstanding(), 0U);
  EXPECT_EQ(fake.begin_capture(nullptr, global), 1);  // nor is the default stream
}

TEST_F(FakeDriverRules, MemoryEnds) {
  fake.reset({.memory = 2 * granule});
  make(2 * granule);
  Handle out = 0;
  const Properties properties;
  EXPECT_EQ(cuda.create(&out, granule, &properties, 0), out_of_memory);
}

TEST_F(FakeDriverRules, TwoProcessesOnTheSameMemory) {
  const Handle memory = make();
  int fd = -1;
  ASSERT_EQ(cuda.export_handle(&fd, memory, file_descriptor, 0), done);
  const auto child_sees = [&] {
    share::testing::Child child([&] {
      fake.reset();
      Context context = nullptr;
      cuda.context_retain(&context, 0);
      cuda.context_push(context);
      Handle imported = 0;
      if (cuda.import_handle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                             file_descriptor) != done)
        return 9;
      const Address at = mapped(imported);
      fake.fill(nullptr, at, granule, 5);
      cuda.context_synchronize();
      return static_cast<int>(fake.violations().size());
    });
    return child.wait();
  };
  const Address at = mapped(memory);
  EXPECT_EQ(child_sees(), 0);
  fake.expect(first, at, granule, 5);  // it is the same memory
  EXPECT_EQ(child_sees(), 1);          // for work is outstanding here
  cuda.context_synchronize();
  EXPECT_THAT(fake.violations(), IsEmpty());
  close(fd);
}

}  // namespace
}  // namespace carillon::share::cuda::testing
