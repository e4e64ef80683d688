#include "carillon/share/messages.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::share {
namespace {

template <typename Packet>
std::string wrong_with(const Packet& packet) {
  const auto said = read_packet(bytes_of(packet));
  return said ? "" : said.error().message;
}

Hello good_hello() {
  auto hello = packet_of<Hello>(Kind::hello);
  std::strcpy(hello.name, "train.py");
  hello.persistent = 5;
  hello.remaining_ns = 7;
  return hello;
}

TEST(Messages, HelloSaysWhatIsKnown) {
  const auto said = read_packet(bytes_of(good_hello()));
  ASSERT_TRUE(said);
  const auto& hello = std::get<HelloSaid>(*said);
  EXPECT_EQ(hello.name, "train.py");
  EXPECT_EQ(hello.persistent, Bytes{5});
  EXPECT_EQ(hello.ephemeral, std::nullopt);
  EXPECT_EQ(hello.remaining, Duration{7});
  EXPECT_EQ(hello.before, std::nullopt);
  EXPECT_FALSE(hello.on_cuda);
  auto on_cuda = good_hello();
  on_cuda.memories = memory_of_cuda;
  EXPECT_TRUE(std::get<HelloSaid>(*read_packet(bytes_of(on_cuda))).on_cuda);
}

TEST(Messages, WhatIsWrongIsSaid) {
  const struct {
    const char* what;
    void (*change)(Hello&);
    const char* words;
  } rows[] = {
      {"magic", [](Hello& h) { h.header.magic = 1; }, "does not begin"},
      {"version", [](Hello& h) { h.header.version = 9; }, "version 9"},
      {"kind", [](Hello& h) { h.header.kind = static_cast<Kind>(77); }, "kind 77"},
      {"broker's kind", [](Hello& h) { h.header.kind = Kind::welcome; }, "only a broker sends"},
      {"length", [](Hello& h) { h.header.bytes = 3; }, "says that it has 3 bytes"},
      {"another's length", [](Hello& h) { h.header.kind = Kind::ask; }, "ask has"},
      {"name", [](Hello& h) { std::memset(h.name, 'x', sizeof h.name); }, "does not end"},
      {"weight 0", [](Hello& h) { h.weight = 0; }, "weight"},
      {"weight NaN", [](Hello& h) { h.weight = std::nan(""); }, "weight"},
      {"weight", [](Hello& h) { h.weight = 1001; }, "weight"},
      {"again", [](Hello& h) { h.again = 2; }, "'again' is 2"},
      {"memories", [](Hello& h) { h.memories = 2; }, "'memories' is 2"},
      {"broker's device", [](Hello& h) { h.header.kind = Kind::device; }, "only a broker sends"},
      {"broker's pieces", [](Hello& h) { h.header.kind = Kind::pieces; }, "only a broker sends"},
  };
  for (const auto& row : rows) {
    Hello hello = good_hello();
    row.change(hello);
    EXPECT_NE(wrong_with(hello).find(row.words), std::string::npos) << row.what << ": " << wrong_with(hello);
  }
}

TEST(Messages, SizesAndTimesAreHeld) {
  auto stopped = packet_of<Stopped>(Kind::stopped);
  stopped.busy_ns = stopped.persistent = stopped.ephemeral = stopped.remaining_ns =
      std::numeric_limits<std::uint64_t>::max();
  const auto said = read_packet(bytes_of(stopped));
  ASSERT_TRUE(said);
  const auto& counters = std::get<StoppedSaid>(*said).counters;
  EXPECT_EQ(counters.busy, most_time);
  EXPECT_EQ(counters.memory.persistent, most_bytes);
  EXPECT_EQ(counters.memory.ephemeral, most_bytes);
  EXPECT_EQ(std::get<StoppedSaid>(*said).remaining, most_time);
}

// Whatever bytes come: an answer, without a look beyond their end (sanitizers), and never more than a packet's kind.
TEST(Messages, RandomBytes) {
  Random random(20);
  const Hello hello = good_hello();
  const auto good = bytes_of(hello);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> packet(good.begin(), good.end());
    packet.resize(static_cast<std::size_t>(random.below(200)));
    for (int i = 0; i < 4 && !packet.empty(); ++i)
      packet[random.below(packet.size())] = static_cast<std::byte>(random.below(256));
    if (packet.size() >= sizeof(Header)) {
      const auto bytes = static_cast<std::uint32_t>(packet.size());
      std::memcpy(packet.data() + offsetof(Header, bytes), &bytes, sizeof bytes);
    }
    const auto said = read_packet(packet);
    EXPECT_TRUE(said || !said.error().message.empty());
  }
}

TEST(Messages, NamesCanBeShown) {
  const struct {
    std::string name, shown;
  } rows[] = {
      {"train.py", "train.py"},
      {"a\nb\x1b[2J", "a?b?[2J"},
      {"\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9"},
      {"\xff\xfe", "??"},
      {"\xed\xa0\x80", "???"},          // half of a surrogate pair
      {"\xc0\xaf", "??"},               // overlong
      {"\xc2\x9b" "2J", "?2J"},         // a control character of two bytes
      {"\xe2\x82", "??"},               // cut short
      {std::string(100, 'x'), std::string(most_name, 'x')},
  };
  for (const auto& row : rows) EXPECT_EQ(shown(row.name), row.shown);
}

TEST(Messages, RefusalsAreCutToTheirPlace) {
  const auto packet = refusal(Kind::evicted, std::string(1000, 'w'), {Bytes{1}, Bytes{2}});
  EXPECT_EQ(std::string(packet.why).size(), sizeof packet.why - 1);
  EXPECT_EQ(packet.fits_persistent, 1U);
  EXPECT_EQ(packet.fits_ephemeral, 2U);
}

}  // namespace
}  // namespace carillon::share
