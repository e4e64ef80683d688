#include "carillon/frontend/net/listener.h"

#include <cerrno>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "carillon/base/time.h"

namespace carillon::frontend {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Time = std::chrono::steady_clock::time_point;

Descriptor any_descriptor() {
  return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

bool out_of_descriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

class PortListener final : public Listener {
 public:
  explicit PortListener(ListenerOptions options) : options_(std::move(options)) {}
  ~PortListener() override { close(); }

  Result<> listen() {
    const auto& [host, port] = options_.address;
    boost::system::error_code error;
    asio::io_context context;
    tcp::resolver resolver(context);
    const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
    if (error || found.empty())
      return invalid("cannot listen on " + options_.address.text() + ": the host is not known (" +
                     error.message() + "); choose another with " + options_.option);
    const tcp::endpoint endpoint = *found.begin();
    const auto failed = [&] {
      return fail(ErrorCode::unavailable, bind_failure(options_.address, options_.option, errno));
    };
    socket_ = Descriptor(::socket(endpoint.data()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket_.open()) return failed();
    const int yes = 1;
    // Accepted sockets inherit what is set here.
    setsockopt(socket_.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(socket_.number(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (::bind(socket_.number(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 ||
        ::listen(socket_.number(), SOMAXCONN) != 0)
      return failed();
    tcp::endpoint bound;
    auto size = static_cast<socklen_t>(bound.capacity());
    if (getsockname(socket_.number(), bound.data(), &size) != 0) return failed();
    bound.resize(size);
    port_ = bound.port();
    stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!stop_.open()) return failed();
    reserve_ = any_descriptor();
    return {};
  }

  std::uint16_t port() const override { return port_; }
  int descriptor() const override { return socket_.number(); }

  void start(Handler handler) override {
    handler_ = std::move(handler);
    thread_ = std::thread([this] { run(); });
  }

  void close() override {
    if (thread_.joinable()) {
      eventfd_write(stop_.number(), 1);
      thread_.join();
    }
    socket_.close();
  }

 private:
  // False: told to stop meanwhile.
  bool wait(bool for_connections, int timeout_ms) const {
    pollfd wanted[] = {{stop_.number(), POLLIN, 0}, {socket_.number(), POLLIN, 0}};
    ::poll(wanted, for_connections ? 2 : 1, timeout_ms);
    return wanted[0].revents == 0;
  }

  void run() {
    pthread_setname_np(pthread_self(), "carillon-accept");
    while (wait(true, -1)) {
      try {
        accept_one();
      } catch (const std::bad_alloc&) {
        continue;  // the connection was closed
      }
    }
  }

  void accept_one() {
    Descriptor connection = accept();
    if (connection.open()) return take(std::move(connection));
    if (!out_of_descriptors(errno)) return;  // it has gone again, or another error of this one alone
    tell_exhausted();
    if (handler_.make_room) {
      handler_.make_room();
      // Others close on threads of their own, which a busy machine lets wait; whoever is to come waits with
      // them. Not again and again where that was in vain.
      for (int tries = 0; tries < (in_vain_ ? 1 : 50) && wait(false, 10); ++tries) {
        connection = accept();
        if (connection.open()) return take(std::move(connection));
        if (!out_of_descriptors(errno)) return;
      }
    }
    in_vain_ = true;
    refuse_one();
    // Without the reserve there is nothing to be done but to wait for others to close.
    if (!reserve_.open()) (void)wait(false, 100);
  }

  Descriptor accept() const {
    return Descriptor(::accept4(socket_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  }

  void take(Descriptor connection) {
    in_vain_ = false;
    if (connection.number() > options_.highest_descriptor) {
      tell_exhausted();
      if (handler_.refuse) handler_.refuse(connection.number());
      return;
    }
    handler_.on_connection(std::move(connection));
  }

  void refuse_one() {
    reserve_.close();
    if (const Descriptor connection = accept(); connection.open() && handler_.refuse)
      handler_.refuse(connection.number());
    reserve_ = any_descriptor();
  }

  void tell_exhausted() {
    const Time now = std::chrono::steady_clock::now();
    if (now < tell_again_) return;
    tell_again_ = now + std::chrono::minutes(1);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (options_.log)
      options_.log("out of file descriptors (the limit is " + std::to_string(limit.rlim_cur) +
                   "): new connections to " + options_.address.text() +
                   " are refused until others close; 'ulimit -n' raises the limit");
  }

  const ListenerOptions options_;
  Handler handler_;
  Descriptor socket_;
  Descriptor stop_;
  Descriptor reserve_;
  std::uint16_t port_ = 0;
  Time tell_again_{};
  bool in_vain_ = false;  // that others were to make room, the last time
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(ListenerOptions options) {
  auto listener = std::make_unique<PortListener>(std::move(options));
  if (auto listening = listener->listen(); !listening) return std::unexpected(std::move(listening.error()));
  return listener;
}

}  // namespace carillon::frontend
