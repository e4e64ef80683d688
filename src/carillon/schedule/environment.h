#pragma once

#include "carillon/ledger/environment.h"

namespace carillon::schedule {

using ledger::Environment;
using ledger::live_environment;
using ledger::name_of;
using ledger::Preemption;

}  // namespace carillon::schedule
