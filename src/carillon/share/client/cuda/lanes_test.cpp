#include "carillon/share/client/cuda/lanes.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/share/cuda/lanes.h"
#include "carillon/share/cuda/testing/fake_driver.h"
#include "carillon/share/messages.h"

// A job's memory on a device, against the stand-in for the driver (share/cuda/testing/fake_driver.h), which
// says what a GPU would not have forgiven. What the broker would send the test hands over itself.
namespace carillon::share::client::cuda {
namespace {

using share::cuda::open_lanes;
using share::cuda::testing::FakeDriver;
using share::cuda::testing::FakeDriverOptions;
using ::testing::IsEmpty;

using Entered = Lanes::Entered;

constexpr std::size_t granule = std::size_t{64} * 1024, piece = 4 * granule;

FakeDriver& fake() {
  return FakeDriver::here();
}
Address address(void* p) {
  return reinterpret_cast<Address>(p);
}

// The broker's side of a lane, and of what it has told a job.
class TheLane {
 public:
  TheLane(LaneSource& source, std::uint32_t number) : number_(number), memory_(*source.make(number)) {}

  bool resize(std::size_t bytes) {
    if (!memory_->resize(Bytes{bytes})) return false;
    size_ = bytes;
    return true;
  }
  std::size_t size() const { return size_; }
  // As LiveBroker::give_lane.
  bool tell(Lanes& job, std::vector<std::uint64_t>& told) const {
    send(job, told);
    return job.lane(number_, size_);
  }
  void send(Lanes& job, std::vector<std::uint64_t>& told) const {
    const auto now = memory_->pieces();
    told.resize(now.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (told[i] == now[i]) continue;
      told[i] = now[i];
      auto packet = packet_of<Pieces>(Kind::pieces);
      packet.lane = number_;
      packet.first = static_cast<std::uint32_t>(i);
      packet.count = 1;
      const auto sent = memory_->piece(i);
      const int descriptor = sent->number();
      job.pieces(packet, &descriptor);
    }
  }

 private:
  const std::uint32_t number_;
  const std::unique_ptr<LaneMemory> memory_;
  std::size_t size_ = 0;
};

std::function<int(std::uint64_t)> on_ask;
int ask_test(std::uint64_t bytes) {
  return on_ask ? on_ask(bytes) : 1;
}

struct CudaJobLanes : ::testing::Test {
  std::shared_ptr<LaneSource> source;
  std::unique_ptr<TheLane> lane;
  std::unique_ptr<Lanes> job;
  std::vector<std::uint64_t> told;

  void SetUp() override { start({}); }
  void start(FakeDriverOptions options) {
    TearDown();
    fake().reset(options);
    on_ask = nullptr;
    source = *open_lanes(0, Bytes{piece}, fake().table());
    lane = std::make_unique<TheLane>(*source, 1);
    job = joined();
    told.clear();
    ASSERT_TRUE(lane->resize(4 * piece));
    ASSERT_TRUE(lane->tell(*job, told));
  }
  std::unique_ptr<Lanes> joined(std::uint32_t at_once = 4) const {
    auto out = std::make_unique<Lanes>();
    EXPECT_TRUE(out->start(fake().table(), 0, ask_test, at_once)) << out->why();
    EXPECT_EQ(out->device(*source->device()), nullptr);
    return out;
  }
  // Whatever the test did, this much holds.
  void TearDown() override {
    if (!source) return;
    job.reset();
    lane.reset();
    source.reset();
    EXPECT_EQ(fake().left_behind(), "");
    EXPECT_THAT(fake().violations(), IsEmpty());
  }
  // Another job uses all of the lane.
  void others(unsigned char value) const {
    Lanes other;
    ASSERT_TRUE(other.start(fake().table(), 0, nullptr, 1));
    ASSERT_EQ(other.device(*source->device()), nullptr);
    std::vector<std::uint64_t> nothing;
    ASSERT_TRUE(lane->tell(other, nothing));
    ASSERT_EQ(other.enter(), Entered::lane);
    void* const all = other.take(lane->size());
    ASSERT_NE(all, nullptr);
    ASSERT_EQ(other.counts().own_segments, 0U);
    fake().fill(nullptr, address(all), lane->size(), value);
    const std::vector<LiveRange> none;
    ASSERT_TRUE(other.leave(nullptr, &none));
  }
  bool leave(const std::vector<LiveRange>& live) {
    job->iteration_ended();
    return job->leave(nullptr, &live);
  }
};

TEST_F(CudaJobLanes, SegmentsAreTheLanesWithinItAndTheJobsOwnElsewhere) {
  void* const before = job->take(granule);
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const within = job->take(3 * granule + 1);
  void* elsewhere = nullptr;
  std::thread([&] { elsewhere = job->take(granule); }).join();  // not the thread that trains
  const Counts c = job->counts();
  EXPECT_EQ(c.lane_segments, 1U);
  EXPECT_EQ(c.own_segments, 2U);
  EXPECT_EQ(c.segment_bytes, 4 * granule);
  EXPECT_EQ(c.own_bytes, 2 * granule);
  EXPECT_EQ(address(within) % granule, 0U);
  for (void* const p : {before, within, elsewhere}) fake().fill(nullptr, address(p), granule, 1);
  for (void* const p : {before, within, elsewhere}) job->give(p);
  EXPECT_EQ(fake().outstanding(), 0U);
  EXPECT_EQ(job->counts().own_bytes, 0U);
  EXPECT_EQ(job->take(0), nullptr);
  EXPECT_EQ(job->take(std::size_t{1} << 40), nullptr);
}

TEST_F(CudaJobLanes, WhatLivesOnIsAsItWasThoughOthersUsedTheLane) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const kept = job->take(granule);
  void* const dead = job->take(7 * granule);
  fake().fill(nullptr, address(kept), granule, 42);
  fake().fill(nullptr, address(dead), 7 * granule, 43);
  ASSERT_TRUE(leave({{address(kept) + 100, 4}}));
  EXPECT_EQ(job->counts().replaced, 1U);
  EXPECT_EQ(fake().copied_bytes(), piece);
  others(99);
  ASSERT_EQ(job->enter(), Entered::lane);
  fake().expect(nullptr, address(kept), granule, 42);
  fake().expect(nullptr, address(dead) + 3 * granule, 4 * granule, 99);  // the next piece; as garbage may be
  fake().fill(nullptr, address(kept), granule, 44);
  ASSERT_TRUE(leave({{address(kept), 1}}));
  EXPECT_EQ(job->counts().replaced, 1U);  // that piece is the job's already
  others(98);
  fake().expect(nullptr, address(kept), granule, 44);
}

TEST_F(CudaJobLanes, OfASegmentThatLivesOnInPartOnlyThosePiecesAreReplaced) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const segment = job->take(4 * piece);
  fake().fill(nullptr, address(segment), 4 * piece, 1);
  ASSERT_TRUE(leave({{address(segment) + 2 * piece - 1, 2}}));
  EXPECT_EQ(job->counts().replaced, 2U);
  others(2);
  ASSERT_EQ(job->enter(), Entered::lane);
  fake().expect(nullptr, address(segment), piece, 2);
  fake().expect(nullptr, address(segment) + piece, 2 * piece, 1);
  fake().expect(nullptr, address(segment) + 3 * piece, piece, 2);
  ASSERT_TRUE(leave({}));
}

TEST_F(CudaJobLanes, WithoutWordOfWhatLivesAllDoes) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const segment = job->take(2 * piece);
  fake().fill(nullptr, address(segment), 2 * piece, 7);
  ASSERT_TRUE(job->leave(nullptr, nullptr));
  EXPECT_EQ(job->counts().replaced, 2U);
  others(2);
  fake().expect(nullptr, address(segment), 2 * piece, 7);
}

TEST_F(CudaJobLanes, ReplacedPiecesAreTheLanesAgainOnceNothingLivedThere) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const segment = job->take(piece);
  ASSERT_TRUE(leave({{address(segment), 1}}));
  const struct {
    bool lives;
    std::uint64_t own;
  } rows[] = {{false, piece}, {false, piece}, {true, piece}, {false, piece},
              {false, piece}, {false, 0},     {true, piece}};
  for (const auto& [lives, own] : rows) {
    ASSERT_EQ(job->enter(), Entered::lane);
    ASSERT_TRUE(leave(lives ? std::vector<LiveRange>{{address(segment), 1}} : std::vector<LiveRange>{}));
    EXPECT_EQ(job->counts().own_bytes, own);
  }
  EXPECT_EQ(job->counts().returned, 1U);
  job->give(segment);
  ASSERT_EQ(job->enter(), Entered::lane);
  EXPECT_EQ(job->counts().own_bytes, 0U);  // no segment is there any more: it need not wait
}

TEST_F(CudaJobLanes, ASegmentThatOutlivesItsIterationIsKnownTheNextTime) {
  std::vector<void*> last;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(job->enter(), Entered::lane);
    void* const lives = job->take(2 * granule);
    void* const dies = job->take(2 * granule);
    ASSERT_TRUE(leave({{address(lives), 1}}));
    EXPECT_EQ(job->counts().own_segments, i == 0 ? 0U : static_cast<std::uint64_t>(i));
    job->give(dies);
    last.push_back(lives);
  }
  EXPECT_EQ(job->counts().lane_segments, 4U);
  EXPECT_EQ(job->counts().replaced, 1U);
}

TEST_F(CudaJobLanes, TheLaneIsAskedForMore) {
  on_ask = [&](std::uint64_t bytes) {
    EXPECT_EQ(bytes, 6 * piece + granule);
    return lane->resize(7 * piece) && lane->tell(*job, told) ? 0 : 1;
  };
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const first = job->take(3 * piece);
  fake().fill(nullptr, address(first), 3 * piece, 1);  // still running while the lane grows
  void* const second = job->take(3 * piece + granule);
  fake().fill(nullptr, address(second), 3 * piece + granule, 2);
  EXPECT_EQ(job->counts().lane_bytes, 7 * piece);
  EXPECT_EQ(job->counts().lane_segments, 2U);
  EXPECT_EQ(job->ephemeral(), 6 * piece + granule);
  on_ask = [&](std::uint64_t) { return 1; };
  EXPECT_NE(job->take(4 * piece), nullptr);  // of its own then
  EXPECT_EQ(job->counts().own_bytes, 4 * piece);
  on_ask = [&](std::uint64_t) { return 2; };
  EXPECT_EQ(job->take(4 * piece), nullptr);  // evicted
  fake().expect(nullptr, address(first), 3 * piece, 1);
  ASSERT_TRUE(leave({}));
}

TEST_F(CudaJobLanes, SegmentsBeyondALaneThatBecameSmallerCanBeUsed) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const segment = job->take(4 * piece);
  fake().fill(nullptr, address(segment), 4 * piece, 5);
  ASSERT_TRUE(leave({{address(segment) + 3 * piece, 1}}));
  ASSERT_TRUE(lane->resize(2 * piece));
  ASSERT_TRUE(lane->tell(*job, told));
  others(6);
  ASSERT_EQ(job->enter(), Entered::lane);
  fake().expect(nullptr, address(segment) + 3 * piece, piece, 5);
  fake().fill(nullptr, address(segment), 3 * piece, 7);
  EXPECT_EQ(job->counts().own_bytes, 2 * piece);
  ASSERT_TRUE(leave({}));
  ASSERT_TRUE(lane->resize(4 * piece));
  ASSERT_TRUE(lane->tell(*job, told));
  job->give(segment);
  ASSERT_EQ(job->enter(), Entered::lane);
  EXPECT_EQ(job->counts().own_bytes, 0U);
  EXPECT_NE(job->take(3 * piece + granule), nullptr);
  EXPECT_EQ(job->counts().own_bytes, 0U);
}

TEST_F(CudaJobLanes, WithoutMemoryBeyondASmallerLaneItWaitsForSegmentsToBeGivenBack) {
  start({.memory = 4 * piece});
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const first = job->take(piece);
  void* const second = job->take(3 * piece);
  ASSERT_TRUE(leave({}));
  ASSERT_TRUE(lane->resize(2 * piece));
  Handle others_memory = 0;
  const Properties properties;
  ASSERT_EQ(fake().table().create(&others_memory, piece, &properties, 0), done);
  ASSERT_TRUE(lane->tell(*job, told));
  EXPECT_EQ(job->enter(), Entered::no_memory);
  EXPECT_STREQ(job->why(), "no memory: CUDA_ERROR_OUT_OF_MEMORY");
  job->give(second);
  EXPECT_EQ(job->enter(), Entered::lane);
  fake().fill(nullptr, address(first), piece, 1);
  fake().table().release(others_memory);
}

TEST_F(CudaJobLanes, AnotherLane) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const kept = job->take(granule);
  void* const dead = job->take(2 * piece);
  fake().fill(nullptr, address(kept), granule, 3);
  ASSERT_TRUE(leave({{address(kept), granule}}));
  auto second = std::make_unique<TheLane>(*source, 2);
  ASSERT_TRUE(second->resize(piece));
  told.clear();
  ASSERT_TRUE(second->tell(*job, told));
  lane = std::move(second);
  EXPECT_EQ(fake().memory_used(), piece + piece) << "the new lane, and what was replaced";
  others(4);
  ASSERT_EQ(job->enter(), Entered::lane);
  EXPECT_EQ(fake().memory_used(), piece + piece + 2 * piece) << "and what lies beyond the new lane";
  fake().expect(nullptr, address(kept), granule, 3);
  fake().fill(nullptr, address(dead), 2 * piece, 9);
  ASSERT_TRUE(leave({}));
}

TEST_F(CudaJobLanes, AJobThatIsHeldGivesALaneThatClosedBack) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const kept = job->take(granule);
  job->take(2 * piece);
  fake().fill(nullptr, address(kept), granule, 3);
  ASSERT_TRUE(leave({{address(kept), granule}}));
  ASSERT_TRUE(job->lane(0, 0));
  lane.reset();
  EXPECT_EQ(fake().memory_used(), piece);  // what was replaced
  lane = std::make_unique<TheLane>(*source, 2);
  ASSERT_TRUE(lane->resize(3 * piece));
  told.clear();
  ASSERT_TRUE(lane->tell(*job, told));
  ASSERT_EQ(job->enter(), Entered::lane);
  fake().expect(nullptr, address(kept), granule, 3);
  EXPECT_EQ(fake().memory_used(), piece + 3 * piece);
}

TEST_F(CudaJobLanes, WithoutALaneItGoesOnInMemoryOfItsOwn) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const kept = job->take(granule);
  fake().fill(nullptr, address(kept), granule, 3);
  // In the middle of an iteration: nobody could say what lives on.
  ASSERT_TRUE(job->lane(0, 0));
  EXPECT_EQ(fake().outstanding(), 0U);
  others(4);
  fake().expect(nullptr, address(kept), granule, 3);
  EXPECT_EQ(job->enter(), Entered::no_lane);
  void* const more = job->take(granule);
  ASSERT_NE(more, nullptr);
  fake().fill(nullptr, address(more), granule, 3);
}

TEST_F(CudaJobLanes, WithoutMemoryForWhatLivesOnTheLaneIsNotLeft) {
  start({.memory = 5 * piece});
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const segment = job->take(4 * piece);
  fake().fill(nullptr, address(segment), 4 * piece, 8);
  EXPECT_FALSE(leave({{address(segment), 2 * piece}}));
  EXPECT_STREQ(job->why(), "no memory: CUDA_ERROR_OUT_OF_MEMORY");
  fake().expect(nullptr, address(segment), 4 * piece, 8);
  ASSERT_TRUE(leave({{address(segment), piece}}));  // one piece fits
  others(9);
  fake().expect(nullptr, address(segment), piece, 8);
}

TEST_F(CudaJobLanes, NothingIsLeftWhileWorkIsOutstanding) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const segment = job->take(2 * piece);
  Stream side = nullptr;  // that nobody told of
  const Driver cuda = fake().table();
  Context context = nullptr;
  cuda.context_retain(&context, 0);
  cuda.context_push(context);
  cuda.stream_create(&side, stream_beside_the_default);
  fake().fill(side, address(segment), piece, 1);
  fake().fill(nullptr, address(segment) + piece, piece, 2);
  ASSERT_TRUE(leave({{address(segment), 2 * piece}}));
  EXPECT_EQ(fake().outstanding(), 0U);
  others(3);
  fake().expect(nullptr, address(segment), piece, 1);
  fake().expect(nullptr, address(segment) + piece, piece, 2);
  cuda.context_synchronize();
  cuda.stream_destroy(side);
  cuda.context_pop(&context);
  cuda.context_release(0);
}

// With a stream beside the default one, whose capture must survive the test.
struct CudaJobCaptures : CudaJobLanes {
  const Driver cuda = fake().table();
  Stream side = nullptr;

  void SetUp() override {
    CudaJobLanes::SetUp();
    Context context = nullptr;
    ASSERT_EQ(cuda.context_retain(&context, 0), done);
    ASSERT_EQ(cuda.context_push(context), done);
    ASSERT_EQ(cuda.stream_create(&side, stream_beside_the_default), done);
    ASSERT_EQ(job->enter(), Entered::lane);
  }
  void TearDown() override {
    Context context = nullptr;
    cuda.stream_synchronize(side);
    cuda.stream_destroy(side);
    cuda.context_pop(&context);
    cuda.context_release(0);
    CudaJobLanes::TearDown();
  }
  // In the lane, and of the job's own.
  std::vector<void*> two_segments() const {
    void* own = nullptr;
    std::thread([&] { own = job->take(granule); }).join();
    return {job->take(granule), own};
  }
  void expect_held(std::uint64_t so_far, bool now) const {
    EXPECT_EQ(job->counts().held_back, so_far);
    EXPECT_EQ(job->counts().segment_bytes, now ? granule : 0);
    EXPECT_EQ(job->counts().own_bytes, now ? granule : 0);
  }
  static constexpr int global = 0, of_this_thread = 1;
};

TEST_F(CudaJobCaptures, ASegmentIsFreedOnceTheWorkOfItsStreamIsDone) {
  for (void* const p : two_segments()) {
    void* const other = job->take(granule);
    fake().fill(side, address(p), granule, 1);
    fake().fill(nullptr, address(other), granule, 2);
    job->give(p, side);
    EXPECT_EQ(fake().outstanding(), 1U) << "the other stream's is not waited for";
    job->give(other);
  }
  expect_held(0, false);
}

TEST_F(CudaJobCaptures, WhatIsFreedWhileItsStreamIsCapturedIsHeldBack) {
  const auto segments = two_segments();
  fake().fill(side, address(segments[1]), granule, 1);
  ASSERT_EQ(fake().begin_capture(side, global), done);
  fake().fill(side, address(segments[1]), granule, 2);
  for (void* const p : segments) job->give(p, side);
  expect_held(2, true);
  EXPECT_EQ(fake().end_capture(side), done);
  job->give(job->take(granule));
  expect_held(2, false);
  EXPECT_EQ(fake().outstanding(), 0U);
}

TEST_F(CudaJobCaptures, OfTheDefaultStreamBesideACaptureThatWaitsForItNothingIsAskedThatEndsIt) {
  const auto segments = two_segments();
  ASSERT_EQ(fake().begin_capture(side, of_this_thread, /*blocks=*/true), done);
  for (void* const p : segments) job->give(p);
  job->gate(nullptr);
  expect_held(2, true);
  EXPECT_EQ(fake().end_capture(side), done);
  ASSERT_TRUE(leave({}));
  expect_held(2, false);
}

TEST_F(CudaJobCaptures, WhileAnyGraphIsCapturedNothingIsGivenBack) {
  const auto segments = two_segments();
  job->capture_begins();
  std::thread([&] { ASSERT_EQ(fake().begin_capture(side, global), done); }).join();
  for (void* const p : segments) job->give(p);
  void* const more = job->take(granule);
  EXPECT_NE(more, nullptr);
  EXPECT_EQ(job->counts().held_back, 2U);
  EXPECT_FALSE(job->wait(nullptr));
  EXPECT_THAT(job->why(), ::testing::HasSubstr("a CUDA graph is being captured"));
  EXPECT_FALSE(leave({}));
  EXPECT_TRUE(job->graph_in_the_way());
  EXPECT_EQ(fake().end_capture(side), done);
  job->give(more);
  EXPECT_EQ(job->counts().held_back, 3U) << "nobody said yet that it has ended";
  job->capture_ends();
  expect_held(3, false);
  ASSERT_TRUE(leave({}));
  EXPECT_FALSE(job->graph_in_the_way());
}

// Memory and events are not the graph's: a capture that nobody told of goes on beside all of these.
TEST_F(CudaJobCaptures, ACaptureOfAnotherThreadGoesOnBesideWhatADeviceIsAskedFor) {
  job->gate(nullptr);
  for (int i = 0; i < 3; ++i) job->gate(nullptr);
  std::thread([&] { ASSERT_EQ(fake().begin_capture(side, global), done); }).join();
  on_ask = [&](std::uint64_t bytes) {  // the broker's driver is another process', and knows of no capture
    int mode = forbids_nothing;
    cuda.thread_capture_mode(&mode);
    const bool got = lane->resize(bytes);
    cuda.thread_capture_mode(&mode);
    return got && lane->tell(*job, told) ? 0 : 1;
  };
  const auto segments = two_segments();
  fake().fill(nullptr, address(segments[1]), granule, 1);
  job->gate(nullptr);  // asks for the first
  void* const more = job->take(5 * piece);
  EXPECT_NE(more, nullptr);
  EXPECT_EQ(job->counts().asks, 1U);
  for (void* const p : segments) job->give(p);
  job->give(more);
  expect_held(0, false);
  EXPECT_EQ(fake().end_capture(side), done);
}

TEST_F(CudaJobCaptures, ACapturedStreamHasNoGates) {
  ASSERT_EQ(fake().begin_capture(side, global), done);
  for (int i = 0; i < 6; ++i) job->gate(side);
  EXPECT_EQ(job->counts().gates, 0U);
  EXPECT_FALSE(job->wait(side));
  EXPECT_EQ(fake().end_capture(side), done);
  ASSERT_TRUE(leave({}));
}

TEST_F(CudaJobLanes, GatesBoundWhatIsInFlight) {
  for (const std::uint32_t at_once : {1U, 3U, 8U}) {
    job = joined(at_once);
    told.clear();
    ASSERT_TRUE(lane->tell(*job, told));
    ASSERT_EQ(job->enter(), Entered::lane);
    void* const segment = job->take(granule);
    std::size_t most = 0;
    for (int i = 0; i < 20; ++i) {
      job->gate(nullptr);
      fake().fill(nullptr, address(segment), granule, 1);
      most = std::max(most, fake().outstanding());
    }
    // As many as may be outstanding, and the one that has just begun.
    EXPECT_EQ(most, at_once + 1) << at_once;
    EXPECT_EQ(job->counts().gates, 20U);
    ASSERT_TRUE(leave({}));
  }
}

TEST_F(CudaJobLanes, AReplacedTurnCostsNoCallsThatMapMemory) {
  ASSERT_EQ(job->enter(), Entered::lane);
  void* const lives = job->take(piece);
  job->take(2 * piece);
  ASSERT_TRUE(leave({{address(lives), piece}}));
  const std::size_t before = fake().memory_calls();
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(job->enter(), Entered::lane);
    ASSERT_TRUE(leave({{address(lives), piece}}));
  }
  EXPECT_EQ(fake().memory_calls(), before);
}

TEST_F(CudaJobLanes, WhoseLanesCannotBeUsed) {
  const DeviceIs right = *source->device();
  Lanes other;
  EXPECT_THAT(other.device(right), ::testing::HasSubstr("no CUDA device ready"));
  ASSERT_TRUE(other.start(fake().table(), 0, ask_test, 1));
  const auto refused = [&](auto change) {
    DeviceIs wrong = right;
    change(wrong);
    const char* const why = other.device(wrong);
    return std::string(why ? why : "");
  };
  EXPECT_THAT(refused([](DeviceIs& d) { d.uuid[0] = 9; }), ::testing::HasSubstr("another device's"));
  EXPECT_THAT(refused([](DeviceIs& d) { d.memory = 7; }), ::testing::HasSubstr("does not know"));
  for (const std::uint64_t bytes : {std::uint64_t{0}, piece + 1, std::uint64_t{1} << 50})
    EXPECT_THAT(refused([&](DeviceIs& d) { d.piece = bytes; }), ::testing::HasSubstr("cannot map")) << bytes;
  EXPECT_EQ(refused([](DeviceIs&) {}), "");
  EXPECT_EQ(refused([](DeviceIs&) {}), "");
  EXPECT_THAT(refused([](DeviceIs& d) { d.piece *= 2; }), ::testing::HasSubstr("another size"));
}

TEST_F(CudaJobLanes, PiecesThatAreNotThereAreNotUsed) {
  Lanes other;
  ASSERT_TRUE(other.start(fake().table(), 0, ask_test, 1));
  ASSERT_EQ(other.device(*source->device()), nullptr);
  EXPECT_FALSE(other.lane(1, piece));
  EXPECT_EQ(other.enter(), Entered::no_lane);
  auto packet = packet_of<Pieces>(Kind::pieces);
  packet.lane = 1;
  packet.count = 1;
  const int none = -1;
  other.pieces(packet, &none);
  packet.first = 1U << 31;  // far beyond
  other.pieces(packet, &none);
  EXPECT_FALSE(other.lane(1, piece));
}

TEST_F(CudaJobLanes, OfAnotherLaneItUsesNoPieceOfTheOldOne) {
  EXPECT_FALSE(job->lane(2, 2 * piece));
  EXPECT_EQ(job->enter(), Entered::no_lane);
  EXPECT_STREQ(job->why(), "the broker gave fewer pieces of the lane than it has");
}

TEST_F(CudaJobLanes, APieceThatComesTwiceIsHeldOnce) {
  std::vector<std::uint64_t> nothing;
  ASSERT_TRUE(lane->resize(0));
  ASSERT_TRUE(lane->resize(2 * piece));
  for (int i = 0; i < 2; ++i) {
    nothing.clear();
    lane->send(*job, nothing);
  }
  ASSERT_TRUE(lane->tell(*job, nothing));
  EXPECT_EQ(fake().memory_used(), 2 * piece);
  ASSERT_EQ(job->enter(), Entered::lane);
  fake().fill(nullptr, address(job->take(2 * piece)), 2 * piece, 1);
  ASSERT_TRUE(leave({}));
}

// Turns of two jobs, whatever they do: what is live stays as it was, and the device forgives all of it.
TEST_F(CudaJobLanes, RandomTurns) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    start({.memory = 256 * piece});  // what lives of both, however the addresses fall, beside the lanes
    Random random(seed);
    struct Segment {
      std::size_t bytes;
      unsigned char value;
      bool lives;
    };
    struct One {
      std::unique_ptr<Lanes> lanes;
      std::vector<std::uint64_t> told;
      std::map<Address, Segment> segments;
    };
    One jobs[2];
    jobs[0].lanes = std::move(job);
    jobs[0].told = told;
    jobs[1].lanes = joined();
    std::uint32_t number = 1;
    for (int turn = 0; turn < 30; ++turn) {
      One& now = jobs[random.below(2)];
      if (random.below(4) == 0) {
        ASSERT_TRUE(lane->resize((1 + random.below(8)) * piece - random.below(2) * granule));
      }
      if (random.below(10) == 0) {
        auto next = std::make_unique<TheLane>(*source, ++number);
        ASSERT_TRUE(next->resize((1 + random.below(6)) * piece));
        lane = std::move(next);
        for (One& each : jobs) each.told.clear();
      }
      on_ask = [&](std::uint64_t bytes) {
        if (bytes > 16 * piece) return 1;
        return lane->resize(bytes) && lane->tell(*now.lanes, now.told) ? 0 : 1;
      };
      ASSERT_TRUE(lane->tell(*now.lanes, now.told)) << "seed " << seed;
      ASSERT_EQ(now.lanes->enter(), Entered::lane) << "seed " << seed << ": " << now.lanes->why();
      for (const auto& [at, segment] : now.segments)
        if (segment.lives) fake().expect(nullptr, at, segment.bytes, segment.value);
      for (std::uint64_t step = random.below(8); step > 0; --step) {
        if (random.below(3) == 0 && !now.segments.empty()) {
          auto which = now.segments.begin();
          std::advance(which, random.below(now.segments.size()));
          now.lanes->give(reinterpret_cast<void*>(which->first));
          now.segments.erase(which);
        } else {
          const std::size_t bytes = (1 + random.below(6)) * granule;
          void* const p = now.lanes->take(bytes);
          if (p != nullptr) now.segments[address(p)] = {.bytes = bytes, .value = 0, .lives = false};
        }
        for (auto& [at, segment] : now.segments)
          if (random.below(2) == 0) {
            segment.value = static_cast<unsigned char>(random.below(256));
            segment.lives = true;
            fake().fill(nullptr, at, segment.bytes, segment.value);
          }
        if (random.below(2) == 0) now.lanes->gate(nullptr);
      }
      std::vector<LiveRange> live;
      for (auto& [at, segment] : now.segments) {
        segment.lives = segment.lives && random.below(2) == 0;
        if (segment.lives) live.push_back({at, segment.bytes});
      }
      now.lanes->iteration_ended();
      ASSERT_TRUE(now.lanes->leave(nullptr, &live)) << "seed " << seed << ": " << now.lanes->why();
      ASSERT_THAT(fake().violations(), IsEmpty()) << "seed " << seed << ", turn " << turn;
    }
    for (One& each : jobs) each.lanes.reset();
  }
}

}  // namespace
}  // namespace carillon::share::client::cuda
