#include "carillon/server/whole.h"

#include <string>

#include <gtest/gtest.h>

#include "carillon/base/clock.h"
#include "carillon/base/testing/folder.h"
#include "carillon/schedule/registry.h"

namespace carillon::server {
namespace {

// Whoever keeps a signal for later must do so before a client can see that the server is ready.
TEST(WholeServer, TellsThatItIsAboutToServeBeforeItDoes) {
  const SteadyClock clock;
  const carillon::testing::Folder folder;
  const auto group = make_devices(
      {.devices = {"cpu"}, .each = {.page_cache = "32 MiB", .io_cache = "16 MiB", .workspace = "16 MiB"}},
      clock);
  ASSERT_TRUE(group) << group.error().message;
  auto scheduler = schedule::make_scheduler("fcfs");
  ASSERT_TRUE(scheduler) << scheduler.error().message;
  int told = 0;
  const controller::Service* service = nullptr;
  const auto nothing = [](const std::string&) {};
  WholeServer server({.models = folder.path(),
                      .tell = nothing,
                      .tell_step = nothing,
                      .warn = nothing,
                      .before_serving =
                          [&] {
                            ++told;
                            EXPECT_FALSE(service->ready());
                            EXPECT_TRUE(service->loading());
                          }},
                     std::move(*scheduler), *group, clock);
  service = &server.service();
  EXPECT_EQ(told, 0);
  const auto started = server.start();
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(server.service().ready());
  const auto loaded = server.load();
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(server.service().ready());
  EXPECT_TRUE(server.stop().empty());
}

}  // namespace
}  // namespace carillon::server
