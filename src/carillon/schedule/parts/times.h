#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "carillon/ledger/chances.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/parts/paces.h"

namespace carillon::schedule::parts {

// One question: how long? Answers by the ledger's times and margins of one class of streams. Devices without
// streams by class run all requests on those of normal ones. O(1) but where said. For one decision: good
// until the ledger hears of the next event.
class Times {
 public:
  // `paces`: what never ran on a device is expected to be as far from its seed there as what did of late.
  Times(const ledger::Ledger& ledger, Class streams, const Paces* paces = nullptr, TimePoint now = {})
      : streams_(streams),
        times_(ledger.times(streams)),
        margins_(ledger.margins(streams)),
        paces_(paces),
        now_(now) {}

  // The same by the chances of what runs take: EXEC as it is expected, spans so that no more than `late` is
  // late, or with 0 than is promised.
  static Times by_chance(const ledger::Ledger& ledger, Class streams, const Paces* paces, TimePoint now,
                         double late = 0) {
    Times times(ledger, streams, paces, now);
    times.chances_ = &ledger.chances(streams);
    times.late_ = late;
    return times;
  }

  Class streams() const { return streams_; }
  const ledger::ModelInfo& model(ModelId id) const { return *times_.info(id); }
  // From an order until EXEC can start on an idle device.
  Duration dispatch(DeviceId device) const {
    return chances_ != nullptr ? chances_->dispatch(device) : margins_.at(device).dispatch;
  }
  // Of EXEC, by the place of the batch size.
  Duration exec(DeviceId device, ModelId model, std::size_t index) const {
    const There& t = there(device, model);
    if (t.chances) return t.chances->exec(index);
    const Duration seed = t.info->batches[index].exec;
    const Duration estimate = t.estimates.empty() ? seed : t.estimates[index];
    if (t.prior == 1) return estimate;
    // A seed counts as the first of ten measurements, of which the longest is believed.
    const bool seeds = estimate == seed && (t.prior < 1 || !times_.ran(device, model, index));
    return seeds ? from_ns(static_cast<double>(estimate.count()) * t.prior) : estimate;
  }
  // From the start of EXEC until the client has its answer, at most.
  Duration span(DeviceId device, ModelId model, std::size_t index) const {
    const There& t = there(device, model);
    return t.chances ? t.chances->most(index) : t.margins->span(exec(device, model, index));
  }
  // The chance that the answer comes later than `slack` after EXEC starts; by margins 0.
  double late(DeviceId device, ModelId model, std::size_t index, Duration slack) const {
    const There& t = there(device, model);
    return t.chances ? t.chances->late(index, slack) : 0;
  }
  // The span of one request that is ordered now, on the best device.
  Duration alone(ModelId model) const {
    if (chances_ != nullptr) return chances_->least(model);
    const Duration exec = streams_ == Class::normal ? times_.shortest(model) : times_.of(model, 0);
    return margins_.least().dispatch + margins_.least().span(exec);
  }
  struct Batch {
    std::size_t rows = 0;
    Duration exec{0}, span{0};
  };
  // By the place of its size.
  Batch batch(DeviceId device, ModelId id, std::size_t index) const {
    const There& t = there(device, id);
    const auto rows = static_cast<std::size_t>(t.info->batches[index].batch);
    if (t.chances) {
      const auto [exec, most] = t.chances->run(index);
      return {rows, exec, most};
    }
    const Duration exec = this->exec(device, id, index);
    return {rows, exec, t.margins->span(exec)};
  }
  // The place of the largest batch size of at most `requests` rows, which is at least the smallest; and one
  // more.
  std::size_t end_of_sizes(ModelId id, std::size_t requests) const {
    const auto& batches = model(id).batches;
    const std::size_t most = std::min(requests, batches.size());
    // Often every size up to the largest has a plan.
    if (most > 0 && static_cast<std::size_t>(batches[most - 1].batch) == most &&
        (most == requests || most == batches.size()))
      return most;
    return static_cast<std::size_t>(
        std::ranges::partition_point(
            batches, [&](const auto& b) { return static_cast<std::size_t>(b.batch) <= requests; }) -
        batches.begin());
  }
  // The largest batch of at most `requests` rows that is answered by `deadline` where EXEC starts at `start`.
  // O(batch sizes).
  std::optional<Batch> fitting(DeviceId device, ModelId id, std::size_t requests, TimePoint start,
                               TimePoint deadline) const {
    for (std::size_t i = end_of_sizes(id, requests); i-- > 0;) {
      const Batch found = batch(device, id, i);
      if (saturating_add(start, found.span) <= deadline) return found;
    }
    return std::nullopt;
  }

 private:
  // What is the same for all batch sizes of a model on a device: mostly one question follows another.
  struct There {
    const ledger::ModelInfo* info = nullptr;
    DeviceId device;
    ModelId model;
    double prior = 1;
    std::optional<ledger::Chances::There> chances;  // or else:
    const ledger::Environment* margins = nullptr;
    std::span<const Duration> estimates;
  };
  const There& there(DeviceId device, ModelId id) const {
    if (there_.info == nullptr || there_.device != device || there_.model != id) find(device, id);
    return there_;
  }
  void find(DeviceId device, ModelId id) const {
    there_.info = &model(id);
    there_.device = device;
    there_.model = id;
    there_.prior = paces_ == nullptr ? 1 : paces_->prior(device, id, now_);
    if (chances_ != nullptr) {
      there_.chances = chances_->there(device, id, there_.prior, late_);
      return;
    }
    there_.margins = &margins_.at(device);
    there_.estimates = times_.all(device, id);
  }

  Class streams_;
  const ledger::ExecTimes& times_;
  const ledger::Margins& margins_;
  const Paces* paces_;
  TimePoint now_;
  mutable There there_;
  const ledger::Chances* chances_ = nullptr;
  double late_ = 0;
};

}  // namespace carillon::schedule::parts
