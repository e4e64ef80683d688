#pragma once

#include <cstdint>

namespace carillon::ledger {

// Whether a model's weights are in a device's page cache. Leaving: they are of a version that the model has
// no more; they go as soon as nothing uses them.
enum class Residence : std::uint8_t { absent, loading, loaded, leaving, unloading };

}  // namespace carillon::ledger
