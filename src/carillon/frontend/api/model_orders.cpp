#include "carillon/frontend/api/model_orders.h"

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "grpc_service.pb.h"
#include <nlohmann/json.hpp>

#include "carillon/frontend/codec/base64.h"
#include "carillon/frontend/codec/json_check.h"
#include "carillon/frontend/doors/messages.h"
#include "carillon/repository/config.h"

namespace carillon::frontend {
namespace {

constexpr std::size_t shown_name = 100;  // characters of a client's text in an error
constexpr std::string_view file_prefix = "file:";

std::string named_parameter(std::string_view key) {
  return "parameter '" + std::string(key.substr(0, shown_name)) + "'";
}

std::unexpected<Error> not_known(std::string_view key, bool loads) {
  return invalid(named_parameter(key) + " is not known; " +
                 (loads ? "there are config, a model's config in JSON, and file:PATH, a file of the model"
                        : "there is unload_dependents"));
}

// What a parameter of an order says, in either protocol's types.
struct Value {
  std::optional<bool> flag;
  std::string* text = nullptr;   // JSON's string, or string_param
  std::string* bytes = nullptr;  // bytes_param; over HTTP bytes are text in base64
};

Result<> bring_file(std::string_view key, Value value, ModelOrder& order) {
  std::string bytes;
  if (value.bytes != nullptr) {
    bytes = std::move(*value.bytes);
  } else {
    auto decoded = value.text != nullptr ? from_base64(std::move(*value.text)) : std::nullopt;
    if (!decoded)
      return invalid(named_parameter(key) +
                     " must be the file's bytes: over HTTP text in base64, over gRPC bytes_param");
    bytes = *std::move(decoded);
  }
  key.remove_prefix(file_prefix.size());
  if (!order.brought.files.emplace(key, std::move(bytes)).second)
    return invalid("file '" + std::string(key.substr(0, shown_name)) + "' comes twice");
  return {};
}

Result<> set_parameter(std::string_view key, Value value, ModelOrder& order) {
  if (order.loads && key == "config") {
    if (value.text == nullptr) return invalid("parameter 'config' must be text: a model's config in JSON");
    order.brought.config = std::move(*value.text);
    return {};
  }
  if (order.loads && key.starts_with(file_prefix)) return bring_file(key, value, order);
  if (order.loads || key != "unload_dependents") return not_known(key, order.loads);
  if (!value.flag) return invalid("parameter 'unload_dependents' must be true or false");
  order.dependents = *value.flag;
  return {};
}

template <typename Request>
ModelOrder named(const Request& request, bool loads) {
  // KServe's message has the model where Triton's has the repository.
  return {.loads = loads,
          .model = request.model_name().empty() ? request.repository_name() : request.model_name()};
}

template <typename Request>
Result<ModelOrder> order_in(Request& request, bool loads) {
  if (!request.model_name().empty() && !request.repository_name().empty())
    return fail(ErrorCode::unsupported,
                "repository_name is '" + request.repository_name().substr(0, shown_name) +
                    "': this server has one repository, without a name; leave it out");
  ModelOrder order = named(request, loads);
  for (auto& [key, value] : *request.mutable_parameters()) {
    using Parameter = inference::ModelRepositoryParameter;
    Value said;
    if (value.parameter_choice_case() == Parameter::kBoolParam) said.flag = value.bool_param();
    if (value.parameter_choice_case() == Parameter::kStringParam) said.text = value.mutable_string_param();
    if (value.parameter_choice_case() == Parameter::kBytesParam) said.bytes = value.mutable_bytes_param();
    // Text is not what bytes are here.
    if (key.starts_with(file_prefix)) said.text = nullptr;
    if (auto ok = set_parameter(key, said, order); !ok) return std::unexpected(ok.error());
  }
  return order;
}

// Reads {"parameters": {...}} as it is parsed: files are large, and a value that is not wanted takes no
// memory.
class BodyReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit BodyReader(ModelOrder& order) : order_(order) {}
  const Result<>& result() const { return result_; }
  bool is_object() const { return is_object_; }

  bool null() override { return value({}); }
  bool boolean(bool flag) override { return value({.flag = flag}); }
  bool number_integer(number_integer_t) override { return value({}); }
  bool number_unsigned(number_unsigned_t) override { return value({}); }
  bool number_float(number_float_t, const string_t&) override { return value({}); }
  bool string(string_t& text) override { return value({.text = &text}); }
  bool binary(binary_t&) override { return value({}); }
  bool start_object(std::size_t) override {
    if (depth_ == 0) is_object_ = true;
    if (depth_ == 1 && top_ == parameters) {
      ++depth_;
      return true;
    }
    return start();
  }
  bool start_array(std::size_t) override { return start(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    if (depth_ == 1)
      top_ = std::move(name);
    else if (depth_ == 2)
      key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  static constexpr std::string_view parameters = "parameters";

  bool value(Value said) {
    if (depth_ == 1 && top_ == parameters) return fails(invalid("\"parameters\" must be an object"));
    if (depth_ == 2 && top_ == parameters)
      if (auto ok = set_parameter(key_, said, order_); !ok) return fails(std::unexpected(ok.error()));
    return true;
  }
  bool start() {
    const bool goes_on = depth_ == 0 || value({});
    ++depth_;
    return goes_on;
  }
  bool end() {
    --depth_;
    return true;
  }
  bool fails(std::unexpected<Error> error) {
    result_ = std::move(error);
    return false;
  }

  ModelOrder& order_;
  Result<> result_;
  std::string top_, key_;
  std::size_t depth_ = 0;
  bool is_object_ = false;
};

}  // namespace

Result<ModelOrder> order_of(const HttpRequest& request, std::string model, bool loads) {
  ModelOrder order{.loads = loads, .model = std::move(model)};
  if (request.body.size() == 0) return order;
  const std::string_view text = request.body.text();
  BodyReader reader(order);
  const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  if (!reader.result()) return std::unexpected(reader.result().error());
  if (!parsed) return invalid(json_fault_text(text));
  if (!reader.is_object()) return invalid(R"(the body must be a JSON object, such as {"parameters":{}})");
  return order;
}

Result<ModelOrder> order_of(inference::RepositoryModelLoadRequest& request) {
  return order_in(request, true);
}

Result<ModelOrder> order_of(inference::RepositoryModelUnloadRequest& request) {
  return order_in(request, false);
}

std::optional<Denial> check_order(const controller::Service& service, const Caller* caller,
                                  const ModelOrder& order) {
  if (caller == nullptr) return std::nullopt;
  if (auto denied = Guard::check_model(caller, order.model)) return denied;
  const auto check_steps = [&](const std::vector<repository::EnsembleStep>& steps) -> std::optional<Denial> {
    for (const repository::EnsembleStep& step : steps)
      if (auto denied = Guard::check_model(caller, step.model)) return denied;
    return std::nullopt;
  };
  if (order.brought.config) {
    const auto text = repository::config_from_json(*order.brought.config);
    const auto parsed = text ? repository::parse_config(*text, order.model) : std::unexpected(text.error());
    if (!parsed) return std::nullopt;  // what is wrong is the order's to tell
    return check_steps(parsed->config.steps);
  }
  if (!order.dependents) return std::nullopt;
  std::set<std::string> goes{order.model};
  const auto views = service.models();
  for (std::size_t before = 0; before < goes.size();) {
    before = goes.size();
    for (const controller::ModelView& view : views) {
      if (!goes.contains(view.name)) continue;
      if (auto denied = check_steps(view.config.steps)) return denied;
      for (const repository::EnsembleStep& step : view.config.steps) goes.insert(step.model);
    }
  }
  return std::nullopt;
}

void carry_out(controller::Service& service, ModelOrder order, controller::ModelControl::Done done) {
  controller::ModelControl* const control = service.control();
  if (control == nullptr && service.loading())
    return done(std::unexpected(controller::still_loading()), false);
  if (control == nullptr)
    return done(std::unexpected(no_loading(order.loads ? "loading models" : "unloading models")), false);
  if (order.loads)
    control->load(std::move(order.model), std::move(order.brought), std::move(done));
  else
    control->unload(std::move(order.model), order.dependents, std::move(done));
}

}  // namespace carillon::frontend
