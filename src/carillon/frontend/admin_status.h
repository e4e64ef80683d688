#pragma once

#include <string>

#include "carillon/frontend/watch.h"

namespace carillon::frontend {

class Caller;
struct Commons;

// The server, its devices and models as JSON, for people who look at it (docs/admin-page.md): of the models,
// and of what devices do, those that the caller may use (null: all). It waits for nobody.
std::string status_json(Watch& watch, const Commons& commons, const Caller* caller);

}  // namespace carillon::frontend
