#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/environment.h"
#include "carillon/ledger/model_info.h"
#include "carillon/ledger/spread.h"

namespace carillon::ledger {

// What runs take, from the start of EXEC until the answer is heard, as one distribution: what is expected,
// and how runs lie about that. What is expected follows the last runs of the model on the device. The spread
// is that of the model's runs there, and while these are few that of the device's and of the model's. Runs of
// more than three times what is expected are outliers: they are a share of their own, and do not change what
// is expected, unless so many come in a row that a device that became slow is likelier (two, where outliers
// are rare).
//
// Costs O(1) but where said. Memory grows by half a kilobyte for each pair of model and device that ran
// sixteen times. What it learns comes from actions and their reports, so that a simulated run, a live one and
// its replay learn alike. Not thread-safe.
class Chances {
 public:
  explicit Chances(const Environment& told);

  // A device appears, or starts anew.
  void start(DeviceId device, bool alive);
  // The model comes, goes (`info` as before), or comes in another version: `anew`, what was measured counts
  // no more. Or its seeds change: what was measured of a size is as far from its new seed.
  void model_changed(ModelId model, std::shared_ptr<const ModelInfo> info, bool anew);

  struct Execution {
    ModelId model;
    std::size_t index = 0;  // of its batch size
    TimePoint sent;         // the INFER
    bool at_once = false;   // nothing else kept it from starting
    TimePoint start;        // as reported
    Duration took{0};       // of EXEC, likewise
    TimePoint heard;        // when the report came
  };
  void observe(DeviceId device, const Execution& execution);
  // From now on the device runs `times` > 0 times as long as before.
  void other_pace(DeviceId device, double times);
  // A run of the device for an earlier scheduler: what it took.
  void recall(DeviceId device, ModelId model, std::size_t index, Duration took, TimePoint end);

  // A request is to be refused that has `left`: what would be in time by the seeds, and did not run for a
  // second, is expected as the seeds say again. On a device that idles already after a tenth of that, and
  // then after twice as long each time that this proves wrong. What takes long is tried more seldom: trials
  // may take a tenth of the device's time, and all of it if the device ran nothing else for a second.
  // `idles(device)` is asked.
  // Where times are measured seeds may be wrong, too, as a server may have measured them on a busy machine.
  // What would be late by its seed on each device, though by no more than eight times what is left, is tried
  // on a device that idles: a second after the first was refused where the model never ran, else when it ran
  // nowhere for four seconds, and then after twice as long each time, 64 s at most.
  // True where something changed. O(devices where it ran), and now and then O(devices).
  template <typename Idles>
  bool doubt(ModelId model, Duration left, TimePoint now, Idles&& idles);

  // From an order until EXEC starts, usually.
  Duration dispatch(DeviceId device) const { return told_.measured ? way(device) : told_.dispatch; }
  // What is known of one model on one device: for several questions, as it finds only once what they share.
  // Good until something is observed or changes; what is doubted meanwhile, it heeds.
  class There;
  // `prior`: how many times its seed a size is expected to take that never ran there, > 0. `late`: see
  // There::most(), in [0, 1); 0: what is promised counts.
  There there(DeviceId device, ModelId model, double prior = 1, double late = 0) const;
  // See There.
  Duration exec(DeviceId device, ModelId model, std::size_t index, double prior = 1) const;
  Duration most(DeviceId device, ModelId model, std::size_t index, double prior = 1) const;
  Duration most(DeviceId device, ModelId model, std::size_t index, double prior, double late) const;
  double late(DeviceId device, ModelId model, std::size_t index, Duration slack, double prior = 1) const;
  // From an order until the client has its answer, of one row on the best device, where all goes well.
  // O(1), or O(devices) once in a while.
  Duration least(ModelId model) const;
  // The part of that which passes before and after EXEC. O(1), or O(devices) once in a while.
  Duration least_beside() const;
  // Of answers that came from the device, how many were expected to be late, and how many were. Runs come in
  // bad times, so that more of them are late at once than their spread tells: what late() says follows this.
  void judge(DeviceId device, double expected, std::uint64_t late);
  // The share of the model's answers that may be late.
  double promised(ModelId model) const;
  // The share of outliers among its runs there.
  double outliers(DeviceId device, ModelId model) const;
  // From an order until EXEC starts there, as it was measured; what was told before anything ran.
  Duration way(DeviceId device) const { return from_ns(devices_[device.index()].dispatch); }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  static constexpr int most_in_a_row = 8;
  static constexpr Duration idle_stale_after = std::chrono::milliseconds{100};
  struct Own {
    Spread spread;
    Tail tail;
    double most = 1;          // the edge for what is promised
    double quick = -1;        // of least(); below 0: to be found
    std::uint32_t since = 0;  // runs since the tail was found
  };
  struct Size {
    float times = 1;  // what its runs take, over the pair's pace
    std::uint8_t runs = 0;
    std::int8_t odd = 0;  // runs of it in a row that were longer, or below 0 shorter
  };
  struct Pair {
    DeviceId device;
    double pace = 1;    // what its runs take, over their seeds
    double before = 1;  // that before it last changed at once
    int runs = 0;       // that it follows; 0: it is a guess
    std::uint32_t seen = 0;
    bool on_trial = false;
    int trials = 0;
    // Runs in a row that were odd, all of them longer or all shorter: where they lie, and the pace that they
    // would mean.
    int streak = 0;
    bool longer = false;
    std::array<float, most_in_a_row> lie{};
    double streak_pace = 0;
    std::uint32_t streak_size = none, jump_size = none;  // whose they were; none: of several
    TimePoint jumped = TimePoint::min();                 // when `pace` last changed at once
    bool with_device = false;                            // it did so with all that its device runs
    TimePoint ran = TimePoint::min();
    std::vector<Size> sizes;
    std::unique_ptr<Own> own;
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;
    std::vector<Pair> on;
    std::vector<std::uint32_t> on_at;  // by device
    std::unique_ptr<Own> all;          // of all devices
    std::uint32_t seen = 0;
    mutable double least_pace = -1;            // below 0: to be found
    mutable std::uint64_t started = 0;         // as `started_` when it was found
    TimePoint rests_until = TimePoint::min();  // nothing is tried again before
    TimePoint seed_from = TimePoint::min();    // from then on its seeds may be doubted
    int seed_trials = 0;
  };
  struct Device {
    bool alive = false;
    double dispatch = 0, answer = 0;  // usual, nanoseconds
    TimePoint heard = TimePoint::min();
    TimePoint used = TimePoint::min();  // the last run that was no trial
    std::unique_ptr<Own> all;
    // Late answers of late, and what they were over what their spread told before.
    double expected_late = 0, late = 0, worse = 1;
    // Runs in a row that were odd, as in a Pair: how many times as long they were, since when, and whose.
    int streak = 0;
    bool longer = false, several = false;
    double times = 1;
    TimePoint since;
    const ModelInfo* first = nullptr;
  };
  struct Expected {
    double exec = 0, scale = 0;  // nanoseconds
  };
  static constexpr double longest = 1e17;  // nanoseconds: three years

  static const Pair* find(const Model& model, DeviceId device) {
    if (device.index() >= model.on_at.size() || model.on_at[device.index()] == none) return nullptr;
    return &model.on[model.on_at[device.index()]];
  }
  Pair& get(Model& model, DeviceId device);
  Expected expected(const Pair* pair, const Model& model, std::size_t index, double prior) const {
    double times = prior;
    if (pair != nullptr && (pair->runs > 0 || pair->on_trial))
      times = pair->pace * static_cast<double>(pair->sizes[index].times);
    const double exec = std::min(longest, ns(model.info->batches[index].exec) * times);
    return {.exec = exec, .scale = std::max(exec, least_scale_)};
  }
  static double ns(Duration d) { return static_cast<double>(d.count()); }
  double quick_edge(const Own* own) const;
  double promised(const Model& model) const;
  double tail_of(const Own* own, std::size_t edge) const {
    return own ? own->tail.beyond(edge) : prior_[edge];
  }
  double pooled(const Device& device, const Model& model, std::size_t edge) const {
    return (tail_of(device.all.get(), edge) + tail_of(model.all.get(), edge)) / 2;
  }
  double beyond(const Device& device, const Model& model, const Pair* pair, std::size_t edge) const {
    return pair != nullptr && pair->own ? pair->own->tail.beyond(edge) : pooled(device, model, edge);
  }
  void learn(Model& model, Pair& pair, DeviceId device, std::size_t index, double took, double lies,
             double took_lies, TimePoint now);
  void jump(Model& model, Pair& pair, double pace, TimePoint now);
  void slow_down(DeviceId device, double times, TimePoint now);
  void recover(DeviceId device, TimePoint now);
  void count(Model& model, Pair& pair, DeviceId device, double lies, TimePoint now);
  bool try_again(Model& model, Pair& pair, TimePoint now, bool idles);
  bool seed_may_lie(Model& model, Duration left, TimePoint now);
  static Duration seed_pause(const Model& model);
  bool try_without_seed(Model& model, DeviceId device, Duration left, TimePoint now);
  bool doubt_ways(DeviceId device, TimePoint now);
  void find_least_ways() const;

  Environment told_;
  double least_scale_ = 1;                    // nanoseconds; see Environment::shortest
  std::array<double, Spread::bins> prior_{};  // the chances beyond each edge, before anything ran
  double prior_quick_ = 1;                    // as Own::quick, likewise
  std::vector<Device> devices_;
  std::uint64_t started_ = 0;  // devices, so often
  std::vector<Model> models_;
  mutable double least_dispatch_ = 0, least_answer_ = 0;
  mutable unsigned ways_since_ = 0;  // reports since these were found; 0: to be found
};

class Chances::There {
 public:
  // Of EXEC, by the place of the batch size.
  Duration exec(std::size_t index) const { return from_ns(expected(index).exec); }
  // From the start of EXEC until the client has its answer: at most, so that no more than the promised share
  // is late. Outliers count for no more than half of that share: what is beyond it is a chance that is taken.
  // Where `late` was asked for: so that no more than that is late, outliers and all.
  Duration most(std::size_t index) const { return most(expected(index)); }
  struct Run {
    Duration exec, most;
  };
  // Both.
  Run run(std::size_t index) const {
    const Expected e = expected(index);
    return {from_ns(e.exec), most(e)};
  }
  // The chance that the answer is heard later than `slack` after EXEC starts.
  double late(std::size_t index, Duration slack) const { return late(expected(index), slack); }

 private:
  friend class Chances;
  There(const Chances& all, DeviceId device, ModelId model, double prior, double late)
      : all_(&all),
        device_(&all.devices_[device.index()]),
        model_(&all.models_[model.index()]),
        id_(device),
        prior_(prior),
        late_(late) {}
  // A trial where the model never ran adds a pair, which moves all pairs of the model.
  const Pair* pair() const {
    if (pairs_ != model_->on.size()) {
      pair_ = find(*model_, id_);
      pairs_ = model_->on.size();
    }
    return pair_;
  }
  Expected expected(std::size_t index) const { return all_->expected(pair(), *model_, index, prior_); }
  double beyond(std::size_t edge) const { return all_->beyond(*device_, *model_, pair(), edge); }
  double find_edge() const;
  double late(const Expected& expected, Duration slack) const;
  Duration most(const Expected& e) const {
    if (edge_ < 0) edge_ = find_edge();
    const Duration most = from_ns(e.exec + (edge_ - 1) * e.scale);
    const Environment& told = all_->told_;
    return told.measured ? most + from_ns(device_->answer) + told.client : told.span(most);
  }

  const Chances* all_;
  const Device* device_;
  const Model* model_;
  DeviceId id_;
  mutable const Pair* pair_ = nullptr;
  mutable std::size_t pairs_ = 0;  // of the model, when pair_ was found
  double prior_, late_;
  mutable double edge_ = -1;  // below 0: to be found
};

inline Chances::There Chances::there(DeviceId device, ModelId model, double prior, double late) const {
  return {*this, device, model, prior, late};
}

template <typename Idles>
bool Chances::doubt(ModelId id, Duration left, TimePoint now, Idles&& idles) {
  if (id.index() >= models_.size() || models_[id.index()].info == nullptr) return false;
  Model& m = models_[id.index()];
  bool any = false;
  bool late = true;  // on each device
  for (Pair& pair : m.on) {
    const There there = this->there(pair.device, id);
    if (!devices_[pair.device.index()].alive) continue;
    if (there.most(0) <= left) {
      late = false;
      continue;
    }
    any = doubt_ways(pair.device, now) || any;
    const Duration seed = m.info->batches.front().exec;
    if (there.exec(0) > seed && seed <= left) any = try_again(m, pair, now, idles(pair.device)) || any;
  }
  if (!late || any || !seed_may_lie(m, left, now)) return any;
  m.seed_from = now + idle_stale_after;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    if (devices_[i].alive && idles(device) && try_without_seed(m, device, left, now)) return true;
  }
  return false;
}

}  // namespace carillon::ledger
