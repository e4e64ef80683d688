#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/event.h"
#include "carillon/ledger/measured_times.h"
#include "carillon/ledger/model_info.h"

namespace carillon::ledger {

// What batches of all models take on the streams of one class: measured for each device by itself, or for all
// devices alike. Costs O(1) but where said. Memory grows by about a quarter of a kilobyte for each model (by
// device: for each pair of model and device) that ran, and by as much again for each batch size that ran. A
// device whose number of threads changes counts as one where all models ran. Not thread-safe.
class ExecTimes {
 public:
  explicit ExecTimes(bool by_device) : by_device_(by_device) {}

  // A model comes, goes, or comes in another version: what was measured of the last version is forgotten.
  void model_changed(const ModelChanged& change);
  // Its batches take other times. What was measured of a size whose seed changed is forgotten.
  // O(batch sizes x devices where it ran).
  void times_changed(const TimesChanged& change, TimePoint now);

  // A batch that is under way, as it was sent: `version` and `times` tell whether its model has changed
  // since, or the seed of its size has.
  struct Run {
    ModelId model;
    std::uint32_t index = 0;  // of its size
    std::uint32_t version = 0, times = 0;
  };
  // None of a model that never came, or of a size that it does not have.
  Run run(ModelId model, std::size_t rows) const;
  bool knows(const Run& run) const { return run.index != unknown; }
  // The model is as it was when the run was sent.
  bool same_version(const Run& run) const { return run.version == models_[run.model.index()].version; }
  // Its size's seed is, too: what the run took can be learned from.
  bool tells(const Run& run) const {
    return same_version(run) && run.times == times_changes(run.model, run.index);
  }
  // Such a run took so long. What a slow spell did to sizes that do not run is forgotten by time. Where all
  // devices are alike, those sizes are looked at once a second.
  void add(DeviceId device, const Run& run, Duration took, TimePoint now);
  // From now on the device runs with another number of threads, `ratio` > 1 times as many or as few; this run
  // was the first. Nothing that was measured before tells what it does from now on. The best guess is that
  // each model, also one that never ran, takes as many times its seed as this run did. One run may be odd,
  // and so may what one model took before: no more than twice what the numbers of threads account for is
  // believed, of the median model's pace and of each model's own. O(models x batch sizes); widths change
  // seldom.
  void begin_other_pace(DeviceId device, const Run& run, Duration took, double ratio, TimePoint now);

  // Estimates decide what runs, and only what runs is measured: a slow spell must not shut a model out for
  // good.
  //
  // By device: one row would take longer than `at_most`, where the seed says it would not. Where nothing was
  // measured for a second, the seed counts again; on a device that idles already after a tenth of that, and
  // then after twice as long each time that the seed proves wrong. `idles(device)` is asked. True where an
  // estimate changed. O(devices where it ran).
  template <typename Idles>
  bool doubt_row(ModelId model, Duration at_most, TimePoint now, Idles&& idles);
  // All devices alike: each size that was not measured for a second, or never, starts from its seed again.
  // True where the estimate for one row changed. O(batch sizes).
  bool doubt_all(ModelId model, TimePoint now);

  // The model came at some time.
  bool came(ModelId model) const { return model.index() < models_.size() && models_[model.index()].info; }
  // Rolling estimates; the model's seed where nothing was measured (on this device).
  Duration of(DeviceId device, ModelId model, std::size_t index) const {
    return times(device, model).of(*models_[model.index()].info, index);
  }
  // What it usually takes, which is never more: the median where of() gives the largest.
  Duration usual(DeviceId device, ModelId model, std::size_t index) const {
    return times(device, model).usual(*models_[model.index()].info, index);
  }
  // A batch of that size ran (on this device) since its seed last counted.
  bool ran(DeviceId device, ModelId model, std::size_t index) const {
    return times(device, model).ran(index);
  }
  // All estimates by batch index; empty where the model never ran (on the device): its seeds count.
  std::span<const Duration> all(DeviceId device, ModelId model) const { return times(device, model).all(); }
  // The same where all devices are alike.
  Duration of(ModelId model, std::size_t index) const {
    const Model& m = models_[model.index()];
    return m.alike.of(*m.info, index);
  }
  // By device: bounds of all devices' estimates, for whoever would else ask them all. No estimate is longer
  // (by batch index), or shorter. They may for a while be further away than they need.
  std::span<const Duration> longest(ModelId model) const { return models_[model.index()].longest; }
  Duration shortest(ModelId model) const { return models_[model.index()].shortest; }  // of one row
  // Its last version, with its seeds; null before the first.
  const std::shared_ptr<const ModelInfo>& info(ModelId model) const { return models_[model.index()].info; }
  // Changes whenever some device's estimate for one row does.
  std::uint64_t row_version(ModelId model) const { return models_[model.index()].row_version; }
  // Changes whenever an estimate changes otherwise than by a run of its own size.
  std::uint64_t others_version(ModelId model) const { return models_[model.index()].others_version; }
  // How often the seed of a size changed in this version of the model.
  std::uint32_t times_changes(ModelId model, std::size_t index) const {
    const Model& m = models_[model.index()];
    return m.times_changes.empty() ? 0 : m.times_changes[index];
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0}, unknown = none;
  static constexpr Duration idle_stale_after = 100ms;  // on a device that has nothing better to do
  static constexpr unsigned bounds_hold = 256;  // reports: what it takes to find bounds is shared by so many
  struct OnDevice {
    DeviceId device;
    MeasuredTimes times;
    int trials = 0;  // of the seed for one row, since it was right
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;  // of its last version; null before the first
    bool served = false;
    std::uint32_t version = 0;
    std::vector<std::uint32_t> times_changes;  // by batch index: of its seed; empty until one changed
    MeasuredTimes alike;
    std::vector<OnDevice> on;          // devices where it ran
    std::vector<std::uint32_t> on_at;  // by device: in `on`
    std::vector<Duration> longest;
    Duration shortest{0};
    std::uint64_t row_version = 0, others_version = 0;
    unsigned reports = 0;  // since the bounds were found anew
  };

  const OnDevice* find(const Model& model, DeviceId device) const {
    if (device.index() >= model.on_at.size()) return nullptr;
    const std::uint32_t at = model.on_at[device.index()];
    return at == none ? nullptr : &model.on[at];
  }
  OnDevice& get(Model& model, DeviceId device);
  const MeasuredTimes& times(DeviceId device, ModelId model) const {
    const Model& m = models_[model.index()];
    if (!by_device_) return m.alike;
    const OnDevice* const on = find(m, device);
    return on == nullptr ? never_ran_ : on->times;
  }
  void bound(Model& model, std::size_t index, Duration estimate);
  void find_bounds(Model& model);

  static inline const MeasuredTimes never_ran_;
  bool by_device_;
  std::vector<Model> models_;
};

template <typename Idles>
bool ExecTimes::doubt_row(ModelId id, Duration at_most, TimePoint now, Idles&& idles) {
  Model& m = models_[id.index()];
  const Duration seed = m.info->batches.front().exec;
  if (seed > at_most || m.longest.front() <= at_most) return false;
  bool any = false;
  for (OnDevice& on : m.on) {
    if (on.times.all().empty() || on.times.all().front() <= at_most) continue;
    const Duration pause =
        idles(on.device) ? std::min(stale_after, idle_stale_after * (1 << on.trials)) : stale_after;
    const TimePoint newest = on.times.newest_at(0);
    if (newest != TimePoint::min() && now - newest < pause) continue;
    on.times.reset(*m.info, 0, now, [&](std::size_t i) { bound(m, i, seed); });
    on.trials = std::min(on.trials + 1, 4);
    any = true;
  }
  if (any) ++m.others_version;
  return any;
}

}  // namespace carillon::ledger
