#pragma once

#include "carillon/base/clock.h"
#include "carillon/cli/serve/arguments.h"
#include "carillon/cli/serve/memory.h"
#include "carillon/cli/serve/waiting.h"
#include "carillon/cli/signals.h"
#include "carillon/controller/controller.h"
#include "carillon/frontend/frontend.h"

namespace carillon::cli::serving {

// Serves until it is told to stop; returns the program's status. With a cluster: as a worker of it.
int run(Arguments& arguments);
// The other roles of a cluster.
int run_frontend(Arguments& arguments);
int run_scheduler(const Arguments& arguments);

// The same with --plan, once all else is ready.
int run_planned(const Arguments& arguments, const controller::Options& options,
                const frontend::Options& doors, const SignalWait& signals, const Supervised& supervised,
                const Memory& memory, const Clock& clock);

}  // namespace carillon::cli::serving
