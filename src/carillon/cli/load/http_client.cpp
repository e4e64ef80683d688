#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "carillon/cli/load/client.h"
#include "carillon/cli/load/http_get.h"
#include "carillon/cli/load/wire.h"

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

// Of a config as the server tells it; none where there is none, or it cannot be read.
std::optional<double> slo_in(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, false);
  if (!json.is_object() || !json.contains("parameters")) return std::nullopt;
  const auto& parameters = json["parameters"];
  if (!parameters.is_object() || !parameters.contains("slo_ms")) return std::nullopt;
  const auto& slo = parameters["slo_ms"];
  if (!slo.is_object() || !slo.contains("string_value") || !slo["string_value"].is_string())
    return std::nullopt;
  return number_in(slo["string_value"].get<std::string>());
}

class HttpClient final : public Client {
 public:
  HttpClient(Address address, Access access, int connections)
      : address_(std::move(address)),
        access_(std::move(access)),
        limit_(connections),
        work_(asio::make_work_guard(context_)),
        thread_([this] { context_.run(); }) {}

  ~HttpClient() override {
    context_.stop();
    thread_.join();
  }

  Result<Metadata> metadata(const std::string& model) override {
    const std::string target = "/v2/models/" + percent_encoded(model);
    const auto answer = http_fetch(address_, access_, target);
    if (!answer) return in_context("no server answers", answer.error());
    if (answer->status != 200)
      return fail(answer->status == 404 ? ErrorCode::not_found : ErrorCode::unavailable,
                  status_text(*answer, access_));
    try {
      Metadata metadata;
      const auto json = nlohmann::json::parse(answer->body);
      for (const auto& input : json.at("inputs"))
        metadata.inputs.push_back({input.at("name"), input.at("datatype"), input.at("shape")});
      if (const auto config = http_fetch(address_, access_, target + "/config");
          config && config->status == 200)
        metadata.slo_ms = slo_in(config->body);
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
    Connection(asio::io_context& context, const Access& access) : wire(context.get_executor(), access.tls) {}
    Wire wire;
    boost::beast::flat_buffer buffer;
    std::optional<http::response_parser<http::string_body>> parser;
    std::string head;
    Job job;
    bool open = false;
    bool fresh = true;  // no answer has come over it yet
  };

  void start(Job job) {
    if (!idle_.empty()) {
      Connection* connection = idle_.back();
      idle_.pop_back();
      connection->job = std::move(job);
      write(*connection);
    } else if (static_cast<int>(connections_.size()) < limit_) {
      Connection& connection = *connections_.emplace_back(std::make_unique<Connection>(context_, access_));
      connection.job = std::move(job);
      open(connection);
    } else {
      waiting_.push_back(std::move(job));
    }
  }

  void open(Connection& connection) {
    connection.buffer.clear();
    error_code error;
    // Once, and without waiting long: names of a data centre are looked up quickly.
    if (endpoints_.empty()) endpoints_ = tcp::resolver(context_).resolve(address_.host, address_.port, error);
    if (error) return finish(connection, {Reply::Kind::error, error.message()});
    connection.wire.async_open(endpoints_, [this, &connection](std::string wrong) {
      if (!wrong.empty()) return finish(connection, {Reply::Kind::error, std::move(wrong)});
      connection.open = true;
      connection.fresh = true;
      write(connection);
    });
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
                      "/infer HTTP/1.1\r\nHost: " + address_.authority() +
                      (access_.secret.empty() ? "" : "\r\nAuthorization: " + authorization_of(access_)) +
                      "\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: " +
                      std::to_string(json.size()) +
                      "\r\nContent-Length: " + std::to_string(json.size() + blob_bytes) + "\r\n\r\n" + json;
    std::vector<asio::const_buffer> parts{asio::buffer(connection.head)};
    for (const InputSpec& input : what.inputs) parts.push_back(asio::buffer(input.data));
    connection.parser.emplace();
    connection.parser->body_limit(std::uint64_t{1} << 31);
    asio::async_write(connection.wire, parts, [this, &connection](error_code error, std::size_t) {
      if (error) return retry_or_fail(connection, error);
      http::async_read(connection.wire, connection.buffer, *connection.parser,
                       [this, &connection](error_code read_error, std::size_t) {
                         if (read_error) return retry_or_fail(connection, read_error);
                         answered(connection);
                       });
    });
  }

  // A kept-alive connection may have been closed by the server while idle: that is not the request's failure.
  void retry_or_fail(Connection& connection, error_code error) {
    connection.open = false;
    std::string why = connection.wire.why(error);
    connection.wire.close();
    if (!connection.fresh) return open(connection);
    finish(connection, {Reply::Kind::error, std::move(why)});
  }

  void answered(Connection& connection) {
    const auto& response = connection.parser->get();
    connection.fresh = false;
    if (!response.keep_alive()) connection.open = false;
    const unsigned status = response.result_int();
    if (status == 200) return finish(connection, {Reply::Kind::result, {}});
    finish(connection,
           {status == 504 ? Reply::Kind::refused : Reply::Kind::error,
            status_text({.status = status, .body = std::move(connection.parser->get().body())}, access_)});
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

  const Address address_;
  const Access access_;
  const int limit_;
  Wire::Endpoints endpoints_;  // none: not looked up yet
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;
  std::deque<Job> waiting_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Client> make_http_client(const Address& address, const Access& access, int connections) {
  return std::make_unique<HttpClient>(address, access, connections);
}

}  // namespace carillon::cli
