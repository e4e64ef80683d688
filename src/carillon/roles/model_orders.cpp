#include "carillon/roles/model_orders.h"

#include <algorithm>

namespace carillon::roles {

using transport::ModelOrder;
using transport::ModelOrdered;

void ModelOrders::ask(PeerId frontend, const ModelOrder& order, Outbox& out) {
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
  for (auto& [id, worker] : workers_) worker.open.insert(number);
  next(out);
}

bool ModelOrders::answered(PeerId id, const ModelOrdered& answer, Outbox& out) {
  const auto from = workers_.find(id);
  if (from == workers_.end() || from->second.told != answer.order) return false;
  Worker& worker = from->second;
  worker.told.reset();
  worker.open.erase(answer.order);
  // Nobody hears whether a kept order fails.
  if (const auto found = orders_.find(answer.order); found != orders_.end()) {
    Order& order = found->second;
    if (answer.result)
      order.carried_out = true;
    else
      fails(order, answer.result.error().code, worker.id, ": " + answer.result.error().message);
    if (--order.waits == 0) end(answer.order, out);
  }
  next(out);
  return true;
}

const std::string* ModelOrders::unloads(std::uint64_t order) const {
  const auto found = orders_.find(order);
  return found != orders_.end() && found->second.what.unload ? &found->second.what.model : nullptr;
}

void ModelOrders::joined(PeerId id, const transport::Hello& self, Outbox& out) {
  Worker& worker = workers_[id];
  worker = {.id = self.id, .incarnation = self.incarnation, .open = {}, .told = {}};
  std::uint64_t known = 0;
  if (auto away = away_.extract(self.id); !away.empty() && away.mapped().incarnation == self.incarnation) {
    known = away.mapped().numbered;
    worker.open = std::move(away.mapped().open);
  }
  for (auto kept = kept_.upper_bound(known); kept != kept_.end(); ++kept) worker.open.insert(kept->first);
  for (auto& [number, order] : orders_) {
    worker.open.insert(number);
    ++order.waits;
  }
  next(id, worker, out);
}

void ModelOrders::left(PeerId id, Outbox& out) {
  auto gone = workers_.extract(id);
  if (gone.empty()) return;
  Worker& worker = gone.mapped();
  std::vector<std::uint64_t> ended;
  for (auto& [number, order] : orders_) {
    if (!worker.open.contains(number)) continue;
    fails(order, ErrorCode::unavailable, worker.id, " has gone, and may have carried out the order");
    if (--order.waits == 0) ended.push_back(number);
  }
  if (away_.size() >= most_away) away_.clear();
  away_[worker.id] = {worker.incarnation, std::move(worker.open), numbered_};
  for (const std::uint64_t number : ended) end(number, out);
  next(out);
}

void ModelOrders::fails(Order& order, ErrorCode code, const std::string& worker, const std::string& why) {
  if (!order.failed || order.failed->code == ErrorCode::not_found)
    order.failed = Error{code, "worker " + worker + why};
}

void ModelOrders::next(PeerId id, Worker& worker, Outbox& out) {
  if (worker.told) return;
  const auto tell = [&](const ModelOrder& what) {
    worker.told = what.order;
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

void ModelOrders::next(Outbox& out) {
  for (auto& [id, worker] : workers_) next(id, worker, out);
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
