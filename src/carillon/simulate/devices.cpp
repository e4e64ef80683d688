#include "carillon/simulate/devices.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::simulate {
namespace {

using schedule::ActionKind;
using schedule::ActionStatus;

constexpr Duration longest_hang = std::chrono::hours{1000};
constexpr std::uint64_t no_limit = std::uint64_t{1} << 40;  // pages

// Messages and inputs share no executor here, but the network's time.
device::Limits limits(std::uint64_t pages, const std::optional<device::ClassStreams>& streams) {
  device::Limits all{.pages = pages == no_limit ? 0 : pages,
                     .queue = std::size_t{1} << 20,
                     .reserved = 8,
                     .gathers = 0,
                     .scatters = 0};
  if (streams) {
    all.streams = streams->count();
    all.places = streams->places();
  }
  return all;
}

Faults beside_the_scenarios(Faults faults) {
  faults.speeds.clear();
  faults.planned.clear();
  faults.outliers.clear();
  return faults;
}

}  // namespace

Devices::Devices(const workload::Scenario& scenario, const std::vector<schedule::ModelInfo>& infos,
                 const Options& options, Random& random, Statistics& statistics, Owner& owner)
    : infos_(infos),
      options_(options),
      random_(random),
      statistics_(statistics),
      owner_(owner),
      delay_(scenario.network_delay),
      fetch_(scenario.fetch_time()),
      duration_(scenario.duration),
      pages_(scenario.memory ? scenario.memory->count / page_size.count : no_limit),
      streams_(has_classes(scenario) ? std::optional(device::ClassStreams{}) : std::nullopt),
      faulty_(beside_the_scenarios(options.faults) != Faults{}),
      own_(scenario.seed ^ 0x9e3779b97f4a7c15ULL),
      devices_(static_cast<std::size_t>(scenario.devices)) {}

void Devices::start(std::size_t count, TimePoint now) {
  now_ = now;
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    devices_[i].desk = std::make_unique<Desk>(*this, i);
    if (faulty_ && options_.faults.clock_offset > Duration{0})
      devices_[i].clock =
          from_ns((2 * random_.uniform() - 1) * static_cast<double>(options_.faults.clock_offset.count()));
    if (i >= count) continue;
    power(i, true);
    owner_.comes(DeviceId{i}, 0);
  }
  for (const workload::DeviceFault& fault : options_.faults.planned) {
    const auto device = static_cast<std::uint32_t>(fault.device);
    const TimePoint at = TimePoint{} + fault.at;
    switch (fault.kind) {
      case workload::DeviceFault::Kind::dies:
        owner_.plan(at, DeviceDies{device, fault.length});
        break;
      case workload::DeviceFault::Kind::hangs:
        owner_.plan(at, DeviceStalls{device, std::min(fault.length, longest_hang)});
        break;
      case workload::DeviceFault::Kind::slow:  // see true_time()
        break;
    }
  }
  if (!faulty_) return;
  const auto deal = [&](double per_s, auto step) {
    if (per_s <= 0) return;
    for (std::uint32_t i = 0; i < devices_.size(); ++i)
      for (double t = random_.exponential(1 / per_s); t < to_seconds(duration_);
           t += random_.exponential(1 / per_s)) {
        step.device = i;
        owner_.plan(TimePoint{} + from_seconds(t), step);
      }
  };
  deal(options_.faults.deaths_per_s, DeviceDies{});
  deal(options_.faults.stalls_per_s, DeviceStalls{});
  deal(options_.faults.slowdowns_per_s, DeviceSlowsDown{});
}

void Devices::turn_on(DeviceId device, TimePoint now) {
  now_ = now;
  power(device.value, true);
  owner_.comes(device, devices_[device.index()].life);
}

void Devices::turn_off(DeviceId device, TimePoint now) {
  now_ = now;
  const std::uint32_t life = devices_[device.index()].life;
  power(device.value, false);
  owner_.died(device, life);
}

bool Devices::idle(DeviceId device) const {
  return std::ranges::none_of(flights_, [device](const Flight& flight) {
    return flight.device == device && flight.where != Flight::Where::nowhere;
  });
}

// --- To the device

FlightIndex Devices::take(ActionId id, ActionKind kind, DeviceId device, ModelId model) {
  FlightIndex index = 0;
  if (free_.empty()) {
    index = static_cast<FlightIndex>(flights_.size());
    flights_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Flight& flight = flights_[index];
  flight.outlies = 1;
  flight.id = id;
  flight.kind = kind;
  flight.device = device;
  flight.model = model;
  flight.requests.clear();
  flight.window = {TimePoint::min(), TimePoint::max()};
  flight.begun = false;
  flight.profiles = false;
  flight.work = {.tag = index};
  flight.life = devices_[device.index()].life;
  flight.where = Flight::Where::to_device;
  return index;
}

void Devices::give_back(FlightIndex index) {
  Flight& flight = flights_[index];
  flight.where = Flight::Where::nowhere;
  free_.push_back(index);
}

void Devices::depart(FlightIndex index, TimePoint now) {
  if (delay_ == Duration{0})
    arrive(index, now);
  else
    owner_.plan(now + delay_, ActionArrives{index});
}

void Devices::send_run(FlightIndex index, Window window, Duration time, TimePoint now) {
  Flight& flight = flights_[index];
  flight.window = window;
  flight.work.input = fetch_;
  flight.work.time = time;
  if (faulty_) {
    const double luck = random_.uniform();
    if (luck < options_.faults.infer_failures)
      flight.work.outcome = ActionStatus::failed;
    else if (luck < options_.faults.infer_failures + options_.faults.lost_inputs)
      flight.work.outcome = ActionStatus::no_memory;
  }
  depart(index, now);
}

void Devices::send(const schedule::Infer& infer, Duration time, TimePoint now) {
  const FlightIndex index = take(infer.id, ActionKind::infer, infer.device, infer.model);
  flights_[index].cls = infer.cls;
  flights_[index].requests.assign(infer.requests.begin(), infer.requests.end());
  send_run(index, infer.window, time, now);
}

void Devices::send(const schedule::Profile& profile, Duration time, TimePoint now) {
  const FlightIndex index = take(profile.id, ActionKind::infer, profile.device, profile.model);
  flights_[index].profiles = true;
  flights_[index].cls = Class::normal;  // of which it tells what they take
  flights_[index].requests.assign(1, profile.request);
  send_run(index, profile.window, time, now);
}

void Devices::send(const schedule::Load& load, TimePoint now) {
  const FlightIndex index = take(load.id, ActionKind::load, load.device, load.model);
  Flight& flight = flights_[index];
  flight.window = load.window;
  flight.work.time = infos_[load.model.index()].load;
  if (faulty_ && random_.uniform() < options_.faults.load_failures)
    flight.work.outcome = ActionStatus::failed;
  depart(index, now);
}

void Devices::send(const schedule::Unload& unload, TimePoint now) {
  depart(take(unload.id, ActionKind::unload, unload.device, unload.model), now);
}

void Devices::evict(ActionId id, device::After after, TimePoint order, TimePoint now) {
  if (delay_ == Duration{0})
    on(EvictionArrives{id, after, order}, now);
  else
    owner_.plan(now + delay_, EvictionArrives{id, after, order});
}

void Devices::on(const ActionArrives& step, TimePoint now) {
  arrive(step.flight, now);
}

void Devices::arrive(FlightIndex index, TimePoint now) {
  now_ = now;
  Flight& flight = flights_[index];
  Device& d = devices_[flight.device.index()];
  if (!d.alive || flight.life != d.life) return give_back(index);  // it goes with its device
  flight.where = Flight::Where::on_device;
  const device::Work work = flight.work;
  bool taken = false;
  switch (flight.kind) {
    case ActionKind::load:
      taken = d.core->submit(device::LoadAction{flight.id, flight.model, flight.window}, work, now);
      break;
    case ActionKind::unload:
      taken = d.core->submit(device::UnloadAction{flight.id, flight.model}, index, now);
      break;
    case ActionKind::infer:
      taken = d.core->submit(
          device::InferAction{.id = flight.id,
                              .model = flight.model,
                              .window = flight.window,
                              .cls = flight.cls,
                              .stream = streams_ ? streams_->stream_of(flight.cls) : std::uint8_t{0}},
          work, now);
      break;
  }
  CARILLON_ASSERT(taken);  // a million actions on one device: no policy sends so many
}

void Devices::on(const EvictionArrives& step, TimePoint now) {
  now_ = now;
  // There are few evictions, and not many flights.
  const auto found = std::ranges::find_if(flights_, [&](const Flight& flight) {
    return flight.id == step.id && flight.where == Flight::Where::on_device;
  });
  if (found == flights_.end()) return;  // has ended: its report is on its way
  devices_[found->device.index()].core->evict(step.id, step.after, step.order, now);
}

// --- On the device

void Devices::on(const DeviceStep& step, TimePoint now) {
  now_ = now;
  Device& d = devices_[step.device];
  if (d.life == step.life) d.core->event(step.what, now);
}

void Devices::Desk::plan(TimePoint at, std::uint64_t what) {
  devices.owner_.plan(at, DeviceStep{index, devices.devices_[index].life, what});
}

// As planned hangs say; min(): it does not hang.
TimePoint Devices::hangs_until(std::uint32_t device) const {
  TimePoint until = TimePoint::min();
  for (const workload::DeviceFault& fault : options_.faults.planned)
    if (fault.kind == workload::DeviceFault::Kind::hangs && fault.device == static_cast<int>(device) &&
        now_ >= TimePoint{} + fault.at)
      until = std::max(until, saturating_add(TimePoint{} + fault.at, fault.length));
  return until;
}

Duration Devices::true_time(Flight& flight, Duration planned, bool resumes) {
  const Device& device = devices_[flight.device.index()];
  const Faults& faults = options_.faults;
  double factor = 1;
  if (faulty_) {
    factor = faults.speed * (1 + faults.noise * std::abs(random_.normal()));
    if (faults.hiccups > 0 && random_.uniform() < faults.hiccups) factor *= 10;
    if (now_ < device.slow_until) factor *= device.slow;
    for (const SlowSpell& spell : faults.spells)
      if (now_ - TimePoint{} >= spell.from && now_ - TimePoint{} < spell.from + spell.length)
        factor *= spell.factor;
  }
  for (const workload::DeviceFault& fault : faults.planned)
    if (fault.device == static_cast<int>(flight.device.value) && now_ >= TimePoint{} + fault.at &&
        now_ < saturating_add(TimePoint{} + fault.at, fault.length))
      factor *= fault.factor;
  if (flight.kind == ActionKind::infer) {
    if (!faults.speeds.empty()) factor /= faults.speeds[flight.device.index()];
    if (!faults.outliers.empty() && !resumes) {
      const auto& [share, longer] = faults.outliers[flight.model.index()];
      flight.outlies = share > 0 && own_.uniform() < share ? longer : 1;
    }
    factor *= flight.outlies;
  }
  const TimePoint hangs = std::min(hangs_until(flight.device.value), now_ + longest_hang);
  return (hangs > now_ ? hangs - now_ : Duration{0}) +
         (factor == 1 ? planned : from_ns(static_cast<double>(planned.count()) * factor));
}

Duration Devices::Desk::begins(std::uint64_t tag, Duration planned, bool resumes) {
  Flight& flight = devices.flights_[tag];
  flight.begun = true;
  if (Observer* const observer = devices.options_.observer; observer != nullptr && !resumes)
    observer->on_start(flight.id, flight.device, devices.now_);
  return devices.true_time(flight, planned, resumes);
}

void Devices::Desk::ends(std::uint64_t tag, ActionStatus status) {
  const Flight& flight = devices.flights_[tag];
  Observer* const observer = devices.options_.observer;
  if (observer == nullptr) return;
  const bool refused = !flight.begun && flight.kind != ActionKind::unload && status != ActionStatus::stopped;
  if (refused) observer->on_start(flight.id, flight.device, devices.now_);
  observer->on_end(flight.id, flight.device, status, devices.now_);
}

void Devices::Desk::done(const device::Done& done) {
  devices.ended(static_cast<FlightIndex>(done.tag), done);
}

void Devices::ended(FlightIndex index, const device::Done& done) {
  Flight& flight = flights_[index];
  flight.status = done.status;
  flight.start = done.start;
  flight.end = done.end;
  flight.busy = done.busy;
  flight.where = Flight::Where::to_scheduler;
  if (!flight.profiles) {
    statistics_.figures.too_late += done.status == ActionStatus::too_late ? 1U : 0U;
    statistics_.figures.stopped += done.status == ActionStatus::stopped ? 1U : 0U;
  }
  switch (flight.kind) {
    case ActionKind::load:
      if (done.status == ActionStatus::success) statistics_.loaded(done.start);
      break;
    case ActionKind::unload:
      if (done.ran) ++statistics_.figures.unloads;
      break;
    case ActionKind::infer:
      if (flight.profiles) {
        statistics_.figures.profiling += done.busy;
      } else if (done.ran) {
        statistics_.occupied(flight.device, flight.model, flight.requests.size(), done.start, done.end,
                             done.busy);
        if (done.status == ActionStatus::success)
          statistics_.served(flight.model, flight.requests.size(), done.start);
      }
      break;
  }

  TimePoint heard = now_ + delay_;
  if (faulty_) {
    const Faults& f = options_.faults;
    if (f.lost_reports > 0 && random_.uniform() < f.lost_reports) {
      give_back(index);  // nobody hears of it
      return;
    }
    if (f.late_reports > 0 && random_.uniform() < f.late_reports) heard += from_ms(20 * random_.uniform());
    if (f.doubled_reports > 0 && random_.uniform() < f.doubled_reports) {
      owner_.plan(heard, ReportArrives{index, true});
      return;
    }
  }
  if (heard == now_ && !owner_.deciding())
    deliver(index, false);
  else
    owner_.plan(heard, ReportArrives{index, false});
}

// --- And back

void Devices::on(const ReportArrives& step, TimePoint now) {
  now_ = now;
  deliver(step.flight, step.doubled);
}

void Devices::deliver(FlightIndex index, bool again) {
  const Device& d = devices_[flights_[index].device.index()];
  if (flights_[index].life != d.life) return give_back(index);
  const Flight& flight = flights_[index];
  wire::Report report{.id = flight.id,
                      .status = flight.status,
                      .times = {},
                      .error = {},
                      .life = flight.life,
                      .device = flight.device};
  wire::ActionTimes& times = report.times;
  times.received = times.input_start = times.input_end = times.exec_start = flight.start + d.clock;
  times.exec_end = times.output_start = times.output_end = flight.end + d.clock;
  times.paused = flight.end - flight.start - flight.busy;
  owner_.reported(flight, report, again);
  give_back(index);
}

// --- What goes wrong

void Devices::on(const DeviceDies& step, TimePoint now) {
  Device& d = devices_[step.device];
  if (!d.alive) {
    if (step.length) stays_away(step.device, *step.length, now);
    return;
  }
  const std::uint32_t life = d.life;
  dies(step.device, step.length, now);
  owner_.died(DeviceId{step.device}, life);
}

void Devices::retire(DeviceId device, std::uint32_t life, TimePoint now) {
  const Device& d = devices_[device.index()];
  if (d.alive && d.life < life) dies(device.value, std::nullopt, now);
}

void Devices::dies(std::uint32_t index, std::optional<Duration> length, TimePoint now) {
  now_ = now;
  Duration away = length ? *length : from_seconds(0.001 + 2 * (faulty_ ? random_ : own_).uniform());
  if (const TimePoint hangs = hangs_until(index); hangs > now)
    away = hangs == TimePoint::max() ? Duration::max() : std::max(away, hangs - now);
  stays_away(index, away, now);
  power(index, false);
}

// From now on for so long at least.
void Devices::stays_away(std::uint32_t index, Duration length, TimePoint now) {
  Device& d = devices_[index];
  const TimePoint back = saturating_add(now, length);
  if (back <= d.back_at) return;
  d.back_at = back;
  if (back != TimePoint::max()) owner_.plan(back, DeviceReturns{index});
}

void Devices::on(const DeviceStalls& step, TimePoint now) {
  now_ = now;
  Device& d = devices_[step.device];
  if (!d.alive) return;
  std::vector<device::Executor> executors{device::first_stream, device::load_executor};
  for (int stream = 1; streams_ && stream < streams_->count(); ++stream)
    executors.push_back(static_cast<device::Executor>(device::first_stream + stream));
  for (const device::Executor executor : executors)
    if (!d.core->core().at_rest(executor))
      d.core->stall(executor, step.length ? *step.length : from_ms(200 * random_.uniform()));
}

void Devices::on(const DeviceSlowsDown& step, TimePoint now) {
  Device& d = devices_[step.device];
  if (!d.alive) return;
  d.slow = 1 + 3 * random_.uniform();
  d.slow_until = now + from_seconds(random_.uniform());
}

void Devices::on(const DeviceReturns& step, TimePoint now) {
  now_ = now;
  Device& d = devices_[step.device];
  if (now < d.back_at) return;  // it stays away for longer
  d.back_at = TimePoint::min();
  power(step.device, true);
  owner_.comes(DeviceId{step.device}, devices_[step.device].life);
}

void Devices::power(std::uint32_t index, bool alive) {
  Device& d = devices_[index];
  if (d.alive == alive) return;
  if (d.core != nullptr) {
    std::vector<device::VirtualDevice::Running> under_way;
    d.core->visit_running(now_, [&](const auto& running) { under_way.push_back(running); });
    std::ranges::sort(under_way, {}, [&](const auto& running) { return flights_[running.tag].id; });
    for (const device::VirtualDevice::Running& running : under_way) {
      const Flight& flight = flights_[running.tag];
      if (flight.kind != ActionKind::infer) continue;
      if (flight.profiles)
        statistics_.figures.profiling += running.busy;
      else
        statistics_.occupied(flight.device, flight.model, flight.requests.size(), running.start, now_,
                             running.busy);
    }
    for (FlightIndex flight = 0; flight < flights_.size(); ++flight) {
      if (flights_[flight].where != Flight::Where::on_device || flights_[flight].device.value != index)
        continue;
      give_back(flight);
    }
  }
  if (!alive) ++d.life;
  d.alive = alive;
  d.slow = 1;
  d.slow_until = TimePoint::min();
  d.core.reset();
  if (alive) {
    d.core = std::make_unique<device::VirtualDevice>(
        limits(pages_, streams_), d.clock, *d.desk,
        streams_ ? std::optional(options_.stop_latency) : std::nullopt);
    for (const schedule::ModelInfo& info : infos_) d.core->add_model(info.id, info.pages);
  }
  if (options_.observer != nullptr) options_.observer->on_device(DeviceId{index}, alive, d.clock, now_);
}

}  // namespace carillon::simulate
