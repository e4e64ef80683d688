#include <algorithm>
#include <chrono>
#include <memory>

#include "fuzz.h"
#include <sys/socket.h>

#include "carillon/frontend/api/http_api.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/http/http_loop.h"
#include "carillon/frontend/http/http_session.h"
#include "carillon/frontend/testing/fake_service.h"

// A connection of the HTTP port from its first byte to its last, over a pair of sockets that leads nowhere,
// in this thread: how it ends is where it went wrong before, so not nghttp2 alone is fed. The first byte says
// how the others come: behind HTTP/2's opening or as they are (HTTP/1.1, an opening that is wrong), in pieces
// of what size, to a client that reads or does not, and that has a window for answers or none.
namespace carillon::fuzz {
namespace {

using namespace frontend;

constexpr std::string_view opening = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// SETTINGS_INITIAL_WINDOW_SIZE as usual, and 0.
constexpr std::string_view settings("\0\0\0\x04\0\0\0\0\0", 9);
constexpr std::string_view settings_without_window("\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0", 15);

// What an HTTP server has, without its threads; small limits, so that few bytes reach them.
struct Server {
  Server() {
    service.all_models = {pair_model()};
    loop = std::make_shared<HttpLoop>(shared, &HttpSession::on);
  }

  FakeService service;
  Commons commons{{.inflight = std::size_t{1} << 20,
                   .max_body = std::size_t{512} << 10,
                   .strict_readiness = false,
                   .heavy_threads = 1}};
  HttpApi api{service, commons};
  std::shared_ptr<HttpShared> shared =
      std::make_shared<HttpShared>(api,
                                   HttpOptions{.max_body = std::size_t{512} << 10,
                                               .max_header = 4096,
                                               .max_streams = 8,
                                               .max_resets = 12,
                                               .max_idle_frames = 40,
                                               .max_unread = std::size_t{8} << 10},
                                   commons);
  std::shared_ptr<HttpLoop> loop;
};

// All that has come; whether there was anything.
bool receive(int socket, std::string& into) {
  char bytes[16384];
  bool any = false;
  for (ssize_t n = 0; (n = ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT)) > 0; any = true)
    into.append(bytes, static_cast<std::size_t>(n));
  return any;
}

// HTTP/2: whole frames, no longer than a client that says nothing of it takes, the settings first.
void check_frames(std::string_view sent) {
  bool first = true;
  while (!sent.empty()) {
    must(sent.size() >= 9, "frames are whole");
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(sent[i]); };
    const std::size_t length = std::size_t{byte(0)} << 16 | std::size_t{byte(1)} << 8 | byte(2);
    must(length <= 16384, "no frame is longer than a client must take");
    must(byte(3) <= 9, "frames are of types that clients know");
    must(!std::exchange(first, false) || byte(3) == 4, "the first frame is the settings");
    must(sent.size() - 9 >= length, "frames are whole");
    sent.remove_prefix(9 + length);
  }
}

void run(std::uint8_t how, std::string_view bytes) {
  static Server server;
  auto& context = server.loop->context;
  const bool is_http2 = (how & 1) != 0;
  const bool reads = (how & 2) == 0;
  const std::size_t piece = std::size_t{1} << (how >> 3 & 15);
  std::string all;
  if (is_http2) {
    all = opening;
    all += (how & 4) != 0 ? settings_without_window : settings;
  }
  all += bytes;

  int ends[2] = {};
  must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "there are sockets");
  Descriptor client(ends[0]);
  server.loop->add(Descriptor(ends[1]));
  std::string sent;
  for (std::string_view left = all; !left.empty();) {
    const ssize_t n = ::send(client.number(), left.data(), std::min(piece, left.size()), MSG_NOSIGNAL);
    context.poll();
    if (reads) receive(client.number(), sent);
    if (n <= 0) break;  // the server has closed, or reads nothing for now
    left.remove_prefix(static_cast<std::size_t>(n));
  }
  // Heavy work comes back to the loop.
  const auto settle = [&] {
    must(server.shared->heavy.wait_for_none(std::chrono::seconds(5)), "heavy work ends");
    context.poll();
  };
  do settle();
  while (reads && receive(client.number(), sent));
  // What it was sent, and no more.
  must(!is_http2 || sent.empty() || sent.front() != 'H', "HTTP/2 is answered in HTTP/2");
  if (is_http2 && reads) check_frames(sent);
  client.close();
  settle();
  settle();
  must(server.shared->count.value() == 0, "a connection ends with its client");
  must(server.shared->open.load() == 0, "no request stays open");
  must(server.commons.bodies->used() == 0, "nothing stays in flight");
}

}  // namespace
}  // namespace carillon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  if (size > 0) fuzz::run(data[0], fuzz::text_of(data + 1, size - 1));
  return 0;
}
