#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "carillon/engine/host/host_memory.h"

// For tests of workers: a device whose copies may hang.
namespace carillon::worker::testing {

// Memory that the host reaches by copies alone.
class HangingMemory final : public engine::DeviceMemory {
 public:
  // `before_copy_out` is called before each copy to the host, on the thread that copies. It may be empty.
  static Result<std::unique_ptr<engine::DeviceMemory>> make(std::uint64_t pages, Bytes io, Bytes workspace,
                                                            std::function<void()> before_copy_out) {
    std::vector<std::string> notes;
    auto host = engine::HostMemory::make({.pages = pages, .io = io, .workspace = workspace}, notes);
    if (!host) return std::unexpected(host.error());
    return std::make_unique<HangingMemory>(std::move(*host), std::move(before_copy_out));
  }
  HangingMemory(std::unique_ptr<engine::HostMemory> host, std::function<void()> before_copy_out)
      : host_(std::move(host)), before_copy_out_(std::move(before_copy_out)) {}

  std::uint64_t pages() const override { return host_->pages(); }
  Bytes io_size() const override { return host_->io_size(); }
  Bytes workspace_size() const override { return host_->workspace_size(); }
  Result<engine::WeightRange> reserve(std::uint64_t pages) override { return host_->reserve(pages); }
  void release(const engine::WeightRange& range) override { host_->release(range); }
  Result<> map(const engine::WeightRange& range, std::span<const std::uint32_t> pages) override {
    return host_->map(range, pages);
  }
  void unmap(const engine::WeightRange& range, std::span<const std::uint32_t> pages) override {
    host_->unmap(range, pages);
  }
  std::byte* io(std::uint64_t offset) const override { return host_->io(offset); }
  std::byte* workspace(std::uint64_t offset) const override { return host_->workspace(offset); }
  void copy_in(std::byte* to, std::span<const std::byte> from) override { host_->copy_in(to, from); }
  void copy_out(std::span<std::byte> to, const std::byte* from) override {
    if (before_copy_out_) before_copy_out_();
    host_->copy_out(to, from);
  }
  std::byte* access(std::byte*) const override { return nullptr; }

 private:
  std::unique_ptr<engine::HostMemory> host_;
  std::function<void()> before_copy_out_;
};

}  // namespace carillon::worker::testing
