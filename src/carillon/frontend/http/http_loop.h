#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/http/http_handler.h"
#include "carillon/frontend/http/http_options.h"
#include "carillon/frontend/net/descriptor.h"

namespace carillon::frontend {

// How many connections a server has, for waiting until there are none.
class ConnectionCount {
 public:
  void add();
  void remove();
  std::size_t value() const;
  // False: some were still there after `longest`.
  bool wait_for_none(Duration longest);

 private:
  mutable std::mutex mutex_;
  std::condition_variable none_;
  std::size_t count_ = 0;
};

// What the sessions of one server share; `handler` and `options` never change.
struct HttpShared {
  HttpHandler& handler;
  HttpOptions options;
  Commons& commons;  // not to be used once the server has stopped
  const SideBudget side = options.watches ? SideBudget(commons.bodies) : commons.side;
  ConnectionCount count;
  ConnectionCount heavy;              // work of the heavy threads for this server
  std::atomic<std::size_t> open = 0;  // requests whose header has been read and whose answer is not sent yet
};

// Why a connection is there; the first make room for others before the last.
enum class HttpPlace {
  strangers,  // has had no request answered yet, or is being closed
  idle,       // waits for another request
  reading,    // its request's body is arriving
  busy,       // a request of its is open or being answered: never closed for others
};

// A connection, as the loop that owns it sees it. On the loop's thread.
class HttpConnection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~HttpConnection() = default;
  virtual void start() = 0;
  virtual void begin_stop() = 0;   // closes where it has no request
  virtual void refuse_open() = 0;  // cancels what is open and answers 503
  virtual void close() = 0;
  // Ends what takes too long; while others find no room for their bodies (`no_room`) also what is slow.
  virtual void sweep(Time now, bool no_room) = 0;

 private:
  friend class HttpLoop;
  HttpPlace place_ = HttpPlace::strangers;
  std::list<std::shared_ptr<HttpConnection>>::iterator in_;  // that place's
};

// One thread and the connections that it owns.
class HttpLoop : public std::enable_shared_from_this<HttpLoop> {
 public:
  // Makes what serves a connection that was accepted. Null: the system has no room for it, and it is closed.
  using Serve = std::shared_ptr<HttpConnection> (*)(Descriptor connection, std::shared_ptr<HttpLoop> loop);

  HttpLoop(std::shared_ptr<HttpShared> shared, Serve serve);

  void start();  // starts the thread
  void join();   // ends the thread once its connections are closed; nothing runs here afterwards

  // Runs `work` on this loop's thread; drops it where the thread has ended. Any thread.
  template <typename Work>
  void post(Work work) {
    const std::lock_guard lock(mutex_);
    if (!closed_) boost::asio::post(context, std::move(work));
  }

  // On this loop's thread:
  void add(Descriptor connection);  // or refuses it, where there are too many
  void remove(HttpConnection& connection);
  void move(HttpConnection& connection, HttpPlace to);
  // `next` goes on with what was this connection's, in its place, and starts.
  void replace(HttpConnection& connection, std::shared_ptr<HttpConnection> next);
  // Closes the connection that can best be spared: of the first place that has one, the one that has been
  // there longest. False: all are busy.
  bool make_room();
  void begin_stop();   // closes connections without a request; the others close after their answer
  void refuse_open();  // cancels what is open and answers 503
  void close_all();

  boost::asio::io_context context{1};
  const std::shared_ptr<HttpShared> shared;
  bool stopping = false;  // this loop's thread only

 private:
  using Connections = std::list<std::shared_ptr<HttpConnection>>;

  template <typename Do>
  void for_each(Do&& act);
  void sweep();
  Connections& at(HttpPlace place) { return places_[static_cast<std::size_t>(place)]; }
  std::size_t size() const;

  const Serve serve_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer sweeper_;
  Connections places_[4];  // by HttpPlace, each in the order in which they came there
  std::size_t refusals_seen_ = 0;
  std::mutex mutex_;
  bool closed_ = false;
  std::thread thread_;
};

// Answers 503 where no session is made for a connection, as far as that goes without waiting. Over TLS
// nothing can be said without a handshake, and the connection ends without a word.
void refuse_connection(int descriptor, bool tls);

}  // namespace carillon::frontend
