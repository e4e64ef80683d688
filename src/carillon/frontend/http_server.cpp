#include "carillon/frontend/http_server.h"

#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "carillon/frontend/http_loop.h"
#include "carillon/frontend/http_session.h"

namespace carillon::frontend {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using SystemError = boost::system::error_code;

class HttpServerImpl final : public HttpServer {
 public:
  explicit HttpServerImpl(std::shared_ptr<HttpShared> shared) : shared_(std::move(shared)) {
    for (int i = 0; i < shared_->options.threads; ++i) loops_.push_back(std::make_shared<HttpLoop>(shared_));
    acceptor_ = std::make_unique<tcp::acceptor>(loops_[0]->context);
    retry_ = std::make_unique<asio::steady_timer>(loops_[0]->context);
  }
  ~HttpServerImpl() override { stop(); }

  Result<> listen() {
    const auto& [host, port] = shared_->options.address;
    SystemError error;
    tcp::resolver resolver(loops_[0]->context);
    const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
    if (error || found.empty())
      return invalid("cannot listen on " + shared_->options.address.text() + ": the host is not known (" +
                     error.message() + "); choose another with " + shared_->options.option);
    const tcp::endpoint endpoint = *found.begin();
    acceptor_->open(endpoint.protocol(), error);
    if (!error) acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_->bind(endpoint, error);
    if (!error) acceptor_->listen(asio::socket_base::max_listen_connections, error);
    if (error)
      return fail(ErrorCode::unavailable,
                  bind_failure(shared_->options.address, shared_->options.option, error.value()));
    port_ = acceptor_->local_endpoint(error).port();
    running_ = true;
    accept();
    for (const auto& loop : loops_) loop->start();
    return {};
  }

  std::uint16_t port() const override { return port_; }
  std::size_t connections() const override { return shared_->count.value(); }

  void stop() override {
    if (!std::exchange(running_, false)) return;
    loops_[0]->post([this] {
      SystemError ignored;
      acceptor_->close(ignored);
      retry_->cancel();
    });
    const auto on_all = [&](void (HttpLoop::*act)()) {
      for (const auto& loop : loops_) loop->post([loop, act] { ((*loop).*act)(); });
    };
    on_all(&HttpLoop::begin_stop);
    if (!shared_->count.wait_for_none(shared_->options.stop_grace)) {
      on_all(&HttpLoop::refuse_open);
      shared_->count.wait_for_none(std::chrono::seconds(1));
    }
    for (const auto& loop : loops_) loop->join();
  }

 private:
  void accept() {
    auto& loop = loops_[next_++ % loops_.size()];
    acceptor_->async_accept(loop->context, [this, loop](SystemError error, tcp::socket socket) {
      if (!acceptor_->is_open()) return;
      if (error) {
        // Out of descriptors, most likely: connections must close before more can come.
        retry_->expires_after(std::chrono::milliseconds(100));
        retry_->async_wait([this](SystemError cancelled) {
          if (!cancelled && acceptor_->is_open()) accept();
        });
        return;
      }
      if (shared_->count.value() < shared_->options.max_connections)
        loop->post([loop, socket = std::move(socket)]() mutable {
          if (!loop->stopping) loop->add(std::make_shared<HttpSession>(std::move(socket), loop));
        });
      accept();
    });
  }

  const std::shared_ptr<HttpShared> shared_;
  std::vector<std::shared_ptr<HttpLoop>> loops_;
  // Used by the first loop's thread once it runs.
  std::unique_ptr<tcp::acceptor> acceptor_;
  std::unique_ptr<asio::steady_timer> retry_;
  std::size_t next_ = 0;
  std::uint16_t port_ = 0;
  bool running_ = false;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpHandler& handler, HttpOptions options) {
  if (options.threads < 1)
    return invalid("an HTTP server needs at least 1 thread, not " + std::to_string(options.threads));
  auto server = std::make_unique<HttpServerImpl>(std::make_shared<HttpShared>(handler, std::move(options)));
  if (auto listening = server->listen(); !listening) return std::unexpected(std::move(listening.error()));
  return server;
}

}  // namespace carillon::frontend
