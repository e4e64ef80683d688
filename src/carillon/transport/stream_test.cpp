#include "carillon/transport/stream.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "hosts.pb.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "carillon/transport/testing/samples.h"

namespace carillon::transport {
namespace {

using ::testing::HasSubstr;

// Keeps what it hears.
class Ears final : public StreamOwner {
 public:
  Result<> greets(const Hello& peer) override {
    const std::lock_guard lock(mutex_);
    greeted.push_back(peer);
    changed_.notify_all();
    if (refuse.empty()) return {};
    return fail(ErrorCode::unavailable, refuse);
  }
  void opened(const std::shared_ptr<Stream>& stream) override {
    {
      const std::lock_guard lock(mutex_);
      streams.push_back(stream);
    }
    changed_.notify_all();
  }
  void heard(Stream&, Frame frame) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !deaf; });
    for (Message& message : frame.messages) {
      epochs.push_back(frame.epoch);
      messages.push_back(std::move(message));
    }
    changed_.notify_all();
  }
  void ended(Stream&, const Error& why) override {
    {
      const std::lock_guard lock(mutex_);
      ends.push_back(why.message);
    }
    changed_.notify_all();
  }

  template <typename Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, condition);
  }
  std::shared_ptr<Stream> stream(std::size_t i = 0) {
    EXPECT_TRUE(wait([&] { return streams.size() > i; })) << "no stream was opened";
    const std::lock_guard lock(mutex_);
    return streams.at(i);
  }
  void hears(bool now) {
    {
      const std::lock_guard lock(mutex_);
      deaf = !now;
    }
    changed_.notify_all();
  }

  std::string refuse;
  bool deaf = false;
  std::vector<Hello> greeted;
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<std::uint64_t> epochs;  // of the messages
  std::vector<Message> messages;
  std::vector<std::string> ends;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

const Hello leader{"box", "leader", Role::scheduler, 1}, worker{"box", "worker", Role::worker, 2};

std::unique_ptr<StreamListener> listen(StreamOwner& owner, const StreamLimits& limits = {}, int port = 0,
                                       const Hello& self = leader) {
  auto listener = StreamListener::open(fmt::format("127.0.0.1:{}", port), grpc::InsecureServerCredentials(),
                                       self, owner, limits);
  EXPECT_TRUE(listener.has_value()) << listener.error().message;
  return std::move(listener.value());
}
std::unique_ptr<StreamDialer> dial(int port, StreamOwner& owner, const StreamDialer::Options& options = {},
                                   const Hello& self = worker) {
  return StreamDialer::open(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials(), self,
                            owner, options);
}
Message number(std::uint64_t n) {
  return Withdraw{RequestId{n}, ModelId{0}};
}
std::vector<std::uint64_t> numbers(const std::vector<Message>& messages) {
  std::vector<std::uint64_t> all;
  for (const Message& message : messages) all.push_back(std::get<Withdraw>(message).row.value);
  return all;
}
std::vector<std::uint64_t> up_to(std::uint64_t n) {
  std::vector<std::uint64_t> all(n);
  for (std::uint64_t i = 0; i < n; ++i) all[i] = i;
  return all;
}

TEST(Stream, BothSidesSayWhoTheyAre) {
  Ears here, there;
  const auto listener = listen(here);
  const auto dialer = dial(listener->port(), there);
  EXPECT_EQ(here.stream()->peer(), worker);
  EXPECT_EQ(there.stream()->peer(), leader);
  EXPECT_EQ(here.greeted, std::vector{worker});
}

TEST(Stream, MessagesComeInOrderEitherWay) {
  Ears here, there;
  const auto listener = listen(here);
  const auto dialer = dial(listener->port(), there);
  const auto to_worker = here.stream(), to_leader = there.stream();
  constexpr std::uint64_t count = 20'000;
  for (std::uint64_t i = 0; i < count; ++i) {
    ASSERT_TRUE(to_worker->send(7, number(i)));
    ASSERT_TRUE(to_leader->send(7, number(i)));
  }
  ASSERT_TRUE(here.wait([&] { return here.messages.size() == count; }));
  ASSERT_TRUE(there.wait([&] { return there.messages.size() == count; }));
  EXPECT_EQ(numbers(here.messages), up_to(count));
  EXPECT_EQ(numbers(there.messages), up_to(count));
  EXPECT_EQ(to_worker->counts().messages_sent, count);
}

// What a leader decided before it heard of a higher epoch must not come with that.
TEST(Stream, AMessageKeepsTheEpochInWhichItWasSent) {
  Ears here, there;
  there.deaf = true;
  const auto listener = listen(here);
  const auto dialer = dial(listener->port(), there);
  const auto stream = here.stream();
  there.stream();
  constexpr std::uint64_t count = 30'000;
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_TRUE(stream->send(i / 1000, number(i)));
  there.hears(true);
  ASSERT_TRUE(there.wait([&] { return there.messages.size() == count; }));
  EXPECT_EQ(numbers(there.messages), up_to(count));
  ASSERT_EQ(there.epochs.size(), count);
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(there.epochs[i], i / 1000) << i;
}

TEST(Stream, WhatIsSentWhileAFrameIsUnderWayGoesTogether) {
  Ears here, there;
  there.deaf = true;
  const auto listener = listen(here);
  const auto dialer = dial(listener->port(), there);
  const auto stream = here.stream();
  there.stream();
  // Its reader hangs; so gRPC takes no more at some point, and frames gather messages.
  constexpr std::uint64_t count = 60'000;
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_TRUE(stream->send(7, number(i)));
  there.hears(true);
  ASSERT_TRUE(there.wait([&] { return there.messages.size() == count; }));
  EXPECT_EQ(numbers(there.messages), up_to(count));
  EXPECT_LT(stream->counts().frames_sent, count / 2);
}

TEST(Stream, AFrameHasNoMoreThanItsBound) {
  Ears here, there;
  there.deaf = true;
  const StreamLimits small{.frame = {.bytes = 20'000, .messages = 100}};
  const auto listener = listen(here, small);
  const auto dialer = dial(listener->port(), there, {.limits = small});
  const auto stream = here.stream();
  there.stream();
  const std::string text(4000, 'x');
  for (std::uint64_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(stream->send(7, TurnedDown{RequestId{i}, {ErrorCode::internal, text}}));
    for (int k = 0; k < 4; ++k) ASSERT_TRUE(stream->send(7, number(i)));
  }
  there.hears(true);
  ASSERT_TRUE(there.wait([&] { return there.messages.size() == 2500 || !there.ends.empty(); }));
  EXPECT_EQ(there.messages.size(), 2500U);
  EXPECT_THAT(there.ends, ::testing::IsEmpty());
}

TEST(Stream, APeerThatTakesNothingIsGivenUp) {
  Ears here, there;
  there.deaf = true;
  const auto listener = listen(here, {.waiting = 1000});
  const auto dialer = dial(listener->port(), there);
  const auto stream = here.stream();
  there.stream();
  std::uint64_t sent = 0;
  while (sent < 10'000'000 && stream->send(7, number(sent))) ++sent;
  EXPECT_LT(sent, 10'000'000U);
  EXPECT_FALSE(stream->send(7, number(0)));
  ASSERT_TRUE(here.wait([&] { return !here.ends.empty(); }));
  EXPECT_EQ(here.ends, std::vector<std::string>{"host worker: takes nothing: 1000 messages wait"});
  there.hears(true);
}

TEST(Stream, OneThatWasEndedIsOpenedAnew) {
  Ears here, there;
  const auto listener = listen(here);
  const auto dialer = dial(listener->port(), there);
  here.stream()->close({ErrorCode::unavailable, "goes home"});
  ASSERT_TRUE(there.wait([&] { return there.ends.size() == 1 && there.streams.size() == 2; }));
  EXPECT_EQ(there.ends[0], "host leader: goes home");
  ASSERT_TRUE(here.wait([&] { return here.ends.size() == 1 && here.streams.size() == 2; }));
  there.stream(1)->close({ErrorCode::unavailable, "goes, too"});
  ASSERT_TRUE(there.wait([&] { return there.ends.size() == 2 && there.streams.size() == 3; }));
  EXPECT_EQ(there.ends[1], "host leader: goes, too");
  ASSERT_TRUE(here.wait([&] { return here.streams.size() == 3; }));
  EXPECT_TRUE(here.stream(2)->send(7, number(0)));
  EXPECT_TRUE(there.wait([&] { return there.messages.size() == 1; }));
}

TEST(Stream, ItsEndNeedsNoReason) {
  Ears here, there;
  const auto listener = listen(here);
  {
    const auto dialer = dial(listener->port(), there);
    there.stream()->close({});
    ASSERT_TRUE(there.wait([&] { return there.ends.size() == 1 && there.streams.size() == 2; }));
    EXPECT_EQ(there.ends[0], "host leader: no reason was given");
    here.stream(1)->close({});
    ASSERT_TRUE(there.wait([&] { return there.ends.size() == 2; }));
    EXPECT_EQ(there.ends[1], "host leader: no reason was given");
  }
  here.refuse = " ";
  const auto refused = dial(listener->port(), there);
  ASSERT_TRUE(here.wait([&] { return here.greeted.size() >= 4; }));
}

TEST(Stream, AHostThatComesBackIsFoundAgain) {
  Ears here, there;
  auto listener = listen(here);
  const int port = listener->port();
  const auto dialer = dial(port, there, {.longest_pause = 50ms});
  there.stream();
  listener.reset();
  ASSERT_TRUE(there.wait([&] { return there.ends.size() == 1; }));
  Hello later = leader;
  later.incarnation = 5;
  listener = listen(here, {}, port, later);
  EXPECT_EQ(there.stream(1)->peer(), later);
}

Hello speaking(Hello hello, const Protocols& protocols) {
  hello.protocols = protocols;
  return hello;
}

TEST(Stream, BothSpeakTheNewestThatBothKnow) {
  const struct {
    Protocols here, there;
    std::uint32_t want;
  } rows[] = {{{1, 1}, {1, 2}, 1},
              {{1, 2}, {1, 1}, 1},
              {{2, 3}, {1, 2}, 2},
              {{1, 2}, {2, 3}, 2},
              {{2, 3}, {2, 3}, 3}};
  for (const auto& [speaks_here, speaks_there, want] : rows) {
    Ears here, there;
    const auto listener = listen(here, {}, 0, speaking(leader, speaks_here));
    const auto dialer = dial(listener->port(), there, {}, speaking(worker, speaks_there));
    const auto ours = here.stream(), theirs = there.stream();
    EXPECT_EQ(ours->protocol(), want) << to_text(speaks_here) << ", " << to_text(speaks_there);
    EXPECT_EQ(theirs->protocol(), want);
    EXPECT_EQ(theirs->peer().protocols, speaks_here);
    EXPECT_TRUE(ours->send(1, number(7)));
    EXPECT_TRUE(theirs->send(1, number(8)));
    EXPECT_TRUE(here.wait([&] { return !here.messages.empty(); }));
    EXPECT_TRUE(there.wait([&] { return !there.messages.empty(); }));
  }
}

TEST(Stream, WhoSpeaksNoSuchProtocolIsToldWhatToUpgrade) {
  const struct {
    Protocols here, there;
    const char* want;
  } rows[] = {
      {{3, 4},
       {1, 2},
       "'worker' speaks protocols 1 to 2, and 'leader' speaks protocols 3 to 4: upgrade 'worker' to a build "
       "that speaks protocol 3"},
      {{1, 1},
       {2, 3},
       "'worker' speaks protocols 2 to 3, and 'leader' speaks protocol 1: upgrade 'leader' to a build that "
       "speaks protocol 2"}};
  for (const auto& [speaks_here, speaks_there, want] : rows) {
    Ears here, there;
    const auto listener = listen(here, {}, 0, speaking(leader, speaks_here));
    const auto dialer = dial(listener->port(), there, {}, speaking(worker, speaks_there));
    for (int i = 0; i < 6000 && dialer->last_error().find("speaks") == std::string::npos; ++i)
      std::this_thread::sleep_for(10ms);
    EXPECT_THAT(dialer->last_error(), HasSubstr(want));
    EXPECT_THAT(here.greeted, ::testing::IsEmpty());
    EXPECT_THAT(there.streams, ::testing::IsEmpty());
  }
}

TEST(Stream, WhoIsNotWelcomeIsToldWhy) {
  Ears here, there;
  here.refuse = "incarnation 2 is stale";
  const auto listener = listen(here);
  // last_error() changes without a word to `there`: look now and then.
  const auto soon = [&](const StreamDialer& dialer, const std::string& text) {
    for (int i = 0; i < 6000 && dialer.last_error().find(text) == std::string::npos; ++i)
      std::this_thread::sleep_for(10ms);
    return dialer.last_error();
  };
  const auto dialer = dial(listener->port(), there);
  EXPECT_THAT(soon(*dialer, "stale"), HasSubstr("incarnation 2 is stale"));
  const auto stranger = dial(listener->port(), there, {}, {"bag", "worker", Role::worker, 2});
  EXPECT_THAT(soon(*stranger, "cluster"), HasSubstr("it is of cluster bag, and this is box"));
  EXPECT_THAT(here.streams, ::testing::IsEmpty());
  EXPECT_THAT(there.streams, ::testing::IsEmpty());
}

TEST(Stream, AnAddressThatCannotBeTakenIsNamed) {
  Ears here;
  const auto listener = listen(here);
  const auto second = StreamListener::open(fmt::format("127.0.0.1:{}", listener->port()),
                                           grpc::InsecureServerCredentials(), leader, here);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().message, fmt::format("cannot listen at 127.0.0.1:{}", listener->port()));
}

// Says what it is told to, and nothing else.
class Rude final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Rude(int port, std::vector<std::string> frames, const std::string& method = "/carillon.hosts.Hosts/Speak")
      : frames_(std::move(frames)),
        stub_(grpc::CreateChannel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials())) {
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    StartRead(&heard_);  // before StartCall(), after which the stream may end at once
    OnWriteDone(true);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&heard_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || next_ == frames_.size()) return;
    const grpc::Slice slice(frames_[next_++]);
    said_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&said_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    answer_ = status.error_message();
    done_ = true;
    changed_.notify_all();
  }
  std::string answer() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 60s, [this] { return done_; })) {
      context_.TryCancel();
      changed_.wait(lock, [this] { return done_; });
      return "no answer";
    }
    return answer_;
  }

 private:
  const std::vector<std::string> frames_;
  std::size_t next_ = 0;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer heard_, said_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::string answer_;
};

std::string frame(const Frame& frame) {
  std::string bytes;
  encode(frame, bytes);
  return bytes;
}

TEST(Stream, WhatIsWrongIsToldToWhoeverSaidIt) {
  Ears here;
  const auto listener = listen(here, {.frame = {.bytes = 100'000}});
  const auto said = [&](std::vector<std::string> frames) {
    return Rude(listener->port(), std::move(frames)).answer();
  };
  const std::string hello = frame({.hello = worker});
  EXPECT_EQ(said({"garbage"}), "not a frame of hosts.proto");
  EXPECT_EQ(said({frame({.messages = {number(1)}})}), "the first frame has no hello");
  EXPECT_EQ(said({hello, hello}), "a second hello");
  hosts::Frame old;
  EXPECT_EQ(said({old.SerializeAsString()}), "a frame of protocol 0, and this member speaks protocol 1");
  hosts::Frame empty_rows;
  empty_rows.set_protocol(cluster::own_protocols.newest);
  empty_rows.add_messages()->mutable_keep();
  EXPECT_EQ(said({hello, empty_rows.SerializeAsString()}), "messages[0]: rows: none, at least 1");
  EXPECT_THAT(said({std::string(200'000, 'x')}), HasSubstr("larger than max"));
  EXPECT_THAT(Rude(listener->port(), {}, "/inference.GRPCInferenceService/ServerLive").answer(),
              HasSubstr("/inference.GRPCInferenceService/ServerLive is not served here"));
  // Others are not disturbed.
  Ears there;
  const auto dialer = dial(listener->port(), there);
  EXPECT_EQ(there.stream()->peer(), leader);
}

TEST(Stream, AListenerThatGoesEndsItsStreams) {
  Ears here, there;
  auto listener = listen(here);
  const auto dialer = dial(listener->port(), there);
  const auto stream = here.stream();
  listener.reset();
  EXPECT_EQ(here.ends.size(), 1U);  // before the listener is gone
  EXPECT_FALSE(stream->send(7, number(1)));
}

// Streams come and go while both sides send, from several threads.
TEST(Stream, ManyEndsAtAnyMoment) {
  for (int round = 0; round < 30; ++round) {
    Ears here, there;
    auto listener = listen(here);
    auto dialer = dial(listener->port(), there);
    const auto a = there.stream(), b = here.stream();
    std::vector<std::jthread> senders;
    for (const auto& stream : {a, b})
      for (std::uint64_t t = 0; t < 2; ++t)
        senders.emplace_back([stream, t] {
          for (std::uint64_t i = 0; i < 3000 && stream->send(t, number(i)); ++i) {
          }
        });
    if (round % 4 == 0) a->close({ErrorCode::unavailable, "one side"});
    if (round % 4 == 1) b->close({ErrorCode::unavailable, "the other"});
    if (round % 4 == 2) dialer.reset();
    if (round % 4 == 3) listener.reset();
    senders.clear();
    dialer.reset();
    listener.reset();
    for (Ears* ears : {&here, &there}) {
      EXPECT_EQ(ears->ends.size(), ears->streams.size()) << round;
      // Of each sender's messages the first ones have come, in order.
      std::uint64_t next[2] = {0, 0};
      for (std::size_t i = 0; i < ears->messages.size(); ++i)
        ASSERT_EQ(std::get<Withdraw>(ears->messages[i]).row.value, next[ears->epochs[i]]++) << round;
    }
  }
}

}  // namespace
}  // namespace carillon::transport
