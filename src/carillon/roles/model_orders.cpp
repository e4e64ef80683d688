#include "carillon/roles/model_orders.h"

namespace carillon::roles {

using transport::ModelOrder;
using transport::ModelOrdered;

void ModelOrders::ask(PeerId frontend, const ModelOrder& order, const std::map<PeerId, std::string>& workers,
                      Outbox& out) {
  const auto refuse = [&](ErrorCode code, std::string why) {
    out.emplace_back(frontend, ModelOrdered{order.order, fail(code, std::move(why))});
  };
  if (workers.empty()) return refuse(ErrorCode::unavailable, "no worker is there; try again later");
  if (orders_.size() >= most_under_way)
    return refuse(ErrorCode::resource_exhausted,
                  std::to_string(orders_.size()) + " orders to load and unload wait; try again later");
  const std::uint64_t number = ++numbered_;
  Order& made = orders_[number];
  made = {.frontend = frontend, .theirs = order.order, .what = order, .waits = workers, .failed = {}};
  made.what.order = number;
  for (const auto& [worker, id] : workers) out.emplace_back(worker, made.what);
}

bool ModelOrders::answered(PeerId worker, const ModelOrdered& answer, Outbox& out) {
  const auto found = orders_.find(answer.order);
  if (found == orders_.end()) return false;
  Order& order = found->second;
  const auto who = order.waits.extract(worker);
  if (who.empty()) return false;
  if (answer.result)
    order.carried_out = true;
  else if (!order.failed)
    order.failed =
        Error{answer.result.error().code, "worker " + who.mapped() + ": " + answer.result.error().message};
  if (order.waits.empty()) end(answer.order, out);
  return true;
}

void ModelOrders::end(std::uint64_t number, Outbox& out) {
  Order order = std::move(orders_.extract(number).mapped());
  if (order.carried_out && (kept_.size() < most_kept || kept_.contains(order.what.model)))
    kept_[order.what.model] = order.what;
  if (!order.frontend) return;
  Result<> result;
  if (!order.carried_out) result = std::unexpected(*order.failed);
  out.emplace_back(*order.frontend, ModelOrdered{order.theirs, std::move(result)});
}

// Whether what holds fails there is nobody's to hear. What is under way waits for it, too.
void ModelOrders::joined(PeerId worker, const std::string& id, Outbox& out) {
  std::vector<std::uint64_t> asked;
  for (const auto& [number, order] : orders_)
    if (order.frontend) asked.push_back(number);
  for (const auto& [model, what] : kept_) {
    const std::uint64_t number = ++numbered_;
    Order& made = orders_[number];
    made = {.frontend = std::nullopt, .what = what, .waits = {{worker, {}}}, .failed = {}};
    made.what.order = number;
    out.emplace_back(worker, made.what);
  }
  for (const std::uint64_t number : asked) {
    Order& order = orders_.at(number);
    order.waits.emplace(worker, id);
    out.emplace_back(worker, order.what);
  }
}

void ModelOrders::left(PeerId worker, Outbox& out) {
  std::vector<std::uint64_t> ended;
  for (auto& [number, order] : orders_) {
    const auto who = order.waits.extract(worker);
    if (who.empty()) continue;
    if (!order.failed) order.failed = Error{ErrorCode::unavailable, "worker " + who.mapped() + " has gone"};
    if (order.waits.empty()) ended.push_back(number);
  }
  for (const std::uint64_t number : ended) end(number, out);
}

}  // namespace carillon::roles
