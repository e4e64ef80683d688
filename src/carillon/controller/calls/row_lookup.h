#pragma once

#include "carillon/base/ids.h"
#include "carillon/ledger/order.h"
#include "carillon/worker/row_buffers.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// Where the rows of orders are, between an order and its report.
class RowLookup {
 public:
  virtual ~RowLookup() = default;
  virtual worker::RowBuffers buffers(RequestId row) const = 0;
  // Makes `command` the run of a row that was kept, alone. False: nothing of the row is kept.
  virtual bool run_again(const ledger::Profile& order, worker::InferCommand& command) = 0;
};

}  // namespace carillon::controller
