#include "carillon/cli/load/http_get.h"

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/cli/load/wire.h"

namespace carillon::cli {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t longest_told = 500;
constexpr std::size_t longest_body = std::size_t{64} << 20;
constexpr std::chrono::seconds longest_wait{10};

// Opens a connection, and where that went well does `then` over it, which calls what it is given at its end:
// with what went wrong, or an empty text.
using Finish = std::function<void(std::string wrong)>;
struct Patience {
  std::chrono::nanoseconds most{longest_wait};
  std::function<bool()> given_up = {};  // empty: never
};
constexpr std::chrono::milliseconds asks_every{20};

Result<> over_connection(const Address& address, const Access& access,
                         const std::function<void(Wire&, Finish)>& then, const Patience& patience = {}) {
  asio::io_context context;
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::unavailable, address.authority() + ": " + what);
  };
  error_code error;
  asio::ip::tcp::resolver resolver(context);
  const auto endpoints = resolver.resolve(address.host, address.port, error);
  if (error) return wrong(error.message());
  Wire wire(context.get_executor(), access.tls);
  asio::steady_timer timer(context, patience.most);
  std::optional<std::string> outcome;
  const Finish finish = [&](std::string what) {
    if (!outcome) outcome = std::move(what);
    timer.cancel();
  };
  timer.async_wait([&](const error_code& cancelled) {
    if (cancelled) return;
    const std::chrono::duration<double> seconds = patience.most;
    outcome = fmt::format("no answer came in {:.3g} s", seconds.count());
    wire.close();
  });
  wire.async_open(endpoints, [&](std::string what) {
    if (!what.empty()) return finish(std::move(what));
    then(wire, finish);
  });
  if (patience.given_up) {
    while (!patience.given_up() && !context.stopped()) context.run_for(asks_every);
    if (!outcome) outcome = "nobody waits for the answer any more";
  } else {
    context.run();
  }
  if (outcome && !outcome->empty()) return wrong(*outcome);
  return {};
}

}  // namespace

Result<> try_connection(const Address& address, const Access& access) {
  // With TLS 1.3 what a server thinks of the client's certificate comes after the handshake.
  char byte = 0;
  return over_connection(address, access, [&](Wire& wire, const Finish& finish) {
    wire.async_read_some(asio::buffer(&byte, 1), [&, finish](error_code error, std::size_t) {
      const bool closed = error == asio::error::eof || error == asio::ssl::error::stream_truncated ||
                          error == asio::error::connection_reset;
      if (!error) return finish({});
      finish(closed && access.tls ? access.tls->why_closed() : wire.why(error));
    });
  });
}

Result<HttpAnswer> http_fetch(const Address& address, const Access& access, const std::string& target) {
  http::request<http::empty_body> request{http::verb::get, target, 11};
  request.set(http::field::host, address.authority());
  if (!access.secret.empty()) request.set(http::field::authorization, authorization_of(access));
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(longest_body);
  const auto done = over_connection(address, access, [&](Wire& wire, const Finish& finish) {
    http::async_write(wire, request, [&, finish](error_code unsent, std::size_t) {
      if (unsent) return finish("the server broke off: " + wire.why(unsent));
      http::async_read(wire, buffer, parser, [&, finish](error_code unread, std::size_t) {
        finish(unread ? "the server broke off: " + wire.why(unread) : std::string());
      });
    });
  });
  if (!done) return std::unexpected(done.error());
  return HttpAnswer{.status = parser.get().result_int(), .body = std::move(parser.get().body())};
}

Result<PostReply> http_post(const Address& address, const Access& access, const HttpPost& post,
                            std::chrono::nanoseconds patience, const std::function<bool()>& given_up) {
  constexpr std::size_t longest_reply = std::size_t{64} << 10;
  http::request<http::string_body> request{http::verb::post, post.target, 11};
  request.set(http::field::host, address.authority());
  request.set(http::field::connection, "close");
  for (const auto& [name, value] : post.headers) request.set(name, value);
  request.body() = post.body;
  request.prepare_payload();
  boost::beast::flat_buffer buffer(longest_reply);
  http::response_parser<http::string_body> parser;
  parser.body_limit(longest_reply);
  const auto done = over_connection(
      address, access,
      [&](Wire& wire, const Finish& finish) {
        http::async_write(wire, request, [&, finish](error_code unsent, std::size_t) {
          // Who refuses a body may answer before it has come whole.
          http::async_read(wire, buffer, parser, [&, finish, unsent](error_code unread, std::size_t) {
            const error_code first = unsent ? unsent : unread;
            finish(first ? "the collector broke off: " + wire.why(first) : std::string());
          });
        });
      },
      {.most = patience, .given_up = given_up});
  // Its status is the answer, whatever becomes of the rest.
  if (!done && !parser.is_header_done()) return std::unexpected(done.error());
  const auto& header = parser.get();
  return PostReply{.status = header.result_int(),
                   .retry_after = std::string(header[http::field::retry_after]),
                   .body = parser.is_done() ? header.body() : std::string()};
}

std::string status_text(const HttpAnswer& answer, const Access& access) {
  std::string text = "HTTP " + std::to_string(answer.status);
  const auto json = nlohmann::json::parse(answer.body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_string())
    text += ": " + json["error"].get<std::string>();
  else if (!answer.body.empty())
    text += ": " + answer.body.substr(0, longest_told);
  if (answer.status == 401) text += key_advice(KeyRefusal::unknown, access);
  if (answer.status == 403) text += key_advice(KeyRefusal::forbidden, access);
  return text;
}

Result<std::string> http_get(const std::string& url, const AccessArguments& arguments) {
  const auto scheme = url.find("://");
  const auto slash = url.find('/', scheme == std::string::npos ? 0 : scheme + 3);
  const std::string path =
      slash == std::string::npos || slash + 1 == url.size() ? "/metrics" : url.substr(slash);
  const auto address = parse_address(url.substr(0, slash));
  if (!address) return std::unexpected(address.error());
  if (address->protocol != Protocol::http)
    return invalid("'" + url + "': this comes over http or https, not gRPC");
  const auto access = read_access(arguments, *address);
  if (!access) return std::unexpected(access.error());
  auto answer = http_fetch(*address, *access, path);
  if (!answer) return in_context("'" + url + "'", answer.error());
  if (answer->status != 200)
    return fail(ErrorCode::unavailable, "'" + url + "': the answer is " + status_text(*answer, *access));
  return std::move(answer->body);
}

}  // namespace carillon::cli
