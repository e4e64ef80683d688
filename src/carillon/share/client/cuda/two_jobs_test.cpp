#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "carillon/base/clock.h"
#include "carillon/share/broker.h"
#include "carillon/share/client/cuda/lanes.h"
#include "carillon/share/client/wire.h"
#include "carillon/share/cuda/lanes.h"
#include "carillon/share/cuda/testing/fake_driver.h"
#include "carillon/share/messages.h"
#include "carillon/share/testing/child.h"

// The broker, with lanes on a stand-in device, and two processes that are its jobs: memory goes from one
// process to the others by descriptors, as it would with the driver. What goes wrong in a process it finds
// itself, and says so by its exit status.
namespace carillon::share::client::cuda {
namespace {

using share::cuda::open_lanes;
using share::cuda::testing::FakeDriver;
using share::testing::Child;
using share::testing::Gate;

constexpr std::size_t grain = std::size_t{64} * 1024, part = 4 * grain;

// A job: the protocol, and its memory on the device.
class CudaJob {
 public:
  static CudaJob* asking;  // carillon_ask() of this process

  explicit CudaJob(const std::string& path) {
    FakeDriver::here().reset();
    asking = this;
    ready = lanes.start(
        FakeDriver::here().table(), 0, [](std::uint64_t bytes) { return asking->ask(bytes); }, 2);
    socket_ = connect_to(path.c_str());
    ready = ready && socket_ >= 0;
  }
  ~CudaJob() {
    if (page_ != nullptr) munmap(page_, 4096);
    close(socket_);
  }
  CudaJob(const CudaJob&) = delete;
  CudaJob& operator=(const CudaJob&) = delete;

  bool hello(std::uint32_t memories) {
    auto hello = packet_of<Hello>(Kind::hello);
    hello.memories = memories;
    hello.persistent = grain;
    hello.ephemeral = 2 * part;
    send_packet(socket_, hello.header, Kind::hello, sizeof hello);
    if (!next() || packet.header.kind != Kind::welcome) return false;
    void* const at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds.take_one(), 0);
    if (at == MAP_FAILED || packet.welcome.memory != memory_of_cuda) return false;
    page_ = static_cast<ControlPage*>(at);
    return next() && packet.header.kind == Kind::device && lanes.device(packet.device) == nullptr;
  }
  // Done with the device, as far as the broker knows.
  bool bye() {
    Header header;
    return send_packet(socket_, header, Kind::bye, sizeof header);
  }
  // Says that it is out of its lane, and waits for the next turn.
  bool turn() {
    auto run = static_cast<std::uint32_t>(Lease::run);
    page_->lease.compare_exchange_strong(run, static_cast<std::uint32_t>(Lease::hold));
    page_->inside = 0;
    page_->iterations = iterations;
    auto stopped = packet_of<Stopped>(Kind::stopped);
    stopped.iterations = iterations;
    stopped.persistent = grain;
    stopped.ephemeral = 2 * part;
    if (!send_packet(socket_, stopped.header, Kind::stopped, sizeof stopped)) return false;
    const timespec longest{10, 0};
    while (page_->lease.load() == static_cast<std::uint32_t>(Lease::hold))
      if (syscall(SYS_futex, &page_->lease, FUTEX_WAIT, Lease::hold, &longest, nullptr, 0) != 0 &&
          errno == ETIMEDOUT)
        return false;
    while (next(0))
      if (!heed()) return false;
    page_->inside = 1;
    return page_->lease.load() != static_cast<std::uint32_t>(Lease::look) &&
           lanes.enter() == Lanes::Entered::lane;
  }
  int ask(std::uint64_t bytes) {
    auto ask = packet_of<Ask>(Kind::ask);
    ask.persistent = grain;
    ask.ephemeral = bytes;
    send_packet(socket_, ask.header, Kind::ask, sizeof ask);
    while (next()) {
      if (!heed()) return 2;
      if (packet.header.kind == Kind::lane) return lanes.counts().lane_bytes >= bytes ? 0 : 1;
    }
    return 2;
  }
  bool next(int longest_ms = 10'000) {
    return receive_packet(socket_, packet, fds, longest_ms) == Came::packet;
  }

  Lanes lanes;
  Packet packet;
  Descriptors fds;
  std::uint64_t iterations = 0;
  bool ready = false;

 private:
  bool heed() {
    if (packet.header.kind == Kind::pieces) {
      lanes.pieces(packet.pieces, fds.number);
      fds.close_all();
      return true;
    }
    return packet.header.kind == Kind::lane && lanes.lane(packet.lane.lane, packet.lane.size);
  }

  int socket_ = -1;
  ControlPage* page_ = nullptr;
};
CudaJob* CudaJob::asking = nullptr;

int said(const char* who, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", who, what.c_str());
  return 1;
}

// Trains: each iteration fills its lane, and reads at its end what it has filled; some of it lives on to the
// next.
int train(const char* who, const std::string& path, unsigned char value) {
  FakeDriver& fake = FakeDriver::here();
  {
    CudaJob job(path);
    if (!job.ready || !job.hello(memory_of_cuda)) return said(who, job.lanes.why());
    std::vector<std::pair<Address, std::size_t>> segments;  // as torch's pool keeps them
    std::uint64_t most = 0;                                 // of the lane
    for (; job.iterations < 40; ++job.iterations) {
      if (!job.turn()) return said(who, std::string("no turn: ") + job.lanes.why());
      if (job.iterations % 10 == 0) {
        const std::size_t bytes = part + (segments.size() + 1) * grain;
        void* const more = job.lanes.take(bytes);
        if (more == nullptr) return said(who, "no segment");
        segments.emplace_back(reinterpret_cast<Address>(more), bytes);
      }
      most = std::max(most, job.lanes.counts().lane_bytes);
      const auto lives = static_cast<unsigned char>(value + job.iterations % 7);
      if (job.iterations > 0)
        fake.expect(nullptr, segments[0].first, grain,
                    static_cast<unsigned char>(value + (job.iterations - 1) % 7));
      for (const auto& [at, bytes] : segments) {
        job.lanes.gate(nullptr);
        fake.fill(nullptr, at, bytes, lives);
        fake.expect(nullptr, at, bytes, lives);
      }
      const std::vector<LiveRange> live{{segments[0].first, grain}};
      job.lanes.iteration_ended();
      if (!job.lanes.leave(nullptr, &live)) return said(who, job.lanes.why());
    }
    const Counts c = job.lanes.counts();
    // One of the two has asked for more of the lane than both said at first.
    if (c.lane_segments != 4 || c.replaced != 1 || most <= 2 * part)
      return said(who, "its lane was not used as it was to be: " + std::to_string(c.lane_segments) +
                           " segments, " + std::to_string(c.replaced) + " replaced, " + std::to_string(most) +
                           " bytes");
    job.lanes.stop();
  }
  if (const std::string left = fake.left_behind(); !left.empty()) return said(who, "left behind: " + left);
  return fake.violations().empty() ? 0 : said(who, fake.violations().front());
}

class CudaBroker : public ::testing::Test {
 protected:
  CudaBroker() {
    char pattern[] = "/tmp/carillon-cuda-XXXXXX";
    folder_ = mkdtemp(pattern);
    path = folder_ + "/s";
    FakeDriver::here().reset();
  }
  ~CudaBroker() override {
    unlink(path.c_str());
    rmdir(folder_.c_str());
  }
  // While `during` runs, with a lane of `capacity` for all.
  void broker(Bytes capacity, const std::function<void()>& during) {
    {
      BrokerOptions options;
      options.socket = path;
      options.jobs.capacity = capacity;
      options.jobs.quantum = 1ms;
      options.lanes = *open_lanes(0, Bytes{part}, FakeDriver::here().table());
      options.log = [this](const Note& note) { log += std::string(note.event) + ": " + note.text + "\n"; };
      const SteadyClock clock;
      auto started = Broker::start(std::move(options), clock);
      ASSERT_TRUE(started) << started.error().message;
      std::thread loop([&] { (*started)->run(); });
      during();
      (*started)->stop();
      loop.join();
    }
    EXPECT_EQ(FakeDriver::here().left_behind(), "");
    EXPECT_TRUE(FakeDriver::here().violations().empty());
  }

  std::string path, log;

 private:
  std::string folder_;
};

TEST_F(CudaBroker, TwoProcessesTakeTurnsInALane) {
  Gate gate;
  Child first([&] { return gate.pass(), train("first", path, 10); });
  Child second([&] { return gate.pass(), train("second", path, 100); });
  broker(mib(64), [&] {
    gate.open();
    gate.open();
    EXPECT_EQ(first.wait(), 0);
    EXPECT_EQ(second.wait(), 0);
  });
}

TEST_F(CudaBroker, WhoLeavesItsLaneWithoutWaitingForTheDeviceIsFound) {
  Gate start, has_begun, is_there, seen;
  const auto one_turn = [&](CudaJob& job) {
    if (!job.turn()) return false;
    void* const segment = job.lanes.take(grain);
    FakeDriver::here().fill(nullptr, reinterpret_cast<Address>(segment), grain, 1);
    return job.lanes.counts().lane_segments == 1;
  };
  Child hasty([&] {
    start.pass();
    CudaJob job(path);
    const bool fine = job.hello(memory_of_cuda) && one_turn(job);
    has_begun.open();
    is_there.pass();  // or its lane would go with it
    job.bye();
    seen.pass();
    return fine ? 0 : 1;
  });
  Child other([&] {
    has_begun.pass();
    CudaJob job(path);
    bool fine = job.hello(memory_of_cuda);
    is_there.open();
    fine = fine && one_turn(job);
    const auto violations = FakeDriver::here().violations();
    seen.open();
    return !fine ? 1
           : violations == std::vector<std::string>{"two processes have work outstanding on the same memory"}
               ? 0
               : 2;
  });
  broker(mib(64), [&] {
    start.open();
    EXPECT_EQ(other.wait(), 0);
    EXPECT_EQ(hasty.wait(), 0);
  });
}

TEST_F(CudaBroker, AJobThatCannotUseTheDeviceIsTurnedAway) {
  Gate gate;
  Child job([&] {
    gate.pass();
    CudaJob one(path);
    if (one.hello(0) || one.packet.header.kind != Kind::refused) return 1;
    return std::string_view(one.packet.refused.why).find("memory of cuda:0") != std::string_view::npos ? 0
                                                                                                       : 2;
  });
  broker(mib(64), [&] {
    gate.open();
    EXPECT_EQ(job.wait(), 0);
  });
}

TEST_F(CudaBroker, WhereTheDeviceHasNoMemoryForALaneItsJobIsEvicted) {
  Gate gate;
  Child job([&] {
    gate.pass();
    CudaJob one(path);
    // The parent's device is full, this one's is not.
    if (!one.hello(memory_of_cuda) || one.turn()) return 1;
    return one.packet.header.kind == Kind::evicted ? 0 : 2;
  });
  broker(mib(64), [&] {
    Handle all = 0;
    const Properties properties;
    const Driver cuda = FakeDriver::here().table();
    ASSERT_EQ(cuda.create(&all, std::size_t{1} << 32, &properties, 0), done);
    gate.open();
    EXPECT_EQ(job.wait(), 0);
    cuda.release(all);
  });
  EXPECT_NE(log.find("no memory for its lane"), std::string::npos) << log;
}

}  // namespace
}  // namespace carillon::share::client::cuda
