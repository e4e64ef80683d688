#pragma once

#include "carillon/ledger/margins.h"
#include "carillon/schedule/environment.h"

namespace carillon::schedule {

using ledger::Margins;
using ledger::TailWindow;

}  // namespace carillon::schedule
