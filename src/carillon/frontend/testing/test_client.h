#pragma once

// For tests only: a plain HTTP/1.1 client over one connection.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

namespace carillon::frontend {

class TestClient {
 public:
  using Response = boost::beast::http::response<boost::beast::http::string_body>;
  using Headers = std::vector<std::pair<std::string, std::string>>;

  explicit TestClient(std::uint16_t port) : socket_(context_) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), port});
  }

  void send(const std::string& bytes) { boost::asio::write(socket_, boost::asio::buffer(bytes)); }

  void send(const std::string& method, const std::string& target, const std::string& body = {},
            const Headers& headers = {}) {
    send(request(method, target, body, headers));
  }

  static std::string request(const std::string& method, const std::string& target,
                             const std::string& body = {}, const Headers& headers = {}) {
    std::string text = method + " " + target + " HTTP/1.1\r\nHost: test\r\n";
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    if (!body.empty() || method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return text + "\r\n" + body;
  }

  // Status 0: the connection ended instead.
  Response receive() {
    boost::beast::http::response_parser<boost::beast::http::string_body> parser;
    parser.body_limit(std::uint64_t{1} << 40);
    boost::system::error_code error;
    boost::beast::http::read(socket_, buffer_, parser, error);
    if (error) {
      Response none;
      none.result(0U);
      return none;
    }
    return parser.release();
  }

  Response ask(const std::string& method, const std::string& target, const std::string& body = {},
               const Headers& headers = {}) {
    send(method, target, body, headers);
    return receive();
  }

  // Until the server closes.
  std::string receive_all() {
    std::string all(boost::asio::buffer_cast<const char*>(buffer_.data()), buffer_.size());
    boost::system::error_code error;
    boost::asio::read(socket_, boost::asio::dynamic_buffer(all), error);
    return all;
  }

  // True: the server closed the connection, and sent nothing more.
  bool closed() {
    char byte = 0;
    boost::system::error_code error;
    return buffer_.size() == 0 && socket_.read_some(boost::asio::buffer(&byte, 1), error) == 0 && error;
  }

  void close() { socket_.close(); }

 private:
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace carillon::frontend
