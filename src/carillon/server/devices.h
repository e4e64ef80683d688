#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/server/device.h"

namespace carillon::server {

// The devices of a server, as its command line describes them.
struct DevicesArguments {
  // Of --device: cpu, cuda:0,1, cuda-emulated*N, emulated:FILE, emulated:FILE*N; empty: cpu.
  std::vector<std::string> devices;
  std::vector<std::string> faults;  // of --emulated-faults
  DeviceArguments each;             // what holds for every one of them
};

// One for each device, in the order of the options, with `each` and its own `device`. Errors name the option;
// no GPU is given twice.
Result<std::vector<DeviceArguments>> list_devices(const DevicesArguments& arguments);

// An outage of emulated device `device`, `from` after the server is ready; none: it is never over. A CUDA
// device can only be lost for good.
struct EmulatedFault {
  std::size_t device = 0;
  engine::Breaker::Fault fault{};
  Duration from{0};
  std::optional<Duration> lasts;

  friend bool operator==(const EmulatedFault&, const EmulatedFault&) = default;
};

// "kill=3@5s,hang=2@10s+4s": device 3 fails 5 s after the start and never recovers, device 2 hangs at 10 s
// for 4 s. Errors quote the part that is wrong.
Result<std::vector<EmulatedFault>> parse_faults(std::string_view text);

struct DeviceGroup {
  std::vector<Device> devices;
  std::vector<bool> like_the_last;  // made by the same option
  std::vector<EmulatedFault> faults;
};

Result<DeviceGroup> make_devices(const DevicesArguments& arguments, const Clock& clock);

// Of what size pages for weights are on all of these: 512 KiB, or more where all caches together would have
// too many; 16 MiB where a device has memory of its own.
Bytes page_of(std::span<const Device> devices);

// The outages begin to count.
void start_faults(const DeviceGroup& group, TimePoint now);

}  // namespace carillon::server
