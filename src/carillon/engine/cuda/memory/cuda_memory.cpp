#include "carillon/engine/cuda/memory/cuda_memory.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include <fmt/core.h>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/driver/context.h"

namespace carillon::engine::cuda {
namespace {

Properties on(DeviceNumber device) {
  Properties out;
  out.location.id = device;
  return out;
}

}  // namespace

Result<> CudaMemory::failed(Status status, const std::string& what) const {
  if (is_lost(status)) lost_ = true;
  return fail(status == out_of_memory ? ErrorCode::resource_exhausted : ErrorCode::unavailable,
              what + ": " + name_of(driver_, status));
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::make(std::shared_ptr<const Driver> driver,
                                                     DeviceNumber device, const Sizes& sizes) {
  std::unique_ptr<CudaMemory> made(new CudaMemory(std::move(driver), device));
  if (auto ready = made->prepare(sizes); !ready) return std::unexpected(ready.error());
  return made;
}

Result<> CudaMemory::prepare(const Sizes& sizes) {
  CARILLON_ASSERT(sizes.pages > 0);
  if (const Status status = driver_.context_retain(&context_, device_); status != done)
    return failed(status, "the CUDA device gives no context");
  const InContext here(driver_, context_);
  const Properties properties = on(device_);
  std::size_t granule = 0;
  if (const Status status = driver_.granularity(&granule, &properties, smallest_granularity); status != done)
    return failed(status, "the CUDA device's granularity");
  if (granule == 0 || page_size.count % granule != 0)
    return fail(ErrorCode::unsupported,
                fmt::format("the CUDA device's memory comes in pieces of {} bytes, of which a page of "
                            "16 MiB is no multiple",
                            granule));
  granule_ = granule;
  std::size_t left = 0, all = 0;
  const std::uint64_t wanted = sizes.pages * page_size.count + round_up(sizes.io.count, granule_) +
                               round_up(sizes.workspace.count, granule_);
  if (driver_.memory_info(&left, &all) == done && wanted > left)
    return fail(
        ErrorCode::resource_exhausted,
        fmt::format("{} of a CUDA device's memory are wanted (weights {}, inputs and outputs {}, workspaces "
                    "{}), and it "
                    "has {}, of which {} are in use",
                    to_text(Bytes{wanted}), to_text(Bytes{sizes.pages * page_size.count}), to_text(sizes.io),
                    to_text(sizes.workspace), to_text(Bytes{all}), to_text(Bytes{all - left})));
  if (auto taken = take(io_, sizes.io.count, "memory for inputs and outputs"); !taken) return taken;
  if (auto taken = take(workspace_, sizes.workspace.count, "memory for workspaces"); !taken) return taken;
  handles_.reserve(sizes.pages);
  while (handles_.size() < sizes.pages) {
    Handle page = 0;
    if (const Status status = driver_.create(&page, page_size.count, &properties, 0); status != done)
      return failed(status, fmt::format("page {} of {} for weights", handles_.size() + 1, sizes.pages));
    handles_.push_back(page);
  }
  for (CopyWay* const way : {&in_, &out_}) {
    const char* what = nullptr;
    if (const Status status = way->prepare(what); status != done) return failed(status, what);
  }
  return {};
}

CudaMemory::~CudaMemory() {
  if (context_ == nullptr) return;
  {
    const InContext here(driver_, context_);
    for (CopyWay* const way : {&in_, &out_, &io_in_, &io_out_}) way->give_back();
    if (!host_io_.empty()) driver_.host_free(host_io_.data());
    for (const Handle page : handles_) driver_.release(page);
    give_back(io_);
    give_back(workspace_);
  }
  driver_.context_release(device_);
}

Result<> CudaMemory::take(Block& block, std::uint64_t bytes, const char* what) {
  if (bytes == 0) return {};
  block.bytes = round_up(bytes, granule_);
  const Properties properties = on(device_);
  Access access;
  access.location.id = device_;
  // In this order, so that give_back() finds what there is.
  Status status = driver_.reserve(&block.at, block.bytes, 0, 0, 0);
  if (status != done) block.at = 0;
  if (status == done) status = driver_.create(&block.handle, block.bytes, &properties, 0);
  if (status == done) {
    status = driver_.map(block.at, block.bytes, 0, block.handle, 0);
    if (status != done) {
      driver_.release(block.handle);
      block.handle = 0;
    }
  }
  if (status == done) status = driver_.set_access(block.at, block.bytes, &access, 1);
  return status == done ? Result<>() : failed(status, what);
}

void CudaMemory::give_back(Block& block) {
  if (block.handle != 0) {
    driver_.unmap(block.at, block.bytes);
    driver_.release(block.handle);
  }
  if (block.at != 0) driver_.unreserve(block.at, block.bytes);
  block = {};
}

Result<> CudaMemory::health() const {
  if (!lost_) return {};
  return fail(ErrorCode::unavailable,
              fmt::format("cuda:{}: the device is lost until the server is started again: nothing can be "
                          "copied from it",
                          device_));
}

Result<WeightRange> CudaMemory::reserve(std::uint64_t pages) {
  if (pages == 0) return WeightRange{};
  Address at = 0;
  if (const Status status = driver_.reserve(&at, pages * page_size.count, 0, 0, 0); status != done)
    return std::unexpected(failed(status, fmt::format("addresses for {} pages", pages)).error());
  return WeightRange{pointer(at), pages};
}

void CudaMemory::release(const WeightRange& range) {
  if (range.pages > 0) driver_.unreserve(address(range.data), range.pages * page_size.count);
}

Result<> CudaMemory::map(const WeightRange& range, std::span<const std::uint32_t> pages) {
  CARILLON_ASSERT(pages.size() == range.pages);
  if (pages.empty()) return {};
  const Address start = address(range.data);
  std::uint64_t mapped = 0;
  Status status = done;
  for (; mapped < pages.size() && status == done; mapped += status == done ? 1 : 0)
    status = driver_.map(start + mapped * page_size.count, page_size.count, 0, handles_[pages[mapped]], 0);
  Access access;
  access.location.id = device_;
  // Once for all of them: it takes far longer than a mapping does.
  if (status == done) status = driver_.set_access(start, pages.size() * page_size.count, &access, 1);
  if (status == done) return {};
  if (mapped > 0) driver_.unmap(start, mapped * page_size.count);
  return failed(status, fmt::format("mapping {} pages", pages.size()));
}

void CudaMemory::unmap(const WeightRange& range, std::span<const std::uint32_t> pages) {
  CARILLON_ASSERT(pages.size() == range.pages);
  if (pages.empty()) return;
  if (const Status status = driver_.unmap(address(range.data), range.pages * page_size.count);
      is_lost(status))
    lost_ = true;
}

// The driver knows memory that it made: in one piece where its ends are as far apart on the device.
bool CudaMemory::is_pinned(std::span<const std::byte> bytes) const {
  Address first = 0, last = 0;
  const auto on_device = [&](Address& out, const std::byte* at) {
    return driver_.host_address(&out, const_cast<std::byte*>(at), 0) == done;
  };
  return on_device(first, bytes.data()) && on_device(last, &bytes.back()) && last - first == bytes.size() - 1;
}

std::byte* CudaMemory::host_io() {
  if (!host_io_.empty() || io_.bytes == 0) return host_io_.data();
  const InContext here(driver_, context_);
  const char* what = nullptr;
  for (CopyWay* const way : {&io_in_, &io_out_})
    if (way->prepare(what, true) != done) return nullptr;
  void* made = nullptr;
  if (driver_.host_allocate(&made, io_.bytes, 0) != done) return nullptr;
  host_io_ = {static_cast<std::byte*>(made), io_.bytes};
  return host_io_.data();
}

bool CudaMemory::in_host_io(std::span<const std::byte> bytes) const {
  const std::less_equal<const std::byte*> before;
  return !host_io_.empty() && before(host_io_.data(), bytes.data()) &&
         before(bytes.data() + bytes.size(), host_io_.data() + host_io_.size());
}

void CudaMemory::copy_in(std::byte* to, std::span<const std::byte> from) {
  if (lost_) return;
  const InContext here(driver_, context_);
  const bool io = in_host_io(from);
  const bool direct = io || (from.size() > CopyWay::piece && is_pinned(from));
  if ((io ? io_in_ : in_).in(address(to), from, direct) != done)
    lost_ = true;  // nothing else can go wrong here
}

void CudaMemory::copy_out(std::span<std::byte> to, const std::byte* from) {
  if (lost_) return;
  const InContext here(driver_, context_);
  const bool io = in_host_io(to);
  if ((io ? io_out_ : out_).out(to, address(from), io) != done) lost_ = true;
}

}  // namespace carillon::engine::cuda
