#include "carillon/cli/door_options.h"

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cli {
namespace {

using ::testing::HasSubstr;

TEST(DoorLimits, FollowTheMemoryThatIsLeft) {
  const struct {
    Bytes left, body, inflight;
  } rows[] = {
      {gib(64), mib(256), gib(1)}, {gib(3), mib(256), gib(1)}, {mib(400), mib(100), mib(200)},
      {mib(32), mib(8), mib(16)},  {mib(10), mib(8), mib(16)}, {Bytes{0}, mib(8), mib(16)},
  };
  for (const auto& [left, body, inflight] : rows) {
    const auto limits = door_limits({}, left);
    ASSERT_TRUE(limits) << limits.error().message;
    EXPECT_EQ(limits->inflight, inflight) << to_text(left);
    EXPECT_EQ(limits->body, body) << to_text(left);
  }
}

TEST(DoorLimits, AreAsTheyAreGiven) {
  const auto both = door_limits({.body_limit = "300MiB", .inflight_limit = "2GiB"}, mib(100));
  ASSERT_TRUE(both);
  EXPECT_EQ(both->body, mib(300));
  EXPECT_EQ(both->inflight, gib(2));
  const auto large_body = door_limits({.body_limit = "300MiB"}, mib(300));
  ASSERT_TRUE(large_body);
  EXPECT_EQ(large_body->inflight, mib(300));
  const auto little = door_limits({.inflight_limit = "64MiB"}, gib(8));
  ASSERT_TRUE(little);
  EXPECT_EQ(little->body, mib(32));
}

TEST(DoorLimits, SayWhatIsWrong) {
  const auto reversed = door_limits({.body_limit = "2GiB", .inflight_limit = "1GiB"}, gib(8));
  ASSERT_FALSE(reversed);
  EXPECT_THAT(reversed.error().message, HasSubstr("could never be read"));
  const auto nonsense = door_limits({.body_limit = "many"}, gib(8));
  ASSERT_FALSE(nonsense);
  EXPECT_THAT(nonsense.error().message, HasSubstr("--body-limit"));
}

TEST(DoorOptions, AreNamedAsTritonNamesThem) {
  DoorArguments arguments;
  CLI::App app;
  add_door_options(app, arguments);
  app.parse(
      "--grpc-keepalive-time 1 --grpc-keepalive-timeout 2 --grpc-keepalive-permit-without-calls false "
      "--grpc-http2-max-pings-without-data 3 --grpc-http2-min-recv-ping-interval-without-data 4 "
      "--grpc-http2-max-ping-strikes 5 --grpc-max-connection-age 6 --grpc-max-connection-age-grace 7");
  const auto& given = arguments.keepalive;
  EXPECT_EQ(given.time_ms, 1);
  EXPECT_EQ(given.timeout_ms, 2);
  EXPECT_FALSE(given.permit_without_calls);
  EXPECT_EQ(given.max_pings_without_data, 3);
  EXPECT_EQ(given.min_recv_ping_interval_without_data_ms, 4);
  EXPECT_EQ(given.max_ping_strikes, 5);
  EXPECT_EQ(given.max_connection_age_ms, 6);
  EXPECT_EQ(given.max_connection_age_grace_ms, 7);
  EXPECT_THROW(app.parse("--grpc-keepalive-time 3000000000"), CLI::ParseError);
}

}  // namespace
}  // namespace carillon::cli
