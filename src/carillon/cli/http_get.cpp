#include "carillon/cli/http_get.h"

#include <chrono>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "carillon/cli/load/client.h"

namespace carillon::cli {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {
constexpr std::size_t longest_told = 500;
}

Result<std::string> http_get(const std::string& url, const HttpHeaders& headers) {
  const auto scheme = url.find("://");
  const auto slash = url.find('/', scheme == std::string::npos ? 0 : scheme + 3);
  const std::string path =
      slash == std::string::npos || slash + 1 == url.size() ? "/metrics" : url.substr(slash);
  const auto address = parse_address(url.substr(0, slash));
  if (!address) return std::unexpected(address.error());
  if (address->protocol != Protocol::http) return invalid("'" + url + "': metrics come over http");

  asio::io_context context;
  boost::beast::tcp_stream stream(context);
  http::request<http::empty_body> request{http::verb::get, path, 11};
  request.set(http::field::host, address->host);
  for (const auto& [name, value] : headers) request.set(name, value);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(std::uint64_t{64} << 20);
  boost::system::error_code error;
  asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(address->host, address->port, error);
  if (!error) {
    // Time-outs act on asynchronous operations alone.
    stream.expires_after(std::chrono::seconds{10});
    stream.async_connect(found, [&](boost::system::error_code failed, const auto&) {
      error = failed;
      if (failed) return;
      http::async_write(stream, request, [&](boost::system::error_code unsent, std::size_t) {
        error = unsent;
        if (unsent) return;
        http::async_read(stream, buffer, parser,
                         [&](boost::system::error_code unread, std::size_t) { error = unread; });
      });
    });
    context.run();
  }
  if (error) return fail(ErrorCode::unavailable, "'" + url + "': " + error.message());
  if (parser.get().result_int() != 200)
    return fail(ErrorCode::unavailable,
                "'" + url + "': the answer is HTTP " + std::to_string(parser.get().result_int()) +
                    ", not 200" +
                    (parser.get().body().empty() ? "" : ": " + parser.get().body().substr(0, longest_told)));
  return parser.release().body();
}

}  // namespace carillon::cli
