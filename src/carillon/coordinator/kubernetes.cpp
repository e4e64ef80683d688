#include "carillon/coordinator/kubernetes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "carillon/base/clock.h"
#include "carillon/base/files.h"
#include "carillon/base/socket_stream.h"
#include "carillon/cluster/coordinator/kubernetes_client.h"
#include "carillon/cluster/coordinator/lease.h"

namespace carillon::coordinator {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace kubernetes = cluster::kubernetes;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;

// Of what comes from outside.
constexpr std::size_t longest_body = std::size_t{32} << 20, longest_refusal = std::size_t{64} << 10;
constexpr std::size_t longest_line = std::size_t{256} << 10, longest_buffer = std::size_t{128} << 10;
constexpr std::uintmax_t longest_file = std::uintmax_t{1} << 20;
constexpr std::size_t most_idle = 4;  // connections that wait for the next call

constexpr std::string_view pod_folder = "/var/run/secrets/kubernetes.io/serviceaccount";

// Where the API server is, and what this process shows it.
struct Site {
  bool tls = true;
  std::string host, port;
  std::filesystem::path token, ca;  // empty: none, and those of the system

  std::string authority() const { return (host.contains(':') ? "[" + host + "]" : host) + ":" + port; }
  std::string url() const { return (tls ? "https://" : "http://") + authority(); }
};

Result<std::string> read_small_file(std::string_view what, const std::filesystem::path& file) {
  std::error_code error;
  if (const auto size = std::filesystem::file_size(file, error); !error && size > longest_file)
    return invalid(
        fmt::format("{} '{}' has {} bytes, at most {} are read", what, file.string(), size, longest_file));
  return read_file(what, file);
}

// As it is in its file now.
Result<std::string> read_token(const std::filesystem::path& file) {
  auto token = read_small_file("the token for the API server", file);
  if (!token) return token;
  while (!token->empty() && (token->back() == '\n' || token->back() == '\r' || token->back() == ' '))
    token->pop_back();
  if (token->empty() || std::ranges::any_of(*token, [](char c) { return c <= ' ' || c > '~'; }))
    return invalid("the token for the API server in '" + file.string() +
                   "' is empty, or has characters that no token has");
  return token;
}

Result<Site> site_of(const cluster::KubernetesAddress& address) {
  Site site{.tls = address.tls, .host = {}, .port = {}, .token = address.token, .ca = address.ca};
  const std::filesystem::path folder = pod_folder;
  if (address.server.empty()) {
    const char* const host = std::getenv("KUBERNETES_SERVICE_HOST");
    const char* const port = std::getenv("KUBERNETES_SERVICE_PORT");
    if (host == nullptr || port == nullptr)
      return invalid(
          "this process is in no pod of Kubernetes: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are "
          "not set. Name the API server: kubernetes://NAMESPACE/NAME?server=https://HOST:PORT");
    site.host = host;
    site.port = port;
    const std::string endpoint = site.authority();
    if (auto checked = cluster::check_endpoint(endpoint); !checked)
      return in_context("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT", checked.error());
  } else {
    const std::size_t colon = address.server.rfind(':');
    site.host = address.server.substr(0, colon);
    if (site.host.starts_with('[')) site.host = site.host.substr(1, site.host.size() - 2);
    site.port = address.server.substr(colon + 1);
  }
  std::error_code error;
  if (site.tls) {
    if (site.token.empty() && std::filesystem::exists(folder / "token", error)) site.token = folder / "token";
    if (site.ca.empty() && std::filesystem::exists(folder / "ca.crt", error)) site.ca = folder / "ca.crt";
  }
  if (!site.token.empty())
    if (const auto token = read_token(site.token); !token) return std::unexpected(token.error());
  if (!site.ca.empty())
    if (const auto ca = read_small_file("the CA of the API server", site.ca); !ca)
      return std::unexpected(ca.error());
  return site;
}

// The wall clock, as a Lease's MicroTime.
std::string stamp() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const std::time_t seconds = micros / 1'000'000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, micros % 1'000'000);
}

// A connection to the API server.
class Wire : public SocketStream {
 public:
  explicit Wire(asio::io_context& context) : SocketStream(context.get_executor()), resolver_(context) {}

  // Connects and shakes hands; then calls `done` with what went wrong, empty for nothing.
  template <typename Done>
  void async_open(const Site& site, Done done) {
    if (site.tls)
      if (auto made = make_context(site); !made) return done(made.error().message);
    resolver_.async_resolve(
        site.host, site.port,
        [this, &site, done = std::move(done)](const error_code& unknown, const auto& found) mutable {
          if (unknown) return done(unknown.message());
          asio::async_connect(
              socket(), found,
              [this, &site, done = std::move(done)](const error_code& error, const auto&) mutable {
                if (error) return done(error.message());
                error_code ignored;  // slower without these, no more
                (void)socket().set_option(tcp::no_delay(true), ignored);
                (void)socket().set_option(tcp::socket::keep_alive(true), ignored);
                if (!site.tls) return done(std::string());
                shake_hands(site, std::move(done));
              });
        });
  }
  std::string why(const error_code& error) {
    if (tls() != nullptr) {
      if (const long verified = SSL_get_verify_result(tls()->native_handle()); verified != X509_V_OK)
        return std::string("its certificate is not trusted: ") + X509_verify_cert_error_string(verified);
      if (error.category() == asio::error::get_ssl_category() &&
          ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_WRONG_VERSION_NUMBER)
        return "it does not speak TLS at this port: is it http://?";
    }
    if (error == http::error::end_of_stream || error == asio::error::eof) return "it closed the connection";
    return error.message();
  }
  // What was not sent yet is not sent any more: a claim that comes late does harm.
  void abort() {
    error_code ignored;
    (void)socket().set_option(tcp::socket::linger(true, 0), ignored);
    (void)socket().close(ignored);
    resolver_.cancel();
  }

 private:
  Result<> make_context(const Site& site) {
    context_.emplace(ssl::context::tls_client);
    error_code error;
    (void)context_->set_options(
        ssl::context::no_sslv2 | ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1,
        error);
    (void)context_->set_verify_mode(ssl::verify_peer, error);
    if (site.ca.empty()) {
      (void)context_->set_default_verify_paths(error);
      return {};
    }
    const auto ca = read_small_file("the CA of the API server", site.ca);
    if (!ca) return std::unexpected(ca.error());
    (void)context_->add_certificate_authority(asio::buffer(*ca), error);
    if (error)
      return invalid("the CA of the API server '" + site.ca.string() +
                     "' has no certificate in PEM: " + error.message());
    return {};
  }
  template <typename Done>
  void shake_hands(const Site& site, Done done) {
    TlsStream& stream = begin_tls(*context_);
    SSL* const connection = stream.native_handle();
    X509_VERIFY_PARAM* const wanted = SSL_get0_param(connection);
    error_code no_address;
    (void)asio::ip::make_address(site.host, no_address);
    if (!no_address) {
      (void)X509_VERIFY_PARAM_set1_ip_asc(wanted, site.host.c_str());
    } else {
      (void)SSL_ctrl(connection, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                     const_cast<char*>(site.host.c_str()));
      X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
      (void)X509_VERIFY_PARAM_set1_host(wanted, site.host.c_str(), site.host.size());
    }
    stream.async_handshake(ssl::stream_base::client,
                           [this, done = std::move(done)](const error_code& failed) mutable {
                             done(failed ? why(failed) : std::string());
                           });
  }

  tcp::resolver resolver_;
  std::optional<ssl::context> context_;
};

// Error: the token cannot be read.
Result<http::request<http::string_body>> message_of(const Site& site, const std::string& method,
                                                    const std::string& target, const std::string& body) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(method);
  message.target(target);
  message.set(http::field::host, site.authority());
  message.set(http::field::user_agent, "carillon");
  message.set(http::field::accept, "application/json");
  if (!site.token.empty()) {
    const auto token = read_token(site.token);
    if (!token) return std::unexpected(token.error());
    message.set(http::field::authorization, "Bearer " + *token);
  }
  if (!body.empty()) {
    message.set(http::field::content_type, "application/json");
    message.body() = body;
  }
  message.prepare_payload();
  return message;
}

// None where there is none, or it is a date.
std::optional<Duration> retry_after_in(std::string_view text) {
  std::uint32_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return std::chrono::seconds{seconds};
}

template <typename Header>
kubernetes::Answer answer_of(const Header& header, std::string body) {
  const auto retry_after = header[http::field::retry_after];
  return {.status = static_cast<int>(header.result_int()),
          .body = std::move(body),
          .retry_after = retry_after_in({retry_after.data(), retry_after.size()})};
}

class Line;

// Who is told what became of requests. On the loop's thread.
class Asker {
 public:
  virtual void answered(std::uint64_t id, const kubernetes::Answer& answer) = 0;
  virtual void failed(std::uint64_t id, const kubernetes::Failure& failure) = 0;
  virtual void line(std::uint64_t id, std::string_view text) = 0;  // of a watch
  virtual void idle(const std::shared_ptr<Line>& line) = 0;        // it can take the next call
  virtual void closed(const std::shared_ptr<Line>& line) = 0;
  // The server had closed the connection before it took this request.
  virtual void again(kubernetes::Request request) = 0;

 protected:
  ~Asker() = default;
};

// A connection over which one call after the other goes.
class Line final : public std::enable_shared_from_this<Line> {
 public:
  Line(asio::io_context& context, const Site& site, Asker& asker)
      : site_(site), asker_(asker), wire_(context), timer_(context) {}

  // While it is idle, or new.
  void send(kubernetes::Request request) {
    if (closed_) return asker_.again(std::move(request));
    request_ = std::move(request);
    busy_ = true;
    timer_.expires_after(request_.timeout);
    timer_.async_wait([self = shared_from_this(), number = ++number_](const error_code& cancelled) {
      if (cancelled || !self->busy_ || self->number_ != number) return;
      self->end(
          fmt::format("no answer came in {} ms",
                      std::chrono::duration_cast<std::chrono::milliseconds>(self->request_.timeout).count()));
    });
    if (open_) return write();
    wire_.async_open(site_, [self = shared_from_this()](const std::string& wrong) {
      if (self->closed_) return;
      if (!wrong.empty()) return self->end(wrong);
      self->open_ = true;
      self->read();
      self->write();
    });
  }
  // While it is idle.
  void drop() { close(); }

 private:
  void write() {
    const auto& call = std::get<kubernetes::Call>(request_.body);
    auto message = message_of(site_, call.method, call.target, call.body);
    if (!message) return end(message.error().message);
    message_ = *std::move(message);
    http::async_write(wire_, message_, [self = shared_from_this()](const error_code& error, std::size_t) {
      if (error && !self->closed_) self->broke(error);
    });
  }
  // Always under way, so that the end of an idle connection is noticed.
  void read() {
    parser_.emplace();
    parser_->body_limit(longest_body);
    http::async_read(wire_, buffer_, *parser_,
                     [self = shared_from_this()](const error_code& error, std::size_t) {
                       if (self->closed_) return;
                       if (error || !self->busy_) return self->broke(error);
                       self->heard();
                     });
  }
  void heard() {
    busy_ = false;
    used_ = true;
    timer_.cancel();
    const std::uint64_t id = request_.id;
    auto& header = parser_->get();
    const bool goes_on = header.keep_alive();
    const kubernetes::Answer answer = answer_of(header, std::move(header.body()));
    if (goes_on) {
      read();
      asker_.idle(shared_from_this());
    } else {
      close();
    }
    asker_.answered(id, answer);
  }
  void broke(const error_code& error) {
    if (!busy_ || !used_ || parser_->got_some()) return end(wire_.why(error));
    busy_ = false;
    close();
    asker_.again(std::move(request_));
  }
  void end(const std::string& why) {
    const bool told = busy_;
    const std::uint64_t id = request_.id;
    busy_ = false;
    close();
    if (told) asker_.failed(id, {why.empty() ? "it broke off" : why});
  }
  void close() {
    closed_ = true;
    timer_.cancel();
    wire_.abort();
    asker_.closed(shared_from_this());
  }

  const Site& site_;
  Asker& asker_;
  Wire wire_;
  asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_{longest_buffer};
  std::optional<http::response_parser<http::string_body>> parser_;
  http::request<http::string_body> message_;
  kubernetes::Request request_;
  std::uint64_t number_ = 0;
  bool open_ = false, busy_ = false, used_ = false, closed_ = false;
};

// A connection for one watch.
class WatchLine final : public std::enable_shared_from_this<WatchLine> {
 public:
  WatchLine(asio::io_context& context, const Site& site, Asker& asker, std::uint64_t id)
      : site_(site), asker_(asker), id_(id), wire_(context) {}

  void start(const std::string& target) {
    auto message = message_of(site_, "GET", target, "");
    if (!message) return end(message.error().message);
    message_ = *std::move(message);
    wire_.async_open(site_, [self = shared_from_this()](const std::string& wrong) {
      if (self->closed_) return;
      if (!wrong.empty()) return self->end(wrong);
      self->ask();
    });
  }
  void cancel() {
    closed_ = true;
    wire_.abort();
  }

 private:
  void ask() {
    http::async_write(wire_, message_, [self = shared_from_this()](const error_code& error, std::size_t) {
      if (error && !self->closed_) self->end(self->wire_.why(error));
    });
    http::async_read_header(wire_, buffer_, head_,
                            [self = shared_from_this()](const error_code& error, std::size_t) {
                              if (self->closed_) return;
                              if (error) return self->end(self->wire_.why(error));
                              if (self->head_.get().result_int() == 200)
                                self->begin();
                              else
                                self->read_refusal();
                            });
  }
  void read_refusal() {
    refusal_.emplace(std::move(head_));
    refusal_->body_limit(longest_refusal);
    http::async_read(wire_, buffer_, *refusal_, [self = shared_from_this()](const error_code&, std::size_t) {
      if (self->closed_) return;
      auto& header = self->refusal_->get();
      const kubernetes::Answer answer = answer_of(header, std::move(header.body()));
      self->cancel();
      self->asker_.answered(self->id_, answer);
    });
  }
  void begin() {
    body_.emplace(std::move(head_));
    body_->body_limit(boost::none);  // lines are bounded
    asker_.answered(id_, {.status = 200, .body = {}});
    read();
  }
  void read() {
    if (closed_) return;
    if (body_->is_done()) return end("");
    body_->get().body().data = bytes_.data();
    body_->get().body().size = bytes_.size();
    body_->get().body().more = true;
    http::async_read_some(wire_, buffer_, *body_, [self = shared_from_this()](error_code error, std::size_t) {
      if (self->closed_) return;
      if (error == http::error::need_buffer) error = {};
      self->take(self->bytes_.size() - self->body_->get().body().size);
      if (self->closed_) return;
      if (error) return self->end(self->wire_.why(error));
      self->read();
    });
  }
  void take(std::size_t size) {
    std::string_view news(bytes_.data(), size);
    while (!closed_) {
      const auto end_of_line = news.find('\n');
      if (text_.size() + std::min(end_of_line, news.size()) > longest_line)
        return end(fmt::format("a line of the watch has more than {} bytes", longest_line));
      text_ += news.substr(0, end_of_line);
      if (end_of_line == std::string_view::npos) return;
      news.remove_prefix(end_of_line + 1);
      if (!text_.empty()) asker_.line(id_, text_);
      text_.clear();
    }
  }
  void end(const std::string& why) {
    cancel();
    asker_.failed(id_, {why});
  }

  const Site& site_;
  Asker& asker_;
  const std::uint64_t id_;
  Wire wire_;
  boost::beast::flat_buffer buffer_{longest_buffer};
  http::request<http::string_body> message_;
  http::response_parser<http::empty_body> head_;
  std::optional<http::response_parser<http::string_body>> refusal_;
  std::optional<http::response_parser<http::buffer_body>> body_;
  std::array<char, 16384> bytes_{};
  std::string text_;  // of a line whose end has not come yet
  bool closed_ = false;
};

}  // namespace

class KubernetesLoop final : public Asker {
 public:
  KubernetesLoop(cluster::CoordinatorOptions options, cluster::KubernetesPlace place, Site site,
                 Coordinator::Tell tell)
      : site_(std::move(site)),
        tell_(std::move(tell)),
        client_(std::move(options), std::move(place), clock_.now()),
        work_(asio::make_work_guard(context_)) {
    asio::post(context_, [this] { step(); });
    thread_ = std::thread([this] { context_.run(); });
  }
  ~KubernetesLoop() {
    context_.stop();
    thread_.join();
  }
  KubernetesLoop(const KubernetesLoop&) = delete;
  KubernetesLoop& operator=(const KubernetesLoop&) = delete;

  // Calls `use` with the client, and then lets the thread look at it.
  template <typename Use>
  auto with_client(const Use& use) {
    const std::lock_guard lock(mutex_);
    auto result = use(client_, clock_.now());
    asio::post(context_, [this] { step(); });
    return result;
  }
  template <typename Use>
  auto look(const Use& use) const {
    const std::lock_guard lock(mutex_);
    return use(client_);
  }

 private:
  void answered(std::uint64_t id, const kubernetes::Answer& answer) override {
    watches_.erase(answer.status == 200 ? 0 : id);
    hear([&](TimePoint now) { client_.answered(id, answer, now); });
  }
  void failed(std::uint64_t id, const kubernetes::Failure& failure) override {
    watches_.erase(id);
    hear([&](TimePoint now) { client_.failed(id, failure, now); });
  }
  void line(std::uint64_t id, std::string_view text) override {
    hear([&](TimePoint now) { client_.line(id, text, now); });
  }
  void idle(const std::shared_ptr<Line>& line) override {
    if (idle_.size() < most_idle)
      idle_.push_back(line);
    else
      line->drop();
  }
  void closed(const std::shared_ptr<Line>& line) override { std::erase(idle_, line); }
  void again(kubernetes::Request request) override {
    std::make_shared<Line>(context_, site_, *this)->send(std::move(request));
  }

  template <typename Hear>
  void hear(const Hear& heard) {
    {
      const std::lock_guard lock(mutex_);
      heard(clock_.now());
    }
    step();
  }
  void step() {
    std::vector<kubernetes::Request> requests;
    std::vector<cluster::CoordinatorNews> news;
    TimePoint due;
    {
      const std::lock_guard lock(mutex_);
      if (client_.due() <= clock_.now()) client_.tick(clock_.now());
      requests = client_.take_requests();
      news = client_.take_news();
      due = client_.due();
    }
    for (kubernetes::Request& request : requests) start(std::move(request));
    for (const cluster::CoordinatorNews& each : news) tell_(each);
    if (due == armed_) return;
    armed_ = due;
    if (due == TimePoint::max()) {
      timer_.cancel();
      return;
    }
    timer_.expires_after(std::max(due - clock_.now(), Duration{0}));
    timer_.async_wait([this](const error_code& cancelled) {
      if (cancelled) return;
      armed_ = TimePoint::max();
      step();
    });
  }
  void start(kubernetes::Request request) {
    if (const auto* const watch = std::get_if<kubernetes::Watch>(&request.body)) {
      auto made = std::make_shared<WatchLine>(context_, site_, *this, request.id);
      watches_.emplace(request.id, made);
      // Not at once: what goes wrong at once would be told in the middle of this.
      asio::post(context_, [made, target = watch->target] { made->start(target); });
    } else if (std::holds_alternative<kubernetes::Cancel>(request.body)) {
      const auto found = watches_.find(request.id);
      if (found == watches_.end()) return;
      found->second->cancel();
      watches_.erase(found);
    } else {
      std::shared_ptr<Line> line;
      if (idle_.empty()) {
        line = std::make_shared<Line>(context_, site_, *this);
      } else {
        line = idle_.back();
        idle_.pop_back();
      }
      asio::post(context_,
                 [line, request = std::move(request)]() mutable { line->send(std::move(request)); });
    }
  }

  const SteadyClock clock_;
  const Site site_;
  const Coordinator::Tell tell_;
  mutable std::mutex mutex_;
  cluster::KubernetesClient client_;  // with the mutex
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer timer_{context_};
  TimePoint armed_ = TimePoint::max();
  std::vector<std::shared_ptr<Line>> idle_;  // these are the thread's own
  std::map<std::uint64_t, std::shared_ptr<WatchLine>> watches_;
  std::thread thread_;
};

Result<std::unique_ptr<Kubernetes>> Kubernetes::open(const cluster::CoordinatorAddress& address,
                                                     cluster::CoordinatorOptions options, Tell tell) {
  if (options.self && !kubernetes::is_dns_name(options.self->id, true))
    return invalid("--id '" + options.self->id + "': in Kubernetes an id is " +
                   std::string(kubernetes::dns_name_rule) + ", or several of these with dots between");
  auto site = site_of(*address.kubernetes);
  if (!site) return std::unexpected(site.error());
  options.name = address.name;
  cluster::KubernetesPlace place{.name_space = address.kubernetes->name_space,
                                 .server = site->url(),
                                 .credentials = site->token.empty() ? "a request without a token"
                                                                    : "the token of " + site->token.string(),
                                 .stamp = stamp};
  return std::unique_ptr<Kubernetes>(new Kubernetes(std::make_unique<KubernetesLoop>(
      std::move(options), std::move(place), *std::move(site), std::move(tell))));
}

Kubernetes::Kubernetes(std::unique_ptr<KubernetesLoop> loop) : OfLoop(std::move(loop)) {}
Kubernetes::~Kubernetes() = default;

}  // namespace carillon::coordinator
