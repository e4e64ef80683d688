#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/device/virtual_device.h"
#include "carillon/worker/worker.h"

namespace carillon::controller::testing {

// A worker in virtual time: the device core, and rows that are really read and written, each kernel's share
// of them, so that one that is left out or belongs to another run shows. An INFER that succeeds has written
// each output byte as the row's input byte plus one.
class VirtualWorker final : public worker::Worker, public device::VirtualDevice::Host {
 public:
  // Who keeps the calendar, and hears results.
  class World {
   public:
    virtual ~World() = default;
    virtual TimePoint now() const = 0;
    virtual void plan(TimePoint at, std::function<void()> what) = 0;
    virtual void result(const worker::ActionResult& result) = 0;
    virtual void problem(const std::string& what) = 0;
    // An EXEC or a LOAD begins.
    virtual void begins(ActionId) {}
  };

  VirtualWorker(World& world, DeviceId id, std::uint64_t pages, Random random)
      : world_(world), id_(id), pages_(pages), random_(random) {
    restart();
  }

  Result<> add_model(ModelId id, std::shared_ptr<const engine::CompiledModel>) override {
    models_.push_back(id.value % 3);  // pages; every third needs none
    core_->add_model(id, models_.back());
    return {};
  }
  std::uint64_t pages_of(ModelId id) const { return models_[id.index()]; }
  Result<> has_room(const engine::CompiledModel&) const override { return {}; }
  bool submit(const worker::LoadCommand& c) override {
    const std::uint64_t tag = take(c.id, schedule::ActionKind::load);
    return keep(core_->submit(device::LoadAction{c.id, c.model, c.window},
                              {.tag = tag, .time = 2ms, .outcome = luck(0.05)}, world_.now()),
                tag);
  }
  bool submit(const worker::UnloadCommand& c) override {
    const std::uint64_t tag = take(c.id, schedule::ActionKind::unload);
    return keep(core_->submit(device::UnloadAction{c.id, c.model}, tag, world_.now()), tag);
  }
  bool submit(const worker::InferCommand& c) override {
    const std::uint64_t tag = take(c.id, schedule::ActionKind::infer);
    open_[tag].infer = c;
    // Some take longer than anybody expects, so that more than one is there at a time.
    const int slow = random_.below(8) == 0 && mishaps > 0 ? 4 : pace;
    device::Work work{
        .tag = tag, .input = 20us, .time = slow * c.batch * 1ms, .kernels = 20, .outcome = luck(0.02)};
    if (random_.uniform() < 0.02 * mishaps) work.outcome = schedule::ActionStatus::no_memory;
    if (c.batch == 0) work.outcome = schedule::ActionStatus::failed;
    planned_[tag] = work.time;
    return keep(
        core_->submit(device::InferAction{.id = c.id, .model = c.model, .window = c.window, .cls = c.cls},
                      work, world_.now()),
        tag);
  }
  wire::Credit credit() const override { return {.infers = queue, .loads = queue}; }
  void stop(ActionId id) override { core_->evict(id, device::After::drop, {}, world_.now()); }
  void preempt(ActionId id, TimePoint order) override {
    core_->evict(id, device::After::resume, order, world_.now());
  }
  bool cancel(ActionId id) override { return core_->cancel(id, world_.now()); }
  std::uint32_t retire() override {
    open_.clear();
    planned_.clear();
    mute = false;
    ++life;
    restart();
    return life;
  }
  void probe() override { ++probes; }
  bool busy() const override { return false; }
  std::uint64_t total_pages() const override { return pages_; }
  std::uint64_t free_pages() const override { return core_->core().free_pages(); }
  Result<std::vector<Duration>> measure_exec(ModelId, int, int, std::int64_t, std::string*) override {
    return std::vector<Duration>{};
  }
  Result<std::vector<Duration>> measure_load(ModelId, int) override { return std::vector<Duration>{}; }
  const std::vector<std::string>& notes() const override { return notes_; }

  bool loaded(ModelId id) const { return core_->core().loaded(id); }
  bool uses(const InferCall& call) const {
    for (const auto& [tag, action] : open_) {
      if (action.kind == schedule::ActionKind::infer && touches(action.infer, call)) return true;
    }
    return false;
  }
  std::size_t open() const { return open_.size(); }

  std::uint32_t life = 0;
  bool mute = false;  // it hangs: nothing is reported until it is retired
  int probes = 0;
  int resumed = 0;
  double mishaps = 1;         // how often actions fail and runs take long: times as often as they do here
  int pace = 1;               // how many milliseconds a row takes
  std::uint64_t next_id = 0;  // above those of all actions so far

 private:
  struct Open {
    ActionId id;
    schedule::ActionKind kind{};
    worker::InferCommand infer;
  };

  std::uint64_t take(ActionId id, schedule::ActionKind kind) {
    open_[next_].id = id;
    next_id = std::max(next_id, id.value + 1);
    open_[next_].kind = kind;
    return next_++;
  }
  bool keep(bool taken, std::uint64_t tag) {
    if (!taken) open_.erase(tag);
    return taken;
  }
  schedule::ActionStatus luck(double failures) {
    return random_.uniform() < failures * mishaps ? schedule::ActionStatus::failed
                                                  : schedule::ActionStatus::success;
  }
  void restart() {
    core_ = std::make_unique<device::VirtualDevice>(
        device::Limits{.pages = pages_, .queue = queue, .reserved = queue, .gathers = 2, .scatters = 2},
        Duration{0}, *this);
    for (std::uint32_t m = 0; m < models_.size(); ++m) core_->add_model(ModelId{m}, models_[m]);
  }

  void plan(TimePoint at, std::uint64_t what) override {
    world_.plan(at, [this, what, mine = life] {
      if (mine == life) core_->event(what, world_.now());
    });
  }
  Duration begins(std::uint64_t tag, Duration planned, bool resumes) override {
    resumed += resumes ? 1 : 0;
    if (!resumes) world_.begins(open_.at(tag).id);
    return planned;
  }
  void ends(std::uint64_t, device::ActionStatus) override {}
  void done(const device::Done& done) override {
    const auto found = open_.find(done.tag);
    if (found == open_.end()) return world_.problem("reported twice, or never sent");
    Open& action = found->second;
    const bool infer = action.kind == schedule::ActionKind::infer;
    if (infer && done.status == schedule::ActionStatus::success) {
      if (done.busy != planned_[done.tag]) world_.problem("ran for another time than its kernels take");
      answer_rows(action.infer, row_bytes);
    }
    worker::ActionResult result{
        .id = action.id, .status = done.status, .times = {}, .error = {}, .life = life, .device = id_};
    result.times.received = result.times.input_start = result.times.input_end = result.times.exec_start =
        done.start;
    result.times.exec_end = result.times.output_start = result.times.output_end = done.end;
    result.times.paused = done.end - done.start - done.busy;
    open_.erase(found);
    planned_.erase(done.tag);
    if (!mute) world_.result(result);
  }

  static constexpr std::size_t queue = 12;
  static constexpr std::size_t row_bytes = 4;
  World& world_;
  DeviceId id_;
  std::uint64_t pages_;
  Random random_;
  std::unique_ptr<device::VirtualDevice> core_;
  std::vector<std::uint64_t> models_;
  std::map<std::uint64_t, Open> open_;
  std::map<std::uint64_t, Duration> planned_;
  std::uint64_t next_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace carillon::controller::testing
