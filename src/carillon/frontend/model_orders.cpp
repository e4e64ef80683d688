#include "carillon/frontend/model_orders.h"

#include <utility>

#include "grpc_service.pb.h"
#include <nlohmann/json.hpp>

#include "carillon/frontend/http_body.h"
#include "carillon/frontend/messages.h"
#include "carillon/repository/config.h"

namespace carillon::frontend {
namespace {

constexpr std::size_t shown_name = 100;  // characters of a client's text in an error

std::unexpected<Error> not_known(const std::string& key, bool loads) {
  const std::string name = "parameter '" + key.substr(0, shown_name) + "'";
  if (loads && key.starts_with("file:"))
    return fail(ErrorCode::unsupported,
                name + ": files are not taken with an order; put them into the repository, then load it");
  return invalid(name + " is not known; " +
                 (loads ? "there is config, a model's config in JSON" : "there is unload_dependents"));
}

std::unexpected<Error> no_text() {
  return invalid("parameter 'config' must be text: a model's config in JSON");
}

template <typename Request>
ModelOrder named(const Request& request, bool loads) {
  // KServe's message has the model where Triton's has the repository.
  return {.loads = loads,
          .model = request.model_name().empty() ? request.repository_name() : request.model_name(),
          .config = std::nullopt};
}

}  // namespace

Result<ModelOrder> order_of(const HttpRequest& request, std::string model, bool loads) {
  ModelOrder order{.loads = loads, .model = std::move(model), .config = std::nullopt};
  const auto body = object_body(request, R"({"parameters":{}})");
  if (!body) return std::unexpected(body.error());
  const auto parameters = body->find("parameters");
  if (parameters == body->end()) return order;
  if (!parameters->is_object()) return invalid("\"parameters\" must be an object");
  for (const auto& [key, value] : parameters->items()) {
    if (loads && key == "config") {
      if (!value.is_string()) return no_text();
      order.config = value.get<std::string>();
    } else if (loads || key != "unload_dependents") {
      return not_known(key, loads);
    }
  }
  return order;
}

Result<ModelOrder> order_of(const inference::RepositoryModelLoadRequest& request) {
  ModelOrder order = named(request, true);
  for (const auto& [key, value] : request.parameters()) {
    if (key != "config") return not_known(key, true);
    if (value.parameter_choice_case() != inference::ModelRepositoryParameter::kStringParam) return no_text();
    order.config = value.string_param();
  }
  return order;
}

Result<ModelOrder> order_of(const inference::RepositoryModelUnloadRequest& request) {
  for (const auto& [key, value] : request.parameters())
    if (key != "unload_dependents") return not_known(key, false);
  return named(request, false);
}

std::optional<Denial> check_config(const Caller* caller, const ModelOrder& order) {
  if (caller == nullptr || !order.config) return std::nullopt;
  const auto text = repository::config_from_json(*order.config);
  const auto parsed = text ? repository::parse_config(*text, order.model) : std::unexpected(text.error());
  if (!parsed) return std::nullopt;  // what is wrong is the order's to tell
  for (const repository::EnsembleStep& step : parsed->config.steps)
    if (auto denied = Guard::check_model(caller, step.model)) return denied;
  return std::nullopt;
}

void carry_out(controller::Service& service, ModelOrder order, controller::ModelControl::Done done) {
  controller::ModelControl* const control = service.control();
  if (control == nullptr && service.loading()) return done(std::unexpected(controller::still_loading()));
  if (control == nullptr)
    return done(std::unexpected(no_loading(order.loads ? "loading models" : "unloading models")));
  if (order.loads)
    control->load(std::move(order.model), std::move(order.config), std::move(done));
  else
    control->unload(std::move(order.model), std::move(done));
}

}  // namespace carillon::frontend
