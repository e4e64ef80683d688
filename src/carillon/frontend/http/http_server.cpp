#include "carillon/frontend/http/http_server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "carillon/frontend/http/http_loop.h"
#include "carillon/frontend/http/http_session.h"
#include "carillon/frontend/net/listener.h"

namespace carillon::frontend {
namespace {

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(std::unique_ptr<Commons> own, std::shared_ptr<HttpShared> shared)
      : own_(std::move(own)), shared_(std::move(shared)) {
    for (int i = 0; i < shared_->options.threads; ++i)
      loops_.push_back(std::make_shared<HttpLoop>(shared_, HttpSession::on));
  }
  ~HttpServerImpl() override { stop(); }

  Result<> listen() {
    auto listener = Listener::open({.address = shared_->options.address,
                                    .option = shared_->options.option,
                                    .log = shared_->commons.options.log});
    if (!listener) return std::unexpected(std::move(listener.error()));
    listener_ = std::move(*listener);
    running_ = true;
    for (const auto& loop : loops_) loop->start();
    listener_->start({.on_connection =
                          [this](Descriptor connection) {
                            auto& loop = loops_[next_++ % loops_.size()];
                            loop->post([loop, connection = std::move(connection)]() mutable {
                              loop->add(std::move(connection));
                            });
                          },
                      .refuse = [tls = shared_->options.tls !=
                                       nullptr](int descriptor) { refuse_connection(descriptor, tls); },
                      .make_room =
                          [this] {
                            // Several at a time: whoever opened so many may go on to.
                            for (const auto& loop : loops_)
                              loop->post([loop] {
                                for (int i = 0; i < 16 && loop->make_room(); ++i) continue;
                              });
                          }});
    return {};
  }

  std::uint16_t port() const override { return listener_->port(); }
  std::size_t connections() const override { return shared_->count.value(); }

  void wait_drained(Duration longest) const override {
    const auto until = std::chrono::steady_clock::now() + longest;
    while (shared_->open.load() > 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(2ms);
  }

  void stop() override {
    if (!std::exchange(running_, false)) return;
    shared_->commons.draining = true;
    wait_drained(shared_->options.stop_grace);
    listener_->close();
    const auto on_all = [&](void (HttpLoop::*act)()) {
      for (const auto& loop : loops_) loop->post([loop, act] { ((*loop).*act)(); });
    };
    on_all(&HttpLoop::begin_stop);
    on_all(&HttpLoop::refuse_open);
    shared_->count.wait_for_none(std::chrono::seconds(1));
    for (const auto& loop : loops_) loop->join();
    // The handler is not called any more once this returns.
    while (!shared_->heavy.wait_for_none(std::chrono::seconds(1))) continue;
  }

 private:
  const std::unique_ptr<Commons> own_;
  const std::shared_ptr<HttpShared> shared_;
  std::vector<std::shared_ptr<HttpLoop>> loops_;
  std::unique_ptr<Listener> listener_;
  std::size_t next_ = 0;  // the listener's thread's
  bool running_ = false;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpHandler& handler, HttpOptions options) {
  if (options.threads < 1)
    return invalid("an HTTP server needs at least 1 thread, not " + std::to_string(options.threads));
  std::unique_ptr<Commons> own;
  if (options.commons == nullptr) {
    CommonsOptions of_its_own{.max_body = options.max_body};
    of_its_own.inflight = std::max(of_its_own.inflight, of_its_own.max_body);
    own = std::make_unique<Commons>(of_its_own);
    options.commons = own.get();
  }
  auto shared = std::make_shared<HttpShared>(handler, options, *options.commons);
  auto server = std::make_unique<HttpServerImpl>(std::move(own), std::move(shared));
  if (auto listening = server->listen(); !listening) return std::unexpected(std::move(listening.error()));
  return server;
}

}  // namespace carillon::frontend
