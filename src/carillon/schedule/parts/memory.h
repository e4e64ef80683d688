#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "carillon/schedule/policy.h"

// What parts that place models ask of devices' memory.
namespace carillon::schedule::parts {

// LOADs of a model on one device that fail in a row before nobody should wait for another.
inline constexpr std::uint32_t most_failed_loads = 5;
inline constexpr Duration first_retry = 10ms;  // of a LOAD that failed; twice as long each time

inline std::uint64_t free_pages(const ledger::Ledger& ledger, DeviceId device) {
  return ledger.device(device).pages - ledger.device(device).taken;
}
inline bool holds_ever(const ledger::Ledger& ledger, DeviceId device, const ledger::ModelInfo& model) {
  return ledger.device(device).alive && model.pages <= ledger.device(device).pages;
}
// What has to go for a model that is wanted, of what may; none: there is not as much room.
inline std::optional<std::vector<ModelId>> room_ahead(const ledger::Ledger& ledger, const LoadAhead& wanted) {
  const std::uint64_t needs = ledger.model(wanted.model).info->pages;
  std::uint64_t freed = free_pages(ledger, wanted.device) + ledger.device(wanted.device).freeing;
  std::vector<ModelId> victims;
  for (const ModelId victim : wanted.instead) {
    if (freed >= needs) break;
    const ledger::Ledger::Copy* const copy = ledger.copy(wanted.device, victim);
    if (copy == nullptr || copy->residence != ledger::Residence::loaded || copy->using_it() > 0) continue;
    freed += copy->pages;
    victims.push_back(victim);
  }
  return freed >= needs ? std::optional(std::move(victims)) : std::nullopt;
}
// Unloads the copy of a version that is served no more, once nothing uses it.
inline void unload_if_left(DeviceId device, ModelId model, Orders& out) {
  const ledger::Ledger::Copy* const copy = out.ledger().copy(device, model);
  if (copy != nullptr && copy->residence == ledger::Residence::leaving && !copy->arriving &&
      copy->using_it() == 0)
    out.unload(device, model);
}

}  // namespace carillon::schedule::parts
