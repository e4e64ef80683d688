#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/engine/device_memory.h"
#include "carillon/engine/host/memory.h"

namespace carillon::engine {

// The host's own memory as a device's. It is taken as it is used, and not given back before the end: a page
// for weights at the first LOAD there, inputs and outputs with the first that lie there, workspaces when told
// (prepare_workspace()).
//
// A page is moved with mremap: the kernel hands its page tables over whole, 2 MiB an entry, which takes
// microseconds however large the pages behind it are. (Mapping pieces of a shared memory file instead fills
// and clears every 4 KiB entry: as long as a third of the copy itself, at LOAD and again at UNLOAD.) Needs
// Linux 5.7.
class HostMemory final : public DeviceMemory {
 public:
  struct Sizes {
    std::uint64_t pages = 1;
    Bytes page = page_size;  // a power of two, at least 64 KiB
    Bytes io, workspace;
    Bytes spare_workspace{};  // behind `workspace`; small pages, as seldom all of it is used
    bool used = true;         // false: nobody means to touch it
  };
  // Huge pages where the system has them, else a note says what was had. Error: the system does not give the
  // addresses.
  static Result<std::unique_ptr<HostMemory>> make(const Sizes& sizes, std::vector<std::string>& notes);

  std::uint64_t pages() const override { return pages_; }
  Bytes page() const override { return page_; }
  Bytes io_size() const override { return io_.size(); }
  Bytes workspace_size() const override { return workspace_.size() + spare_.size(); }
  Result<WeightRange> reserve(std::uint64_t pages) override;
  void release(const WeightRange& range) override;
  Result<> map(const WeightRange& range, std::span<const std::uint32_t> pages) override;
  void unmap(const WeightRange& range, std::span<const std::uint32_t> pages) override;
  std::byte* io(std::uint64_t offset) const override { return io_.data() + offset; }
  std::byte* workspace(std::uint64_t offset) const override {
    const std::uint64_t own = workspace_.size().count;
    return offset < own ? workspace_.data() + offset : spare_.data() + (offset - own);
  }
  void copy_in(std::byte* to, std::span<const std::byte> from) override;
  void copy_out(std::span<std::byte> to, const std::byte* from) override;
  std::byte* access(std::byte* device) const override { return device; }
  Result<> prepare_workspace(std::uint64_t offset, Bytes size) override;

 private:
  HostMemory(Arena home, std::uint64_t pages, Bytes page, Arena io, Arena workspace, Arena spare)
      : home_(std::move(home)),
        pages_(pages),
        page_(page),
        begins_(pages + 1),
        io_(std::move(io)),
        workspace_(std::move(workspace)),
        spare_(std::move(spare)) {}
  std::byte* home(std::uint32_t page) const { return home_.data() + page * page_.count; }
  std::uint64_t run(std::span<const std::uint32_t> pages) const;
  bool move(std::byte* from, std::byte* to, std::uint64_t pages) const;

  Arena home_;  // where each page is while it is free; a page that is elsewhere leaves a hole nobody touches
  std::uint64_t pages_;
  Bytes page_;
  // By page: whether it may be of another mapping than the page before it. Neighbours that once moved apart
  // stay so, as nobody tells whether the kernel made one mapping of them again.
  std::vector<std::atomic<bool>> begins_;
  Arena io_, workspace_, spare_;
};

}  // namespace carillon::engine
