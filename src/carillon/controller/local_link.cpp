#include "carillon/controller/local_link.h"

#include "carillon/base/assert.h"

namespace carillon::controller {

void LocalLink::send(const ledger::Infer& order) {
  CARILLON_ASSERT(order.requests.size() <= static_cast<std::size_t>(worker::max_batch));
  command_.id = order.id;
  command_.model = order.model;
  command_.window = order.window;
  command_.batch = static_cast<int>(order.requests.size());
  command_.cls = order.cls;
  for (std::size_t i = 0; i < order.requests.size(); ++i) command_.rows[i] = rows_.buffers(order.requests[i]);
  give(command_);
}

void LocalLink::send(const ledger::Profile& order) {
  if (!rows_.run_again(order, command_)) {
    // The worker reports that a batch of nothing has failed.
    command_.id = order.id;
    command_.model = order.model;
    command_.window = order.window;
    command_.batch = 0;
    command_.cls = Class::normal;
  }
  CARILLON_ASSERT(command_.model == order.model);
  give(command_);
}

// The worker guards rows by itself.
void LocalLink::retire(std::uint32_t life) {
  const std::uint32_t next = worker_.retire();
  CARILLON_ASSERT(next == life);
}

}  // namespace carillon::controller
