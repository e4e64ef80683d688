#include "carillon/transport/desk.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/transport/stream.h"

namespace carillon::transport {
namespace {

using cluster::Role;
using ::testing::HasSubstr;

class FakeDesk final : public Desk {
 public:
  Look look() override { return shown; }
  Result<> hand_over(const std::string& next) override {
    ordered.push_back("hand over to " + next);
    return result;
  }
  Result<> drain(const std::string& id, bool undo) override {
    ordered.push_back((undo ? "undo drain " : "drain ") + id);
    return result;
  }
  Look shown{
      "s1",
      true,
      7,
      "s1",
      {{"s1", Role::scheduler, "10.0.0.1:8100", true, 0, {{Duration{0}, Duration{0}}}},
       {"w1", Role::worker, "[::1]:8100", false, 4, {{-5us, 3us}}, Look::Drain::none, {{2, 3}}, "0.3.0"},
       {"f1", Role::frontend, "f1:1", true, 0, {}}},
      {{.group = "0", .wanted = 6, .present = 4, .coming = 1, .given_up = 1, .start_up = 40s},
       {.group = "1", .wanted = 1}},
      0xfedcba9876543210};
  Result<> result;
  std::vector<std::string> ordered;
};

class NoStreams final : public StreamOwner {
 public:
  Result<> greets(const Hello&) override { return {}; }
  void opened(const std::shared_ptr<Stream>&) override {}
  void heard(Stream&, Frame) override {}
  void ended(Stream&, const Error&) override {}
};

class DeskTest : public ::testing::Test {
 protected:
  std::unique_ptr<StreamListener> serve(Desk* at) {
    auto listener = StreamListener::open("127.0.0.1:0", grpc::InsecureServerCredentials(),
                                         {"box", "s1", Role::scheduler, 1}, owner, {}, at);
    EXPECT_TRUE(listener);
    return std::move(*listener);
  }
  static std::string address(const StreamListener& listener) {
    return fmt::format("127.0.0.1:{}", listener.port());
  }
  static Result<> send(const StreamListener& listener, const DeskOrder& what,
                       const std::string& cluster = "box") {
    return order(address(listener), grpc::InsecureChannelCredentials(), cluster, what, 60s);
  }
  NoStreams owner;
  FakeDesk desk;
};

TEST_F(DeskTest, AllAreAskedAtOnceAndWhoDoesNotAnswerSaysWhy) {
  const auto listener = serve(&desk);
  const auto silent = serve(nullptr);
  const auto looks = look({address(*listener), address(*silent), "127.0.0.1:1"},
                          grpc::InsecureChannelCredentials(), "box", 60s);
  ASSERT_EQ(looks.size(), 3U);
  ASSERT_TRUE(looks[0]) << looks[0].error().message;
  EXPECT_EQ(looks[0]->id, "s1");
  EXPECT_TRUE(looks[0]->leads);
  EXPECT_EQ(looks[0]->epoch, 7U);
  EXPECT_EQ(looks[0]->leader, "s1");
  ASSERT_EQ(looks[0]->members.size(), 3U);
  const Look::Member& w1 = looks[0]->members[1];
  EXPECT_EQ(w1.id, "w1");
  EXPECT_EQ(w1.role, Role::worker);
  EXPECT_EQ(w1.address, "[::1]:8100");
  EXPECT_FALSE(w1.alive);
  EXPECT_EQ(w1.devices, 4U);
  ASSERT_TRUE(w1.clock);
  EXPECT_EQ(w1.clock->offset, -5us);
  EXPECT_EQ(w1.clock->bound, 3us);
  EXPECT_FALSE(looks[0]->members[2].clock);
  EXPECT_EQ(w1.protocols, (cluster::Protocols{2, 3}));
  EXPECT_EQ(w1.build, "0.3.0");
  EXPECT_FALSE(looks[0]->members[2].protocols);
  EXPECT_EQ(looks[0]->wanted, desk.shown.wanted);
  EXPECT_EQ(looks[0]->division, 0xfedcba9876543210U);
  EXPECT_EQ(looks[1].error().code, ErrorCode::unsupported);
  EXPECT_EQ(looks[2].error().code, ErrorCode::unavailable);
}

TEST_F(DeskTest, OrdersComeToTheDeskAndItsErrorsGoBack) {
  const auto listener = serve(&desk);
  EXPECT_TRUE(send(*listener, HandOver{"s2"}));
  EXPECT_TRUE(send(*listener, HandOver{}));
  EXPECT_TRUE(send(*listener, DrainMember{"w1"}));
  EXPECT_EQ(desk.ordered, (std::vector<std::string>{"hand over to s2", "hand over to ", "drain w1"}));
  EXPECT_TRUE(send(*listener, DrainMember{"w1", true}));
  EXPECT_EQ(desk.ordered.back(), "undo drain w1");
  desk.result = fail(ErrorCode::not_found, "no such member");
  EXPECT_EQ(send(*listener, DrainMember{"w2"}).error(), (Error{ErrorCode::not_found, "no such member"}));
  desk.result = fail(ErrorCode::not_found, "no \x1b[2Jmember");
  EXPECT_EQ(send(*listener, DrainMember{"w2"}).error().message, "no \\x1b[2Jmember") << "fit for a terminal";
  desk.ordered.clear();
  EXPECT_EQ(send(*listener, DrainMember{"a b"}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(send(*listener, DrainMember{"w1"}, "other").error().message,
            "this member is of cluster box, and not of other");
  EXPECT_TRUE(desk.ordered.empty());
}

TEST_F(DeskTest, AnAnswerIsNotTrusted) {
  const auto listener = serve(&desk);
  const auto asked = [&] {
    return look({address(*listener)}, grpc::InsecureChannelCredentials(), "box", 60s)[0];
  };
  const auto wanted = desk.shown.wanted;
  const struct {
    provision::WantedFigures tells;
    const char* says;
  } rows[] = {{{.group = "", .wanted = 1}, "its answer has a wrong wanted.subcluster"},
              {{.group = "a b", .wanted = 1}, "its answer has a wrong wanted.subcluster"},
              {{.group = "0", .wanted = 0}, "its answer has a wrong wanted"},
              {{.group = "0", .wanted = -1}, "its answer has a wrong wanted"},
              {{.group = "0", .wanted = 2'000'000}, "its answer has a wrong wanted"},
              {{.group = "0", .wanted = 1, .present = -1}, "its answer has a wrong wanted"},
              {{.group = "0", .wanted = 1, .start_up = -1s}, "its answer has a wrong wanted.start_up_ns"}};
  for (const auto& [tells, says] : rows) {
    desk.shown.wanted = {tells};
    EXPECT_EQ(asked().error().message, says);
  }
  desk.shown.wanted = wanted;
  const auto member = desk.shown.members[1];
  desk.shown.members[1].protocols = cluster::Protocols{3, 2};
  EXPECT_EQ(asked().error().message, "its answer has a wrong members.oldest_protocol");
  desk.shown.members[1].protocols = cluster::Protocols{0, 2};
  EXPECT_EQ(asked().error().message, "its answer has a wrong members.oldest_protocol");
  desk.shown.members[1] = member;
  desk.shown.members[1].build = "\x1b[1m";
  EXPECT_EQ(asked().error().message, "its answer has a wrong members.build");
  desk.shown.members[1] = member;
  desk.shown.members[1].address = "nowhere";
  EXPECT_EQ(asked().error().message, "its answer has a wrong members.address");
  desk.shown.members[1].id = "\n";
  EXPECT_EQ(asked().error().message, "its answer has a wrong members.id");
  desk.shown.leader = "a b";
  EXPECT_EQ(asked().error().message, "its answer has a wrong leader");
}

TEST_F(DeskTest, AnyRequestHasAReply) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    std::string bytes = seed % 2 == 0 ? std::string(
                                            "\x0a\x03"
                                            "box\x1a\x02"
                                            "w1")
                                      : std::string();
    for (std::uint64_t n = random.below(6); n > 0; --n)
      bytes.insert(random.below(bytes.size() + 1), 1, static_cast<char>(random.below(256)));
    EXPECT_FALSE(reply_to(DeskCall::look, bytes, desk, "box", std::nullopt).empty());
    reply_to(DeskCall::order, bytes, desk, "box", std::nullopt);
  }
  for (const std::string& what : desk.ordered)
    EXPECT_THAT(what, ::testing::MatchesRegex("(drain|undo drain|hand over to) [a-zA-Z0-9._-]*"));
  EXPECT_THAT(desk.ordered, ::testing::Contains("drain w1"));
}

}  // namespace
}  // namespace carillon::transport
