#include "carillon/roles/agent.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "carillon/base/assert.h"
#include "carillon/graph/bounded.h"
#include "carillon/profile/rolling.h"
#include "carillon/roles/device_order.h"
#include "carillon/transport/codec.h"

namespace carillon::roles {

using ledger::ActionStatus;
using schedule::ActionKind;
namespace {

// How often threads of a device that has something to do are looked at, and for how long it must have had.
constexpr Duration slow_after = std::chrono::milliseconds{50};
// Runs of a kind that a leader is told of: as many as count for it (profile::RollingWindow).
constexpr std::size_t latest_runs = profile::RollingWindow::capacity;
// Of whatever a device is told to have left.
constexpr std::size_t most_left = transport::FrameLimits{}.rows;
// A batch's buffers begin on cache lines.
constexpr std::size_t alignment = 64;
// Of a device, actions whose outputs are on their way. Each keeps its rows' tensors here, so those beyond are
// reported only once they are delivered, and the leader orders no more meanwhile.
constexpr std::size_t most_deliveries = 16;

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

controller::RowSize row_of(const graph::TensorSpec& spec) {
  return {.bytes = graph::memory_of(spec.type, spec.shape_at(1, 1)).count, .varies = spec.varies()};
}

std::shared_ptr<explain::RowSpans> worked_row(const wire::RowTrace& trace, const std::string& model,
                                              const ledger::Infer& order, TimePoint now) {
  auto spans = std::make_shared<explain::RowSpans>();
  spans->of = trace;
  spans->name = "work";
  spans->remote = true;
  spans->model = model;
  spans->begin = now;
  spans->say("carillon.device", std::int64_t{order.device.value});
  spans->say("carillon.batch", std::int64_t{std::ssize(order.requests)});
  spans->say("carillon.predicted_us",
             std::int64_t{std::chrono::duration_cast<std::chrono::microseconds>(order.expected).count()});
  spans->begin_part("pull", now);
  return spans;
}

// Why other hosts cannot give a model rows; empty: they can.
std::string unfit(const wire::Model& model) {
  if (!model.apart.empty()) return model.apart;
  for (const auto* tensors : {&model.inputs, &model.outputs})
    for (const graph::TensorSpec& spec : *tensors) {
      if (spec.type == graph::DataType::string) return "tensor '" + spec.name + "' is of type BYTES";
      for (const std::int64_t extent : spec.shape)
        if (extent < 0 && extent != graph::batch_dimension && extent != graph::length_dimension)
          return "tensor '" + spec.name + "' has a dimension of any size";
    }
  return {};
}

}  // namespace

// --- A row

void PulledRow::take(std::int64_t length) {
  length_ = length;
  std::size_t total = alignment;
  for (const auto* tensors : {&shape_->inputs, &shape_->outputs})
    for (const controller::RowSize& tensor : *tensors) total += aligned(tensor.at(length));
  memory_ = std::make_unique_for_overwrite<std::byte[]>(total);
  const auto first = reinterpret_cast<std::uintptr_t>(memory_.get());
  std::byte* at = memory_.get() + (aligned(first) - first);
  inputs_.clear();
  outputs_.clear();
  for (const controller::RowSize& tensor : shape_->inputs) {
    inputs_.push_back(at);
    at += aligned(tensor.at(length));
  }
  for (const controller::RowSize& tensor : shape_->outputs) {
    outputs_.push_back(at);
    at += aligned(tensor.at(length));
  }
}

Result<std::vector<std::span<std::byte>>> PulledRow::make(std::int64_t length,
                                                          std::span<const std::uint64_t> bytes) {
  const auto& lengths = shape_->lengths;
  if (lengths.empty() ? length != 0 : length < 1 || length > lengths.back())
    return invalid(fmt::format(
        "a row of length {}; the model takes {}", length,
        lengths.empty() ? std::string("rows without one") : fmt::format("1 to {}", lengths.back())));
  if (bytes.size() != shape_->inputs.size())
    return invalid(fmt::format("a row of {} inputs; the model has {}", bytes.size(), shape_->inputs.size()));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (const std::size_t right = shape_->inputs[i].at(length); bytes[i] != right)
      return invalid(fmt::format("input {} of a row has {} bytes, not {}", i, bytes[i], right));
  take(length);
  std::vector<std::span<std::byte>> out;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    out.emplace_back(const_cast<std::byte*>(inputs_[i]), static_cast<std::size_t>(bytes[i]));
  return out;
}

void PulledRow::make_zeros() {
  take(shape_->lengths.empty() ? 0 : shape_->lengths.front());
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    std::memset(const_cast<std::byte*>(inputs_[i]), 0, shape_->inputs[i].at(length_));
}

std::vector<std::span<const std::byte>> PulledRow::outputs() const {
  std::vector<std::span<const std::byte>> out;
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    out.emplace_back(outputs_[i], shape_->outputs[i].at(length_));
  return out;
}

// --- Models and devices

void Agent::add_device(wire::DeviceLink& link) {
  CARILLON_ASSERT(!started_);
  devices_.push_back({.link = &link, .held = {}});
}

void Agent::add_model(wire::Model model) {
  CARILLON_ASSERT(model.info.id.index() == models_.size());
  auto shape = std::make_shared<PulledRow::Shape>();
  const std::string why = unfit(model);
  if (why.empty()) {
    for (const graph::TensorSpec& spec : model.inputs) shape->inputs.push_back(row_of(spec));
    for (const graph::TensorSpec& spec : model.outputs) shape->outputs.push_back(row_of(spec));
    shape->lengths = model.lengths;
  } else {
    out_.warn("model '" + model.info.name + "' is not served in a cluster: " + why);
  }
  models_.push_back({.model = std::move(model), .shape = std::move(shape), .gone = !why.empty()});
}

void Agent::start(TimePoint) {
  started_ = true;
  for (Device& device : devices_) device.alive = true;
}

void Agent::come(wire::Model model, TimePoint) {
  add_model(std::move(model));
  announce(models_.back());
}

void Agent::announce(const Model& model) {
  if (tells() && !model.gone) out_.send(transport::ModelComes{model.model});
}

void Agent::announce(DeviceId id, TimePoint now) {
  if (!tells()) return;
  const Device& device = devices_[id.index()];
  transport::DeviceState told{.device = id,
                              .pages = device.link->pages(),
                              .best_effort = device.link->best_effort(),
                              .credit = device.link->credit()};
  if (order_) told.order = device_order(*order_, devices_.size(), id);
  if (device.alive) told.left = left(device, id, now);
  if (told.left && told.left->held.size() > most_left) told.left.reset();
  out_.send(std::move(told));
}

transport::DeviceState::Left Agent::left(const Device& device, DeviceId id, TimePoint now) const {
  transport::DeviceState::Left left;
  std::set<ModelId> held = device.held;
  for (const auto& [number, action] : actions_) {
    if (action.device != id) continue;
    if (action.kind == ActionKind::load && action.sent && !action.stops) held.insert(action.model);
    if (action.kind == ActionKind::unload) held.erase(action.model);
  }
  for (const ModelId model : held)
    if (!models_[model.index()].gone) left.held.push_back(model);
  for (const auto& [kind, runs] : device.runs) {
    const auto& [model, cls, rows] = kind;
    for (const Run& run : runs)
      left.runs.push_back({.model = model,
                           .cls = cls,
                           .rows = rows,
                           .took = run.took,
                           .expected = run.expected,
                           .ago = std::max(Duration{0}, now - run.end)});
  }
  std::ranges::stable_sort(left.runs, std::greater{}, &transport::DeviceState::Run::ago);
  if (left.runs.size() > most_left)
    left.runs.erase(left.runs.begin(), left.runs.end() - static_cast<std::ptrdiff_t>(most_left));
  return left;
}

void Agent::change_times(ModelId id, std::vector<ledger::BatchProfile> batches, TimePoint) {
  Model& model = models_[id.index()];
  model.model.info.batches = batches;
  ++model.changes;
  forget_runs(id);  // these were of other plans
  if (tells() && !model.gone) out_.send(transport::ModelTimes{id, std::move(batches)});
}

void Agent::go(ModelId id, TimePoint now) {
  Model& model = models_[id.index()];
  if (!std::exchange(model.gone, true) && tells()) out_.send(transport::ModelGoes{id});
  forget_runs(id);
  unload_gone(now);
}

// A leader that still has the model elsewhere does not unload it here.
void Agent::unload_gone(TimePoint now) {
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    Device& device = devices_[i];
    if (!device.alive || stopped_) continue;
    for (const ModelId id : device.held) {
      if (!models_[id.index()].gone) continue;
      const bool used = std::ranges::any_of(actions_, [&](const auto& each) {
        return each.second.device == DeviceId{i} && each.second.model == id;
      });
      if (used || device.has.loads >= device.link->credit().loads) continue;
      const ActionId action{numbered_++};
      Action& unload = actions_[action];
      unload = {.device = DeviceId{i},
                .model = id,
                .kind = ActionKind::unload,
                .own = true,
                .theirs = {},
                .order = {},
                .rows = {},
                .report = {},
                .noted = {}};
      ++device.has.loads;
      hand_over(unload, ledger::Unload{.id = action, .device = DeviceId{i}, .model = id}, now);
    }
  }
}

std::size_t Agent::devices_alive() const {
  return static_cast<std::size_t>(std::ranges::count(devices_, true, &Device::alive)) +
         (started_ ? 0 : devices_.size());
}

bool Agent::on_devices(ModelId id) const {
  return std::ranges::any_of(devices_, [&](const Device& device) { return device.held.contains(id); }) ||
         std::ranges::any_of(actions_, [&](const auto& each) { return each.second.model == id; });
}

void Agent::offer(const Request&, bool, TimePoint) {
  CARILLON_ASSERT(false);  // a worker has no door
}

// --- The leader

void Agent::leads(TimePoint now) {
  leader_left(now);
  led_ = true;
  frontends_.clear();
  unreached_.clear();
  disown(now);
  for (Device& device : devices_) device.leaders.reset();
  announce_all(now);
}

void Agent::announce_all(TimePoint now) {
  if (draining_) return tell_drain();
  for (const Model& model : models_) announce(model);
  for (std::uint32_t i = 0; i < devices_.size(); ++i) announce(DeviceId{i}, now);
}

void Agent::on(transport::Drain& order, TimePoint now) {
  const bool before = std::exchange(draining_, !order.undo);
  if (!draining_ && !before) return;
  if (!draining_) out_.send(transport::Drain{.undo = true});
  announce_all(now);
}

void Agent::tell_drain() {
  if (led_) out_.send(transport::Drains{static_cast<std::uint32_t>(actions_.size())});
}

// Nothing that an earlier leader ordered begins from here on, and nobody hears of what has.
void Agent::disown(TimePoint now) {
  ordered_.clear();
  for (auto next = actions_.begin(); next != actions_.end();) {
    const ActionId id = next->first;
    Action& action = (next++)->second;
    if (std::exchange(action.own, true)) continue;
    ++counters_.stale;
    if (action.sent) {
      action.stops = devices_[action.device.index()].link->cancel(id);
    } else {
      drop_rows(action);
      end(id, now);
    }
  }
}

// What runs may still give a frontend its answer.
void Agent::leader_left(TimePoint) {
  led_ = false;
}

void Agent::heard(transport::Message message, TimePoint now) {
  if (stopped_ || !led_) return;
  std::visit([&](auto& what) { on(what, now); }, message);
}

Agent::Device* Agent::find(DeviceId id) {
  if (id.index() < devices_.size()) return &devices_[id.index()];
  ++counters_.strays;
  return nullptr;
}

// That the leader has taken or retired, and so may order.
Agent::Device* Agent::taken(DeviceId id) {
  Device* const device = find(id);
  if (device == nullptr || device->leaders) return device;
  ++counters_.strays;
  return nullptr;
}

void Agent::on(transport::FrontendAt& message, TimePoint) {
  constexpr std::size_t most = 4096;
  if (frontends_.size() >= most && !frontends_.contains(message.frontend)) {
    ++counters_.strays;
    return;
  }
  out_.connect(message.address, message.protocols);
  frontends_.insert_or_assign(message.frontend, std::move(message.address));
}

void Agent::on(transport::Retire& order, TimePoint now) {
  Device* const device = find(order.device);
  if (device == nullptr) return;
  if (!device->retired) retire(order.device, "the leader has it begin anew", now);
  device->leaders = order.life;
}

void Agent::on(transport::Adopt& order, TimePoint) {
  Device* const device = find(order.device);
  if (device == nullptr) return;
  device->leaders = order.life;
  // It was lost while this was on its way.
  if (device->retired)
    out_.send(wire::Report{.id = {},
                           .status = ActionStatus::failed,
                           .times = {},
                           .error = "the device was lost before the leader took it",
                           .device_lost = true,
                           .life = order.life,
                           .device = order.device});
}

void Agent::on(transport::Probe& order, TimePoint) {
  if (Device* const device = taken(order.device); device != nullptr && device->retired) probe(order.device);
}

// Ends the device's life, and all actions of it.
void Agent::retire(DeviceId id, std::string_view why, TimePoint now) {
  Device& device = devices_[id.index()];
  notes_.device_lost(id);
  device.alive = false;
  device.retired = true;
  device.held.clear();
  device.runs.clear();
  device.urgent = {};
  device.has = {.infers = 0, .loads = 0};
  device.busy_since = TimePoint::max();
  device.link->retire(++device.life);
  std::erase_if(actions_, [&](const auto& each) {
    const Action& action = each.second;
    if (action.device != id || action.delivers) return false;
    if (action.noted) {
      notes_.lost(*action.noted, now);
      noted_.give_back(*action.noted);
    }
    counters_.stale += action.own ? 0 : 1;
    if (!action.own) ordered_.erase(action.theirs);
    for (const Row& row : action.rows) {
      if (row.ticket == 0) continue;
      tickets_.erase(row.ticket);
      // What has run may be what its client waits for.
      if (!action.report) out_.cancel(row.ticket);
    }
    for (const Row& row : action.rows)
      if (row.spans) row.spans->failed = why;
    tell_traced(action, now);
    return true;
  });
  notes_.device_lost_over(id, why);
  if (draining_ && actions_.empty()) tell_drain();
}

void Agent::probe(DeviceId id) {
  Device& device = devices_[id.index()];
  if (device.probing) {
    device.probe_wanted = true;
    return;
  }
  device.probing = true;
  device.link->probe();
}

void Agent::on_probe(const wire::ProbeReport& report, TimePoint now) {
  Device& device = devices_[report.device.index()];
  device.probing = false;
  if (report.life != device.life) {
    if (std::exchange(device.probe_wanted, false)) probe(report.device);
    return;
  }
  device.probe_wanted = false;
  if (report.found) {
    if (!device.alive) notes_.device_back(report.device);
    device.alive = true;
    device.retired = false;
  }
  // A leader that has not spoken of the device yet lets it be probed itself.
  if (!tells() || !device.leaders) return;
  if (report.found) announce(report.device, now);
  wire::ProbeReport told = report;
  told.life = *device.leaders;
  out_.send(std::move(told));
}

// --- Orders

void Agent::fail_order(ActionId id, DeviceId device, ActionStatus status, std::string why, TimePoint now) {
  const wire::ActionTimes at{.received = now,
                             .input_start = now,
                             .input_end = now,
                             .exec_start = now,
                             .exec_end = now,
                             .output_start = now,
                             .output_end = now};
  out_.send(wire::Report{.id = id,
                         .status = status,
                         .times = at,
                         .error = std::move(why),
                         .life = *devices_[device.index()].leaders,
                         .device = device});
}

std::optional<ActionId> Agent::take(ActionId theirs, DeviceId device, ModelId model, ActionKind kind,
                                    TimePoint now) {
  Device* const on = taken(device);
  if (on == nullptr) return std::nullopt;
  if (ordered_.contains(theirs)) {
    ++counters_.strays;
    return std::nullopt;
  }
  const auto no = [&](ActionStatus status, std::string why) {
    fail_order(theirs, device, status, std::move(why), now);
    return std::nullopt;
  };
  if (!on->alive) return no(ActionStatus::failed, "the device is not there");
  // What is held of a model that goes is unloaded all the same.
  const bool gone =
      model.index() >= models_.size() ||
      (models_[model.index()].gone && !(kind == ActionKind::unload && on->held.contains(model)));
  if (gone && kind == ActionKind::unload) return no(ActionStatus::success, {});
  if (gone)
    return no(kind == ActionKind::infer ? ActionStatus::not_loaded : ActionStatus::failed,
              "this worker does not have the model");
  // The leader was wrong, and knows better now.
  const auto leaves = [&](const auto& each) {
    const Action& action = each.second;
    return action.kind == ActionKind::unload && action.device == device && action.model == model;
  };
  if (kind == ActionKind::load && on->held.contains(model) && std::ranges::none_of(actions_, leaves))
    return no(ActionStatus::success, {});
  const wire::Credit credit = on->link->credit();
  if (on->has.infers + on->has.loads == 0) on->busy_since = now;
  std::size_t& has = count(on->has, kind);
  if (has >= (kind == ActionKind::infer ? credit.infers : credit.loads))
    return no(ActionStatus::too_late, {});
  ++has;
  const ActionId id{numbered_++};
  ordered_.emplace(theirs, id);
  actions_[id] = {.device = device,
                  .model = model,
                  .kind = kind,
                  .changes = models_[model.index()].changes,
                  .theirs = theirs,
                  .order = {},
                  .rows = {},
                  .report = {},
                  .noted = {}};
  return id;
}

// A LOAD or an UNLOAD.
template <typename Order>
void Agent::pass(Order& order, ActionKind kind, TimePoint now) {
  const auto id = take(order.id, order.device, order.model, kind, now);
  if (!id) return;
  order.id = *id;
  hand_over(actions_.at(*id), order, now);
}

template <typename Order>
void Agent::hand_over(Action& action, const Order& order, TimePoint now) {
  action.sent = true;
  action.noted = noted_.take();
  dispatch::Notes::Action& noted = noted_[*action.noted];
  // What notes may ask for: the rest is a leader's.
  noted = {.id = order.id,
           .kind = action.kind,
           .lane = action.kind == ActionKind::infer ? ledger::lane_of(action.order.cls) : ledger::Lane::load,
           .cls = action.order.cls,
           .device = order.device,
           .model = order.model,
           .run = {},
           .requests = action.order.requests,
           .wanted = static_cast<std::uint32_t>(action.order.requests.size()),
           .profiled = {},
           .window = {TimePoint::min(), TimePoint::max()},
           .order = now,
           .sent = now};
  if constexpr (requires { order.window; }) {
    noted.window = order.window;
    noted.expected = order.expected;
  }
  notes_.begun(*action.noted, noted);
  if (action.kind != ActionKind::unload) notes_.complete(*action.noted);
  devices_[order.device.index()].link->send(order);
  if (action.kind != ActionKind::unload) notes_.taken(*action.noted, noted_[*action.noted]);
}

void Agent::on(ledger::Load& order, TimePoint now) {
  pass(order, ActionKind::load, now);
}

void Agent::on(ledger::Unload& order, TimePoint now) {
  pass(order, ActionKind::unload, now);
}

void Agent::on(transport::Profile& order, TimePoint now) {
  if (taken(order.order.device) != nullptr)
    fail_order(order.order.id, order.order.device, ActionStatus::failed, "no row is kept in a cluster", now);
}

void Agent::on(transport::Infer& order, TimePoint now) {
  const ledger::Infer& infer = order.order;
  const auto no = [&](std::string why) {
    if (taken(infer.device) != nullptr)
      fail_order(infer.id, infer.device, ActionStatus::failed, std::move(why), now);
  };
  if (order.rows.empty() || order.rows.size() > static_cast<std::size_t>(worker::max_batch) ||
      order.rows.size() != infer.requests.size())
    return no(fmt::format("a batch of {} rows, 1 to {}", order.rows.size(), worker::max_batch));
  for (const transport::RowReference& row : order.rows)
    if (!frontends_.contains(row.frontend))
      return no(fmt::format("nobody told where frontend {} is", row.frontend));
  const auto id = take(infer.id, infer.device, infer.model, ActionKind::infer, now);
  if (!id) return;
  Action& action = actions_.at(*id);
  action.order = infer;
  action.order.id = *id;
  // For the device a row is its place: numbers are its frontend's own.
  for (std::size_t i = 0; i < order.rows.size(); ++i) action.order.requests[i] = RequestId{i};
  action.waits = order.rows.size();
  action.rows.reserve(order.rows.size());
  for (const transport::RowReference& reference : order.rows) {
    Row row{.address = frontends_[reference.frontend],
            .key = reference.key,
            .pulled = std::make_shared<PulledRow>(models_[infer.model.index()].shape)};
    if (reference.trace)
      row.spans = worked_row(*reference.trace, models_[infer.model.index()].model.info.name, infer, now);
    row.ticket = out_.pull(row.address, row.key, infer.window.latest, row.pulled);
    tickets_.emplace(row.ticket, std::pair(*id, action.rows.size()));
    action.rows.push_back(std::move(row));
  }
}

void Agent::pulled(std::uint64_t ticket, const Result<>& result, TimePoint now) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end() || stopped_) return;
  const auto [id, place] = found->second;
  tickets_.erase(found);
  Action& action = actions_.at(id);
  Row& row = action.rows[place];
  row.ticket = 0;
  if (!result) {
    // The others run. For the scheduler the row ran, too: either its client has gone, or its frontend offers
    // it again.
    const bool gone = result.error().code == ErrorCode::not_found;
    ++(gone ? counters_.rows_gone : counters_.unreached);
    if (!gone) action.unreached = !unreached_.insert(row.address).second || action.unreached;
    if (result.error().code == ErrorCode::invalid_argument) warn_of_pull(result.error().message, now);
    row.wanted = false;
    row.pulled->make_zeros();
  } else if (!unreached_.empty()) {
    unreached_.erase(row.address);
  }
  if (row.spans && result) row.spans->begin_part("window", now);
  if (row.spans && !result) {
    if (result.error().code == ErrorCode::not_found)
      row.spans->say("carillon.outcome", "gone");
    else
      row.spans->failed = result.error().message;
  }
  if (--action.waits == 0) ready(id, action, now);
}

// The leader may order the rows again at once, for as long as they wait.
void Agent::warn_of_pull(const std::string& why, TimePoint now) {
  if (saturating_add(pull_warned_, warn_every) > now) {
    ++pulls_unsaid_;
    return;
  }
  pull_warned_ = now;
  const std::uint64_t unsaid = std::exchange(pulls_unsaid_, 0);
  out_.warn(unsaid == 0
                ? why
                : why + "; " + std::to_string(unsaid) + " more pulls have failed since this was last said");
}

void Agent::ready(ActionId id, Action& action, TimePoint now) {
  if (std::ranges::none_of(action.rows, &Row::wanted)) {
    if (action.unreached) {
      held_back_.emplace(saturating_add(now, unreached_pause), id);
      return;
    }
    fail_order(action.theirs, action.device, ActionStatus::stopped, {}, now);
    return end(id, now);
  }
  sending_ = &action;
  hand_over(action, action.order, now);
  sending_ = nullptr;
}

worker::RowBuffers Agent::buffers(RequestId place) const {
  CARILLON_ASSERT(sending_ != nullptr && place.value < sending_->rows.size());
  return sending_->rows[place.value].pulled->buffers(TimePoint::max());
}

void Agent::on(ledger::Stop& order, TimePoint now) {
  if (const auto found = running(order.id, now)) found->second->stop(found->first);
}

void Agent::on(ledger::Preempt& order, TimePoint now) {
  if (const auto found = running(order.id, now)) found->second->preempt(found->first, order.order);
}

// Where that is to end early: its number there, and the way to its device. None: the device does not have it
// any more, or does not have it yet, and now will not.
std::optional<std::pair<ActionId, wire::DeviceLink*>> Agent::running(ActionId theirs, TimePoint now) {
  const auto found = ordered_.find(theirs);
  if (found == ordered_.end()) return std::nullopt;
  const ActionId id = found->second;
  Action& action = actions_.at(id);
  if (action.sent) return std::pair(id, devices_[action.device.index()].link);
  drop_rows(action);
  fail_order(theirs, action.device, ActionStatus::stopped, {}, now);
  end(id, now);
  return std::nullopt;
}

// That are still on their way.
void Agent::drop_rows(Action& action) {
  for (Row& row : action.rows)
    if (row.ticket != 0) {
      tickets_.erase(row.ticket);
      out_.cancel(std::exchange(row.ticket, 0));
    }
}

void Agent::on_report(const wire::Report& report, TimePoint now) {
  Device& device = devices_[report.device.index()];
  if (report.life != device.life) return;  // of a life that was over
  if (report.device_lost) {
    retire(report.device, report.error, now);
    if (!led_) return probe(report.device);
    if (!device.leaders) return;  // the leader hears of it once it takes the device
    wire::Report told = report;
    told.life = *device.leaders;
    out_.send(std::move(told));
    return;
  }
  const auto found = actions_.find(report.id);
  if (found == actions_.end() || found->second.report) {
    ++counters_.strays;
    return notes_.odd_report(report.device);
  }
  Action& action = found->second;
  if (const auto place = std::exchange(action.noted, std::nullopt)) {
    notes_.ended(*place, noted_[*place], report, device.held.contains(action.model), now);
    noted_.give_back(*place);
  }
  const bool success = report.status == ActionStatus::success;
  if (success && action.kind == ActionKind::load) device.held.insert(action.model);
  if (success && action.kind == ActionKind::unload) device.held.erase(action.model);
  if (action.kind == ActionKind::infer) learn(device, action, report, now);
  trace_run(action, report, now);
  action.report = report;
  action.report->id = action.theirs;
  action.report->life = device.leaders.value_or(0);  // of an own one nobody hears
  action.waits = 0;
  if (success)
    for (std::size_t i = 0; i < action.rows.size(); ++i) {
      Row& row = action.rows[i];
      const bool bad = std::ranges::count(report.bad_rows, static_cast<int>(i), &wire::BadRow::row) > 0;
      if (!row.wanted || bad) continue;
      row.ticket = out_.push(row.address, row.key, row.pulled, *action.report);
      tickets_.emplace(row.ticket, std::pair(report.id, i));
      if (row.spans) row.spans->begin_part("push", now);
      ++action.waits;
    }
  if (action.waits == 0) {
    tell(action);
    end(report.id, now);
  } else if (device.delivers < most_deliveries) {
    ++device.delivers;
    action.delivers = action.report->delivers = true;
    tell(action);
    give_back(device, action.kind);
  }
  unload_gone(now);
}

// Keeps what the run took, for the next leader. The present leader learns it from the report. Times by
// another number of threads, or by other plans, say nothing of those to come.
void Agent::learn(Device& device, const Action& action, const wire::Report& report, TimePoint now) {
  const Class cls = action.order.cls;
  const bool success = report.status == ActionStatus::success;
  if (cls == Class::real_time &&
      (success || report.status == ActionStatus::failed || report.status == ActionStatus::stopped))
    device.urgent.add(report.times.ran(), now);
  if (!success) return;
  const int threads = report.times.threads;
  if (threads > 0 && std::exchange(device.threads, threads) != threads) device.runs.clear();
  const Model& model = models_[action.model.index()];
  if (report.odd_time || model.gone || action.changes != model.changes) return;
  Duration took = report.times.ran();
  if (cls == Class::normal) took = ledger::BusyShare::stretched(took, device.urgent.at(now));
  auto& runs = device.runs[Kind{action.model, cls, action.order.requests.size()}];
  runs.push_back({took, action.order.expected, report.times.exec_end});
  if (runs.size() > latest_runs) runs.pop_front();
}

// What the device did for rows of sampled requests.
void Agent::trace_run(const Action& action, const wire::Report& report, TimePoint now) {
  const wire::ActionTimes& times = report.times;
  const bool ran = times.exec_end > times.exec_start;
  for (const Row& row : action.rows) {
    if (!row.spans) continue;
    row.spans->end_part(ran ? times.exec_start : now);
    row.spans->add_part("input", times.input_start, times.input_end);
    row.spans->add_part("exec", times.exec_start, times.exec_end);
    row.spans->add_part("output", times.output_start, times.output_end);
    if (report.status != ActionStatus::success) row.spans->failed = name_of(report.status);
  }
}

// As the action ends.
void Agent::tell_traced(const Action& action, TimePoint now) {
  for (const Row& row : action.rows) {
    if (!row.spans) continue;
    row.spans->finish(now);
    out_.traced(row.spans);
  }
}

void Agent::forget_runs(ModelId model) {
  for (Device& device : devices_)
    std::erase_if(device.runs, [&](const auto& each) { return std::get<ModelId>(each.first) == model; });
}

void Agent::pushed(std::uint64_t ticket, const Result<bool>& taken, TimePoint now) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  const auto [id, place] = found->second;
  tickets_.erase(found);
  if (!taken)
    ++counters_.unreached;
  else if (!*taken)
    ++counters_.unwanted;
  Action& action = actions_.at(id);
  action.rows[place].ticket = 0;
  if (const auto& spans = action.rows[place].spans) {
    spans->end_part(now, taken ? std::string_view() : std::string_view(taken.error().message));
    if (taken && !*taken) spans->say("carillon.outcome", "unwanted");
    spans->finish(now);
  }
  if (taken && *taken) action.taken = now;
  if (--action.waits > 0) return;
  if (action.delivers)
    delivered(action);
  else
    tell(action);
  end(id, now);
  unload_gone(now);
}

void Agent::tell(const Action& action) {
  if (led_ && !action.own) out_.send(*action.report);
}

void Agent::delivered(const Action& action) {
  --devices_[action.device.index()].delivers;
  Duration took{0};
  if (action.taken != TimePoint::min())
    took = std::max(Duration{1}, action.taken - action.report->times.exec_end);
  if (led_ && !action.own) out_.send(transport::Delivered{action.theirs, took});
}

// The device has room for another.
void Agent::give_back(Device& device, ActionKind kind) {
  --count(device.has, kind);
  if (device.has.infers + device.has.loads == 0) device.busy_since = TimePoint::max();
}

void Agent::end(ActionId id, TimePoint now) {
  const auto found = actions_.find(id);
  const Action& action = found->second;
  tell_traced(action, now);
  if (!action.delivers) give_back(devices_[action.device.index()], action.kind);
  if (!action.own) ordered_.erase(action.theirs);
  actions_.erase(found);
  if (draining_ && actions_.empty()) tell_drain();
}

// --- Slowness

TimePoint Agent::slow_at() const {
  TimePoint at = TimePoint::max();
  for (const Device& device : devices_)
    if (device.alive && device.busy_since != TimePoint::max())
      at = std::min(
          at, std::max(saturating_add(device.busy_since, slow_after), saturating_add(looked_, slow_after)));
  return at;
}

TimePoint Agent::wake_at() const {
  if (stopped_) return TimePoint::max();
  return held_back_.empty() ? slow_at() : std::min(slow_at(), held_back_.begin()->first);
}

// Of batches whose frontends were not reached.
void Agent::tell_held_back(TimePoint now) {
  while (!held_back_.empty() && held_back_.begin()->first <= now) {
    const ActionId id = held_back_.extract(held_back_.begin()).value().second;
    const auto action = actions_.find(id);
    if (action == actions_.end()) continue;  // it was stopped, or lost
    fail_order(action->second.theirs, action->second.device, ActionStatus::stopped, {}, now);
    end(id, now);
  }
}

// Of devices that have had something to do for long, and may look to the leader as if they hang.
void Agent::wake(TimePoint now) {
  if (stopped_) return;
  tell_held_back(now);
  if (slow_at() > now) return;
  looked_ = now;
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    const Device& device = devices_[i];
    if (!device.alive || saturating_add(device.busy_since, slow_after) > now) continue;
    for (std::size_t lane = 0; lane < schedule::lanes; ++lane) {
      ledger::Excuse excuse = device.link->slowness(static_cast<ledger::Lane>(lane));
      excuse.device = DeviceId{i};
      if (led_ && (excuse.starved > Duration{0} || excuse.moved)) out_.send(excuse);
    }
  }
}

void Agent::stop() {
  stopped_ = true;
}

}  // namespace carillon::roles
