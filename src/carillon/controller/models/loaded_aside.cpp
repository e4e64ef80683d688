#include "carillon/controller/models/loaded_aside.h"

#include <string>
#include <utility>

#include "carillon/base/processors.h"
#include "carillon/engine/host/memory.h"
#include "carillon/engine/zero_operands.h"

namespace carillon::controller {

Result<LoadedAside> load_aside(engine::Engine& engine, const engine::CompiledModel& compiled, int threads) {
  if (const auto left = engine::available_memory(); left && left->count < compiled.weights().count)
    return fail(ErrorCode::resource_exhausted, "to run it takes " + to_text(compiled.weights()) +
                                                   ", and the machine has " + to_text(*left) + " left");
  auto team = engine.make_team({.threads = threads > 0 ? threads : usable_processors()});
  if (!team) return std::unexpected(team.error());
  LoadedAside out{.team = std::move(*team), .weights = engine::zero_block(compiled.weights())};
  if (auto written = compiled.write_weights(0, out.weights.bytes().first(compiled.weights().count)); !written)
    return std::unexpected(written.error());
  return out;
}

}  // namespace carillon::controller
