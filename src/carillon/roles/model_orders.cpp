#include "carillon/roles/model_orders.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace carillon::roles {

using transport::ModelOrder;
using transport::ModelOrdered;

void ModelOrders::ask(PeerId frontend, const ModelOrder& order, TimePoint now, Outbox& out) {
  const auto refuse = [&](ErrorCode code, std::string why) {
    out.emplace_back(frontend, ModelOrdered{order.order, fail(code, std::move(why))});
  };
  if (workers_.empty()) return refuse(ErrorCode::unavailable, "no worker is there; try again later");
  if (orders_.size() >= most_under_way)
    return refuse(ErrorCode::resource_exhausted,
                  std::to_string(orders_.size()) + " orders to load and unload wait; try again later");
  const std::uint64_t number = ++numbered_;
  Order& made = orders_[number];
  made = {.frontend = frontend, .theirs = order.order, .what = order, .waits = workers_.size(), .failed = {}};
  made.what.order = number;
  for (auto& [id, worker] : workers_) {
    worker.open.insert(number);
    worker.waited.insert(number);
  }
  for (auto& [id, worker] : workers_)
    if (worker.silent) miss(worker, now, out);
  next(now, out);
}

bool ModelOrders::answered(PeerId id, const ModelOrdered& answer, TimePoint now, Outbox& out) {
  const auto from = workers_.find(id);
  if (from == workers_.end() || from->second.told != answer.order) return false;
  Worker& worker = from->second;
  worker.told.reset();
  worker.silent = false;
  worker.open.erase(answer.order);
  const bool waited = worker.waited.erase(answer.order) > 0;
  // Nobody hears whether a kept order fails.
  if (const auto found = orders_.find(answer.order); found != orders_.end()) {
    Order& order = found->second;
    if (answer.result)
      order.carried_out = true;
    else if (waited)
      fails(order, answer.result.error().code, worker.id, ": " + answer.result.error().message);
    if (waited && --order.waits == 0) end(answer.order, out);
  }
  next(now, out);
  return true;
}

const std::string* ModelOrders::unloads(std::uint64_t order) const {
  const auto found = orders_.find(order);
  return found != orders_.end() && found->second.what.unload ? &found->second.what.model : nullptr;
}

void ModelOrders::joined(PeerId id, const transport::Hello& self, TimePoint now, Outbox& out) {
  Worker& worker = workers_[id];
  worker = {.id = self.id, .incarnation = self.incarnation, .open = {}, .waited = {}, .told = {}};
  std::uint64_t known = 0;
  if (auto away = away_.extract(self.id); !away.empty() && away.mapped().incarnation == self.incarnation) {
    known = away.mapped().numbered;
    worker.open = std::move(away.mapped().open);
  }
  for (auto kept = kept_.upper_bound(known); kept != kept_.end(); ++kept) worker.open.insert(kept->first);
  for (auto& [number, order] : orders_) {
    worker.open.insert(number);
    worker.waited.insert(number);
    ++order.waits;
  }
  next(id, worker, now, out);
  find_due();
}

void ModelOrders::left(PeerId id, TimePoint now, Outbox& out) {
  auto gone = workers_.extract(id);
  if (gone.empty()) return;
  Worker& worker = gone.mapped();
  std::vector<std::uint64_t> ended;
  for (const std::uint64_t number : worker.waited) {
    Order& order = orders_.at(number);
    fails(order, ErrorCode::unavailable, worker.id, " has gone, and may have carried out the order");
    if (--order.waits == 0) ended.push_back(number);
  }
  if (away_.size() >= most_away) away_.clear();
  away_[worker.id] = {worker.incarnation, std::move(worker.open), numbered_};
  for (const std::uint64_t number : ended) end(number, out);
  next(now, out);
}

void ModelOrders::find_due() {
  due_ = TimePoint::max();
  for (const auto& [id, worker] : workers_)
    if (worker.told && !worker.silent) due_ = std::min(due_, saturating_add(worker.told_at, answers_within));
}

void ModelOrders::wake(TimePoint now, Outbox& out) {
  for (auto& [id, worker] : workers_) {
    if (!worker.told || worker.silent || saturating_add(worker.told_at, answers_within) > now) continue;
    worker.silent = true;
    miss(worker, now, out);
  }
  next(now, out);
}

// What waits for it waits no more. Once it answers, it is told of what then holds.
void ModelOrders::miss(Worker& worker, TimePoint now, Outbox& out) {
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - worker.told_at).count();
  std::vector<std::uint64_t> ended;
  for (const std::uint64_t number : std::exchange(worker.waited, {})) {
    Order& order = orders_.at(number);
    fails(order, ErrorCode::deadline_exceeded, worker.id,
          " has not answered an order for " + std::to_string(waited) + " s, and may carry it out yet");
    if (--order.waits == 0) ended.push_back(number);
  }
  for (const std::uint64_t number : ended) end(number, out);
}

void ModelOrders::fails(Order& order, ErrorCode code, const std::string& worker, const std::string& why) {
  if (!order.failed || order.failed->code == ErrorCode::not_found)
    order.failed = Error{code, "worker " + worker + why};
}

void ModelOrders::next(PeerId id, Worker& worker, TimePoint now, Outbox& out) {
  if (worker.told) return;
  const auto tell = [&](const ModelOrder& what) {
    worker.told = what.order;
    worker.told_at = now;
    out.emplace_back(id, what);
  };
  if (!orders_.empty())
    if (const auto asked = worker.open.lower_bound(orders_.begin()->first); asked != worker.open.end())
      return tell(orders_.at(*asked).what);
  for (auto open = worker.open.begin(); open != worker.open.end();) {
    const auto kept = kept_.find(*open);
    if (kept == kept_.end()) {  // it failed, or another order of its model was carried out since
      open = worker.open.erase(open);
      continue;
    }
    const auto same = [&](const auto& each) { return each.second.what.model == kept->second.model; };
    if (std::ranges::none_of(orders_, same)) return tell(kept->second);
    ++open;
  }
}

void ModelOrders::next(TimePoint now, Outbox& out) {
  for (auto& [id, worker] : workers_) next(id, worker, now, out);
  find_due();
}

void ModelOrders::end(std::uint64_t number, Outbox& out) {
  const Order order = std::move(orders_.extract(number).mapped());
  const std::string& model = order.what.model;
  if (order.carried_out && (kept_.size() < most_kept || last_.contains(model))) {
    std::uint64_t& last = last_[model];
    kept_.erase(last);
    kept_.emplace(last = number, order.what);
  }
  Result<> result;
  const bool serves_on = order.what.unload && order.failed && order.failed->code != ErrorCode::not_found;
  if (!order.carried_out || serves_on) result = std::unexpected(*order.failed);
  out.emplace_back(order.frontend, ModelOrdered{order.theirs, std::move(result)});
}

}  // namespace carillon::roles
