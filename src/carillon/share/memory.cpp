#include "carillon/share/memory.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string>

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace carillon::share {
namespace {

constexpr std::uint64_t system_page = 4096;

std::unexpected<Error> no_memory(const char* what) {
  return fail(ErrorCode::resource_exhausted, std::string(what) + ": " + std::strerror(errno));
}

Result<Descriptor> memory_file(const std::string& name) {
  Descriptor file(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.open()) return no_memory("no memory can be shared");
  return file;
}

}  // namespace

Page::~Page() {
  if (page_ != nullptr) munmap(page_, system_page);
}

Result<Page> Page::make(const Counters& so_far, Descriptor& to_send) {
  auto file = memory_file("carillon-job");
  if (!file) return std::unexpected(file.error());
  if (ftruncate(file->number(), system_page) != 0 ||
      fcntl(file->number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return no_memory("a job's page");
  void* const at = mmap(nullptr, system_page, PROT_READ | PROT_WRITE, MAP_SHARED, file->number(), 0);
  if (at == MAP_FAILED) return no_memory("a job's page");
  auto* const page = new (at) ControlPage{};
  page->iterations = so_far.iterations;
  page->busy_ns = static_cast<std::uint64_t>(so_far.busy.count());
  page->persistent = so_far.memory.persistent.count;
  page->ephemeral = so_far.memory.ephemeral.count;
  to_send = std::move(*file);
  return Page(page);
}

void Page::set(Lease lease) {
  if (page_ == nullptr) return;
  page_->lease.store(static_cast<std::uint32_t>(lease), std::memory_order_release);
  if (lease != Lease::hold)
    syscall(SYS_futex, &page_->lease, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Page::rouse(TimePoint until) {
  if (page_ == nullptr) return;
  page_->soon_ns.store(static_cast<std::uint64_t>(until.time_since_epoch().count()), std::memory_order_release);
  syscall(SYS_futex, &page_->lease, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Counters Page::counters() const {
  if (page_ == nullptr) return {};
  const auto order = std::memory_order_relaxed;
  const auto busy = std::min(page_->busy_ns.load(order), static_cast<std::uint64_t>(most_time.count()));
  return {.iterations = page_->iterations.load(order),
          .busy = Duration{static_cast<std::int64_t>(busy)},
          .memory = {std::min(Bytes{page_->persistent.load(order)}, most_bytes),
                     std::min(Bytes{page_->ephemeral.load(order)}, most_bytes)}};
}

void Page::listen(bool listens) {
  if (page_ != nullptr) page_->listens.store(listens ? 1 : 0);
}

std::optional<StoppedSaid> Page::stopped(std::uint64_t before) const {
  if (page_ == nullptr) return std::nullopt;
  const std::uint64_t stops = page_->stops.load();
  if (stops <= before) return std::nullopt;
  StoppedSaid said{.counters = counters(), .remaining = {}, .stops = stops};
  if (const std::uint64_t ns = page_->remaining_ns.load(std::memory_order_relaxed); ns > 0)
    said.remaining = Duration{static_cast<std::int64_t>(std::min(ns, static_cast<std::uint64_t>(most_time.count())))};
  return said;
}

std::optional<TimePoint> Page::next_boundary() const {
  if (page_ == nullptr) return std::nullopt;
  const auto most = static_cast<std::uint64_t>(most_time.count());
  const std::uint64_t at = page_->boundary_ns.load(std::memory_order_relaxed);
  const std::uint64_t took = page_->last_ns.load(std::memory_order_relaxed);
  if (at == 0 || took == 0 || at > most || took > most) return std::nullopt;
  return TimePoint(Duration{static_cast<std::int64_t>(at + took)});
}

Result<std::unique_ptr<LaneMemory>> LaneFile::make(std::uint32_t number) {
  auto file = memory_file("carillon-lane-" + std::to_string(number));
  if (!file) return std::unexpected(file.error());
  if (fcntl(file->number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) return no_memory("a lane");
  return std::unique_ptr<LaneMemory>(new LaneFile(std::move(*file)));
}

Result<> LaneFile::resize(Bytes size) {
  const Bytes whole{round_up(size.count, system_page)};
  if (whole > length_) {
    if (ftruncate(file_.number(), static_cast<off_t>(whole.count)) != 0) return no_memory("a lane");
    length_ = whole;
  }
  if (whole < used_)
    fallocate(file_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(whole.count),
              static_cast<off_t>((used_ - whole).count));
  used_ = whole;
  return {};
}

void LaneFile::give_back() {
  if (length_.count > 0)
    fallocate(file_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(length_.count));
}

}  // namespace carillon::share
