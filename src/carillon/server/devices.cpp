#include "carillon/server/devices.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "carillon/server/cuda_device.h"

namespace carillon::server {
namespace {

constexpr std::size_t most_devices = 256;

// Half of a page is lost of each model, on average. Each page may become a mapping, and splits two others,
// and a process has 65,530 (vm.max_map_count).
constexpr Bytes smallest_page = kib(512);
constexpr std::uint64_t most_pages = 8192;

// What stands before `mark`; that and the mark leave `text`. None where there is no mark.
std::optional<std::string_view> cut(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + 1);
  return before;
}

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number out{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return out;
}

// "5s", "250ms"
std::optional<Duration> duration(std::string_view text) {
  double unit = 0;
  if (text.ends_with("ms")) {
    text.remove_suffix(2);
    unit = 1e-3;
  } else if (text.ends_with("s")) {
    text.remove_suffix(1);
    unit = 1;
  }
  const auto value = number<double>(text);
  if (unit == 0 || !value || !(*value >= 0 && *value <= 1e6)) return std::nullopt;
  return from_seconds(*value * unit);
}

std::optional<EmulatedFault> parse_fault(std::string_view text) {
  EmulatedFault out;
  const auto kind = cut(text, '=');
  const auto device = cut(text, '@');
  if (kind == "kill")
    out.fault = engine::Breaker::Fault::failure;
  else if (kind == "hang")
    out.fault = engine::Breaker::Fault::hang;
  else
    return std::nullopt;
  const auto index = number<std::size_t>(device.value_or(""));
  const auto start = cut(text, '+');
  const auto from = duration(start.value_or(text));
  if (!index || !from) return std::nullopt;
  out.device = *index;
  out.from = *from;
  if (start) {
    out.lasts = duration(text);
    if (!out.lasts) return std::nullopt;
  }
  return out;
}

}  // namespace

Result<std::vector<DeviceArguments>> list_devices(const DevicesArguments& arguments) {
  std::vector<std::string> texts = arguments.devices;
  if (texts.empty()) texts.emplace_back("cpu");
  std::vector<DeviceArguments> out;
  std::set<std::string> gpus;
  for (const std::string& text : texts) {
    std::string kind = text;
    std::size_t count = 1;
    if (const std::size_t star = text.rfind('*'); star != std::string::npos) {
      kind = text.substr(0, star);
      const auto times = number<std::size_t>(std::string_view(text).substr(star + 1));
      if (!times || *times < 1 || *times > most_devices)
        return invalid("--device " + text + ": what follows '*' must be a number from 1 to " +
                       std::to_string(most_devices));
      count = *times;
    }
    if (out.size() + count > most_devices)
      return invalid("--device " + text + ": there can be at most " + std::to_string(most_devices) +
                     " devices");
    std::vector<std::string> names(count, kind);
    if (kind == "cuda" || kind.starts_with("cuda:")) {
      const auto listed = cuda_devices_of(kind);
      if (!listed) return in_context("--device " + text, listed.error());
      if (count > 1)
        return invalid("--device " + text +
                       ": '*' is for emulated devices; several GPUs are listed, as in cuda:0,1");
      names = *listed;
      if (out.size() + names.size() > most_devices)
        return invalid("--device " + text + ": there can be at most " + std::to_string(most_devices) +
                       " devices");
      for (const std::string& name : names)
        if (!gpus.insert(name).second)
          return invalid("--device " + text + ": " + name +
                         " is given twice ('cuda' is cuda:0): each device is served once, and has all that "
                         "the server takes of it");
    }
    DeviceArguments one = arguments.each;
    for (const std::string& name : names) {
      one.device = name;
      out.push_back(one);
    }
  }
  if (std::ranges::count(out, "cpu", &DeviceArguments::device) > 1)
    return invalid(
        "--device cpu can be given once: its kernels use all threads (--threads), so that two would only "
        "slow each other; for models with shares of it of their own there is --plan");
  return out;
}

Result<std::vector<EmulatedFault>> parse_faults(std::string_view text) {
  std::vector<EmulatedFault> out;
  while (!text.empty()) {
    const auto before = cut(text, ',');
    const std::string_view part = before ? *before : std::exchange(text, {});
    const auto fault = parse_fault(part);
    if (!fault)
      return invalid("'" + std::string(part) +
                     "' is no outage; one is kill=DEVICE@TIME or hang=DEVICE@TIME, with +TIME where it ends, "
                     "such as hang=2@10s+500ms");
    out.push_back(*fault);
  }
  return out;
}

Result<DeviceGroup> make_devices(const DevicesArguments& arguments, const Clock& clock) {
  const auto listed = list_devices(arguments);
  if (!listed) return std::unexpected(listed.error());
  DeviceGroup group;
  for (const DeviceArguments& each : *listed) {
    auto device = make_device(each, clock);
    if (!device) return std::unexpected(device.error());
    group.like_the_last.push_back(!group.devices.empty() &&
                                  group.devices.back().description == device->description);
    group.devices.push_back(std::move(*device));
  }
  const Bytes page = page_of(group.devices);
  for (Device& device : group.devices) device.worker.page = page;
  for (const std::string& text : arguments.faults) {
    const auto faults = parse_faults(text);
    if (!faults) return in_context("--emulated-faults", faults.error());
    for (const EmulatedFault& fault : *faults) {
      if (fault.device >= group.devices.size() ||
          (group.devices[fault.device].breaker == nullptr && !group.devices[fault.device].lose_at))
        return invalid("--emulated-faults: there is no emulated device " + std::to_string(fault.device));
      const bool cuda = group.devices[fault.device].breaker == nullptr;
      if (cuda && (fault.fault != engine::Breaker::Fault::failure || fault.lasts))
        return invalid("--emulated-faults: device " + std::to_string(fault.device) +
                       " is a CUDA device, which can only be lost for good: kill=" +
                       std::to_string(fault.device) + "@TIME");
      group.faults.push_back(fault);
    }
  }
  return group;
}

Bytes page_of(std::span<const Device> devices) {
  Bytes all;
  for (const Device& device : devices) {
    if (device.worker.make_memory) return page_size;
    all = all + device.worker.page_cache;
  }
  Bytes page = smallest_page;
  while (page < page_size && all.count / page.count > most_pages) page = page * 2;
  return page;
}

void start_faults(const DeviceGroup& group, TimePoint now) {
  for (const EmulatedFault& fault : group.faults)
    if (group.devices[fault.device].lose_at)
      group.devices[fault.device].lose_at(now + fault.from);
    else
      group.devices[fault.device].breaker->plan(
          {fault.fault, now + fault.from, fault.lasts ? now + fault.from + *fault.lasts : TimePoint::max()});
}

}  // namespace carillon::server
