#pragma once

#include <functional>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/http/http_handler.h"

namespace inference {
class RepositoryModelLoadRequest;
class RepositoryModelUnloadRequest;
}  // namespace inference

namespace carillon::frontend {

// A client's order to load or unload a model (Triton's model repository extension).
struct ModelOrder {
  bool loads = true;
  std::string model;
  controller::ModelControl::Brought brought{};  // of an order to load
  bool dependents = false;                      // of an order to unload
};

// As the protocols have it. Errors (invalid_argument): parameters that are not known, or of another type than
// theirs; a file that is not in base64 (HTTP), or that comes twice; and (unsupported) a repository's name
// beside the model's. What is large is moved out of `request`.
Result<ModelOrder> order_of(const HttpRequest& request, std::string model, bool loads);
Result<ModelOrder> order_of(inference::RepositoryModelLoadRequest& request);
Result<ModelOrder> order_of(inference::RepositoryModelUnloadRequest& request);

// Why `caller` (may be null) may not give the order: its key does not have the model, or one of an ensemble's
// steps that a config with the order names, or that are to go with the ensemble.
std::optional<Denial> check_order(const controller::Service& service, const Caller* caller,
                                  const ModelOrder& order);

// `done` is called once: from a thread of the service, or inside this call.
void carry_out(controller::Service& service, ModelOrder order, controller::ModelControl::Done done);

}  // namespace carillon::frontend
