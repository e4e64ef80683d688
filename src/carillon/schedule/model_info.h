#pragma once

#include "carillon/ledger/model_info.h"

namespace carillon::schedule {

using ledger::BatchProfile;
using ledger::ModelInfo;
using ledger::same_sizes;
using ledger::SizeTime;

}  // namespace carillon::schedule
