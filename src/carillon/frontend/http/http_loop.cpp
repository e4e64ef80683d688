#include "carillon/frontend/http/http_loop.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>

namespace carillon::frontend {

void ConnectionCount::add() {
  const std::lock_guard lock(mutex_);
  ++count_;
}

void ConnectionCount::remove() {
  const std::lock_guard lock(mutex_);
  if (--count_ == 0) none_.notify_all();
}

std::size_t ConnectionCount::value() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool ConnectionCount::wait_for_none(Duration longest) {
  std::unique_lock lock(mutex_);
  return none_.wait_for(lock, longest, [&] { return count_ == 0; });
}

void refuse_connection(int descriptor, bool tls) {
  if (tls) return;
  const HttpReply reply = error_reply(503, "the server has too many connections");
  const std::string text =
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
      "Connection: close\r\nContent-Length: " +
      std::to_string(reply.body.size()) + "\r\n\r\n" + reply.body;
  // A new connection has an empty buffer, into which this fits.
  (void)::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)::shutdown(descriptor, SHUT_WR);
}

HttpLoop::HttpLoop(std::shared_ptr<HttpShared> of_server, Serve serve)
    : shared(std::move(of_server)),
      serve_(serve),
      work_(boost::asio::make_work_guard(context)),
      sweeper_(context) {}

void HttpLoop::start() {
  sweep();
  thread_ = std::thread([self = shared_from_this()] {
    for (bool ended = false; !ended;) {
      try {
        self->context.run();
        ended = true;
      } catch (const std::bad_alloc&) {
        continue;  // the connection whose handler that was keeps its deadline, and the sweep closes it
      }
    }
    {
      const std::lock_guard lock(self->mutex_);
      self->closed_ = true;
    }
    // What was posted in between holds connections, and they hold this loop.
    self->context.restart();
    self->context.poll();
  });
}

void HttpLoop::join() {
  if (!thread_.joinable()) return;
  post([self = shared_from_this()] {
    self->stopping = true;
    self->close_all();
    self->sweeper_.cancel();
    self->work_.reset();
  });
  thread_.join();
}

std::size_t HttpLoop::size() const {
  std::size_t n = 0;
  for (const Connections& place : places_) n += place.size();
  return n;
}

void HttpLoop::add(Descriptor connection) {
  if (stopping) return;
  const auto& options = shared->options;
  const std::size_t most =
      std::max<std::size_t>(1, options.max_connections / static_cast<std::size_t>(options.threads));
  if (size() >= most && !make_room()) return refuse_connection(connection.number(), options.tls != nullptr);
  auto served = serve_(std::move(connection), shared_from_this());
  if (!served) return;
  Connections& strangers = at(HttpPlace::strangers);
  strangers.push_back(std::move(served));
  HttpConnection& added = *strangers.back();
  added.place_ = HttpPlace::strangers;
  added.in_ = std::prev(strangers.end());
  shared->count.add();
  added.start();
}

void HttpLoop::remove(HttpConnection& connection) {
  at(connection.place_).erase(connection.in_);
  shared->count.remove();
}

void HttpLoop::move(HttpConnection& connection, HttpPlace to) {
  Connections& from = at(connection.place_);
  at(to).splice(at(to).end(), from, connection.in_);
  connection.place_ = to;
}

void HttpLoop::replace(HttpConnection& connection, std::shared_ptr<HttpConnection> next) {
  next->place_ = connection.place_;
  next->in_ = connection.in_;
  HttpConnection& started = *next;
  *next->in_ = std::move(next);  // whoever calls holds the connection that was there
  started.start();
}

bool HttpLoop::make_room() {
  for (const HttpPlace place : {HttpPlace::strangers, HttpPlace::idle, HttpPlace::reading}) {
    if (at(place).empty()) continue;
    const auto longest = at(place).front();
    longest->close();
    return true;
  }
  return false;
}

// Over a copy: connections leave their places as they close.
template <typename Do>
void HttpLoop::for_each(Do&& act) {
  std::vector<std::shared_ptr<HttpConnection>> all;
  all.reserve(size());
  for (const Connections& place : places_) all.insert(all.end(), place.begin(), place.end());
  for (const auto& connection : all) act(*connection);
}

void HttpLoop::begin_stop() {
  stopping = true;
  for_each([](HttpConnection& connection) { connection.begin_stop(); });
}

void HttpLoop::refuse_open() {
  for_each([](HttpConnection& connection) { connection.refuse_open(); });
}

void HttpLoop::close_all() {
  for_each([](HttpConnection& connection) { connection.close(); });
}

// One timer for all connections: a request then costs no timer of its own.
void HttpLoop::sweep() {
  const auto& options = shared->options;
  const Duration period = std::clamp<Duration>(
      std::min({options.idle_timeout, options.header_timeout, options.body_timeout}) / 4, 10ms, 1s);
  sweeper_.expires_after(period);
  sweeper_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    // One that had expired when the end came is not cancelled any more: it must not set the next.
    if (error || self->stopping) return;
    const auto now = std::chrono::steady_clock::now();
    const std::size_t refusals = self->shared->commons.bodies->refusals();
    const bool no_room = std::exchange(self->refusals_seen_, refusals) != refusals;
    self->for_each([=](HttpConnection& connection) { connection.sweep(now, no_room); });
    self->sweep();
  });
}

}  // namespace carillon::frontend
