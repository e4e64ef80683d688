#pragma once

#include "carillon/ledger/event.h"
#include "carillon/ledger/order.h"
#include "carillon/schedule/model_info.h"

namespace carillon::schedule {

using ledger::ActionDone;
using ledger::ActionKind;
using ledger::ActionStatus;
using ledger::AllArrived;
using ledger::DeviceChanged;
using ledger::Event;
using ledger::Excuse;
using ledger::GiveUp;
using ledger::Infer;
using ledger::Keep;
using ledger::Lane;
using ledger::lanes;
using ledger::last_reason;
using ledger::Load;
using ledger::made_way;
using ledger::model_comes;
using ledger::ModelChanged;
using ledger::name_of;
using ledger::Preempt;
using ledger::Profile;
using ledger::Reason;
using ledger::Refuse;
using ledger::RequestArrived;
using ledger::RequestCancelled;
using ledger::RequestProfiled;
using ledger::Stop;
using ledger::TimesChanged;
using ledger::Unload;
using ledger::Wake;
using Action = ledger::Order;
using Actions = ledger::Orders;

}  // namespace carillon::schedule
