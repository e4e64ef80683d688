#include "carillon/controller/local_link.h"

#include "carillon/base/assert.h"

namespace carillon::controller {

wire::Taken LocalLink::send(const ledger::Infer& order) {
  CARILLON_ASSERT(order.requests.size() <= static_cast<std::size_t>(worker::max_batch));
  command_.id = order.id;
  command_.model = order.model;
  command_.window = order.window;
  command_.batch = static_cast<int>(order.requests.size());
  command_.cls = order.cls;
  for (std::size_t i = 0; i < order.requests.size(); ++i)
    command_.rows[i] = holder_.buffers(order.requests[i]);
  return taken(worker_.submit(command_));
}

wire::Taken LocalLink::send(const ledger::Profile& order) {
  if (!holder_.kept().run(order.request, order.id, order.window, command_)) return wire::Taken::nothing;
  CARILLON_ASSERT(command_.model == order.model);
  return taken(worker_.submit(command_));
}

// The worker guards rows by itself.
void LocalLink::retire(std::uint32_t life) {
  const std::uint32_t next = worker_.retire();
  CARILLON_ASSERT(next == life);
}

}  // namespace carillon::controller
