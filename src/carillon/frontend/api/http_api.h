#pragma once

#include <expected>
#include <memory>
#include <string_view>
#include <variant>

#include "carillon/controller/calls/service.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/http/http_handler.h"
#include "carillon/frontend/http/http_routes.h"
#include "carillon/frontend/telemetry/watch.h"

namespace carillon::frontend {

// KServe v2 over HTTP, with Triton's extensions, as a handler for an HttpServer. The service and the commons
// outlive it.
class HttpApi final : public HttpHandler {
 public:
  // `watch`: of the same service, for those who ask how it does; null: they are told nothing. `admin`:
  // whether administrative requests are served here where they are served at one door alone; the page for
  // people is served nowhere else.
  HttpApi(controller::Service& service, Commons& commons, Watch* watch = nullptr, bool admin = false)
      : service_(service), commons_(commons), watch_(watch), admin_(admin) {}

  std::expected<std::shared_ptr<Caller>, HttpReply> admit(const HttpHead& head) override;
  std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver deliver) override;

 private:
  std::optional<Deferred> infer_once_loaded(std::string_view model, std::string_view version,
                                            std::optional<std::size_t> json_size, TimePoint arrival,
                                            HttpRequest& request, Deliver& deliver);
  std::variant<HttpReply, Deferred> infer(std::string_view model, std::string_view version,
                                          HttpRequest& request, Deliver deliver);
  HttpReply server_readiness() const;
  HttpReply ready(std::string_view model, std::string_view version) const;
  HttpReply index(const HttpRequest& request) const;
  std::variant<HttpReply, Deferred> change(HttpRequest& request, const std::string& model, bool loads,
                                           Deliver deliver);
  HttpReply page(const HttpRequest& request) const;
  HttpReply watched(const HttpRequest& request, Endpoint what) const;
  HttpReply register_region(const std::string& region, const HttpRequest& request);
  std::variant<HttpReply, Deferred> register_on_device(const std::string& region, const HttpRequest& request,
                                                       Deliver deliver);

  controller::Service& service_;
  Commons& commons_;
  Watch* const watch_;
  const bool admin_;
};

}  // namespace carillon::frontend
