#pragma once

#include <functional>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/controller/service.h"
#include "carillon/frontend/guard.h"
#include "carillon/frontend/http_handler.h"

namespace inference {
class RepositoryModelLoadRequest;
class RepositoryModelUnloadRequest;
}  // namespace inference

namespace carillon::frontend {

// A client's order to load or unload a model (Triton's model repository extension).
struct ModelOrder {
  bool loads = true;
  std::string model;
  std::optional<std::string> config;  // JSON; of an order to load
};

// As the protocols have it. Errors (invalid_argument, unsupported): parameters that are not known, or that
// bring files with them.
Result<ModelOrder> order_of(const HttpRequest& request, std::string model, bool loads);
Result<ModelOrder> order_of(const inference::RepositoryModelLoadRequest& request);
Result<ModelOrder> order_of(const inference::RepositoryModelUnloadRequest& request);

// Why `caller` (may be null) may not give the order, where a config with it names models that its key may not
// use: an ensemble's steps would run them.
std::optional<Denial> check_config(const Caller* caller, const ModelOrder& order);

// `done` is called once: from a thread of the service, or inside this call.
void carry_out(controller::Service& service, ModelOrder order, controller::ModelControl::Done done);

}  // namespace carillon::frontend
