#include "carillon/engine/second/messages.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "carillon/base/random.h"

namespace carillon::engine::second {
namespace {

// Two sockets that are each other's peers.
class Pair {
 public:
  explicit Pair(int kind) { EXPECT_EQ(::socketpair(AF_UNIX, kind | SOCK_CLOEXEC, 0, ends_.data()), 0); }
  ~Pair() {
    hang_up(0);
    hang_up(1);
  }
  int operator[](std::size_t i) const { return ends_[i]; }
  void hang_up(std::size_t i) {
    if (ends_[i] >= 0) ::close(ends_[i]);
    ends_[i] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

Port a_port() {
  return {.name = "x", .known = true, .type = graph::DataType::i64, .ranked = true, .shape = {-1, 4}};
}

TEST(Messages, WhatIsWrittenIsRead) {
  Writer writer;
  writer.number(std::uint64_t{77});
  writer.text("text");
  writer.shapes(std::vector<graph::Shape>{{}, {1, -1}});
  writer.port(a_port());
  writer.options({.inputs = {{3}}, .threads = 2, .bf16 = true, .most_bytes = 99});
  Reader reader(writer.bytes());
  EXPECT_EQ(reader.number<std::uint64_t>(), 77U);
  EXPECT_EQ(reader.text(), "text");
  EXPECT_EQ(reader.shapes(), (std::vector<graph::Shape>{{}, {1, -1}}));
  EXPECT_EQ(reader.port(), a_port());
  const auto options = reader.options();
  EXPECT_EQ(options.inputs, (std::vector<graph::Shape>{{3}}));
  EXPECT_EQ(options.threads, 2);
  EXPECT_TRUE(options.bf16);
  EXPECT_EQ(options.most_bytes, 99U);
  EXPECT_TRUE(reader.whole());
}

TEST(Messages, CountsBeyondTheMessageAreNotBelieved) {
  for (const std::uint32_t count : {5U, std::numeric_limits<std::uint32_t>::max()}) {
    Writer writer;
    writer.number(count);
    Reader shapes(writer.bytes()), ports(writer.bytes()), text(writer.bytes()), shape(writer.bytes());
    EXPECT_TRUE(shapes.shapes().empty());
    EXPECT_TRUE(ports.ports().empty());
    EXPECT_EQ(text.text(), "");
    EXPECT_TRUE(shape.shape().empty());
    for (const Reader* each : {&shapes, &ports, &text, &shape}) EXPECT_FALSE(each->good()) << count;
  }
}

TEST(Messages, ValuesThatCannotBeAreNotBelieved) {
  Port port = a_port();
  port.shape = {-2};
  Writer extent;
  extent.port(port);
  Writer flag;
  flag.number(std::uint8_t{2});
  Writer threads;
  threads.options({.inputs = {}, .threads = 0});
  port = a_port();
  port.type = static_cast<graph::DataType>(200);
  Writer type;
  type.port(port);
  Reader extents(extent.bytes()), flags(flag.bytes()), no_threads(threads.bytes()), types(type.bytes());
  extents.port();
  flags.flag();
  no_threads.options();
  types.port();
  for (const Reader* each : {&extents, &flags, &no_threads, &types}) EXPECT_FALSE(each->good());
}

TEST(Messages, AnyBytesAreReadWithoutHarm) {
  Random random(5);
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::byte> bytes(random.below(60));
    for (std::byte& each : bytes) each = static_cast<std::byte>(random.below(i % 2 == 0 ? 256 : 3));
    Reader ports(bytes), options(bytes), plan(bytes);
    ports.ports();
    options.options();
    RunPlan into;
    RunPlan::read(plan, 100, into);
    for (const auto* tensors : {&into.inputs, &into.outputs}) EXPECT_LE(tensors->size(), bytes.size());
  }
}

TEST(Messages, TensorsLieWithinTheirMemory) {
  const struct {
    std::uint64_t offset, bytes;
    bool sound;
  } rows[] = {{0, 100, true},  {64, 36, true},  {100, 0, true},
              {64, 37, false}, {101, 0, false}, {64, std::numeric_limits<std::uint64_t>::max() - 32, false}};
  for (const auto& row : rows) {
    RunPlan plan;
    plan.outputs.push_back({.shape = {4}, .offset = row.offset, .bytes = row.bytes});
    Writer writer;
    plan.write(writer);
    Reader reader(writer.bytes());
    RunPlan into;
    EXPECT_EQ(RunPlan::read(reader, 100, into), row.sound) << row.offset << " " << row.bytes;
  }
}

TEST(Messages, StreamsKeepMessagesApart) {
  Pair pair(SOCK_STREAM);
  Writer first, second;
  first.text("one");
  second.text("another");
  ASSERT_TRUE(send_message(pair[0], Ask::read, first.bytes()));
  ASSERT_TRUE(send_message(pair[0], Ask::make_request, second.bytes(), pair[0]));
  Ask kind{};
  std::vector<std::byte> bytes;
  int descriptor = -1;
  ASSERT_EQ(receive_message(pair[1], kind, bytes, descriptor), Received::whole);
  EXPECT_EQ(kind, Ask::read);
  EXPECT_EQ(Reader(bytes).text(), "one");
  EXPECT_EQ(descriptor, -1);
  ASSERT_EQ(receive_message(pair[1], kind, bytes, descriptor), Received::whole);
  EXPECT_EQ(Reader(bytes).text(), "another");
  ASSERT_GE(descriptor, 0);
  ::close(descriptor);
  pair.hang_up(0);
  EXPECT_EQ(receive_message(pair[1], kind, bytes, descriptor), Received::closed);
}

TEST(Messages, SizesAndKindsThatCannotBeEndTheTalk) {
  for (const std::array<std::uint32_t, 2> header :
       {std::array<std::uint32_t, 2>{1, longest_message + 1}, {99, 0}}) {
    Pair pair(SOCK_STREAM);
    ASSERT_EQ(::send(pair[0], header.data(), sizeof header, 0), static_cast<ssize_t>(sizeof header));
    Ask kind{};
    std::vector<std::byte> bytes;
    int descriptor = -1;
    EXPECT_EQ(receive_message(pair[1], kind, bytes, descriptor), Received::bad);
  }
}

TEST(Messages, WhoWaitsIsAskedWhetherToGoOn) {
  Pair pair(SOCK_STREAM);
  Ask kind{};
  std::vector<std::byte> bytes;
  int descriptor = -1;
  int asked = 0;
  EXPECT_EQ(receive_message(pair[1], kind, bytes, descriptor, [&] { return ++asked < 2; }), Received::ended);
  EXPECT_EQ(asked, 2);
}

TEST(Messages, PacketsLongerThanTheirRoomAreBad) {
  Pair pair(SOCK_SEQPACKET);
  const std::array<std::byte, 100> much{};
  std::array<std::byte, 99> room{};
  std::size_t size = 0;
  int descriptor = -1;
  ASSERT_TRUE(send_packet(pair[0], much));
  EXPECT_EQ(receive_packet(pair[1], room, size, descriptor), Received::bad);
  ASSERT_TRUE(send_packet(pair[0], std::span(much).first(99)));
  EXPECT_EQ(receive_packet(pair[1], room, size, descriptor), Received::whole);
  EXPECT_EQ(size, 99U);
  pair.hang_up(0);
  EXPECT_EQ(receive_packet(pair[1], room, size, descriptor), Received::closed);
}

TEST(Messages, OfTwoDescriptorsNoneIsLeft) {
  const auto open = [] {
    using Entries = std::filesystem::directory_iterator;
    return std::distance(Entries("/proc/self/fd"), Entries());
  };
  Pair pair(SOCK_SEQPACKET);
  const std::array<int, 2> two{pair[0], pair[1]};
  std::array<std::byte, 8> bytes{};
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof two)> ancillary{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.data();
  message.msg_controllen = ancillary.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  ASSERT_NE(head, nullptr);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof two);
  std::memcpy(CMSG_DATA(head), two.data(), sizeof two);
  const auto before = open();
  ASSERT_EQ(::sendmsg(pair[0], &message, 0), static_cast<ssize_t>(bytes.size()));
  std::size_t size = 0;
  int descriptor = -1;
  ASSERT_EQ(receive_packet(pair[1], bytes, size, descriptor), Received::whole);
  ASSERT_GE(descriptor, 0);
  ::close(descriptor);
  EXPECT_EQ(open(), before);
}

}  // namespace
}  // namespace carillon::engine::second
