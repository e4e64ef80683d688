#pragma once

#include <memory>
#include <string>

#include "carillon/engine/second/runtime.h"

// An engine of others in a process of its own: what the programs carillon-NAME are (host_main.cpp). One
// process has one model, so that what ends it ends no other.
namespace carillon::engine::second {

// Answers what is asked over `control`, a stream socket, until the other end of it is closed; each request
// that is made runs on a thread of its own. Returns the process's exit status: 0 where the server has gone,
// 2 where what it said is no message. `error`: why there is no `runtime`, which is then told.
int serve_model(int control, std::unique_ptr<Runtime> runtime, const std::string& error);

}  // namespace carillon::engine::second
