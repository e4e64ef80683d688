#pragma once

#include "carillon/ledger/measured_times.h"
#include "carillon/schedule/model_info.h"

namespace carillon::schedule {

using ledger::forgotten_after;
using ledger::MeasuredTimes;
using ledger::stale_after;

}  // namespace carillon::schedule
