#include "carillon/roles/leader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <variant>

#include "carillon/base/assert.h"
#include "carillon/explain/terms.h"
#include "carillon/roles/elsewhere.h"
#include "carillon/schedule/parts/tries.h"
#include "carillon/transport/codec.h"

namespace carillon::roles {

using transport::Message;
using transport::Role;

namespace {

constexpr Duration longest = std::chrono::hours{1};  // that anything takes which a peer tells of

// How often it is looked what is to be loaded elsewhere before a worker drains.
constexpr Duration looks_elsewhere = std::chrono::milliseconds{20};
// Models that a text names.
constexpr std::size_t most_named = 8;

// Without groups all devices may run all models, as far as their workers have them.
constexpr std::uint32_t only_group = 0;

bool sound(const std::vector<ledger::BatchProfile>& batches) {
  if (batches.empty() || batches.front().batch != 1) return false;
  for (std::size_t i = 0; i < batches.size(); ++i)
    if (batches[i].exec <= Duration{0} || batches[i].exec > longest ||
        (i > 0 && batches[i].batch <= batches[i - 1].batch))
      return false;
  return true;
}

bool sound(const wire::Model& model) {
  const ledger::ModelInfo& info = model.info;
  const auto fits = [](Duration d) { return Duration{0} < d && d <= longest; };
  return !info.name.empty() && sound(info.batches) && info.load >= Duration{0} && info.load <= longest &&
         info.cls <= Class::best_effort && std::ranges::all_of(info.solos, fits) &&
         (!info.cost || (info.cost->c0 >= Duration{0} && info.cost->c0 <= longest &&
                         std::isfinite(info.cost->c1) && info.cost->c1 > 0 && info.cost->c1 <= 1e6));
}

// The scheduler counts in parts of pages: beside whole pages there is room for a part of each model.
constexpr std::uint64_t page_parts = 1U << 17, most_pages = 1ULL << 40;

std::string named(const wire::Model& model) {
  return "model '" + model.info.name + "' version " + std::to_string(model.version);
}

std::shared_ptr<explain::RowSpans> scheduled_row(const wire::RowTrace& trace, const wire::Model& model,
                                                 TimePoint now) {
  auto spans = std::make_shared<explain::RowSpans>();
  spans->of = trace;
  spans->name = "schedule";
  spans->remote = true;
  spans->model = model.info.name;
  spans->begin = now;
  spans->begin_part("queue", now);
  return spans;
}

std::string sizes_of(const wire::Model& model) {
  std::string out;
  for (const auto& batch : model.info.batches) out += (out.empty() ? "" : ", ") + std::to_string(batch.batch);
  return out;
}

// What a scheduler may learn from: an end that is not to come, and a time that passed.
void make_sound(wire::Report& report, TimePoint now) {
  wire::ActionTimes& times = report.times;
  const TimePoint oldest = saturating_add(now, -longest), latest = saturating_add(now, longest);
  const bool odd = times.exec_start < oldest || times.exec_start > times.exec_end ||
                   times.exec_end > latest || times.paused < Duration{0} ||
                   times.paused > times.exec_end - times.exec_start;
  if (odd) {
    times = {now, now, now, now, now, now, now};
    report.odd_time = true;
  } else if (times.exec_end > now) {  // by the other clock
    times.exec_start -= times.exec_end - now;
    times.exec_end = now;
  }
  times.threads = std::clamp(times.threads, 0, 4096);
  if (report.status != ledger::ActionStatus::success) report.bad_rows.clear();
}

TimePoint hangs_at(const Request& row, TimePoint reported, Duration grace) {
  return saturating_add(std::max(row.deadline, reported), grace);
}

template <typename What, typename... Kinds>
constexpr bool one_of = (std::is_same_v<What, Kinds> || ...);
template <typename What>
constexpr bool of_frontends = one_of<What, transport::Application, transport::Offer, transport::Withdraw,
                                     transport::RowsAt, transport::Drains, transport::ModelOrder>;
template <typename What>
constexpr bool of_workers =
    one_of<What, transport::ModelComes, transport::ModelGoes, transport::ModelTimes, transport::DeviceState,
           wire::Report, transport::Delivered, wire::ProbeReport, ledger::Excuse, transport::Drain,
           transport::Drains, transport::ModelOrdered>;
// A worker that drains has said the others before it heard of that.
template <typename What>
constexpr bool of_drained = one_of<What, wire::Report, transport::Delivered, transport::Drain,
                                   transport::Drains, transport::ModelOrdered>;

}  // namespace

// The way to a device of a worker that may not be there.
class Leader::Link final : public wire::DeviceLink {
 public:
  Link(Leader& leader, DeviceId ours) : leader_(leader), ours_(ours) {}

  void send(const ledger::Load& order) override {
    if (!weightless(order)) translate(order, true);
  }
  void send(const ledger::Unload& order) override {
    if (!weightless(order)) translate(order, false);
  }
  void send(const ledger::Infer& order) override {
    transport::Infer out{.order = order, .rows = {}};
    for (const RequestId id : order.requests) {
      const Row* const row = leader_.row(id);
      if (row == nullptr) return leader_.answer(ours_, order.id, "a row of it is gone");
      out.rows.push_back(reference(*row));
    }
    pass(out.order, true, [&] { return Message{std::move(out)}; });
  }
  void send(const ledger::Profile& order) override {
    const Row* const row = leader_.row(order.request);
    if (row == nullptr) return leader_.answer(ours_, order.id, "its row is gone");
    transport::Profile out{.order = order, .row = reference(*row)};
    pass(out.order, true, [&] { return Message{std::move(out)}; });
  }
  void stop(ActionId id) override { say(ledger::Stop{id, theirs_}); }
  void preempt(ActionId id, TimePoint order) override { say(ledger::Preempt{id, theirs_, order}); }
  void retire(std::uint32_t life) override { say(transport::Retire{theirs_, life}); }
  void probe() override { say(transport::Probe{theirs_}); }
  ledger::Excuse slowness(ledger::Lane lane) override {
    ledger::Excuse& told = excuses_[static_cast<std::size_t>(lane)];
    return std::exchange(told, {.device = {}, .lane = lane});
  }
  // A worker that has gone takes nothing, also while its devices are lost one by one.
  wire::Credit credit() const override {
    return peer_ ? state_.credit : wire::Credit{.infers = 0, .loads = 0};
  }
  std::uint64_t pages() const override {
    return std::min(state_.pages, most_pages) * page_parts + page_parts - 1;
  }
  int best_effort() const override { return state_.best_effort; }
  std::vector<ModelId> held() const override { return held_; }

  // Whose device has this number. Once.
  void belong(std::string worker, DeviceId theirs) {
    worker_ = std::move(worker);
    theirs_ = theirs;
  }
  bool belongs() const { return !worker_.empty(); }
  void attach(std::optional<PeerId> peer) { peer_ = peer; }
  // As the device comes, and no longer.
  void bring(std::vector<ModelId> held) { held_ = std::move(held); }
  void tell(const transport::DeviceState& state) {
    state_ = {.device = state.device, .pages = state.pages, .credit = state.credit};
    state_.best_effort = std::clamp(state.best_effort, 1, 64);
  }
  void tell(const ledger::Excuse& excuse) {
    ledger::Excuse& told = excuses_[static_cast<std::size_t>(excuse.lane)];
    told.lane = excuse.lane;
    told.starved = std::min(longest, told.starved + std::clamp(excuse.starved, Duration{0}, longest));
    told.moved = told.moved || excuse.moved;
  }
  std::optional<PeerId> peer() const { return peer_; }
  const std::string& worker() const { return worker_; }
  DeviceId theirs() const { return theirs_; }

 private:
  static transport::RowReference reference(const Row& row) {
    transport::RowReference out{row.theirs, row.number, row.key};
    if (row.spans) out.trace = row.spans->of;
    return out;
  }
  void say(Message message) {
    if (peer_) leader_.post(*peer_, std::move(message));
  }
  // A worker that has a model without weights has nothing to load: the order is carried out.
  template <typename Order>
  bool weightless(const Order& order) {
    if (leader_.models_[order.model.index()].told.info.pages > 0) return false;
    const auto peer = peer_ ? leader_.peers_.find(*peer_) : leader_.peers_.end();
    if (peer == leader_.peers_.end() || leader_.serving(peer->second, order.model) == nullptr) return false;
    leader_.answer(ours_, order.id, {}, ledger::ActionStatus::success);
    return true;
  }
  template <typename Order>
  void translate(Order order, bool serves) {
    pass(order, serves, [&] { return Message{order}; });
  }
  // In the worker's numbers. `serves`: only while the worker serves the model.
  template <typename Order, typename Make>
  void pass(Order& order, bool serves, Make&& make) {
    const auto peer = peer_ ? leader_.peers_.find(*peer_) : leader_.peers_.end();
    if (peer == leader_.peers_.end()) return;  // the device is lost next
    const auto number = peer->second.numbers.find(order.model);
    // The scheduler then loads the model elsewhere.
    constexpr auto lacks = requires {
      order.requests;
    }
    ? ledger::ActionStatus::not_loaded : ledger::ActionStatus::failed;
    if (number == peer->second.numbers.end() || (serves && peer->second.models.at(number->second).goes))
      return leader_.answer(
          ours_, order.id,
          "worker " + worker_ + " does not have " + named(leader_.models_[order.model.index()].told), lacks);
    order.device = theirs_;
    order.model = ModelId{number->second};
    say(make());
  }

  Leader& leader_;
  const DeviceId ours_;
  DeviceId theirs_;
  std::string worker_;  // empty: the number is kept for a device that may come
  std::optional<PeerId> peer_;
  transport::DeviceState state_;
  std::vector<ModelId> held_;
  std::array<ledger::Excuse, ledger::lanes> excuses_{};
};

Leader::Leader(std::unique_ptr<schedule::Scheduler> scheduler, LeaderOptions options, Out& out)
    : options_(std::move(options)),
      out_(out),
      scheduler_(std::make_unique<schedule::AskedAhead>(std::move(scheduler))),
      dispatch_(*scheduler_, options_.dispatch, *this, *this),
      demand_(options_.wanted_before, options_.demand) {}

Leader::~Leader() = default;

void Leader::start(TimePoint now) {
  CARILLON_ASSERT(!started_);
  started_ = true;
  now_ = now;
  dispatch_.start(now);
}

void Leader::divide(const schedule::GroupsOfModels& division, TimePoint now) {
  CARILLON_ASSERT(started_ && options_.subclusters != nullptr);
  now_ = now;
  options_.subclusters->change(division, now);
  dispatch_.nudge(now);
  settle(now);
}

std::uint32_t Leader::group(DeviceId device) const {
  return options_.subclusters != nullptr ? options_.subclusters->division().group(device) : only_group;
}

// Of a model that came.
std::uint32_t Leader::group(ModelId model) const {
  return options_.subclusters != nullptr ? options_.subclusters->group(model) : only_group;
}

// --- Who is there

void Leader::joined(PeerId id, const transport::Hello& hello, TimePoint now) {
  CARILLON_ASSERT(started_);
  now_ = now;
  if (peers_.contains(id) || hello.role == Role::scheduler) {
    ++strays_.peers;
    return;
  }
  const std::pair key{hello.role, hello.id};
  if (const auto before = present_.find(key); before != present_.end()) {
    const PeerId earlier = before->second;
    leave(earlier, "it has come anew", now);
    out_.end(earlier, "another process has the id '" + hello.id + "', or this one has a new stream");
  }
  if (!goes_with_others(id, hello, now)) return settle(now);
  if (dispatch_.devices_alive() == 0) await_all(now);  // it may be one of the first that are back
  present_[key] = id;
  Peer& peer = peers_[id];
  peer.hello = hello;
  post(id, transport::Leads{});
  if (hello.role == Role::frontend) {
    peer.number = numbered_++;
    give_credit(id, peer);
    if (wait_until_ == TimePoint::min()) {
      tell_of_models([&](Message message) { post(id, std::move(message)); });
      post(id, counted_);
    }
  } else {
    for (const auto& [other, each] : peers_)
      if (!each.address.empty())
        post(id, transport::FrontendAt{each.number, each.address, each.hello.protocols});
    ModelOrders::Outbox orders;
    model_orders_.joined(id, hello, now, orders);
    post(std::move(orders));
  }
  settle(now);
}

// Rows of a frontend go straight to workers. So a worker that shares no protocol with a frontend could pull
// none of its rows, and would be given them again and again. Such a worker is not taken. Nor is a frontend
// that shares none with more than half of the workers: it is the frontend that is too old or too new.
bool Leader::goes_with_others(PeerId id, const transport::Hello& hello, TimePoint now) {
  const bool works = hello.role == Role::worker;
  const auto name = [](const transport::Hello& of) {
    return std::string(of.role == Role::worker ? "worker '" : "frontend '") + of.id + "'";
  };
  std::vector<std::pair<PeerId, std::string>> apart;
  std::size_t others = 0;
  for (const auto& [other, peer] : peers_) {
    if (peer.hello.role == hello.role) continue;
    ++others;
    const auto& worker = works ? hello : peer.hello;
    const auto& frontend = works ? peer.hello : hello;
    const std::string frontends = name(frontend), workers = name(worker);
    if (auto settled = cluster::settle({frontends, frontend.protocols}, {workers, worker.protocols});
        !settled)
      apart.emplace_back(other, std::move(settled.error().message));
  }
  const auto refuse = [&](PeerId who, const transport::Hello& its, const std::string& why) {
    const std::string told = why + ". Until then " + name(its) +
                             (its.role == Role::worker ? " gets no work" : " serves no request");
    if (std::exchange(apart_[its.id], told) != told) out_.warn(told);
    out_.end(who, told);
  };
  if (apart.empty()) {
    apart_.erase(hello.id);
    return true;
  }
  if (works || 2 * apart.size() > others) {
    refuse(id, hello, apart.front().second);
    return false;
  }
  for (const auto& [other, why] : apart) {
    const transport::Hello its = peers_.at(other).hello;
    leave(other, why, now);
    refuse(other, its, why);
  }
  return true;
}

void Leader::left(PeerId peer, std::string_view why, TimePoint now) {
  now_ = now;
  leave(peer, why, now);
  settle(now);
}

void Leader::leave(PeerId id, std::string_view why, TimePoint now) {
  auto gone = peers_.extract(id);
  if (gone.empty()) {
    ++strays_.peers;
    return;
  }
  Peer& peer = gone.mapped();
  present_.erase({peer.hello.role, peer.hello.id});
  std::erase_if(outbox_, [&](const auto& message) { return message.first == id; });
  for (auto& [other, each] : peers_) each.last.reset();
  drains_version_ += peer.drains || peer.drains_by ? 1 : 0;
  ModelOrders::Outbox orders;
  model_orders_.left(id, now, orders);
  post(std::move(orders));
  if (peer.hello.role == Role::frontend) return leave_frontend(id, now);
  leave_worker(peer, why, now);
  place_weightless(now);
}

void Leader::leave_frontend(PeerId id, TimePoint) {
  for (std::uint32_t place = 0; place < rows_.size(); ++place) {
    Row& row = rows_[place];
    if (!row.used || row.frontend != id) continue;
    if (row.open)
      withdraw(row);
    else if (row.kept)
      free(row);
  }
}

void Leader::leave_worker(Peer& peer, std::string_view why, TimePoint now) {
  const std::string went = "its worker " + peer.hello.id + " has gone: " + std::string(why);
  if (peer.drains) {
    land_all(peer);
  } else {
    for (const auto& [number, device] : peer.devices) links_[device.index()]->attach({});
    // A stream may break before the worker has told of all its models again: those of before are kept.
    forget_gone(now);
    Gone& gone = gone_[peer.hello.id];
    gone.at = now;
    gone.until = saturating_add(now, options_.worker_return);
    for (const auto& [ours, number] : peer.numbers)
      if (!peer.models.at(number).goes && std::ranges::count(gone.models, ours) == 0)
        gone.models.push_back(ours);
    lose_devices(peer, went, now);
  }
  std::vector<RequestId> rows;
  for (const auto& [action, delivery] : peer.deliveries)
    rows.insert(rows.end(), delivery.rows.begin(), delivery.rows.end());
  offer_anew(rows, went, now);
}

// And its models.
void Leader::lose_devices(Peer& peer, const std::string& why, TimePoint now) {
  for (const auto& [number, device] : peer.devices) links_[device.index()]->attach({});
  for (const auto& [number, device] : peer.devices)
    if (dispatch_.device_alive(device))
      dispatch_.on_report({.id = {},
                           .status = ledger::ActionStatus::failed,
                           .times = {},
                           .error = why,
                           .device_lost = true,
                           .life = dispatch_.life(device),
                           .device = device},
                          now);
  for (auto& [number, model] : peer.models)
    if (!model.goes) let_go(model, false, now);
}

// --- What they say

void Leader::heard(PeerId peer, Message message, TimePoint now) {
  std::vector<Message> messages;
  messages.push_back(std::move(message));
  heard(peer, std::move(messages), now);
}

void Leader::heard(PeerId from, std::vector<Message> messages, TimePoint now) {
  now_ = now;
  const auto found = peers_.find(from);
  if (found == peers_.end()) {
    strays_.peers += messages.size();
    return;
  }
  Peer& peer = found->second;
  for (Message& message : messages)
    std::visit(
        [&](auto& what) {
          using What = std::decay_t<decltype(what)>;
          if constexpr (of_frontends<What>) {
            if (peer.hello.role == Role::frontend) return on(from, peer, what, now);
          }
          if constexpr (of_workers<What>) {
            if (peer.hello.role == Role::worker && (of_drained<What> || !peer.drains))
              return on(from, peer, what, now);
          }
          ++strays_.peers;
        },
        message);
  if (peer.taken > 0) give_credit(from, peer);
  settle(now);
}

void Leader::give_credit(PeerId id, Peer& peer) {
  const std::size_t most = std::max(options_.least_offers, options_.offers_under_way / frontends());
  post(id, transport::OfferCredit{std::exchange(peer.taken, 0), static_cast<std::uint32_t>(most)});
}

void Leader::on(PeerId, Peer& peer, transport::Application& what, TimePoint now) {
  constexpr std::size_t orders_of_magnitude = 64;
  if (const auto& alike = what.alike) {
    const Model* const model =
        alike->model.index() < models_.size() ? &models_[alike->model.index()] : nullptr;
    if (model == nullptr || alike->length >= std::max({orders_of_magnitude, model->told.info.solos.size(),
                                                       model->told.lengths.size()})) {
      ++strays_.models;
      return;
    }
  }
  const bool known = peer.apps.contains(what.app.value);
  if (what.app == AppId{} || (!known && peer.apps.size() >= options_.max_frontend_apps)) {
    ++strays_.beyond;
    return;
  }
  AppId app{};
  if (apps_ < options_.max_applications)
    app = dispatch_.application(what.name, what.alike, now);
  else
    ++strays_.beyond;
  apps_ = std::max(apps_, app.value);
  peer.apps[what.app.value] = app;
}

void Leader::on(PeerId from, Peer& peer, transport::Offer& what, TimePoint now) {
  ++peer.taken;
  Request request = what.row;
  if (peer.rows.find(request.id.value)) {
    ++strays_.rows;
    return;
  }
  if (request.model.index() >= models_.size() || !models_[request.model.index()].served)
    return refuse(from, request.id, ledger::Reason::no_model);
  const auto app = peer.apps.find(request.app.value);
  if ((request.app != AppId{} && app == peer.apps.end()) || request.cls > Class::best_effort ||
      peer.address.empty()) {
    ++strays_.rows;
    return refuse(from, request.id, ledger::Reason::no_device);
  }
  if (rows_.used() >= options_.max_open) {
    ++strays_.beyond;
    demand_.ended(group(request.model), request.model.index(), true);
    return refuse(from, request.id, ledger::Reason::no_device);
  }
  request.id = RequestId{offered_++};
  request.app = app == peer.apps.end() ? AppId{} : app->second;
  request.arrival = std::clamp(request.arrival, saturating_add(now, -longest), now);
  request.deadline = std::max(request.deadline, request.arrival);
  const std::uint32_t place = rows_.take();
  rows_[place] = {.request = request,
                  .first = request.id,
                  .frontend = from,
                  .number = peer.number,
                  .theirs = what.row.id,
                  .key = what.key,
                  .used = true,
                  .open = true};
  if (what.trace) rows_[place].spans = scheduled_row(*what.trace, models_[request.model.index()].told, now);
  by_id_.insert(request.id.value, place);
  peer.rows.insert(what.row.id.value, place);
  // Devices of other workers would fail to load it.
  if (models_[request.model.index()].holders == 0 && dispatch_.devices_alive() > 0) {
    wire::Verdict nobody{.refusal = {request.id, ledger::Reason::no_device, TimePoint::max()},
                         .prospect = {}};
    return refused(nobody, now);
  }
  all_owed_ = all_owed_ || what.more;
  dispatch_.offer(request, what.more, now);
}

void Leader::on(PeerId, Peer& peer, transport::Withdraw& what, TimePoint now) {
  // A withdrawal may cross the row's end.
  const auto place = peer.rows.find(what.row.value);
  if (!place) return;
  // Before the deadline its client has gone; after it the frontend has given the row up.
  if (Row& gone = rows_[*place]; gone.request.deadline <= now) count(gone, true);
  withdraw(rows_[*place]);
}

void Leader::on(PeerId, Peer& peer, transport::RowsAt& what, TimePoint) {
  if (what.address.empty()) {
    ++strays_.rows;
    return;
  }
  peer.address = what.address;
  post_all(Role::worker, transport::FrontendAt{peer.number, peer.address, peer.hello.protocols});
}

// --- Rows

Leader::Row* Leader::row(RequestId id) {
  const auto place = by_id_.find(id.value);
  return place ? &rows_[*place] : nullptr;
}

// The frontend is told nothing of it any more.
void Leader::close(Row& row) {
  if (!std::exchange(row.open, false)) return;
  if (row.spans) {
    row.spans->finish(now_);
    out_.traced(std::exchange(row.spans, nullptr));
  }
  if (const auto peer = peers_.find(row.frontend); peer != peers_.end())
    peer->second.rows.erase(row.theirs.value);
}

// The scheduler has the row again, after an order of which nothing came.
void Leader::queue_anew(Row* row, std::string_view why) {
  if (row == nullptr || !row->spans) return;
  row->spans->end_part(now_, why);
  row->spans->begin_part("queue", now_);
}

void Leader::free(Row& row) {
  close(row);
  if (row.verdict && row.waits_until) held_.erase({*row.waits_until, row.request.id});
  row.used = row.kept = row.delivers = false;
  row.verdict.reset();
  rows_.give_back(*by_id_.take(row.request.id.value));
}

// Until the scheduler has heard of it, the row may still be sent.
void Leader::withdraw(Row& row) {
  if (row.spans && row.spans->failed.empty()) row.spans->say("carillon.outcome", "withdrawn");
  if (row.verdict || row.delivers) return free(row);  // the scheduler has forgotten it
  close(row);
  row.kept = false;
  dispatch_.withdraw(row.request.id, row.request.model);
  withdrawn_.push_back(row.request.id);
}

void Leader::refuse(PeerId to, RequestId row, ledger::Reason reason) {
  wire::Verdict verdict{.refusal = {row, reason, TimePoint::max()}, .prospect = {}};
  verdict.prospect.devices = static_cast<std::uint32_t>(dispatch_.devices_alive());
  post(to, std::move(verdict));
}

std::uint64_t Leader::begun(std::uint32_t, const Action& action) {
  sending_ = action.device;
  return 0;
}

std::uint64_t Leader::sent(RequestId id, ModelId, std::uint64_t) {
  Row* const sent = row(id);
  if (sent != nullptr) {
    sent->worker_went.reset();
    if (sent->spans) {
      sent->spans->begin_part("order", now_);
      sent->spans->say("carillon.worker", links_[sending_.index()]->worker());
      sent->spans->say("carillon.device", std::int64_t{sending_.value});
    }
  }
  post_row(sent, transport::Sent{.rows = {}, .device = sending_},
           [&](const transport::Sent& last) { return last.device == sending_; });
  return 0;
}

void Leader::came_back(RequestId id) {
  Row* const back = row(id);
  queue_anew(back, "the device had no room");
  post_row(back, transport::CameBack{}, [](const auto&) { return true; });
}

void Leader::ended(RequestId id, const wire::Report& report, TimePoint now) {
  Row* const ended = row(id);
  const bool delivers = report.delivers && report.status == ledger::ActionStatus::success;
  if (!delivers || ended == nullptr || !ended->open) return end(ended, report, now);
  Delivery& delivery = peers_.at(*links_[report.device.index()]->peer()).deliveries[report.id];
  delivery.report = report;
  delivery.at = now;
  delivery.cls = dispatch_.ledger().action(report.id)->cls;
  delivery.rows.push_back(id);
  ended->delivers = true;
  if (ended->spans) ended->spans->begin_part("deliver", now);
  hung_at_ = std::min(hung_at_, hangs_at(ended->request, now, options_.delivery_grace));
}

// The frontend has had its outputs since `at`, if the row ran.
void Leader::end(Row* ended, const wire::Report& report, TimePoint at) {
  transport::Ended message{.rows = {}, .report = report};
  message.report.bad_rows.clear();  // their rows are turned down
  post_row(ended, std::move(message),
           [&](const transport::Ended& last) { return last.report.id == report.id; });
  // A row that was withdrawn is freed once the scheduler has heard of that.
  if (ended == nullptr || !ended->open) return;
  if (report.status != ledger::ActionStatus::success) return queue_anew(ended, name_of(report.status));
  count(*ended, at > ended->request.deadline);
  close(*ended);
  if (!ended->kept) free(*ended);
}

void Leader::on(PeerId, Peer& peer, transport::Delivered& what, TimePoint now) {
  if (auto landed = peer.landing.extract(what.action); !landed.empty()) land(landed.mapped().second);
  const auto delivery = peer.deliveries.extract(what.action);
  if (delivery.empty()) return;  // nobody waits for it any more
  const Delivery& done = delivery.mapped();
  // A device that has begun anew since is measured anew.
  const DeviceId device = done.report.device;
  if (what.took > Duration{0} && done.report.life == dispatch_.life(device) && dispatch_.device_alive(device))
    dispatch_.delivered(device, done.cls, std::min(what.took, longest), now);
  const TimePoint had =
      what.took > Duration{0} ? std::min(now, saturating_add(done.report.times.exec_end, what.took)) : now;
  for (const RequestId id : done.rows) end(row(id), done.report, had);
}

// The way from the worker to the frontend may be cut, and all others stand.
void Leader::end_hung(TimePoint now) {
  if (now < hung_at_) return;
  hung_at_ = TimePoint::max();
  std::vector<RequestId> hung;
  for (const auto& [peer, each] : peers_)
    for (const auto& [action, delivery] : each.deliveries)
      for (const RequestId id : delivery.rows) {
        const Row* const its = row(id);
        if (its == nullptr || !its->delivers) continue;
        const TimePoint at = hangs_at(its->request, delivery.at, options_.delivery_grace);
        if (at <= now)
          hung.push_back(id);
        else
          hung_at_ = std::min(hung_at_, at);
      }
  offer_anew(hung, "its outputs have not come to its frontend", now);
}

// They ran, and perhaps had no outputs. The scheduler counts no tries of before.
void Leader::offer_anew(const std::vector<RequestId>& rows, std::string_view why, TimePoint now) {
  bool offered = false;
  for (const RequestId id : rows) {
    Row* const again = row(id);
    if (again == nullptr || !again->open) continue;
    worker_went_ = true;
    lost(id, why);
    if (again->losses >= schedule::parts::most_lost) {
      wire::Verdict verdict{.refusal = {id, ledger::Reason::device_failed, TimePoint::max()}, .prospect = {}};
      verdict.prospect.devices = static_cast<std::uint32_t>(dispatch_.devices_alive());
      refused(verdict, now);
      continue;
    }
    offered = true;
    offer_again(*again, true, now);
  }
  if (offered) dispatch_.all_arrived(now);
}

// A row that the scheduler has forgotten. It is another one to it.
void Leader::offer_again(Row& row, bool more, TimePoint now) {
  const std::uint32_t place = *by_id_.take(row.request.id.value);
  row.request.id = RequestId{offered_++};
  ++reoffered_;
  by_id_.insert(row.request.id.value, place);
  row.delivers = row.kept = false;
  row.verdict.reset();
  dispatch_.offer(row.request, more, now);
}

void Leader::turned_down(RequestId id, const Error& error) {
  Row* const down = row(id);
  if (down == nullptr || !down->open) return;
  if (down->spans) down->spans->failed = error.message;
  post(down->frontend, transport::TurnedDown{down->theirs, error});
  withdraw(*down);
}

void Leader::device_lost(DeviceId device) {
  const Link& link = *links_[device.index()];
  worker_went_ = !link.peer().has_value() || unheard_.contains(link.worker());
}

void Leader::lost(RequestId id, std::string_view why) {
  if (Row* const gone = row(id)) {
    ++gone->losses;
    gone->worker_went = worker_went_;
    queue_anew(gone, why);
  }
  post_row(row(id), transport::Lost{.rows = {}, .why = std::string(why)},
           [&](const transport::Lost& last) { return last.why == why; });
}

// Whether a device is there for it.
bool Leader::can_run(ModelId model) {
  return std::ranges::any_of(peers_, [&](auto& each) {
    return serving(each.second, model) != nullptr &&
           std::ranges::any_of(each.second.devices, [&](const auto& device) {
             return links_[device.second.index()]->peer().has_value() &&
                    dispatch_.device_alive(device.second) && group(device.second) == group(model);
           });
  });
}

// min(): no worker that had the model may come back.
TimePoint Leader::return_until(ModelId model) const {
  TimePoint until = TimePoint::min();
  for (const auto& [id, gone] : gone_)
    if (std::ranges::count(gone.models, model) > 0) until = std::max(until, gone.until);
  return until;
}

void Leader::forget_returned() {
  for (const DeviceView& device : devices())
    if (device.alive && links_[device.id.index()]->peer().has_value()) gone_.erase(device.worker);
}

// Workers that have gone for good, each perhaps with an id of its own.
void Leader::forget_gone(TimePoint now) {
  std::erase_if(
      gone_, [&](const auto& each) { return saturating_add(each.second.at, options_.model_grace) <= now; });
}

void Leader::await_all(TimePoint now) {
  forget_returned();
  forget_gone(now);
  for (auto& [id, gone] : gone_)
    if (gone.until <= now) gone.until = saturating_add(now, options_.worker_return);
}

// The scheduler has forgotten them. Where a device is back, they are offered to it once more.
void Leader::offer_held(TimePoint now) {
  forget_returned();
  const auto end = may_run_ ? held_.end() : held_.upper_bound({now, RequestId{~std::uint64_t{0}}});
  std::map<ModelId, bool> can;
  bool offered = false;
  for (const auto& each : std::vector(held_.begin(), end)) {
    const auto& [until, id] = each;
    Row& held = *row(id);
    const ModelId model = held.request.model;
    const bool runs = can.try_emplace(model, can_run(model)).first->second;
    if (!runs && until > now) continue;
    held_.erase(each);
    if (runs) {
      offered = true;
      offer_again(held, true, now);
    } else {
      const wire::Verdict verdict = *std::exchange(held.verdict, std::nullopt);
      refused(verdict, now);
    }
  }
  if (offered) dispatch_.all_arrived(now);
}

void Leader::refused(const wire::Verdict& verdict, TimePoint) {
  Row* const over = row(verdict.refusal.request);
  if (over == nullptr || !over->open) return;
  wire::Verdict told = verdict;
  // A worker that went says nothing against the row: its client may come again. A row that was lost too often
  // may itself end workers. The scheduler may not know: the row is another one to it each time.
  const bool ends_workers = over->losses >= schedule::parts::most_lost;
  if (ends_workers) {
    told.refusal.reason = ledger::Reason::device_failed;
  } else if (told.refusal.reason == ledger::Reason::device_failed &&
             (over->worker_went.value_or(worker_went_) ||
              (over->losses == 0 && !can_run(over->request.model)))) {
    const bool somewhere = can_run(over->request.model), timed = over->request.deadline != TimePoint::max();
    told.refusal.reason = somewhere && timed ? ledger::Reason::deadline_passed : ledger::Reason::no_device;
    if (!somewhere) told.prospect.devices = 0;
  }
  if (over->landing > 0) {
    over->verdict = told;
    return;
  }
  if (told.refusal.reason == ledger::Reason::no_device && !can_run(over->request.model)) {
    const TimePoint until = return_until(over->request.model);
    if (!over->waits_until && until > now_) over->waits_until = until;
    if (until > now_ && *over->waits_until > now_) {
      over->verdict = told;
      held_.emplace(*over->waits_until, over->request.id);
      return;
    }
  }
  count(*over, true);
  if (over->spans) over->spans->failed = explain::name_of(explain::cause_of(told.refusal.reason));
  told.refusal.request = over->theirs;
  post(over->frontend, std::move(told));
  free(*over);
}

void Leader::keep(RequestId id) {
  Row* const kept = row(id);
  if (kept == nullptr || !kept->open) return;
  kept->kept = true;
  post_row(kept, transport::Keep{}, [](const auto&) { return true; });
}

void Leader::forget(RequestId id) {
  Row* const kept = row(id);
  if (kept == nullptr || !std::exchange(kept->kept, false)) return;
  const bool open = std::exchange(kept->open, true);  // the frontend keeps it also once it has ended
  post_row(kept, transport::Forget{}, [](const auto&) { return true; });
  kept->open = open;
  if (!open) free(*kept);
}

// --- Models

void Leader::on(PeerId, Peer& peer, transport::ModelComes& what, TimePoint now) {
  wire::Model& model = what.model;
  const std::uint32_t number = model.info.id.value;
  if (!sound(model)) {
    ++strays_.models;
    return out_.warn("worker " + peer.hello.id + ": " + named(model) +
                     " is not used, as what it tells of times or batch sizes is not possible");
  }
  model.info.sizes.clear();
  model.info.weights_of.reset();
  if (const auto found = peer.models.find(number); found != peer.models.end()) {
    const wire::Model& told = found->second.told;
    if (!found->second.goes && told.info.name == model.info.name && told.version == model.version &&
        told.hash == model.hash && same_sizes(told.info.batches, model.info.batches)) {
      ++strays_.models;
      return;
    }
    if (!found->second.goes) let_go(found->second, true, now);
    std::erase_if(peer.numbers, [&](const auto& each) { return each.second == number; });
    peer.models.erase(number);
  } else if (peer.models.size() >= options_.max_models) {
    ++strays_.beyond;
    return;
  }
  peer.models[number].told = std::move(model);
  take_up(peer, number, now);
}

// A worker's model is served with those of others, if it is the same.
void Leader::take_up(Peer& peer, std::uint32_t number, TimePoint now) {
  WorkerModel& mine = peer.models.at(number);
  const ModelKey key{mine.told.info.name, mine.told.version};
  const auto same = [&](const wire::Model& other) {
    return other.hash == mine.told.hash && same_sizes(other.info.batches, mine.told.info.batches);
  };
  auto found = served_.find(key);
  if (found != served_.end() && models_[found->second.index()].holders == 0 &&
      !same(models_[found->second.index()].told)) {
    end_model(found->second, now);  // which may have taken up this one
    if (mine.ours) return;
    found = served_.find(key);
  }
  ModelId id{static_cast<std::uint32_t>(models_.size())};
  if (found != served_.end()) {
    id = found->second;
    const wire::Model& other = models_[id.index()].told;
    if (!same(other))
      return out_.warn("worker " + peer.hello.id + ": " + named(mine.told) + " is not used: " +
                       (other.hash != mine.told.hash
                            ? "its file or config has the hash " + std::to_string(mine.told.hash) +
                                  ", and must have " + std::to_string(other.hash) + " as on other workers"
                            : "its batch sizes are " + sizes_of(mine.told) + ", and must be " +
                                  sizes_of(other) + " as on other workers"));
    if (serving(peer, id) != nullptr) {  // by another number
      ++strays_.models;
      return out_.warn("worker " + peer.hello.id + ": " + named(mine.told) +
                       " is told twice, and must be told once");
    }
  } else if (models_.size() >= options_.max_models) {
    ++strays_.beyond;
    return out_.warn("worker " + peer.hello.id + ": " + named(mine.told) + " is not used: " +
                     std::to_string(options_.max_models) + " models came, the most that may come");
  } else {
    served_.emplace(key, id);
    Model& model = models_.emplace_back(Model{.told = mine.told, .served = true});
    model.told.info.id = id;
    if (model.told.info.pages == 0) weightless_.insert(id);
    tell_frontends(transport::ModelComes{model.told});
    dispatch_.come(counted(model), now);
  }
  may_run_ = true;
  mine.ours = id;
  peer.numbers[id] = number;
  Model& model = models_[id.index()];
  ++model.holders;
  graces_.erase({std::exchange(model.ends, TimePoint::max()), id});
  going_away_.erase({std::exchange(model.away_at, TimePoint::max()), id});
  if (std::exchange(model.away, false)) tell_frontends(transport::ModelComes{model.told});
  place_weightless(now);
}

// As the scheduler is told. A model without weights needs no LOAD, unless LOADs are to tell who has it.
ledger::ModelInfo Leader::counted(const Model& model) {
  ledger::ModelInfo info = model.told.info;
  const std::uint64_t parts = model.everywhere ? 0 : 1;
  info.pages = info.pages == 0 ? parts : std::min(info.pages, most_pages) * page_parts;
  return info;
}

// To be called before a device comes whose worker may lack such a model.
void Leader::place_weightless(TimePoint now) {
  for (const ModelId id : weightless_) {
    Model& model = models_[id.index()];
    const bool everywhere = std::ranges::all_of(peers_, [&](auto& each) {
      Peer& peer = each.second;
      return peer.devices.empty() || peer.drains || serving(peer, id) != nullptr;
    });
    if (std::exchange(model.everywhere, everywhere) != everywhere) dispatch_.renew(counted(model), now);
  }
}

void Leader::on(PeerId, Peer& peer, transport::ModelGoes& what, TimePoint now) {
  const auto found = peer.models.find(what.model.value);
  if (found == peer.models.end() || found->second.goes) {
    ++strays_.models;
    return;
  }
  // Its number stays, as devices may be told to unload it.
  found->second.goes = true;
  let_go(found->second, true, now);
  if (!found->second.ours) peer.models.erase(found);
  place_weightless(now);
}

void Leader::let_go(WorkerModel& model, bool at_once, TimePoint now) {
  if (!model.ours) return;
  Model& ours = models_[model.ours->index()];
  if (--ours.holders > 0) return;
  if (at_once) return end_model(*model.ours, now);
  ours.ends = saturating_add(now, options_.model_grace);
  graces_.emplace(ours.ends, *model.ours);
  ours.away_at = saturating_add(now, options_.worker_return);
  going_away_.emplace(ours.away_at, *model.ours);
}

void Leader::tell_of_models(const auto& say) {
  for (const auto& [name, id] : served_) {
    say(transport::ModelComes{models_[id.index()].told});
    if (models_[id.index()].away) say(transport::ModelGoes{id, true});
  }
}

void Leader::end_model(ModelId id, TimePoint now) {
  Model& model = models_[id.index()];
  const ModelKey key{model.told.info.name, model.told.version};
  model.served = false;
  graces_.erase({std::exchange(model.ends, TimePoint::max()), id});
  going_away_.erase({std::exchange(model.away_at, TimePoint::max()), id});
  served_.erase(key);
  weightless_.erase(id);
  // Those that differed from it. Frontends hear of the next first, so that it takes the place of this one.
  for (auto& [other, peer] : peers_)
    for (auto& [number, mine] : peer.models)
      if (!peer.drains && !mine.ours && !mine.goes && mine.told.info.name == key.first &&
          mine.told.version == key.second)
        take_up(peer, number, now);
  tell_frontends(transport::ModelGoes{id});
  dispatch_.go(id, now);
}

Leader::WorkerModel* Leader::serving(Peer& peer, ModelId ours) {
  const auto number = peer.numbers.find(ours);
  if (number == peer.numbers.end()) return nullptr;
  WorkerModel& model = peer.models.at(number->second);
  return model.goes ? nullptr : &model;
}

void Leader::on(PeerId, Peer& peer, transport::ModelTimes& what, TimePoint now) {
  const auto found = peer.models.find(what.model.value);
  if (found == peer.models.end() || found->second.goes || !sound(what.batches) ||
      !same_sizes(found->second.told.info.batches, what.batches)) {
    ++strays_.models;
    return;
  }
  found->second.told.info.batches = std::move(what.batches);
  if (found->second.ours) change_times(*found->second.ours, now);
}

// To the slowest worker's, by size.
void Leader::change_times(ModelId id, TimePoint now) {
  std::vector<ledger::BatchProfile> slowest;
  for (auto& [other, peer] : peers_) {
    const WorkerModel* const mine = serving(peer, id);
    if (mine == nullptr) continue;
    const auto& batches = mine->told.info.batches;
    if (slowest.empty()) slowest = batches;
    for (std::size_t i = 0; i < batches.size(); ++i)
      slowest[i].exec = std::max(slowest[i].exec, batches[i].exec);
  }
  auto& told = models_[id.index()].told.info.batches;
  if (told == slowest) return;
  told = slowest;
  tell_frontends(transport::ModelTimes{id, slowest});
  dispatch_.change_times(id, std::move(slowest), now);
}

void Leader::on(PeerId from, Peer&, transport::ModelOrder& what, TimePoint now) {
  // Workers are about to come.
  if (wait_until_ != TimePoint::min() && early_orders_.size() < ModelOrders::most_under_way) {
    early_orders_.emplace_back(from, std::move(what));
    return;
  }
  ModelOrders::Outbox out;
  model_orders_.ask(from, what, now, out);
  post(std::move(out));
}

void Leader::on(PeerId from, Peer& peer, transport::ModelOrdered& what, TimePoint now) {
  ModelOrders::Outbox out;
  if (const std::string* const model = model_orders_.unloads(what.order); model != nullptr && !what.result) {
    // A worker that takes no orders says so of any model.
    const auto serves = [&](const auto& each) {
      return !each.second.goes && each.second.told.info.name == *model;
    };
    if (std::ranges::none_of(peer.models, serves))
      what.result = carillon::fail(ErrorCode::not_found, "it does not serve '" + *model + "'");
  }
  if (!model_orders_.answered(from, what, now, out))
    ++strays_.models;
  else if (!what.result)
    out_.warn("worker " + peer.hello.id + ": " + what.result.error().message);
  post(std::move(out));
}

// --- Devices

std::optional<DeviceId> Leader::device_of(const Peer& peer, DeviceId theirs) {
  const auto found = peer.devices.find(theirs.value);
  if (found != peer.devices.end()) return found->second;
  ++strays_.devices;
  return std::nullopt;
}

// Policies give work to the devices with the lowest numbers. So a device has its place in the order as its
// number, in whatever order workers come, and under each leader. Lower numbers are kept for devices that may
// come. A device without a place, or whose place another device has, comes after all others.
DeviceId Leader::number_for(std::optional<std::uint32_t> order) {
  const std::size_t end = links_.size();
  const bool ordered = order && *order < options_.max_order && (*order >= end || !links_[*order]->belongs());
  const std::size_t place = ordered ? *order : end;
  while (links_.size() <= place) {
    links_.push_back(std::make_unique<Link>(*this, DeviceId{static_cast<std::uint32_t>(links_.size())}));
    dispatch_.add_device(*links_.back(), false);
  }
  return DeviceId{static_cast<std::uint32_t>(place)};
}

void Leader::on(PeerId from, Peer& peer, transport::DeviceState& what, TimePoint now) {
  may_run_ = true;
  const std::pair key{peer.hello.id, what.device.value};
  auto known = known_.find(key);
  if (known == known_.end()) {
    if (known_.size() >= options_.max_devices) {
      ++strays_.beyond;
      return;
    }
    const DeviceId id = number_for(what.order);
    links_[id.index()]->belong(peer.hello.id, what.device);
    known = known_.emplace(key, id).first;
  }
  Link& link = *links_[known->second.index()];
  link.tell(what);
  if (!peer.devices.emplace(what.device.value, known->second).second) return;
  place_weightless(now);
  link.attach(from);
  const DeviceId device = known->second;
  auto held = this->held(peer, what);
  if (!held) {
    link.retire(dispatch_.life(device));
    link.probe();
    return;
  }
  post(from, transport::Adopt{what.device, dispatch_.life(device)});
  link.bring(*std::move(held));
  dispatch_.on_probe({.found = {}, .life = dispatch_.life(device), .device = device}, now);
  link.bring({});
  recall(peer, device, *what.left, now);
}

// In our numbers, what the device has of an earlier leader's time. None: it is to begin anew, as something of
// it is nothing that we know or count alike.
std::optional<std::vector<ModelId>> Leader::held(const Peer& peer, const transport::DeviceState& what) const {
  if (!what.left) return std::nullopt;
  std::vector<ModelId> out;
  std::uint64_t room = what.pages;
  for (const ModelId theirs : what.left->held) {
    const auto model = peer.models.find(theirs.value);
    if (model == peer.models.end() || !model->second.ours || model->second.goes) return std::nullopt;
    const std::uint64_t pages = models_[model->second.ours->index()].told.info.pages;
    if (pages == 0) continue;
    if (pages > room || std::ranges::count(out, *model->second.ours) > 0) return std::nullopt;
    room -= pages;
    out.push_back(*model->second.ours);
  }
  return out;
}

// What the device's runs took teaches as if it had been reported to us.
void Leader::recall(const Peer& peer, DeviceId device, const transport::DeviceState::Left& left,
                    TimePoint now) {
  TimePoint last = TimePoint::min();
  for (const transport::DeviceState::Run& run : left.runs) {
    const auto model = peer.models.find(run.model.value);
    const TimePoint end = saturating_add(now, -run.ago);
    const auto possible = [](Duration d) { return Duration{0} <= d && d <= longest; };
    if (model == peer.models.end() || !model->second.ours || run.cls > Class::best_effort ||
        !possible(run.took) || !possible(run.expected) || !possible(run.ago) || end < last) {
      ++strays_.reports;
      continue;
    }
    last = end;
    dispatch_.recall(device, {.model = *model->second.ours,
                              .cls = run.cls,
                              .rows = run.rows,
                              .took = run.took,
                              .expected = run.expected,
                              .end = end});
  }
}

void Leader::on(PeerId, Peer& peer, wire::Report& what, TimePoint now) {
  if (peer.drains) {
    if (const auto lost = what.device_lost ? device_of(peer, what.device) : std::nullopt)
      return land_all(peer, lost);
    if (what.delivers && peer.landing.contains(what.id)) return;
    if (auto ended = peer.landing.extract(what.id); !ended.empty())
      land(ended.mapped().second);
    else
      ++strays_.reports;
    return;
  }
  const auto device = device_of(peer, what.device);
  if (!device) return;
  if (what.life != dispatch_.life(*device) || what.status > ledger::ActionStatus::stopped ||
      !dispatch_.device_alive(*device)) {
    ++strays_.reports;
    return;
  }
  what.device = *device;
  make_sound(what, now);
  const ledger::Ledger::Action* const order = dispatch_.ledger().action(what.id);
  if (order != nullptr && order->device == *device && order->kind == schedule::ActionKind::infer) {
    const bool teaches = what.status == ledger::ActionStatus::success && !what.odd_time;
    demand_.ran(group(*device), order->model.index(), teaches ? order->requests.size() : 0, what.times.ran());
    if (teaches) dispatch_.arrived(*device, order->cls, what.times.received - order->sent, now);
  }
  dispatch_.on_report(what, now);
}

void Leader::on(PeerId, Peer& peer, wire::ProbeReport& what, TimePoint now) {
  const auto device = device_of(peer, what.device);
  if (!device) return;
  if (what.life != dispatch_.life(*device) || dispatch_.device_alive(*device)) {
    ++strays_.devices;
    return;
  }
  may_run_ = true;
  what.device = *device;
  dispatch_.on_probe(what, now);
}

void Leader::on(PeerId, Peer& peer, ledger::Excuse& what, TimePoint) {
  const auto device = device_of(peer, what.device);
  if (!device) return;
  if (static_cast<std::size_t>(what.lane) >= ledger::lanes) {
    ++strays_.devices;
    return;
  }
  links_[device->index()]->tell(what);
}

// The device is to hear nothing of it, and whoever ordered it hears of that in the next step.
void Leader::answer(DeviceId device, ActionId action, std::string why, ledger::ActionStatus status) {
  wire::Report report{.id = action,
                      .status = status,
                      .times = {now_, now_, now_, now_, now_, now_, now_},
                      .error = std::move(why),
                      .life = dispatch_.life(device),
                      .device = device};
  failed_.push_back(std::move(report));
}

// --- Draining

// Whether the others can do all that this worker does.
Result<> Leader::can_drain(const Peer& peer) const {
  // A worker that drains next is no more counted on.
  std::string draining;
  for (const auto& [id, other] : peers_)
    if (&other != &peer && other.hello.role == Role::worker && (other.drains || other.drains_by))
      draining += (draining.empty() ? " (" : ", ") + other.hello.id + " drains";
  if (!draining.empty()) draining += ")";
  const auto serves = [&](const auto& each) {
    if (!dispatch_.device_alive(each.second) || each.first.first == peer.hello.id) return false;
    const auto other = present_.find({Role::worker, each.first.first});
    return other == present_.end() || !peers_.at(other->second).drains_by;
  };
  if (std::ranges::none_of(known_, serves))
    return carillon::fail(ErrorCode::unavailable,
                          "no other worker has a device" + draining + ": " + peer.hello.id + " cannot drain");
  const auto elsewhere = [&](ModelId ours) {
    return std::ranges::any_of(peers_, [&](const auto& each) {
      const Peer& other = each.second;
      return &other != &peer && !other.drains && !other.drains_by && other.numbers.contains(ours) &&
             std::ranges::any_of(other.devices, [&](const auto& device) {
               return dispatch_.device_alive(device.second) && group(device.second) == group(ours);
             });
    });
  };
  const auto of_other_groups = [&](ModelId ours) {
    return !peer.devices.empty() && std::ranges::none_of(peer.devices, [&](const auto& device) {
      return group(device.second) == group(ours);
    });
  };
  const std::string no_other =
      options_.subclusters != nullptr ? "no other worker of the same group" : "no other worker";
  for (const auto& [number, model] : peer.models)
    if (model.ours && !model.goes && !of_other_groups(*model.ours) && !elsewhere(*model.ours))
      return carillon::fail(ErrorCode::unavailable, no_other + " has " + named(model.told) + draining + ": " +
                                                        peer.hello.id + " cannot drain");
  return {};
}

std::string Leader::names_of(const std::vector<ModelId>& models) const {
  std::string out;
  for (std::size_t i = 0; i < std::min(models.size(), most_named); ++i)
    out += (i > 0 ? ", " : "") + models_[models[i].index()].told.info.name;
  if (models.size() > most_named) out += " and " + std::to_string(models.size() - most_named) + " more";
  return out;
}

// Workers that are to drain do so once what they alone have is elsewhere, as far as there is room.
void Leader::load_elsewhere(TimePoint now) {
  look_elsewhere_ = TimePoint::max();
  std::set<DeviceId> leaving;
  for (const auto& [id, peer] : peers_)
    if (peer.drains_by)
      for (const auto& [number, device] : peer.devices) leaving.insert(device);
  const auto may_run = [&](DeviceId device, ModelId model) {
    const auto on = links_[device.index()]->peer();
    const auto peer = on ? peers_.find(*on) : peers_.end();
    return peer != peers_.end() && !peer->second.drains && group(device) == group(model) &&
           serving(peer->second, model) != nullptr;
  };
  const Elsewhere found = roles::load_elsewhere(dispatch_.ledger(), leaving, may_run);
  for (const schedule::LoadAhead& wanted : found.loads) scheduler_->ask(wanted);
  if (!found.loads.empty()) dispatch_.nudge(now);
  const auto has = [&](const Peer& peer, ModelId model) {
    return std::ranges::any_of(peer.devices, [&](const auto& device) {
      return dispatch_.device_alive(device.second) &&
             dispatch_.ledger().residence(device.second, model) == ledger::Residence::loaded;
    });
  };
  for (auto& [id, peer] : peers_) {
    if (!peer.drains_by) continue;
    std::vector<ModelId> yet, without;
    for (const schedule::LoadAhead& wanted : found.loads)
      if (has(peer, wanted.model)) yet.push_back(wanted.model);
    for (const ModelId model : found.waiting)
      if (has(peer, model)) yet.push_back(model);
    for (const ModelId model : found.without)
      if (has(peer, model)) without.push_back(model);
    const bool in_vain = !yet.empty() && !scheduler_->loads_ahead();
    if (!yet.empty() && !in_vain && now < *peer.drains_by) {
      look_elsewhere_ = saturating_add(now, looks_elsewhere);
      continue;
    }
    const std::string drains = peer.hello.id + " drains before models are elsewhere that it alone holds. ";
    if (!without.empty())
      out_.warn(drains + "No other device can load them, or has room without giving up what is in use: " +
                names_of(without));
    if (in_vain)
      out_.warn(drains + "The policy " + std::string(scheduler_->name()) +
                " loads nothing ahead of requests: " + names_of(yet));
    else if (!yet.empty())
      out_.warn(drains + "They were not loaded in time: " + names_of(yet));
    begin_drain(id, peer, now);
  }
}

Result<> Leader::drain(const std::string& id, bool undo, TimePoint now) {
  now_ = now;
  auto found = present_.find({Role::worker, id});
  if (found == present_.end()) found = present_.find({Role::frontend, id});
  if (found == present_.end())
    return carillon::fail(ErrorCode::not_found,
                          "no worker or frontend '" + id + "' has a stream to this leader");
  const PeerId to = found->second;
  Peer& peer = peers_.at(to);
  const bool works = peer.hello.role == Role::worker;
  if (!undo && works && !peer.drains && !peer.drains_by) {
    if (auto can = can_drain(peer); !can) return can;
    ++drains_version_;
    peer.drains_by = saturating_add(now, options_.load_elsewhere_within);
    load_elsewhere(now);
  } else if (undo || !works || peer.drains) {
    drains_version_ += !works || peer.drains_by ? 1 : 0;
    peer.drains_by.reset();
    post(to, transport::Drain{undo});
    if (!works) {
      peer.drains.reset();
      if (!undo) peer.drains = 1;  // until it says what it has
    }
  }
  settle(now);
  return {};
}

void Leader::begin_drain(PeerId id, Peer& peer, TimePoint now) {
  peer.drains_by.reset();
  post(id, transport::Drain{});
  ++drains_version_;
  const ledger::Ledger& ledger = dispatch_.ledger();
  peer.drains = 0;
  for (const auto& [number, device] : peer.devices) {
    if (device.index() >= ledger.devices()) continue;
    for (const auto& lane : ledger.device(device).under_way)
      for (const std::uint32_t place : lane) {
        const ledger::Ledger::Action& action = ledger.at(place);
        if (!action.taken) continue;
        ++*peer.drains;
        for (const RequestId each : action.requests)
          if (Row* const its = row(each); its != nullptr && its->open) {
            ++its->landing;
            auto& [on, rows] = peer.landing[action.id];
            on = device;
            rows.push_back({*by_id_.find(each.value), its->first});
          }
      }
  }
  peer.drains = std::max(*peer.drains, 1U);  // until it says what it has
  lose_devices(peer, "its worker " + peer.hello.id + " drains", now);
}

void Leader::on(PeerId, Peer& peer, transport::Drains& what, TimePoint now) {
  ++drains_version_;
  // Of an earlier leader's order. What it has told before, if anything, is of before it drained.
  peer.drains_by.reset();
  if (!peer.drains && peer.hello.role == Role::worker)
    lose_devices(peer, "its worker " + peer.hello.id + " drains", now);
  peer.drains = what.actions;
  if (what.actions == 0) land_all(peer);
  awaited_.erase(peer.hello.id);
}

// The worker drains no more. It tells all that it has once more.
void Leader::on(PeerId, Peer& peer, transport::Drain& what, TimePoint) {
  if (!peer.drains || !what.undo) {
    ++strays_.peers;
    return;
  }
  ++drains_version_;
  land_all(peer);
  peer.drains.reset();
  peer.devices.clear();
  peer.models.clear();
  peer.numbers.clear();
}

// A run of a worker that drains is over. If it was a success, the outputs were delivered before this.
void Leader::land(const std::vector<Place>& rows) {
  for (const auto& [place, first] : rows) {
    Row& landed = rows_[place];
    if (!landed.used || landed.first != first || --landed.landing > 0 || !landed.verdict) continue;
    const wire::Verdict verdict = *std::exchange(landed.verdict, std::nullopt);
    refused(verdict, now_);
  }
}

// Of a device, or of all.
void Leader::land_all(Peer& peer, std::optional<DeviceId> device) {
  std::erase_if(peer.landing, [&](const auto& each) {
    const auto& [on, rows] = each.second;
    if (device && on != *device) return false;
    land(rows);
    return true;
  });
}

std::map<std::string, std::uint32_t> Leader::drains() const {
  std::map<std::string, std::uint32_t> out;
  for (const auto& [id, peer] : peers_)
    if (peer.drains || peer.drains_by) out.emplace(peer.hello.id, peer.drains.value_or(1));
  return out;
}

// --- Steps

void Leader::await_workers(std::set<std::string> ids, TimePoint until) {
  CARILLON_ASSERT(started_ && peers_.empty());
  if (ids.empty()) return;
  awaited_ = std::move(ids);
  wait_until_ = until;
}

// What was held back until then is told at once.
void Leader::tell_frontends(const Message& message) {
  if (wait_until_ == TimePoint::min()) post_all(Role::frontend, message);
}

void Leader::end_waiting(TimePoint now) {
  if (wait_until_ == TimePoint::min()) return;
  for (const DeviceView& device : devices())
    if (device.alive) awaited_.erase(device.worker);
  if (!awaited_.empty() && now < wait_until_) return;
  awaited_.clear();
  wait_until_ = TimePoint::min();
  tell_of_models([&](const Message& message) { tell_frontends(message); });
  tell_frontends(counted_);
  ModelOrders::Outbox orders;
  for (const auto& [from, order] : std::exchange(early_orders_, {}))
    if (peers_.contains(from)) model_orders_.ask(from, order, now, orders);
  post(std::move(orders));
}

TimePoint Leader::wake_at() const {
  if (!failed_.empty()) return now_;
  TimePoint at = dispatch_.wake_at();
  if (!held_.empty()) at = std::min(at, held_.begin()->first);
  if (wait_until_ != TimePoint::min()) at = std::min(at, wait_until_);
  at = std::min({at, hung_at_, look_elsewhere_, model_orders_.wake_at()});
  if (!going_away_.empty()) at = std::min(at, going_away_.begin()->first);
  return graces_.empty() ? at : std::min(at, graces_.begin()->first);
}

void Leader::wake(TimePoint now) {
  now_ = now;
  // What fails anew meanwhile is for the next step.
  for (const wire::Report& report : std::exchange(failed_, {})) dispatch_.on_report(report, now);
  while (!graces_.empty() && graces_.begin()->first <= now) end_model(graces_.begin()->second, now);
  while (!going_away_.empty() && going_away_.begin()->first <= now) {
    const ModelId id = going_away_.extract(going_away_.begin()).value().second;
    models_[id.index()].away_at = TimePoint::max();
    models_[id.index()].away = true;
    tell_frontends(transport::ModelGoes{id, true});
  }
  end_hung(now);
  dispatch_.wake(now);
  if (look_elsewhere_ <= now) load_elsewhere(now);
  if (model_orders_.wake_at() <= now) {
    ModelOrders::Outbox orders;
    model_orders_.wake(now, orders);
    post(std::move(orders));
  }
  settle(now);
}

// All that was heard is decided, and what comes of it is sent.
void Leader::settle(TimePoint now) {
  if (std::exchange(all_owed_, false)) dispatch_.all_arrived(now);
  if (!held_.empty() && (may_run_ || held_.begin()->first <= now)) offer_held(now);
  may_run_ = false;
  if (!withdrawn_.empty()) dispatch_.hear(now);
  for (const RequestId id : std::exchange(withdrawn_, {}))
    if (Row* const gone = row(id)) free(*gone);
  const transport::DeviceCount count{.alive = static_cast<std::uint32_t>(dispatch_.devices_alive()),
                                     .known = static_cast<std::uint32_t>(known_.size())};
  if (count.alive != counted_.alive || count.known != counted_.known) {
    counted_ = count;
    tell_frontends(count);
  }
  end_waiting(now);
  for (auto& [to, message] : outbox_) {
    if (const auto peer = peers_.find(to); peer != peers_.end()) peer->second.last.reset();
    out_.send(to, std::move(message));
  }
  outbox_.clear();
  worker_went_ = false;
}

void Leader::post(PeerId to, Message message) {
  const auto peer = peers_.find(to);
  if (peer == peers_.end()) return;
  peer->second.last = outbox_.size();
  outbox_.emplace_back(to, std::move(message));
}

void Leader::post(ModelOrders::Outbox messages) {
  for (auto& [to, message] : messages) post(to, std::move(message));
}

void Leader::post_all(Role role, const Message& message) {
  for (const auto& [id, peer] : peers_)
    if (peer.hello.role == role) post(id, message);
}

// Adds the row to the last message to its frontend, if that message is of this kind and `same` says so.
template <typename Rows, typename Same>
void Leader::post_row(const Row* row, Rows message, Same same) {
  if (row == nullptr || !row->open) return;
  const auto peer = peers_.find(row->frontend);
  if (peer == peers_.end()) return;
  if (peer->second.last)
    if (auto* const last = std::get_if<Rows>(&outbox_[*peer->second.last].second);
        last != nullptr && last->rows.size() < transport::FrameLimits{}.rows && same(*last)) {
      last->rows.push_back(row->theirs);
      return;
    }
  message.rows.push_back(row->theirs);
  post(row->frontend, std::move(message));
}

// --- For others to look at

// Of a row that is over.
void Leader::count(const Row& row, bool bad) {
  demand_.ended(group(row.request.model), row.request.model.index(), bad);
}

std::vector<provision::WantedFigures> Leader::look_at_demand(TimePoint now) {
  std::vector<int> present(options_.subclusters != nullptr ? options_.subclusters->division().groups : 1);
  for (const auto& [key, device] : known_) present[group(device)] += dispatch_.device_alive(device) ? 1 : 0;
  demand_.look(now, present);
  return demand_.figures();
}

std::size_t Leader::count(Role role) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(peers_, [&](const auto& each) { return each.second.hello.role == role; }));
}

std::vector<Leader::DeviceView> Leader::devices() const {
  std::vector<DeviceView> out;
  for (const auto& [key, id] : known_)
    out.push_back({id, key.first, DeviceId{key.second}, dispatch_.device_alive(id)});
  return out;
}

}  // namespace carillon::roles
