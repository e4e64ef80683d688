#pragma once

#include "carillon/ledger/id_map.h"

namespace carillon::schedule {

using ledger::IdMap;

}  // namespace carillon::schedule
