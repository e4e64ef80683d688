#include "carillon/frontend/http_loop.h"

#include <algorithm>
#include <new>
#include <vector>

#include "carillon/frontend/http_session.h"

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

HttpLoop::HttpLoop(std::shared_ptr<HttpShared> of_server)
    : shared(std::move(of_server)), work_(boost::asio::make_work_guard(context)), sweeper_(context) {}

void HttpLoop::start() {
  sweep();
  thread_ = std::thread([self = shared_from_this()] {
    // A connection whose handler ran out of memory keeps its deadline, and the sweep closes it.
    for (bool ended = false; !ended;) {
      try {
        self->context.run();
        ended = true;
      } catch (const std::bad_alloc&) {
      }
    }
    {
      const std::lock_guard lock(self->mutex_);
      self->closed_ = true;
    }
    // What was posted in between holds sessions, and they hold this loop.
    self->context.restart();
    self->context.poll();
  });
}

void HttpLoop::join() {
  if (!thread_.joinable()) return;
  post([self = shared_from_this()] {
    self->close_all();
    self->sweeper_.cancel();
    self->work_.reset();
  });
  thread_.join();
}

void HttpLoop::add(std::shared_ptr<HttpSession> session) {
  shared->count.add();
  auto* const key = session.get();
  sessions_.emplace(key, std::move(session));
  key->start();
}

void HttpLoop::remove(HttpSession* session) {
  if (sessions_.erase(session) > 0) shared->count.remove();
}

// Over a copy: sessions leave the table as they close.
template <typename Do>
void HttpLoop::for_each(Do&& act) {
  std::vector<std::shared_ptr<HttpSession>> all;
  all.reserve(sessions_.size());
  for (const auto& [key, session] : sessions_) all.push_back(session);
  for (const auto& session : all) act(*session);
}

void HttpLoop::begin_stop() {
  stopping = true;
  for_each([](HttpSession& session) { session.begin_stop(); });
}

void HttpLoop::refuse_open() {
  for_each([](HttpSession& session) { session.refuse_open(); });
}

void HttpLoop::close_all() {
  for_each([](HttpSession& session) { session.close(); });
}

// One timer for all connections: a request then costs no timer of its own.
void HttpLoop::sweep() {
  const Duration period = std::clamp<Duration>(
      std::min(shared->options.idle_timeout, shared->options.body_timeout) / 4, 10ms, 1s);
  sweeper_.expires_after(period);
  sweeper_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error) return;
    const auto now = std::chrono::steady_clock::now();
    self->for_each([now](HttpSession& session) { session.sweep(now); });
    self->sweep();
  });
}

}  // namespace carillon::frontend
