#pragma once

namespace carillon::engine::second {

// What a process of the engine wants before its module is loaded, and before any thread of low priority is
// there (engine/NAME/host_setup.cpp).
void set_up_process();

}  // namespace carillon::engine::second
