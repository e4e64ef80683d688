#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "carillon/base/ids.h"

namespace carillon::roles {

// A worker's place among the workers: the number at the end of its id. Pods of a StatefulSet are called
// NAME-0, NAME-1 and so on, and scaling down removes the last first. None: the id ends in no number, or in
// one of more than nine digits.
std::optional<std::uint32_t> worker_order(std::string_view id);

// The place of a worker's device among the devices of all workers, if each worker has `devices`: those of
// earlier workers come first. None: the place is above 2^32 - 1.
std::optional<std::uint32_t> device_order(std::uint32_t worker, std::size_t devices, DeviceId device);

}  // namespace carillon::roles
