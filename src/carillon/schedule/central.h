#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/schedule/fleet.h"
#include "carillon/schedule/request_queue.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/state/book.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {

// The life of a request under a policy that may run any model on any device (Fleet): requests come, go, fail
// and are tried again or refused; devices come and go; models come, change and have to be loaded; the policy
// is woken. A policy keeps the queues and says what runs. Classes and priorities are ignored.
class Central : public Scheduler, public LoadsAhead {
 public:
  // `attempts`: INFERs of a request that may fail before it is refused.
  explicit Central(const Environment& environment, int attempts = 3) : fleet_(environment), book_(attempts) {}

  std::optional<Environment> environment() const final { return fleet_.environment(); }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) final;
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) final {
    fleet_.load_ahead(wanted, now, out);
    return true;
  }
  const Mirror* mirror() const final { return &fleet_.mirror(); }
  void reads(ledger::Ledger& ledger) final { fleet_.reads(ledger); }

 protected:
  // A model comes: a new one, or another version of one of which nothing waits now. The fleet knows it.
  virtual void add_model(const ModelInfo& model) = 0;
  // A request waits (again).
  virtual void enqueue(const Request& request, TimePoint now) = 0;
  // Takes a waiting request out; false where it does not wait.
  virtual bool remove(RequestId id, ModelId model) = 0;
  // Appends all waiting requests of a model, and forgets them.
  virtual void take_all(ModelId model, std::vector<Request>& taken) = 0;
  // Since when the oldest waits; max() where none does.
  virtual TimePoint waiting_since(ModelId model) const = 0;
  // How many wait that any device may serve which has the model.
  virtual std::size_t waiting_count(ModelId model) const = 0;
  // Requests of the model wait, in whatever queue.
  virtual bool waits(ModelId model) const { return waiting_since(model) < TimePoint::max(); }
  // Tells the Fleet what waits: since `since` at the latest. A policy whose look() tells the Fleet overrides
  // this to do nothing.
  virtual void tell_waiting(ModelId model, TimePoint since) {
    fleet_.set_waiting(model, {std::min(since, waiting_since(model)), waiting_count(model)});
  }
  void tell_waiting(ModelId model) { tell_waiting(model, TimePoint::max()); }
  // The requests that wait for the model, or what they wait for, have changed. Comes before step().
  virtual void look(ModelId /*model*/, TimePoint /*now*/, Actions& /*out*/) {}
  // Called from `prepare_at_` on, before the Fleet loads what is due.
  virtual void prepare(TimePoint /*now*/, Actions& /*out*/) {}
  // Everything that is due now: called once for each event.
  virtual void step(TimePoint now, Actions& out) = 0;
  // step() also follows what changes nothing: a refusal on arrival, new times of a model that is gone.
  virtual bool always_steps() const { return false; }
  // When step() has something to do by the clock alone.
  virtual TimePoint wake_at(TimePoint now) const = 0;
  // What batches of a model take has changed: the fleet knows of it.
  virtual void times_changed(ModelId /*model*/, TimePoint /*now*/) {}
  // A client asks for a model that is served; the request may be refused, as no device can hold the model.
  virtual void asked(const Request& /*request*/, TimePoint /*now*/) {}
  // A client's request was enqueued: not one that is tried again.
  virtual void arrived(ModelId /*model*/) {}
  // `outdated` flights, too. Comes last: what failed waits again, or was refused.
  virtual void reported(const Fleet::Flight& /*flight*/, const ActionDone& /*done*/, TimePoint /*now*/) {}
  // Flights may have been lost, or be of a version that a model has no more: they are not reported.
  virtual void flights_changed() {}
  virtual void device_changed(DeviceId /*device*/, TimePoint /*now*/) {}
  // A LOAD has ended there.
  virtual void loaded(DeviceId /*device*/, TimePoint /*now*/) {}
  // A device came, went, was sent a batch by send(), or reported one: lists the device as ready.
  virtual void update_device(DeviceId device, TimePoint now);
  // The report of an action that the fleet did not send; false where it is none.
  virtual bool reported_otherwise(const ActionDone& /*done*/, TimePoint /*now*/) { return false; }
  // The fleet's environment is another now.
  virtual void margins_changed() {}
  virtual void profiled(const RequestProfiled& /*sample*/, TimePoint /*now*/) {}

  // For want of time. `alone`: what the request takes from its sending to its answer. True where the fleet's
  // times were doubted for it.
  bool refuse(const Request& request, Duration alone, TimePoint now, Actions& out);
  void refuse(const Request& request, TimePoint now, Actions& out) {
    refuse(request, fleet_.environment().dispatch + fleet_.span(request.model, 0), now, out);
  }
  // The device may be sent a batch: idle, or with one that ends before a message could get there.
  bool ready(DeviceId device, TimePoint now) const;
  // When a busy device becomes ready, as far as is known.
  TimePoint ready_at(DeviceId device, TimePoint now) const;
  // Devices that came to be ready and were not sent anything since: all that are ready, and some that are
  // overdue.
  const std::set<DeviceId>& ready_devices() const { return ready_; }
  // When a busy device becomes ready, as far as is known; max() for never.
  TimePoint next_ready_at() const {
    // Without a way to go, the report of the end is as early as the clock.
    return fleet_.environment().dispatch == Duration{0} ? TimePoint::max() : ready_at_.top_at();
  }
  // Sends to a device that is ready. Who sends by the fleet itself goes by ready() and ready_at() alone.
  ActionId send(DeviceId device, ModelId model, int index, std::vector<Request> requests, Window window,
                TimePoint now, Actions& out);
  // Where EXEC can start on a device that is ready.
  TimePoint start_on(DeviceId device, TimePoint now) const {
    return std::max(now + fleet_.environment().dispatch, fleet_.free_at(device, now));
  }
  // The place of the largest batch size of at most `requests` that ends by `deadline` where it starts at
  // `start`; -1 for none.
  int fitting(ModelId model, std::size_t requests, TimePoint start, TimePoint deadline) const;

  Fleet fleet_;
  TimePoint prepare_at_ = TimePoint::max();

 private:
  // False: nothing else is to be done for it.
  bool hear(const RequestArrived& arrival, TimePoint now, Actions& out);
  bool hear(const AllArrived&, TimePoint, Actions&) { return true; }
  bool hear(const RequestCancelled& gone, TimePoint now, Actions& out);
  bool hear(const ActionDone& done, TimePoint now, Actions& out);
  bool hear(const DeviceChanged& change, TimePoint now, Actions& out);
  bool hear(const Wake& wake, TimePoint now, Actions& out);
  bool hear(const RequestProfiled& sample, TimePoint now, Actions& out);
  bool hear(const ModelChanged& change, TimePoint now, Actions& out);
  bool hear(const TimesChanged& times, TimePoint now, Actions& out);
  void model_changed(const ModelChanged& change, TimePoint now, Actions& out);
  void give_back(Fleet::Flight& flight, Book::Failure failure, TimePoint now, Actions& out);
  void refuse_all(ModelId model, Reason reason, TimePoint now, Actions& out);

  std::set<DeviceId> ready_;
  TimerHeap ready_at_;  // the other devices, where that is known
  Book book_;
  std::vector<Request> taken_;  // scratch
  TimePoint asked_wake_ = TimePoint::max();
};

// One queue a model for the whole cluster. A head whose deadline has passed is refused when it passes.
class Queued : public Central {
 public:
  explicit Queued(const Environment& environment) : Central(environment) {}

 protected:
  void add_model(const ModelInfo& model) override {
    if (model.id.index() < queues_.size()) return;
    queues_.emplace_back();
    since_.push_back(TimePoint::max());
  }
  void enqueue(const Request& request, TimePoint now) override;
  bool remove(RequestId id, ModelId model) override;
  void take_all(ModelId model, std::vector<Request>& taken) override;
  TimePoint waiting_since(ModelId model) const override;
  std::size_t waiting_count(ModelId model) const override { return queues_[model.index()].size(); }
  TimePoint wake_at(TimePoint now) const override;

  const RequestQueue& queue(ModelId model) const { return queues_[model.index()]; }
  // Models that have requests, by the arrival of their heads.
  const std::set<std::pair<TimePoint, ModelId>>& waiting() const { return waiting_; }
  // Takes the first n out.
  std::vector<Request> pop(ModelId model, std::size_t n);
  void refuse_head(ModelId model, TimePoint now, Actions& out);
  // The model's queue is another than before.
  virtual void queue_changed(ModelId /*model*/) {}
  // Refuses what has expired.
  void expire(TimePoint now, Actions& out);
  // Sends the first `batch_size` of a model to a device that is ready.
  ActionId send_first(DeviceId device, ModelId model, int index, TimePoint latest, TimePoint now,
                      Actions& out);

 private:
  void list(ModelId model);

  std::vector<RequestQueue> queues_;
  TimerHeap expiry_;  // models that have requests, by their heads' deadlines
  std::set<std::pair<TimePoint, ModelId>> waiting_;
  std::vector<TimePoint> since_;  // by model: as listed there; max() where not
};

}  // namespace carillon::schedule
