#pragma once

#include <functional>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/second/line_limit.h"
#include "carillon/engine/second/process.h"
#include "carillon/engine/second/restarts.h"
#include "carillon/engine/second/run_bounds.h"
#include "carillon/engine/second/runtime.h"

namespace carillon::engine::second {

struct ApartOptions {
  ProcessOptions process;
  RestartOptions restarts;
  // What a process may take for each, of time in which its threads had a processor; one that takes longer
  // hangs, and is ended.
  Duration start = std::chrono::minutes{1};   // to load its libraries
  Duration load = std::chrono::minutes{10};   // to read a model, and again to compile it
  Duration shapes = std::chrono::minutes{1};  // to find a model's output shapes, or to make a request
  // To run. Of threads of lower priority than the starter's ten times as long: they have what others leave.
  RunBoundOptions runs;
  // A line for people where a process is gone that had a model, and where another has it: from threads of its
  // own, and not more often than `lines` says. Empty: nobody hears of it.
  std::function<void(const std::string&)> tell{};
  LineLimitOptions lines;
};

// A runtime whose models are each in a process of their own, which does with the module what is asked here.
//
// What ends a process ends no other. While it reads, compiles or finds shapes, that is the call's error,
// which names the signal. In a run it is that run's error; then, or when an idle process goes, another is
// started in the background and reads and compiles again, as often as `restarts` allows. Meanwhile, and where
// it is not started again, Compiled::broken() says why, and runs fail with that. Request::give_up() ends the
// process.
//
// Tensors are copied into memory that both processes have, and out of it: a model that writes where it should
// not reaches no other's data.
//
// The error is what keeps the first process from being ready.
Result<std::shared_ptr<Runtime>> make_apart_runtime(const ApartOptions& options,
                                                    std::shared_ptr<Starter> starter);

}  // namespace carillon::engine::second
