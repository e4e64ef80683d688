#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/device/virtual_device.h"
#include "carillon/worker/worker.h"

namespace carillon::roles::testing {

// A device of a worker in virtual time, on the clock of the worker's host: the device core, and rows that are
// really read and written. An INFER that succeeds has written each output byte as the row's input byte plus
// one. As controller::testing::VirtualWorker, for a world whose calendar holds no functions.
class ClusterDevice final : public worker::Worker, public device::VirtualDevice::Host {
 public:
  class World {
   public:
    virtual ~World() = default;
    virtual TimePoint now() const = 0;
    // event(what) is to be called at that time, unless the device's `generation` is another by then.
    virtual void plan(ClusterDevice& device, TimePoint at, std::uint64_t what) = 0;
    virtual void result(worker::ActionResult result) = 0;
    virtual void probe(ClusterDevice& device) = 0;
    // An EXEC or a LOAD begins.
    virtual void begins(ActionId action) = 0;
    virtual std::uint32_t next_generation() = 0;
  };
  static constexpr std::size_t queue = 12;
  static constexpr std::size_t row_bytes = 4;
  // Of a model's weights; every third model needs none.
  static constexpr std::uint64_t pages_of(ModelId id) { return id.value % 3; }

  ClusterDevice(World& world, DeviceId id, std::uint64_t pages, std::uint32_t models, Random random)
      : world_(world), id_(id), pages_(pages), models_(models), random_(random) {
    restart();
  }

  Result<> add_model(ModelId, std::shared_ptr<const engine::CompiledModel>) override { return {}; }
  Result<> has_room(const engine::CompiledModel&) const override { return {}; }
  bool submit(const worker::LoadCommand& c) override {
    const std::uint64_t tag = take(c.id);
    return keep(core_->submit(device::LoadAction{c.id, c.model, c.window},
                              {.tag = tag, .time = 2ms, .outcome = luck(0.05)}, world_.now()),
                tag);
  }
  bool submit(const worker::UnloadCommand& c) override {
    const std::uint64_t tag = take(c.id);
    return keep(core_->submit(device::UnloadAction{c.id, c.model}, tag, world_.now()), tag);
  }
  bool submit(const worker::InferCommand& c) override {
    const std::uint64_t tag = take(c.id);
    Open& open = open_[tag % open_.size()];
    open.rows.assign(c.rows.begin(), c.rows.begin() + c.batch);
    // Some take longer than anybody expects, so that more than one is there at a time.
    const int slow = mishaps > 0 && random_.below(8) == 0 ? 4 : 1;
    device::Work work{
        .tag = tag, .input = 20us, .time = slow * c.batch * 1ms, .kernels = 20, .outcome = luck(0.02)};
    if (random_.uniform() < 0.02 * mishaps) work.outcome = schedule::ActionStatus::no_memory;
    if (c.batch == 0) work.outcome = schedule::ActionStatus::failed;
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
    ++life;
    restart();
    return life;
  }
  void probe() override { world_.probe(*this); }
  bool busy() const override { return false; }
  std::uint64_t total_pages() const override { return pages_; }
  std::uint64_t free_pages() const override { return core_->core().free_pages(); }
  Result<std::vector<Duration>> measure_exec(ModelId, int, int, std::int64_t, std::string*) override {
    return std::vector<Duration>{};
  }
  Result<std::vector<Duration>> measure_load(ModelId, int) override { return std::vector<Duration>{}; }
  const std::vector<std::string>& notes() const override { return notes_; }

  void event(std::uint64_t what) { core_->event(what, world_.now()); }
  bool loaded(ModelId id) const { return core_->core().loaded(id); }
  DeviceId id() const { return id_; }

  std::uint32_t life = 0;
  std::uint32_t generation = 0;  // of `core_`; no other device of the world has had it
  double mishaps = 0;            // how often actions fail, in so many of the usual times

 private:
  struct Open {
    std::uint64_t tag = 0;
    ActionId id;
    bool used = false;
    std::vector<worker::RowBuffers> rows;
  };

  // Tags go round: an action's place in `open_`.
  std::uint64_t take(ActionId id) {
    while (open_[next_ % open_.size()].used) ++next_;
    Open& open = open_[next_ % open_.size()];
    open.tag = next_;
    open.id = id;
    open.used = true;
    open.rows.clear();
    return next_++;
  }
  bool keep(bool taken, std::uint64_t tag) {
    if (!taken) open_[tag % open_.size()].used = false;
    return taken;
  }
  schedule::ActionStatus luck(double failures) {
    return mishaps > 0 && random_.uniform() < failures * mishaps ? schedule::ActionStatus::failed
                                                                 : schedule::ActionStatus::success;
  }
  void restart() {
    generation = world_.next_generation();
    open_.assign(4 * queue, {});
    core_ = std::make_unique<device::VirtualDevice>(
        device::Limits{.pages = pages_, .queue = queue, .reserved = queue, .gathers = 2, .scatters = 2},
        Duration{0}, *this);
    for (std::uint32_t m = 0; m < models_; ++m) core_->add_model(ModelId{m}, pages_of(ModelId{m}));
  }

  // device::VirtualDevice::Host.
  void plan(TimePoint at, std::uint64_t what) override { world_.plan(*this, at, what); }
  Duration begins(std::uint64_t tag, Duration planned, bool resumes) override {
    if (!resumes) world_.begins(open_[tag % open_.size()].id);
    return planned;
  }
  void ends(std::uint64_t, device::ActionStatus) override {}
  void done(const device::Done& done) override {
    Open& open = open_[done.tag % open_.size()];
    if (!open.used || open.tag != done.tag) return;
    open.used = false;
    if (done.status == schedule::ActionStatus::success)
      for (const worker::RowBuffers& row : open.rows)
        for (std::size_t i = 0; i < row_bytes; ++i)
          row.outputs[0][i] = static_cast<std::byte>(std::to_integer<unsigned>(row.inputs[0][i]) + 1U);
    worker::ActionResult result{
        .id = open.id, .status = done.status, .times = {}, .error = {}, .life = life, .device = id_};
    worker::ActionTimes& t = result.times;
    t.received = t.input_start = t.input_end = t.exec_start = done.start;
    t.exec_end = t.output_start = t.output_end = done.end;
    t.paused = done.end - done.start - done.busy;
    world_.result(std::move(result));
  }

  World& world_;
  const DeviceId id_;
  const std::uint64_t pages_;
  const std::uint32_t models_;
  Random random_;
  std::unique_ptr<device::VirtualDevice> core_;
  std::vector<Open> open_;
  std::uint64_t next_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace carillon::roles::testing
