#include "carillon/frontend/doors/commons.h"

#include <algorithm>
#include <string>

#include "carillon/base/processors.h"

namespace carillon::frontend {
namespace {

int threads_of(const CommonsOptions& options) {
  if (options.heavy_threads > 0) return options.heavy_threads;
  return std::clamp(usable_processors() / 4, 1, 4);
}

// One for each direction of a bus.
constexpr int copying_threads = 2;

}  // namespace

Commons::Commons(const CommonsOptions& with)
    : options(with),
      bodies(std::make_shared<ByteBudget>(with.inflight, with.max_body)),
      side(bodies),
      parse_room(std::make_shared<ParseRoom>(bodies)),
      guard(with.guard ? with.guard : std::make_shared<Guard>()),
      access_log(with.access_log),
      spans(with.spans),
      regions(with.regions, with.importers),
      log_settings(with.log_control),
      unheeded(with.log),
      heavy(threads_of(with), with.heavy_queue),
      waits(heavy, draining),
      copies(with.importers.empty()
                 ? nullptr
                 : std::make_unique<WorkPool>(copying_threads, with.copies_queue, "carillon-copy")) {}

Error too_many_copies() {
  return {ErrorCode::resource_exhausted, "too many requests wait for copies from and to devices"};
}

Result<> server_ready(const controller::Service& service, const Commons& commons) {
  if (commons.draining) return fail(ErrorCode::unavailable, "the server is going away");
  const std::string why = service.why_not_ready();
  if (service.loading()) return std::unexpected(controller::still_loading(why));
  if (!service.ready()) return fail(ErrorCode::unavailable, why.empty() ? "the server is not ready" : why);
  if (!commons.options.strict_readiness) return {};
  const controller::ModelCounts models = service.model_counts();
  if (models.broken > 0)
    return fail(ErrorCode::unavailable, std::to_string(models.broken) + " of " +
                                            std::to_string(models.broken + models.ready) +
                                            " models are not ready, '" + models.a_broken_one +
                                            "' for one; /v2/repository/index says why");
  // Where orders may bring some later an empty server is one to send orders to.
  if (models.ready == 0 && service.control() == nullptr)
    return fail(ErrorCode::unavailable, "there are no models to serve");
  return {};
}

}  // namespace carillon::frontend
