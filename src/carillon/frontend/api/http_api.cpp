#include "carillon/frontend/api/http_api.h"

#include <atomic>
#include <charconv>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "grpc_service.pb.h"
#include "model_config.pb.h"
#include <nlohmann/json.hpp>

#include "carillon/frontend/admin/admin_page.h"
#include "carillon/frontend/admin/admin_status.h"
#include "carillon/frontend/admin/device_actions.h"
#include "carillon/frontend/api/http_settings.h"
#include "carillon/frontend/api/journal_api.h"
#include "carillon/frontend/api/model_orders.h"
#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/base64.h"
#include "carillon/frontend/codec/infer_codec_json.h"
#include "carillon/frontend/codec/infer_codec_raw.h"
#include "carillon/frontend/codec/status.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/doors/messages.h"
#include "carillon/frontend/http/http_access.h"
#include "carillon/frontend/http/http_body.h"
#include "carillon/frontend/http/http_routes.h"
#include "carillon/frontend/memory/answer_room.h"

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

// What stays of an answered call while its blobs are sent: the outputs that these are views of.
void keep_blobs_alone(const InferRequest& request, controller::InferCall& call) {
  call.inputs = {};
  call.texts = {};
  std::vector<bool> sent(call.outputs.size(), false);
  for (const OutputChoice& choice : request.outputs)
    if (choice.binary && !choice.shared) sent[choice.index] = true;
  for (std::size_t i = 0; i < sent.size(); ++i)
    if (!sent[i]) call.outputs[i] = {};
}

// `room`: what the outputs hold of the bytes in flight, which becomes the reply's.
HttpReply answer_reply(const controller::ModelView& model, const InferRequest& request,
                       controller::InferAnswer answer, AnswerRoom& room) {
  if (const auto checked = check_answer(model, answer); !checked) {
    return refused_reply(checked.error(), answer);
  }
  if (const auto finished = finish_outputs(model.config, request, *answer.call); !finished)
    return error_reply(finished.error());
  if (auto found = room.hold(size_of_answer(*answer.call)); !found) return full_reply(found.error().message);
  auto body = write_infer_json(model, request, *answer.call);
  keep_blobs_alone(request, *answer.call);
  HttpReply reply{.may_pack = true, .may_refuse = true, .room = room.take()};
  if (body.binary) {
    reply.content_type = "application/octet-stream";
    reply.headers.emplace_back("Inference-Header-Content-Length", std::to_string(body.json.size()));
  }
  reply.body = std::move(body.json);
  reply.blobs = std::move(body.blobs);
  reply.keeps = std::shared_ptr<controller::InferCall>(std::move(answer.call));
  return reply;
}

HttpReply made(ReplyMaker& make) {
  try {
    return make();
  } catch (const std::exception& thrown) {
    return thrown_reply(thrown);
  }
}

// A reply whose maker may have to wait for a device: not on the threads of connections.
std::variant<HttpReply, Deferred> waiting(const Commons& commons, Deliver deliver, ReplyMaker make) {
  if (commons.copies == nullptr) return make();
  WorkPool::Work work = [deliver = std::move(deliver), make = std::move(make)]() mutable {
    deliver([reply = made(make)]() mutable { return std::move(reply); });
  };
  if (!commons.copies->post(std::move(work))) return full_reply(too_many_copies().message);
  return Deferred{.cancel = [] {}};
}

// Delivers what is made of an answer by a maker that waits for a device.
Deliver waiting_first(WorkPool& copies, Deliver deliver) {
  return [&copies, deliver = std::make_shared<Deliver>(std::move(deliver))](ReplyMaker make) {
    WorkPool::Work work = [deliver, make = std::move(make)]() mutable {
      HttpReply reply = made(make);
      make = {};  // whose answer is there uses no region any more
      (*deliver)([reply = std::move(reply)]() mutable { return std::move(reply); });
    };
    if (!copies.post(std::move(work))) (*deliver)([] { return full_reply(too_many_copies().message); });
  };
}

// A request that is parsed, on its way to the service.
struct Ready {
  std::shared_ptr<const controller::ModelView> view;
  InferRequest request;
  Reservation room;
  std::shared_ptr<AnswerRoom> answer_room;
  std::unique_ptr<InferFacts> facts;  // null: nobody wants them
  Deliver deliver;
};

std::uint64_t submit(controller::Service& service, const Commons& commons, Ready ready) {
  if (shares_on_device(ready.request))
    ready.deliver = waiting_first(*commons.copies, std::move(ready.deliver));
  auto call = std::move(ready.request.call);
  ready.answer_room = room_for_answer(commons.bodies, *call);
  return service.submit(std::move(call), [ready = std::move(ready)](controller::InferAnswer answer) mutable {
    if (ready.facts) add_answer(*ready.facts, answer);
    Deliver deliver = std::move(ready.deliver);
    deliver([ready = std::move(ready), answer = std::move(answer)]() mutable {
      const std::uint64_t number = answer.number;
      auto reply = answer_reply(*ready.view, ready.request, std::move(answer), *ready.answer_room);
      if (number != 0) reply.headers.emplace_back(number_key, std::to_string(number));
      ready.room.shrink_to(0);
      reply.facts = std::move(ready.facts);
      return reply;
    });
  });
}

// What the way of a request and its cancelling share; whoever comes second finds what the first has left.
struct OpenFetch {
  static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  std::atomic<std::uint64_t> ticket = none;
  std::atomic<bool> cancelled = false;
};

// Brings the inputs that lie on devices first, on a thread that may wait for these.
std::variant<HttpReply, Deferred> submit_fetched(controller::Service& service, const Commons& commons,
                                                 Ready ready) {
  const auto open = std::make_shared<OpenFetch>();
  WorkPool::Work work = [&service, &commons, open, ready = std::move(ready)]() mutable {
    std::optional<HttpReply> wrong;
    try {
      if (open->cancelled)
        wrong = error_reply(499, "the client has gone");  // its connection ends with a reply all the same
      else if (const auto fetched = fetch_inputs(ready.view->config, ready.request); !fetched)
        wrong = error_reply(fetched.error());
    } catch (const std::exception& thrown) {
      wrong = thrown_reply(thrown);
    }
    if (wrong) {
      ready.request = {};
      return ready.deliver([reply = *std::move(wrong)]() mutable { return std::move(reply); });
    }
    const std::uint64_t ticket = submit(service, commons, std::move(ready));
    open->ticket = ticket;
    if (open->cancelled) service.cancel(ticket);
  };
  if (!commons.copies->post(std::move(work))) return full_reply(too_many_copies().message);
  return Deferred{.cancel = [&service, open] {
    open->cancelled = true;
    if (const std::uint64_t ticket = open->ticket; ticket != OpenFetch::none) service.cancel(ticket);
  }};
}

// A member of a JSON object that must be a whole number of bytes.
Result<std::uint64_t> bytes_in(const nlohmann::json& body, const char* member) {
  const auto it = body.find(member);
  if (it == body.end() || !it->is_number_unsigned())
    return invalid("\"" + std::string(member) + "\" must be a whole number of bytes");
  return it->get<std::uint64_t>();
}

// What an order to register memory on a device has in its body.
struct DeviceOrder {
  DeviceRegionInfo region;
  std::vector<std::byte> handle;
};
Result<DeviceOrder> device_order(const std::string& name, const HttpRequest& request) {
  const auto body = object_body(request, R"({"raw_handle":{"b64":"..."},"device_id":0,"byte_size":64})");
  if (!body) return std::unexpected(body.error());
  const auto raw = body->find("raw_handle");
  if (raw == body->end() || !raw->is_object())
    return invalid("\"raw_handle\" must be an object: {\"b64\": the handle in base64}");
  const auto text = raw->find("b64");
  constexpr std::size_t longest = 1024;  // of 88 letters
  std::optional<std::string> handle;
  if (text != raw->end() && text->is_string() && text->get_ref<const std::string&>().size() <= longest)
    handle = from_base64(text->get<std::string>());
  if (!handle) return invalid("\"b64\" of \"raw_handle\" must be text: a cudaIpcMemHandle_t in base64");
  const auto device = body->find("device_id");
  if (device == body->end() || !device->is_number_integer() ||
      (device->is_number_unsigned() && !std::in_range<std::int64_t>(device->get<std::uint64_t>())))
    return invalid("\"device_id\" must be the whole number of a CUDA device");
  const auto size = bytes_in(*body, "byte_size");
  if (!size) return std::unexpected(size.error());
  const auto bytes = std::as_bytes(std::span(*handle));
  return DeviceOrder{.region = {.name = name,
                                .device = device->get<std::int64_t>(),
                                .byte_size = *size,
                                .owner = request.caller ? request.caller->key.name : std::string()},
                     .handle = {bytes.begin(), bytes.end()}};
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
      return json_reply(device_memory_status(commons_.regions, route->region));
    case Endpoint::cuda_memory_register:
      return register_on_device(route->region, request, std::move(deliver));
    case Endpoint::cuda_memory_unregister:
      return waiting(commons_, std::move(deliver), [&regions = commons_.regions, region = route->region] {
        if (region.empty())
          regions.remove_all(RegionKind::device);
        else
          regions.remove(region, RegionKind::device);
        return HttpReply{};
      });
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
    case Endpoint::carillon_timeline:
    case Endpoint::carillon_trend:
      return watched(request, route->endpoint);
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

HttpReply HttpApi::watched(const HttpRequest& request, Endpoint what) const {
  if (watch_ == nullptr) return error_reply(501, "this server keeps no statistics of the last minute");
  const Caller* const caller = request.caller.get();
  const std::string_view since = query_value(request.target, "since");
  Result<std::string> body;
  if (what == Endpoint::carillon_timeline) {
    body = timeline_json(*watch_, since, caller);
  } else if (what == Endpoint::carillon_trend) {
    body = trend_json(*watch_, since, caller);
  } else {
    auto query = parse_status_query(request.target);
    if (!query) return error_reply(query.error());
    body = status_json(*watch_, commons_, caller, *query);
  }
  if (!body) return error_reply(body.error());
  return {.headers = {{"Cache-Control", "no-store"}}, .body = *std::move(body), .may_pack = true};
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

std::variant<HttpReply, Deferred> HttpApi::change(HttpRequest& request, const std::string& model, bool loads,
                                                  Deliver deliver) {
  // Files take as much again, until the body goes.
  constexpr std::size_t small = std::size_t{1} << 20;
  if (request.body.size() > small && !request.room.grow(request.body.size()))
    return full_reply("there is no room for the files of the order; try again later");
  auto order = order_of(request, model, loads);
  if (!order) return error_reply(order.error());
  if (const auto wrong = check_order(service_, request.caller.get(), *order)) return denial_reply(*wrong);
  carry_out(
      service_, *std::move(order),
      [deliver = std::move(deliver), room = std::move(request.room)](Result<> result, bool full) mutable {
        deliver([result = std::move(result), full] {
          if (result) return HttpReply{};
          const Error& error = result.error();
          return full ? full_reply(error.message) : error_reply(http_status(error.code), error.message);
        });
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

std::variant<HttpReply, Deferred> HttpApi::register_on_device(const std::string& name,
                                                              const HttpRequest& request, Deliver deliver) {
  SharedMemory& regions = commons_.regions;
  // Clients try this kind first, and go by what they are told: whatever else is wrong comes later.
  if (!regions.has_devices()) return error_reply(regions.add_on_device({.name = name}, {}).error());
  auto order = device_order(name, request);
  if (!order) return error_reply(order.error());
  return waiting(commons_, std::move(deliver), [&regions, order = *std::move(order)]() mutable {
    const auto added = regions.add_on_device(std::move(order.region), order.handle);
    return added ? HttpReply{} : error_reply(added.error());
  });
}

// Nothing: it does not wait, and all is as it was.
std::optional<Deferred> HttpApi::infer_once_loaded(std::string_view model, std::string_view version,
                                                   std::optional<std::size_t> json_size, TimePoint arrival,
                                                   HttpRequest& request, Deliver& deliver) {
  auto until = commons_.waits.would(service_, model, version, arrival);
  if (!until) return std::nullopt;
  if (json_size != 0U) {
    const auto told = deadline_in_json(request.body, json_size, arrival);
    if (!told) return std::nullopt;
    if (*told != TimePoint::max()) until = *told;
  }
  // The connection's thread may cancel the request while another goes on with it.
  struct Wait {
    std::atomic<bool> gone = false;
    std::mutex mutex;
    std::optional<Deferred> later;
  };
  const auto wait = std::make_shared<Wait>();
  auto go_on = [this, wait, arrival, model = std::string(model), version = std::string(version),
                request = std::move(request), deliver = std::move(deliver)]() mutable {
    if (wait->gone) return;
    request.waited = service_.now() - arrival;
    request.waited_for_model = true;
    const auto to = std::make_shared<Deliver>(std::move(deliver));
    std::variant<HttpReply, Deferred> outcome;
    try {
      outcome = infer(model, version, request, [to](ReplyMaker make) { (*to)(std::move(make)); });
    } catch (const std::exception& thrown) {
      outcome = thrown_reply(thrown);
    }
    if (auto* reply = std::get_if<HttpReply>(&outcome))
      return (*to)([reply = std::move(*reply)]() mutable { return std::move(reply); });
    const std::lock_guard lock(wait->mutex);
    wait->later = std::move(std::get<Deferred>(outcome));
    if (wait->gone) wait->later->cancel();
  };
  commons_.waits.wait(service_, {.model = std::string(model),
                                 .version = std::string(version),
                                 .until = *until,
                                 .gone = {wait, &wait->gone},
                                 .go_on = std::move(go_on)});
  return Deferred{.cancel = [wait] {
    const std::lock_guard lock(wait->mutex);
    wait->gone = true;
    if (wait->later) wait->later->cancel();
  }};
}

std::variant<HttpReply, Deferred> HttpApi::infer(std::string_view model, std::string_view version,
                                                 HttpRequest& request, Deliver deliver) {
  const TimePoint arrival = service_.now() - request.waited;
  std::optional<std::size_t> json_size;
  if (const auto& text = request.inference_header_length) {
    std::size_t n = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), n);
    if (error != std::errc{} || end != text->data() + text->size() || text->empty())
      return error_reply(400, "Inference-Header-Content-Length is '" + text->substr(0, 64) +
                                  "'; it must be the number of bytes of the JSON");
    json_size = n;
  }
  auto view = ready_model(service_, model, version);
  if (!view && !request.waited_for_model)
    if (auto later = infer_once_loaded(model, version, json_size, arrival, request, deliver))
      return *std::move(later);
  if (!view) return error_reply(view.error());
  if (auto once = answers_once(**view, "HTTP end point"); !once) return error_reply(once.error());
  const Surroundings around{.regions = &commons_.regions,
                            .key = key_of(request.caller.get()),
                            .room = &request.room,
                            .admitted = request.admitted.get()};
  auto parsed = json_size == 0U ? parse_infer_raw(**view, request.body, arrival, around)
                                : parse_infer_json(**view, request.body, json_size, arrival, around);
  request.admitted.reset();
  if (!parsed) return error_reply(parsed.error());
  for (const std::string& name : parsed->unheeded) commons_.unheeded.tell(name);
  request.body = {};  // all that matters of it is in the call

  controller::InferCall& call = *parsed->call;
  if (request.caller) call.key = request.caller->key.name;
  call.trace = request.trace;
  Ready ready{.view = std::move(*view),
              .request = std::move(*parsed),
              .room = std::move(request.room),
              .answer_room = {},
              .facts = {},
              .deliver = std::move(deliver)};
  if (commons_.records(request.trace))
    ready.facts =
        std::make_unique<InferFacts>(facts_of(*ready.view, ready.request.id, call.arrival, call.deadline));
  if (!ready.request.fetches.empty()) return submit_fetched(service_, commons_, std::move(ready));
  const std::uint64_t ticket = submit(service_, commons_, std::move(ready));
  return Deferred{.cancel = [this, ticket] { service_.cancel(ticket); }};
}

}  // namespace carillon::frontend
