#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "carillon/cli/load/client.h"

namespace carillon::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

std::string percent_encoded(const std::string& text) {
  static constexpr char hex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || c == '~') {
      out += c;
    } else {
      out += '%';
      out += hex[byte >> 4];
      out += hex[byte & 15];
    }
  }
  return out;
}

struct Job {
  const Template* what = nullptr;
  Duration timeout{0};
  std::function<void(Reply)> on_reply;
};

// "{"error":"..."}" or whatever the body is, shortened.
std::string error_text(unsigned status, const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_string())
    return "HTTP " + std::to_string(status) + ": " + json["error"].get<std::string>();
  return "HTTP " + std::to_string(status) + ": " + body.substr(0, 200);
}

class HttpClient final : public Client {
 public:
  HttpClient(Address address, int connections)
      : address_(std::move(address)),
        limit_(connections),
        work_(asio::make_work_guard(context_)),
        thread_([this] { context_.run(); }) {}

  ~HttpClient() override {
    context_.stop();
    thread_.join();
  }

  Result<Metadata> metadata(const std::string& model) override {
    asio::io_context context;
    tcp::socket socket(context);
    error_code error;
    if (!connect(context, socket, error))
      return fail(ErrorCode::unavailable, "no server answers at " + address_.host + ":" + address_.port +
                                              " (" + error.message() + ")");
    http::request<http::empty_body> request{http::verb::get, "/v2/models/" + percent_encoded(model), 11};
    request.set(http::field::host, address_.host);
    http::write(socket, request, error);
    boost::beast::flat_buffer buffer;
    http::response<http::string_body> response;
    if (!error) http::read(socket, buffer, response, error);
    if (error) return fail(ErrorCode::unavailable, "the server broke off: " + error.message());
    if (response.result_int() != 200)
      return fail(ErrorCode::not_found, error_text(response.result_int(), response.body()));
    try {
      Metadata metadata;
      const auto json = nlohmann::json::parse(response.body());
      for (const auto& input : json.at("inputs"))
        metadata.inputs.push_back({input.at("name"), input.at("datatype"), input.at("shape")});
      return metadata;
    } catch (const nlohmann::json::exception& wrong) {
      return fail(ErrorCode::internal, std::string("the server's metadata cannot be read: ") + wrong.what());
    }
  }

  void send(const Template& what, Duration timeout, std::function<void(Reply)> on_reply) override {
    asio::post(context_,
               [this, job = Job{&what, timeout, std::move(on_reply)}]() mutable { start(std::move(job)); });
  }

 private:
  struct Connection {
    explicit Connection(asio::io_context& context) : socket(context) {}
    tcp::socket socket;
    boost::beast::flat_buffer buffer;
    std::optional<http::response_parser<http::string_body>> parser;
    std::string head;
    Job job;
    bool open = false;
    bool fresh = true;  // no answer has come over it yet
  };

  bool connect(asio::io_context& context, tcp::socket& socket, error_code& error) const {
    tcp::resolver resolver(context);
    const auto found = resolver.resolve(address_.host, address_.port, error);
    if (error) return false;
    asio::connect(socket, found, error);
    return !error;
  }

  void start(Job job) {
    if (!idle_.empty()) {
      Connection* connection = idle_.back();
      idle_.pop_back();
      connection->job = std::move(job);
      write(*connection);
    } else if (static_cast<int>(connections_.size()) < limit_) {
      Connection& connection = *connections_.emplace_back(std::make_unique<Connection>(context_));
      connection.job = std::move(job);
      open(connection);
    } else {
      waiting_.push_back(std::move(job));
    }
  }

  void open(Connection& connection) {
    error_code error;
    // Loopback and data-centre connects are quick; a blocking one keeps this simple.
    connection.socket = tcp::socket(context_);
    connection.buffer.clear();
    if (!connect(context_, connection.socket, error))
      return finish(connection, {Reply::Kind::error, error.message()});
    (void)connection.socket.set_option(tcp::no_delay(true), error);  // slower without it, no more
    connection.open = true;
    connection.fresh = true;
    write(connection);
  }

  void write(Connection& connection) {
    const Template& what = *connection.job.what;
    std::size_t blob_bytes = 0;
    nlohmann::json inputs = nlohmann::json::array();
    for (const InputSpec& input : what.inputs) {
      inputs.push_back({{"name", input.name},
                        {"datatype", input.datatype},
                        {"shape", input.shape},
                        {"parameters", {{"binary_data_size", input.data.size()}}}});
      blob_bytes += input.data.size();
    }
    nlohmann::json parameters{{"binary_data_output", true}};
    if (connection.job.timeout.count() != 0) parameters["timeout"] = connection.job.timeout.count() / 1000;
    if (!what.application.empty()) parameters["application"] = what.application;
    if (what.priority != 0) parameters["priority"] = what.priority;
    const std::string json = nlohmann::json{{"parameters", parameters}, {"inputs", inputs}}.dump();
    connection.head = "POST /v2/models/" + percent_encoded(what.model) +
                      "/infer HTTP/1.1\r\nHost: " + address_.host +
                      "\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: " +
                      std::to_string(json.size()) +
                      "\r\nContent-Length: " + std::to_string(json.size() + blob_bytes) + "\r\n\r\n" + json;
    std::vector<asio::const_buffer> parts{asio::buffer(connection.head)};
    for (const InputSpec& input : what.inputs) parts.push_back(asio::buffer(input.data));
    connection.parser.emplace();
    connection.parser->body_limit(std::uint64_t{1} << 31);
    asio::async_write(connection.socket, parts, [this, &connection](error_code error, std::size_t) {
      if (error) return retry_or_fail(connection, error);
      http::async_read(connection.socket, connection.buffer, *connection.parser,
                       [this, &connection](error_code read_error, std::size_t) {
                         if (read_error) return retry_or_fail(connection, read_error);
                         answered(connection);
                       });
    });
  }

  // A kept-alive connection may have been closed by the server while idle: that is not the request's failure.
  void retry_or_fail(Connection& connection, error_code error) {
    connection.open = false;
    error_code ignored;
    (void)connection.socket.close(ignored);
    if (!connection.fresh) return open(connection);
    finish(connection, {Reply::Kind::error, error.message()});
  }

  void answered(Connection& connection) {
    const auto& response = connection.parser->get();
    connection.fresh = false;
    if (!response.keep_alive()) connection.open = false;
    const unsigned status = response.result_int();
    if (status == 200) return finish(connection, {Reply::Kind::result, {}});
    finish(connection,
           {status == 504 ? Reply::Kind::refused : Reply::Kind::error, error_text(status, response.body())});
  }

  void finish(Connection& connection, Reply reply) {
    auto on_reply = std::move(connection.job.on_reply);
    on_reply(std::move(reply));
    const bool more = !waiting_.empty();
    if (more) {
      connection.job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (connection.open)
      more ? write(connection) : idle_.push_back(&connection);
    else if (more)
      asio::post(context_, [this, &connection] { open(connection); });
    else
      std::erase_if(connections_, [&](const auto& owned) { return owned.get() == &connection; });
  }

  Address address_;
  int limit_;
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;
  std::deque<Job> waiting_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Client> make_http_client(const Address& address, int connections) {
  return std::make_unique<HttpClient>(address, connections);
}

}  // namespace carillon::cli
