#include "carillon/roles/offering.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "carillon/base/assert.h"
#include "carillon/explain/terms.h"

namespace carillon::roles {

using ledger::ActionStatus;
using ledger::Reason;
namespace {

constexpr const char* replaced =
    "its files have changed, and the new ones are about to be served; try again later";

// What a request takes at the least. Where its time depends on the input, nobody knows how little it may be.
Duration shortest_of(const wire::Model& model) {
  const bool varies = model.info.time_varies || !model.lengths.empty();
  return varies ? Duration{0} : model.info.batches.front().exec;
}

}  // namespace

Offering::Offering(controller::Holder& holder, OfferingOut& out, std::string rows_at)
    : holder_(holder), out_(out), rows_at_(std::move(rows_at)) {}

void Offering::add_device(wire::DeviceLink&) {
  CARILLON_ASSERT(false);  // a frontend has none
}

// --- Models

void Offering::add_model(wire::Model model) {
  CARILLON_ASSERT(model.info.id.index() == models_.size() && !model.info.batches.empty());
  known_.insert_or_assign(known_as(model), model.info.id);
  queue_.add_model(shortest_of(model));
  models_.push_back({.model = std::move(model), .theirs = {}});
}

void Offering::come(wire::Model model, TimePoint) {
  const ModelId id = model.info.id;
  const Known known = known_as(model);
  add_model(std::move(model));
  for (const auto& [theirs, told] : leaders_models_)
    if (told == known) {
      models_[id.index()].theirs = ModelId{theirs};
      if (away_.contains(theirs)) out_.model_held(id, false);
    }
}

void Offering::go(ModelId id, TimePoint now) {
  Model& model = models_[id.index()];
  if (const auto known = known_.find(known_as(model.model)); known != known_.end() && known->second == id)
    known_.erase(known);
  // A row that is refused takes others of its call with it.
  for (const RequestId row : rows_of(id))
    if (const Row* const its = find(row); its != nullptr && !its->flying) refuse(row, Reason::no_model, now);
  model.theirs.reset();
  tell_traced(now);
}

void Offering::change_times(ModelId id, std::vector<ledger::BatchProfile> batches, TimePoint) {
  models_[id.index()].model.info.batches = std::move(batches);
  queue_.set_shortest(id, shortest_of(models_[id.index()].model));
}

// --- What calls say

AppId Offering::application(std::string_view name, const std::optional<Alike>& alike, TimePoint) {
  if (name.empty() && !alike) return AppId{0};
  const std::tuple key(std::string(name), alike ? alike->model.value : 0xffffffffU,
                       alike ? alike->length : std::size_t{0});
  if (const auto found = numbers_.find(key); found != numbers_.end()) return found->second;
  if (applications_.size() >= most_applications) return AppId{0};  // names come from outside
  applications_.push_back({.name = std::string(name), .alike = alike});
  return numbers_.emplace(key, AppId{static_cast<AppId::rep>(applications_.size())}).first->second;
}

void Offering::offer(const Request& request, bool more, TimePoint now) {
  if (stopped_) return;
  const auto [buffers, trace] = holder_.held(request.id);
  const controller::HeldModel& model = holder_.model(request.model);
  transport::RowTensors tensors{.inputs = {}, .outputs = {}, .length = buffers.length};
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < buffers.inputs.size(); ++i) {
    tensors.inputs.emplace_back(buffers.inputs[i], model.input_row_bytes[i].at(buffers.length));
    bytes += tensors.inputs.back().size();
  }
  for (std::size_t i = 0; i < buffers.outputs.size(); ++i) {
    const std::size_t size = model.output_row_bytes[i].at(buffers.length);
    const bool wanted = buffers.outputs[i] != nullptr;
    tensors.outputs.push_back(wanted ? std::span(buffers.outputs[i], size) : std::span<std::byte>{});
    tensors.unwanted.push_back(wanted ? 0 : size);
  }
  std::shared_ptr<explain::RowSpans> spans;
  if (trace != nullptr) {
    spans = std::make_shared<explain::RowSpans>();
    spans->of = {.trace = *trace, .unix_zero = out_.unix_zero()};
    spans->of.trace.parent_id = {};
    spans->name = "row";
    spans->model = model.name;
    spans->begin = now;
    spans->begin_part("wait", now);
  }
  const std::uint32_t place = slab_.take();
  slab_[place] = {.request = request,
                  .key = out_.open(request.id, std::move(tensors)),
                  .bytes = bytes,
                  .ends = request.deadline,
                  .spans = std::move(spans)};
  rows_.insert(request.id.value, place);
  ends_.emplace(request.deadline, request.id);
  together_.push_back(request.id);
  if (!more) all_arrived(now);
}

void Offering::all_arrived(TimePoint now) {
  offer_to_leader(std::exchange(together_, {}), now);
  tell_traced(now);
}

void Offering::withdraw(RequestId id, ModelId) {
  Row* const row = find(id);
  if (row == nullptr) return;
  out_.close(row->key);
  if (row->offered)
    if (const auto theirs = models_[row->request.model.index()].theirs)
      out_.send(transport::Withdraw{id, *theirs});
  if (row->spans) row->spans->say("carillon.outcome", "withdrawn");
  if (!row->flying) return erase(id);
  row->over = true;
  lost_.push_back(id);
}

// The holder keeps the buffers of a row that flies until it is told that nobody uses them any more.
void Offering::tell_lost(TimePoint now) {
  for (const RequestId id : std::exchange(lost_, {})) {
    if (find(id) == nullptr) continue;
    erase(id);
    holder_.lost(id, "withdrawn");
  }
  tell_traced(now);
}

void Offering::tell_traced(TimePoint now) {
  if (traced_.empty()) return;
  for (auto& spans : std::exchange(traced_, {})) {
    spans->finish(now);
    out_.traced(std::move(spans));
  }
}

// --- The leader

void Offering::leads(TimePoint now) {
  leader_left(now);
  led_ = true;
  forget_at_ = saturating_add(now, model_grace);
  out_.send(transport::RowsAt{rows_at_});
}

void Offering::leader_left(TimePoint now) {
  if (std::exchange(led_, false)) alive_ = 0;
  forget_at_ = TimePoint::max();
  leaders_models_.clear();
  away_.clear();
  for (Model& model : models_) model.theirs.reset();
  for (Application& application : applications_) application.told = false;
  queue_.begin();
  // What flies may still come to its end: its worker has it.
  for (const RequestId id : rows_of({})) take_back(*find(id), now);
}

void Offering::heard(transport::Message message, TimePoint now) {
  if (stopped_) return;
  std::visit([&](auto& what) { on(what, now); }, message);
  tell_lost(now);
}

void Offering::on(transport::DeviceCount& message, TimePoint) {
  alive_ = message.alive;
  if (alive_ == 0) return;
  out_.models_told();
  for (const auto& [known, id] : known_)
    if (!models_[id.index()].theirs) out_.model_held(id, false);
}

void Offering::on(transport::OfferCredit& message, TimePoint now) {
  if (!led_) return;
  queue_.credit(message);
  offer_waiting(now);
}

void Offering::on(transport::ModelComes& message, TimePoint now) {
  const ModelId theirs = message.model.info.id;
  const Known known = known_as(message.model);
  leaders_models_.insert_or_assign(theirs.value, known);
  away_.erase(theirs.value);
  const auto ours = known_.find(known);
  if (ours == known_.end()) return out_.model_comes(message.model);
  out_.model_held(ours->second, true);
  models_[ours->second.index()].theirs = theirs;
  offer_to_leader(rows_of(ours->second), now);
}

void Offering::on(transport::ModelGoes& message, TimePoint) {
  const auto told = leaders_models_.find(message.model.value);
  if (told == leaders_models_.end()) {
    ++counters_.strays;
    return;
  }
  const auto ours = known_.find(told->second);
  if (message.for_now) {
    away_.insert(message.model.value);
    if (ours != known_.end()) out_.model_held(ours->second, false);
    return;
  }
  away_.erase(message.model.value);
  leaders_models_.erase(told);
  if (ours == known_.end()) return;
  forget(ours->second);
}

// Its going takes a while. The same model may come anew before that is done.
void Offering::forget(ModelId id) {
  models_[id.index()].theirs.reset();
  known_.erase(known_as(models_[id.index()].model));
  out_.model_goes(id);
}

void Offering::on(transport::Sent& message, TimePoint now) {
  for (const RequestId id : message.rows) {
    Row* const row = find(id);
    if (row == nullptr) {
      over(id);
      continue;
    }
    if (row->flying || !row->offered) {
      ++counters_.strays;
      continue;
    }
    row->flying = true;
    set_end(*row);
    if (row->spans) row->spans->begin_part("work", now);
    (void)holder_.sent(id, row->request.model, 0);
  }
}

void Offering::on(transport::CameBack& message, TimePoint now) {
  for (const RequestId id : message.rows)
    if (Row* const row = find_flying(id)) {
      row->flying = false;
      set_end(*row);
      decided_anew(*row, "it came back", now);
      holder_.came_back(id);
    }
}

void Offering::on(transport::Lost& message, TimePoint now) {
  for (const RequestId id : message.rows)
    if (Row* const row = find_flying(id)) {
      row->flying = false;
      set_end(*row);
      decided_anew(*row, message.why, now);
      holder_.lost(id, message.why);
    }
}

void Offering::on(transport::Ended& message, TimePoint now) {
  for (const RequestId id : message.rows) {
    // Outputs come before this word, and end the row.
    if (message.report.status == ActionStatus::success && find(id) == nullptr) continue;
    Row* const row = find_flying(id);
    if (row == nullptr) continue;
    row->flying = false;
    set_end(*row);
    if (message.report.status != ActionStatus::success) {
      decided_anew(*row, name_of(message.report.status), now);
      holder_.ended(id, message.report, now);
      continue;
    }
    // It ran, and its outputs did not find their way here.
    holder_.came_back(id);
    if (row->spans) row->spans->end_part(now, "its outputs did not come");
    take_back(*row, now);
    offer_to_leader({id}, now);
  }
}

// A worker had the row, and the leader has it again.
void Offering::decided_anew(Row& row, std::string_view why, TimePoint now) {
  if (!row.spans) return;
  row.spans->end_part(now, why);
  row.spans->begin_part("decide", now);
}

void Offering::on(transport::TurnedDown& message, TimePoint) {
  if (find(message.row) == nullptr || find_flying(message.row) == nullptr) return;
  if (const Row& row = *find(message.row); row.spans) row.spans->failed = message.error.message;
  erase(message.row);
  holder_.turned_down(message.row, message.error);
}

void Offering::on(wire::Verdict& message, TimePoint now) {
  const RequestId id = message.refusal.request;
  Row* const row = find(id);
  if (row == nullptr || !row->offered) {
    ++counters_.strays;
    return;
  }
  lands(id, *row);
  if (message.refusal.reason == Reason::no_model && comes_anew(row->request.model))
    return turn_down(id, replaced);
  if (row->spans) row->spans->failed = explain::name_of(explain::cause_of(message.refusal.reason));
  erase(id);
  holder_.refused(message, now);
}

void Offering::outputs(RequestId id, const wire::Report& report, TimePoint now) {
  Row* const row = find(id);
  if (row == nullptr || row->over || stopped_) return;
  if (!row->flying) {
    // An order of an earlier leader, or the leader's word comes later.
    ++counters_.late_wins;
    (void)holder_.sent(id, row->request.model, 0);
    if (row->offered)
      if (const auto theirs = models_[row->request.model.index()].theirs)
        out_.send(transport::Withdraw{id, *theirs});
  }
  if (row->spans) {
    row->spans->end_part(now);
    row->spans->add_part("exec", report.times.exec_start, report.times.exec_end);
  }
  erase(id);
  holder_.ended(id, report, now);
  tell_lost(now);
}

// --- Rows

Offering::Row* Offering::find(RequestId id) {
  const auto place = rows_.find(id.value);
  return place ? &slab_[*place] : nullptr;
}

Offering::Row* Offering::find_flying(RequestId id) {
  Row* const row = find(id);
  if (row != nullptr && row->flying && !row->over) return row;
  if (row == nullptr)
    over(id);
  else
    ++counters_.strays;
  return nullptr;
}

// Its outputs came, and the leader never heard the worker's report: it would run the row once more.
void Offering::over(RequestId id) {
  out_.send(transport::Withdraw{id, {}});
}

std::vector<RequestId> Offering::rows_of(std::optional<ModelId> model) const {
  std::vector<RequestId> out;
  for (std::uint32_t i = 0; i < slab_.size(); ++i)
    if (const Row& row = slab_[i];
        rows_.find(row.request.id.value) == i && (!model || row.request.model == model))
      out.push_back(row.request.id);
  std::ranges::sort(out);
  return out;
}

void Offering::erase(RequestId id) {
  const auto place = rows_.take(id.value);
  CARILLON_ASSERT(place.has_value());
  Row& row = slab_[*place];
  out_.close(row.key);
  ends_.erase({row.ends, id});
  if (row.spans) traced_.push_back(std::move(row.spans));
  slab_.give_back(*place);
}

void Offering::lands(RequestId id, Row& row) {
  if (!std::exchange(row.flying, false)) return;
  set_end(row);
  holder_.came_back(id);
}

void Offering::take_back(Row& row, TimePoint now) {
  row.queued = false;
  if (row.over) return;
  if (row.spans) row.spans->begin_part("wait", now);
  lands(row.request.id, row);
  row.offered = false;
  set_end(row);
}

void Offering::set_end(Row& row) {
  const TimePoint deadline = row.request.deadline;
  const TimePoint ends = row.flying    ? TimePoint::max()
                         : row.offered ? saturating_add(deadline, word_grace)
                                       : deadline;
  if (ends == row.ends) return;
  auto place = ends_.extract({row.ends, row.request.id});
  row.ends = ends;
  if (ends == TimePoint::max()) return;
  if (place.empty()) {
    ends_.emplace(ends, row.request.id);
  } else {
    place.value().first = ends;
    ends_.insert(std::move(place));
  }
}

void Offering::offer_to_leader(const std::vector<RequestId>& rows, TimePoint now) {
  if (!led_ || stopped_) return;
  std::vector<RequestId> offers, displaced;
  for (const RequestId id : rows) {
    Row* const row = find(id);
    if (row == nullptr || row->queued || row->offered || row->over ||
        !models_[row->request.model.index()].theirs)
      continue;
    const OfferQueue::Answer answer = queue_.arrive(row->request, now);
    if (answer.goes)
      offers.push_back(id);
    else if (answer.in)
      row->queued = true;
    else
      turn_away(id, answer.hurried, now);
    if (answer.displaced) displaced.push_back(*answer.displaced);
  }
  const bool given_back = !send(offers, now);
  for (const RequestId id : displaced)
    if (const Row* const row = find(id); row != nullptr && row->queued) turn_away(id, false, now);
  if (given_back) offer_waiting(now);
}

void Offering::offer_waiting(TimePoint now) {
  // What one row does not use is the next one's.
  for (bool again = true; again;) {
    again = false;
    std::vector<RequestId> offers;
    for (const auto& [id, turned_away, hurried] : queue_.next(now)) {
      Row* const row = find(id);
      const bool waits = row != nullptr && std::exchange(row->queued, false) &&
                         models_[row->request.model.index()].theirs.has_value();
      if (waits && !turned_away) {
        offers.push_back(id);
        continue;
      }
      again = true;
      if (!turned_away)
        queue_.give_back();
      else if (waits)
        turn_away(id, hurried, now);
    }
    again = !send(offers, now) || again;
  }
}

bool Offering::send(const std::vector<RequestId>& offers, TimePoint now) {
  bool all = true;
  for (const RequestId id : offers) {
    if (find(id) == nullptr) {  // another row of its call was turned away
      queue_.give_back();
      all = false;
      continue;
    }
    Row& row = *find(id);
    const ModelId theirs = *models_[row.request.model.index()].theirs;
    if (const AppId app = row.request.app; app.value > 0)
      if (Application& told = applications_[app.value - 1]; !std::exchange(told.told, true)) {
        transport::Application message{.app = app, .name = told.name, .alike = told.alike};
        if (message.alike) message.alike->model = theirs;  // it is of the row's model
        out_.send(std::move(message));
      }
    row.offered = true;
    set_end(row);
    ++counters_.offered;
    counters_.reoffered += std::exchange(row.before, true) ? 1 : 0;
    transport::Offer offer{
        .row = row.request, .more = id != offers.back(), .key = row.key, .tensor_bytes = row.bytes};
    offer.row.model = theirs;
    if (row.spans) {
      offer.trace = row.spans->of;
      row.spans->begin_part("decide", now);
    }
    out_.send(std::move(offer));
  }
  return all;
}

// The leader cannot decide on it in time.
void Offering::turn_away(RequestId id, bool hurried, TimePoint now) {
  if (hurried) return refuse(id, Reason::cannot_finish, now);
  turn_down(
      id,
      "the cluster is overloaded: requests come faster than the leader can decide on them; try again later");
}

void Offering::turn_down(RequestId id, std::string why) {
  const ModelId model = find(id)->request.model;
  if (const Row& row = *find(id); row.spans) row.spans->failed = explain::name_of(explain::Cause::shed);
  erase(id);
  (void)holder_.sent(id, model, 0);
  holder_.turned_down(id, {ErrorCode::resource_exhausted, std::move(why)});
}

bool Offering::comes_anew(ModelId model) const {
  const auto [name, version, hash] = known_as(models_[model.index()].model);
  return std::ranges::any_of(leaders_models_, [&](const auto& told) {
    return std::get<0>(told.second) == name && std::get<1>(told.second) == version;
  });
}

void Offering::refuse(RequestId id, Reason reason, TimePoint now) {
  Row& row = *find(id);
  if (row.offered)
    if (const auto theirs = models_[row.request.model.index()].theirs)
      out_.send(transport::Withdraw{id, *theirs});
  if (reason == Reason::no_model && comes_anew(row.request.model)) return turn_down(id, replaced);
  if (row.spans) row.spans->failed = explain::name_of(explain::cause_of(reason));
  erase(id);
  holder_.refused({.refusal = {.request = id, .reason = reason, .would_finish = TimePoint::max()},
                   .prospect = {.devices = alive_, .device = {}}},
                  now);
}

TimePoint Offering::wake_at() const {
  if (stopped_) return TimePoint::max();
  return ends_.empty() ? forget_at_ : std::min(forget_at_, ends_.begin()->first);
}

void Offering::wake(TimePoint now) {
  while (!stopped_ && !ends_.empty() && ends_.begin()->first <= now)
    refuse(ends_.begin()->second, Reason::cannot_finish, now);
  tell_traced(now);
  if (stopped_ || forget_at_ > now) return;
  forget_at_ = TimePoint::max();
  std::vector<ModelId> untold;
  for (const auto& [known, id] : known_)
    if (!models_[id.index()].theirs) untold.push_back(id);
  for (const ModelId id : untold) forget(id);
}

void Offering::stop() {
  stopped_ = true;
  for (const RequestId id : rows_of({})) out_.close(find(id)->key);
}

}  // namespace carillon::roles
