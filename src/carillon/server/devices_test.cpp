#include "carillon/server/devices.h"

#include <gtest/gtest.h>

namespace carillon::server {
namespace {

using Fault = engine::Breaker::Fault;

std::vector<std::string> names(const std::vector<DeviceArguments>& devices) {
  std::vector<std::string> out;
  for (const DeviceArguments& device : devices) out.push_back(device.device);
  return out;
}

TEST(Devices, AreNumberedInTheOrderOfTheOptions) {
  const struct {
    std::vector<std::string> options, want;
  } rows[] = {{{}, {"cpu"}},
              {{"emulated:a.json"}, {"emulated:a.json"}},
              {{"cpu", "emulated:a.json*2", "emulated:b.json"},
               {"cpu", "emulated:a.json", "emulated:a.json", "emulated:b.json"}},
              {{"emulated:a.json*1"}, {"emulated:a.json"}},
              {{"cuda"}, {"cuda:0"}},
              {{"cuda:0,1,3"}, {"cuda:0", "cuda:1", "cuda:3"}},
              {{"cuda:7", "cpu", "cuda:2,0"}, {"cuda:7", "cpu", "cuda:2", "cuda:0"}},
              {{"cuda-emulated*2", "cuda-emulated"}, {"cuda-emulated", "cuda-emulated", "cuda-emulated"}},
              {{"cuda-emulated:a,b.json*2"}, {"cuda-emulated:a,b.json", "cuda-emulated:a,b.json"}}};
  for (const auto& [options, want] : rows) {
    const auto listed = list_devices({.devices = options, .each = {.page_cache = "64 MiB"}});
    ASSERT_TRUE(listed.has_value()) << listed.error().message;
    EXPECT_EQ(names(*listed), want);
    EXPECT_EQ(listed->back().page_cache, "64 MiB");
  }
}

TEST(Devices, AllWorkspacesAreTold) {
  worker::Options worker{.page_cache = gib(2), .io_cache = mib(64), .workspace = mib(512)};
  EXPECT_EQ(memory_text(worker), "page cache 2.0 GiB, I/O cache 64.0 MiB, workspace 512.0 MiB");
  worker.classes = device::ClassStreams{.units = 4, .best_effort = 3};
  EXPECT_EQ(memory_text(worker),
            "page cache 2.0 GiB, I/O cache 64.0 MiB, workspaces 5 of 512.0 MiB");
  worker.classes->yielding = device::Yielding::turns;
  EXPECT_EQ(memory_text(worker), "page cache 2.0 GiB, I/O cache 64.0 MiB, workspace 512.0 MiB");
}

TEST(Devices, SaysWhichOptionCannotBe) {
  const struct {
    std::vector<std::string> options;
    std::string says;
  } rows[] = {{{"cpu", "cpu"}, "--device cpu can be given once"},
              {{"cpu*2"}, "--device cpu can be given once"},
              {{"emulated:a.json*0"}, "--device emulated:a.json*0: what follows '*' must be a number from 1"},
              {{"emulated:a.json*x"}, "what follows '*'"},
              {{"emulated:a.json*200", "emulated:a.json*100"}, "at most 256 devices"},
              {{"cuda:"}, "a number is missing after 'cuda:'; after 'cuda:' come numbers of devices, from 0"},
              {{"cuda:0,"}, "'cuda:0,' is not a device: a number is missing beside a comma"},
              {{"cuda:,0"}, "a number is missing after 'cuda:'"},
              {{"cuda:0,x"}, "'x' is not a number of one"},
              {{"cuda: 0"}, "' 0' is not a number of one"},
              {{"cuda:+1"}, "'+1' is not a number of one"},
              {{"cuda:-1"}, "'-1' is not a number of one"},
              {{"cuda:9999999999"}, "9999999999 is larger than any device's number"},
              {{"cuda:2,1,2"}, "--device cuda:2,1,2: cuda:2 is given twice"},
              {{"cuda:1", "cpu", "cuda:0,1"}, "--device cuda:0,1: cuda:1 is given twice"},
              {{"cuda", "cuda:0"}, "cuda:0 is given twice ('cuda' is cuda:0)"},
              {{"cuda*2"}, "--device cuda*2: '*' is for emulated devices; several GPUs are listed"},
              {{"cuda:0*2"}, "'*' is for emulated devices"}};
  for (const auto& [options, says] : rows) {
    const auto listed = list_devices({.devices = options});
    ASSERT_FALSE(listed.has_value());
    EXPECT_NE(listed.error().message.find(says), std::string::npos) << listed.error().message;
  }
}

TEST(Devices, WhatACudaDeviceLacksIsSaid) {
  const SteadyClock clock;
  for (const char* const device : {"cuda", "cuda:0", "cuda:1000"}) {
    const auto made = make_device({.device = device}, clock);
    ASSERT_FALSE(made.has_value());
    EXPECT_TRUE(made.error().message.starts_with(std::string("--device ") + device + ": "))
        << made.error().message;
    // No driver, no such device, or one of which there are no plans yet.
    EXPECT_NE(made.error().code, ErrorCode::invalid_argument);
  }
  for (const char* const device : {"cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:99999999999", "cudas"}) {
    const auto made = make_device({.device = device}, clock);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::invalid_argument) << device;
    EXPECT_NE(made.error().message.find(device), std::string::npos);
  }
}

// Devices of one driver, which goes with the last of them.
TEST(Devices, EmulatedCudaDevicesAreSeveral) {
  const SteadyClock clock;
  for (int turn = 0; turn < 2; ++turn) {
    auto group =
        make_devices({.devices = {"cuda-emulated*2", "cuda-emulated"}, .faults = {"kill=1@1s"}}, clock);
    ASSERT_TRUE(group.has_value()) << group.error().message;
    ASSERT_EQ(group->devices.size(), 3U);
    EXPECT_EQ(group->like_the_last, (std::vector<bool>{false, true, true}));
    for (const Device& device : group->devices) EXPECT_TRUE(device.engine->probe().has_value());
    start_faults(*group, clock.now() - 2s);  // all of which are due
    for (std::size_t i = 0; i < 3; ++i) {
      const auto probed = group->devices[i].engine->probe();
      EXPECT_EQ(probed.has_value(), i != 1) << i;
      if (!probed)
        EXPECT_NE(probed.error().message.find("cuda:1: the device is lost until the server is started again"),
                  std::string::npos)
            << probed.error().message;
    }
  }
  for (const auto& [fault, says] : {std::pair("hang=0@1s", "device 0 is a CUDA device"),
                                    std::pair("kill=0@1s+1s", "which can only be lost for good: kill=0@TIME"),
                                    std::pair("kill=3@1s", "there is no emulated device 3")}) {
    const auto group = make_devices({.devices = {"cuda-emulated*3"}, .faults = {fault}}, clock);
    ASSERT_FALSE(group.has_value());
    EXPECT_NE(group.error().message.find(says), std::string::npos) << group.error().message;
  }
}

TEST(Devices, ListsAreForServersAlone) {
  const SteadyClock clock;
  for (const char* const device : {"cuda:0,1", "cuda-emulated*2"}) {
    const auto made = make_device({.device = device}, clock);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(made.error().message.find("'carillon serve'"), std::string::npos) << made.error().message;
  }
}

TEST(Devices, OutagesAreReadAndCheckedAgainstThem) {
  const auto faults = parse_faults("kill=3@5s,hang=2@10s+250ms,kill=0@0s+1.5s");
  ASSERT_TRUE(faults.has_value()) << faults.error().message;
  EXPECT_EQ(*faults, (std::vector<EmulatedFault>{{3, Fault::failure, 5s, std::nullopt},
                                                 {2, Fault::hang, 10s, 250ms},
                                                 {0, Fault::failure, 0s, 1500ms}}));
  for (const char* wrong : {"kill", "kill=1", "kill=@1s", "burn=1@1s", "kill=1@1", "kill=1@1s+", "kill=-1@1s",
                            "kill=1@-1s", "kill=1@1s,,", "kill=1@1s+nans"}) {
    const auto none = parse_faults(wrong);
    ASSERT_FALSE(none.has_value()) << wrong;
    EXPECT_NE(none.error().message.find("is no outage"), std::string::npos);
  }
  const SteadyClock clock;
  const auto group = make_devices({.devices = {"cpu"}, .faults = {"kill=0@1s"}}, clock);
  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(group.error().message, "--emulated-faults: there is no emulated device 0");
}

}  // namespace
}  // namespace carillon::server
