#include "carillon/cli/door_options.h"

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cli {
namespace {

using ::testing::HasSubstr;

TEST(DoorSizes, AreAsTheyAreGiven) {
  const auto none = given_door_sizes({});
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->body || none->inflight);
  const auto both = given_door_sizes({.body_limit = "300MiB", .inflight_limit = "2GiB"});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->body, mib(300));
  EXPECT_EQ(both->inflight, gib(2));
}

TEST(DoorSizes, SayWhatIsWrong) {
  const auto nonsense = given_door_sizes({.body_limit = "many"});
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
}

TEST(DoorOptions, OutOfRangeTheyAreRefused) {
  for (const std::string name :
       {"--grpc-keepalive-time", "--grpc-keepalive-timeout", "--grpc-http2-max-pings-without-data",
        "--grpc-http2-min-recv-ping-interval-without-data", "--grpc-http2-max-ping-strikes",
        "--grpc-max-connection-age", "--grpc-max-connection-age-grace",
        "--grpc-keepalive-permit-without-calls"}) {
    const auto refused = [&](const std::string& value) {
      DoorArguments arguments;
      CLI::App app;
      add_door_options(app, arguments);
      try {
        app.parse(name + "=" + value);
        return false;
      } catch (const CLI::ParseError& error) {
        EXPECT_THAT(error.what(), HasSubstr(name));
        return true;
      }
    };
    for (const char* value : {"-1", "3000000000", "99999999999999999999", "many", "1.5"})
      EXPECT_TRUE(refused(value)) << name << ' ' << value;
    EXPECT_EQ(refused("0"), name.starts_with("--grpc-keepalive-time")) << name;
  }
}

}  // namespace
}  // namespace carillon::cli
