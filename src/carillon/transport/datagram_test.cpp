#include "carillon/transport/datagram.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/cluster/coordinator/member.h"
#include "carillon/transport/messages.h"
#include "carillon/transport/testing/samples.h"

namespace carillon::transport {
namespace {

using cluster::election::Epoch;
using testing::at;
using ::testing::HasSubstr;
using Said = cluster::election::Message;

const DatagramCodec::Process to{"host-2", 5};
const DatagramCodec of_box("box", std::string("a key\0of any bytes", 18));

Datagram full() {
  return {.from = "host-1",
          .incarnation = 0xfedcba9876543210,
          .message = Said{.kind = Said::Kind::question, .epoch = Epoch{7}, .number = 0x0102030405060708},
          .sent = at(-5),
          .echo = Datagram::Echo{at(1'000), at(std::numeric_limits<std::int64_t>::max())}};
}

TEST(Datagram, ComesThroughWholeWithAnyOfItsParts) {
  for (const bool message : {false, true})
    for (const bool echo : {false, true}) {
      Datagram datagram = full();
      if (!message) datagram.message.reset();
      if (!echo) datagram.echo.reset();
      const auto read = of_box.decode(of_box.encode(datagram, to), to);
      ASSERT_TRUE(read.has_value()) << read.error().message;
      EXPECT_EQ(*read, datagram);
    }
}

TEST(Datagram, EachKindOfMessageComesThrough) {
  for (const auto kind : {Said::Kind::beat, Said::Kind::told, Said::Kind::question, Said::Kind::hears,
                          Said::Kind::silent, Said::Kind::handover}) {
    Datagram datagram = full();
    datagram.message->kind = kind;
    EXPECT_EQ(of_box.decode(of_box.encode(datagram, to), to).value().message->kind, kind);
  }
}

TEST(Datagram, TheLargestIsNoLongerThanItsBound) {
  Datagram datagram = full();
  datagram.from = std::string(64, 'x');
  const std::string bytes = of_box.encode(datagram, to);
  EXPECT_LE(bytes.size(), longest_datagram);
  EXPECT_TRUE(of_box.decode(bytes, to).has_value());
}

TEST(Datagram, MakesASampleOfItsFourTimes) {
  Datagram datagram = full();
  datagram.sent = at(4);
  datagram.echo = Datagram::Echo{.sent = at(1), .received = at(3)};
  const auto sample = sample_of(datagram, at(9));
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(sample->sent, at(1));
  EXPECT_EQ(sample->received, at(3));
  EXPECT_EQ(sample->replied, at(4));
  EXPECT_EQ(sample->heard, at(9));
  datagram.echo.reset();
  EXPECT_FALSE(sample_of(datagram, at(9)).has_value());
}

std::string refusal_of(std::string_view bytes, const DatagramCodec& reader = of_box) {
  const auto read = reader.decode(bytes, to);
  if (read) return "it was read";
  EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
  return read.error().message;
}

TEST(Datagram, OfAnotherClusterOrKeyIsRefused) {
  const std::string bytes = of_box.encode(full(), to);
  constexpr const char* other = "a datagram for another process or cluster, or with another key";
  EXPECT_EQ(refusal_of(bytes, {"bag", std::string("a key\0of any bytes", 18)}), other);
  EXPECT_EQ(refusal_of(bytes, {"box", "a key"}), other);  // the key does not end at a zero byte
  EXPECT_EQ(refusal_of(bytes, {"box", ""}), other);
}

TEST(Datagram, WhileAKeyIsChangedBothAreRead) {
  const DatagramCodec before("box", "the first key"), change("box", "the second key", "the first key"),
      after("box", "the second key");
  EXPECT_TRUE(change.decode(before.encode(full(), to), to));
  EXPECT_TRUE(change.decode(after.encode(full(), to), to));
  EXPECT_TRUE(after.decode(change.encode(full(), to), to)) << "signed with the first of both";
  EXPECT_FALSE(before.decode(change.encode(full(), to), to));
  EXPECT_FALSE(change.decode(DatagramCodec("box", "a third").encode(full(), to), to));
}

TEST(Datagram, OfAnyProtocolThatIsSpokenIsRead) {
  const DatagramCodec codec("box", "a key", std::nullopt, {2, 3});
  for (const std::uint32_t protocol : {1U, 2U, 3U, 4U}) {
    Datagram datagram = full();
    datagram.protocol = protocol;
    const auto read = codec.decode(codec.encode(datagram, to), to);
    EXPECT_EQ(read.has_value(), protocol == 2 || protocol == 3) << protocol;
    if (read) EXPECT_EQ(*read, datagram);
  }
  EXPECT_EQ(refusal_of(codec.encode(full(), to), codec),
            "a datagram of protocol 1, and this member speaks protocols 2 to 3");
}

TEST(Datagram, AFingerprintTellsKeysApart) {
  EXPECT_EQ(fingerprint_of("box", "a key"), fingerprint_of("box", "a key"));
  EXPECT_NE(fingerprint_of("box", "a key"), fingerprint_of("box", "another"));
  EXPECT_NE(fingerprint_of("box", "a key"), fingerprint_of("bag", "a key"));
  EXPECT_NE(fingerprint_of("box", ""), fingerprint_of("box", "a key"));
  for (const char* key : {"", "a key"})
    EXPECT_TRUE(cluster::is_fingerprint(fingerprint_of("box", key))) << fingerprint_of("box", key);
}

TEST(Datagram, ForAnotherProcessIsRefused) {
  const std::string bytes = of_box.encode(full(), to);
  EXPECT_FALSE(of_box.decode(bytes, {"host-3", 5}).has_value());
  EXPECT_FALSE(of_box.decode(bytes, {"host-2", 6}).has_value())
      << "a later process of the host has other times";
  EXPECT_TRUE(of_box.decode(bytes, to).has_value());
}

TEST(Datagram, WhatIsWrongIsNamed) {
  EXPECT_EQ(refusal_of(""), "a datagram of 0 bytes, not 21 to 256");
  EXPECT_EQ(refusal_of(std::string(257, 'x')), "a datagram of 257 bytes, not 21 to 256");
  EXPECT_EQ(refusal_of(std::string(40, 'x')), "a datagram of something else than Carillon");
  std::string later = of_box.encode(full(), to);
  later[4] = 9;
  EXPECT_EQ(refusal_of(later), "a datagram of protocol 9, and this member speaks protocol 1");
  Datagram nobody = full();
  nobody.from = "a b";
  EXPECT_THAT(refusal_of(of_box.encode(nobody, to)),
              HasSubstr("a datagram whose sender's id is not 1 to 64"));
  Datagram odd = full();
  odd.message->kind = static_cast<Said::Kind>(6);
  EXPECT_EQ(refusal_of(of_box.encode(odd, to)), "a datagram with a message of kind 6, at most 5");
}

TEST(Datagram, OfWhichOneBitWasChangedIsRefused) {
  const std::string whole = of_box.encode(full(), to);
  for (std::size_t i = 0; i < 8 * whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
    EXPECT_FALSE(of_box.decode(bytes, to).has_value()) << "bit " << i;
  }
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(of_box.decode(std::string_view(whole).substr(0, size), to).has_value()) << size << " bytes";
  EXPECT_FALSE(of_box.decode(whole + "x", to).has_value());
}

// Whoever has the key may still send what is wrong.
TEST(Datagram, OfOnesOwnThatIsCutOrLongerIsRefused) {
  const DatagramCodec open("box", "");
  Random random(3);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    Datagram datagram = full();
    datagram.from.assign(random.below(100), random.below(50) == 0 ? ' ' : 'x');
    const bool right = !datagram.from.empty() && datagram.from.size() <= 64 && datagram.from[0] == 'x';
    const auto read = open.decode(open.encode(datagram, to), to);
    EXPECT_EQ(read.has_value(), right);
    refused += right ? 0 : 1;
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace carillon::transport
