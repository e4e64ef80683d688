#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/book.h"
#include "carillon/controller/calls/device_timeline.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/dispatch/notes.h"

namespace carillon::controller {

namespace testing {
struct Audit;  // reads what a core keeps
}

// A device was taken out, or is back.
struct DeviceNews {
  DeviceId device;
  bool alive = false;
  std::string why;  // it was taken out
};

// Tells statistics, journal and timeline of actions and devices. Not thread-safe.
class Recorder final : public dispatch::Notes {
 public:
  using OnDevice = std::function<void(const DeviceNews&)>;
  using OnBatch = std::function<void(ModelId, int batch)>;
  // `journal` may be null, both functions empty. `timeline`: actions that it keeps.
  Recorder(Book& book, std::shared_ptr<Journal> journal, std::size_t timeline, OnDevice on_device,
           OnBatch on_batch)
      : book_(book),
        journal_(std::move(journal)),
        timeline_(timeline),
        on_device_(std::move(on_device)),
        on_batch_(std::move(on_batch)) {
    if (journal_ != nullptr) records_.reserve(64);  // of usual devices: their actions allocate nothing
  }

  // In the order of their ids. Returns the device's number in the journal.
  std::uint32_t add_device(std::string name);
  void add_model(const std::string& name) {
    names_.push_back(journal_ != nullptr ? journal_->name(name) : NameNumber{});
  }
  const DeviceTimeline& timeline() const { return timeline_; }  // readable by any thread

  std::uint64_t begun(std::uint32_t place, const Action& action) override;
  void with(std::uint32_t place, std::uint64_t call) override;
  void complete(std::uint32_t place) override;
  void taken(std::uint32_t place, const Action& action) override;
  void not_taken(std::uint32_t place, TimePoint now) override;
  void ended(std::uint32_t place, const Action& action, const wire::Report& report, bool held,
             TimePoint now) override;
  void kept(const Action& action, const ledger::Ledger::Kept& kept) override {
    book_.kept(action.model, kept);
  }
  void lost(std::uint32_t place, TimePoint now) override;
  void odd_report(DeviceId device) override { book_.odd_report(device); }
  void device_lost(DeviceId device) override { book_.device_lost(device); }
  void device_lost_over(DeviceId device, std::string_view why) override;
  void device_back(DeviceId device) override;

 private:
  friend struct testing::Audit;
  TimelineAction shown(const Action& action) const;
  void show_end(std::uint32_t place, const Action& action, const wire::Report& report);
  void note_end(std::uint32_t place, const wire::Report& report, TimePoint now);

  Book& book_;
  const std::shared_ptr<Journal> journal_;
  DeviceTimeline timeline_;
  const OnDevice on_device_;
  const OnBatch on_batch_;
  std::vector<std::uint32_t> devices_;  // by device: its number in the journal
  std::vector<NameNumber> names_;       // by model
  std::vector<ActionRecord> records_;   // by place in the ledger, where there is a journal
};

}  // namespace carillon::controller
