#pragma once

#include "carillon/ledger/busy_share.h"

namespace carillon::schedule {

using ledger::BusyShare;

}  // namespace carillon::schedule
