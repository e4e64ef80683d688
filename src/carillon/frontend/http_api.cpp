#include "carillon/frontend/http_api.h"

#include <charconv>
#include <tuple>
#include <utility>

#include "grpc_service.pb.h"
#include "model_config.pb.h"
#include <nlohmann/json.hpp>

#include "carillon/frontend/admin_page.h"
#include "carillon/frontend/admin_status.h"
#include "carillon/frontend/answers.h"
#include "carillon/frontend/device_actions.h"
#include "carillon/frontend/http_access.h"
#include "carillon/frontend/http_body.h"
#include "carillon/frontend/http_routes.h"
#include "carillon/frontend/http_settings.h"
#include "carillon/frontend/infer_codec_json.h"
#include "carillon/frontend/journal_api.h"
#include "carillon/frontend/messages.h"
#include "carillon/frontend/model_orders.h"
#include "carillon/frontend/status.h"
#include "carillon/frontend/tensors.h"

namespace carillon::frontend {

std::string_view openapi_text();  // openapi.json

namespace {

template <typename Message>
HttpReply json_reply(const Result<Message>& message) {
  if (!message) return error_reply(message.error());
  return {.body = to_json(*message)};
}

// What of a failure is known in numbers stands in its headers and in its body.
HttpReply refused_reply(const Error& error, const controller::InferAnswer& answer) {
  HttpReply reply{.status = http_status(error.code)};
  ErrorNumbers numbers;
  if (answer.would_take) {
    numbers.would_take_us = whole_us(*answer.would_take);
    reply.headers.emplace_back(would_take_key, std::to_string(*numbers.would_take_us));
  }
  if (answer.retry_after) {
    numbers.retry_after_ms = retry_ms(*answer.retry_after);
    reply.headers.emplace_back("Retry-After", std::to_string((*numbers.retry_after_ms + 999) / 1000));
    reply.headers.emplace_back(retry_key, std::to_string(*numbers.retry_after_ms));
  }
  reply.body = error_json(error.message, numbers);
  return reply;
}

// Keeps the tensors alive while their blobs are sent.
HttpReply answer_reply(const controller::ModelView& model, const InferRequest& request,
                       controller::InferAnswer answer) {
  if (const auto checked = check_answer(model, answer); !checked) {
    return refused_reply(checked.error(), answer);
  }
  if (const auto finished = finish_outputs(model.config, request, *answer.call); !finished)
    return error_reply(finished.error());
  auto body = write_infer_json(model, request, *answer.call);
  // What was asked is not needed any more, however long the answer waits for its client.
  std::exchange(answer.call->inputs, {});
  std::exchange(answer.call->texts, {});
  HttpReply reply{.may_pack = true, .may_refuse = true};
  if (body.binary) {
    reply.content_type = "application/octet-stream";
    reply.headers.emplace_back("Inference-Header-Content-Length", std::to_string(body.json.size()));
  }
  reply.body = std::move(body.json);
  reply.blobs = std::move(body.blobs);
  reply.keeps = std::shared_ptr<controller::InferCall>(std::move(answer.call));
  return reply;
}

}  // namespace

std::expected<std::shared_ptr<Caller>, HttpReply> HttpApi::admit(const HttpHead& head) {
  return admit_http(*commons_.guard, head, service_.now(), admin_);
}

std::variant<HttpReply, Deferred> HttpApi::handle(HttpRequest request, Deliver deliver) {
  const auto route = find_route(request.method, request.target);
  if (!route) {
    auto reply = error_reply(route.error().status, route.error().message);
    if (!route.error().allow.empty()) reply.headers.emplace_back("Allow", route.error().allow);
    return reply;
  }
  switch (route->endpoint) {
    case Endpoint::server_metadata:
      return HttpReply{.body = to_json(server_metadata(commons_))};
    case Endpoint::openapi:
      return HttpReply{.body = std::string(openapi_text()), .may_pack = true};
    case Endpoint::server_live:
      return HttpReply{.body = R"({"live":true})"};
    case Endpoint::server_ready:
      return server_readiness();
    case Endpoint::model_metadata:
      return json_reply(model_metadata(service_, route->model, route->version));
    case Endpoint::model_ready:
      return ready(route->model, route->version);
    case Endpoint::model_config:
      return json_reply(model_config(service_, route->model, route->version));
    case Endpoint::model_statistics:
      return json_reply(model_statistics(service_, route->model, route->version, request.caller.get()));
    case Endpoint::infer:
      return infer(route->model, route->version, request, std::move(deliver));
    case Endpoint::repository_index:
      return index(request);
    case Endpoint::repository_load:
      return change(request, route->model, true, std::move(deliver));
    case Endpoint::repository_unload:
      return change(request, route->model, false, std::move(deliver));
    case Endpoint::system_memory_status:
      return json_reply(shared_memory_status(commons_.regions, route->region));
    case Endpoint::system_memory_register:
      return register_region(route->region, request);
    case Endpoint::system_memory_unregister:
      if (route->region.empty())
        commons_.regions.remove_all();
      else
        commons_.regions.remove(route->region);
      return HttpReply{};
    case Endpoint::cuda_memory_status:
      if (!route->region.empty()) return error_reply(no_cuda_region(route->region));
      return HttpReply{.body = "[]"};
    case Endpoint::cuda_memory_register:
      return error_reply(no_cuda());
    case Endpoint::cuda_memory_unregister:
      return HttpReply{};
    case Endpoint::logging:
      return log_settings_reply(commons_.log_settings, request);
    case Endpoint::trace_setting:
      if (!route->model.empty())
        if (const auto view = service_.find(route->model, ""); !view) return error_reply(view.error());
      return trace_settings_reply(commons_.trace_settings, route->model, request);
    case Endpoint::kept_requests:
      return kept_requests_reply(service_, request, route->id);
    case Endpoint::device_trace:
      return device_trace_reply(service_, request);
    case Endpoint::admin_page:
      return page(request);
    case Endpoint::carillon_status:
      return watched(request, false);
    case Endpoint::carillon_timeline:
      return watched(request, true);
    case Endpoint::not_implemented:
      return error_reply(501, "this server does not implement " + request.target.substr(0, 256));
  }
  return error_reply(500, "no such endpoint");
}

HttpReply HttpApi::page(const HttpRequest& request) const {
  if (!admin_)
    return error_reply(404, "no such path: " + request.target.substr(0, 256) +
                                "; the protocol's paths begin with /v2, and the page for people is served at "
                                "the admin port alone (--admin-port)");
  return admin_page_reply();
}

HttpReply HttpApi::watched(const HttpRequest& request, bool timeline) const {
  if (watch_ == nullptr) return error_reply(501, "this server keeps no statistics of the last minute");
  HttpReply reply{.headers = {{"Cache-Control", "no-store"}}, .may_pack = true};
  if (!timeline) {
    reply.body = status_json(*watch_, commons_, request.caller.get());
    return reply;
  }
  auto body = timeline_json(*watch_, query_value(request.target, "since"), request.caller.get());
  if (!body) return error_reply(body.error());
  reply.body = *std::move(body);
  return reply;
}

HttpReply HttpApi::server_readiness() const {
  const auto ready = server_ready(service_, commons_);
  if (ready) return {.body = R"({"ready":true})"};
  // Everybody may ask this, and not everybody may know of models.
  const nlohmann::ordered_json body{
      {"ready", false},
      {"error", commons_.guard->needs_keys() ? "the server is not ready" : ready.error().message}};
  return {.status = http_status(ready.error().code),
          .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

HttpReply HttpApi::ready(std::string_view model, std::string_view version) const {
  const auto view = service_.find(model, version);
  if (!view) return error_reply(view.error());
  nlohmann::ordered_json body{{"name", (*view)->name}, {"ready", (*view)->ready}};
  if (!(*view)->ready) body["error"] = "the model is not ready: " + (*view)->reason;
  return {.status = (*view)->ready ? 200 : 503,
          .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

HttpReply HttpApi::index(const HttpRequest& request) const {
  const auto body = object_body(request, R"({"ready":true})");
  if (!body) return error_reply(body.error());
  bool only_ready = false;
  if (const auto it = body->find("ready"); it != body->end()) {
    if (!it->is_boolean()) return error_reply(400, "\"ready\" must be true or false");
    only_ready = it->get<bool>();
  }
  return {.body = to_json(repository_index(service_, only_ready, request.caller.get()))};
}

std::variant<HttpReply, Deferred> HttpApi::change(const HttpRequest& request, const std::string& model,
                                                  bool loads, Deliver deliver) {
  auto order = order_of(request, model, loads);
  if (!order) return error_reply(order.error());
  if (const auto wrong = check_config(request.caller.get(), *order)) return denial_reply(*wrong);
  carry_out(service_, *std::move(order), [deliver = std::move(deliver)](Result<> result) mutable {
    deliver([result = std::move(result)] { return result ? HttpReply{} : error_reply(result.error()); });
  });
  // What was ordered is done, whether or not anybody waits for it.
  return Deferred{.cancel = [] {}};
}

HttpReply HttpApi::register_region(const std::string& name, const HttpRequest& request) {
  const auto body = object_body(request, R"({"key":"/a_name","offset":0,"byte_size":64})");
  if (!body) return error_reply(body.error());
  RegionInfo region{.name = name};
  const auto key = body->find("key");
  if (key == body->end() || !key->is_string())
    return error_reply(400, "\"key\" must be text: the name of a shared memory object");
  region.key = key->get<std::string>();
  for (const auto& [member, value, must] :
       {std::tuple("offset", &region.offset, false), std::tuple("byte_size", &region.byte_size, true)}) {
    const auto it = body->find(member);
    if (it == body->end() && !must) continue;
    if (it == body->end() || !it->is_number_unsigned())
      return error_reply(400, "\"" + std::string(member) + "\" must be a whole number of bytes");
    *value = it->get<std::uint64_t>();
  }
  if (request.caller) region.owner = request.caller->key.name;
  if (auto added = commons_.regions.add(std::move(region)); !added) return error_reply(added.error());
  return {};
}

std::variant<HttpReply, Deferred> HttpApi::infer(std::string_view model, std::string_view version,
                                                 HttpRequest& request, Deliver deliver) {
  const TimePoint arrival = service_.now() - request.waited;
  auto view = ready_model(service_, model, version);
  if (!view) return error_reply(view.error());
  if (auto once = answers_once(**view, "HTTP end point"); !once) return error_reply(once.error());
  std::optional<std::size_t> json_size;
  if (const auto& text = request.inference_header_length) {
    std::size_t n = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), n);
    if (error != std::errc{} || end != text->data() + text->size() || text->empty())
      return error_reply(400, "Inference-Header-Content-Length is '" + text->substr(0, 64) +
                                  "'; it must be the number of bytes of the JSON");
    json_size = n;
  }
  auto parsed = parse_infer_json(
      **view, request.body, json_size, arrival,
      {.regions = &commons_.regions, .key = key_of(request.caller.get()), .room = &request.room});
  if (!parsed && parsed.error().code == ErrorCode::resource_exhausted)
    return full_reply(parsed.error().message);
  if (!parsed) return error_reply(parsed.error());
  for (const std::string& name : parsed->unheeded) commons_.unheeded.tell(name);
  request.body = {};  // all that matters of it is in the call

  auto call = std::move(parsed->call);
  if (request.caller) call->key = request.caller->key.name;
  call->trace = request.trace;
  std::unique_ptr<InferFacts> facts;
  if (commons_.access_log)
    facts = std::make_unique<InferFacts>(facts_of(**view, parsed->id, call->arrival, call->deadline));
  const std::uint64_t ticket = service_.submit(
      std::move(call),
      [view = std::move(*view), parsed = std::move(*parsed), room = std::move(request.room),
       facts = std::move(facts), deliver = std::move(deliver)](controller::InferAnswer answer) mutable {
        if (facts) add_answer(*facts, answer);
        deliver([view = std::move(view), parsed = std::move(parsed), room = std::move(room),
                 facts = std::move(facts), answer = std::move(answer)]() mutable {
          const std::uint64_t number = answer.number;
          auto reply = answer_reply(*view, parsed, std::move(answer));
          if (number != 0) reply.headers.emplace_back(number_key, std::to_string(number));
          room.shrink_to(0);
          reply.facts = std::move(facts);
          return reply;
        });
      });
  return Deferred{.cancel = [this, ticket] { service_.cancel(ticket); }};
}

}  // namespace carillon::frontend
