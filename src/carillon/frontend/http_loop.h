#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "carillon/frontend/http_server.h"

namespace carillon::frontend {

class HttpSession;

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

// What the sessions of one server share and none changes.
struct HttpShared {
  HttpHandler& handler;
  HttpOptions options;
  ConnectionCount count;
};

// One thread and the connections that it owns.
class HttpLoop : public std::enable_shared_from_this<HttpLoop> {
 public:
  explicit HttpLoop(std::shared_ptr<HttpShared> shared);

  void start();  // starts the thread
  void join();   // ends the thread once its connections are closed; nothing runs here afterwards

  // Runs `work` on this loop's thread; drops it where the thread has ended. Any thread.
  template <typename Work>
  void post(Work work) {
    const std::lock_guard lock(mutex_);
    if (!closed_) boost::asio::post(context, std::move(work));
  }

  // On this loop's thread:
  void add(std::shared_ptr<HttpSession> session);
  void remove(HttpSession* session);
  void begin_stop();   // closes idle connections; the others close after their answer
  void refuse_open();  // cancels what is open and answers 503
  void close_all();

  boost::asio::io_context context{1};
  const std::shared_ptr<HttpShared> shared;
  bool stopping = false;  // this loop's thread only

 private:
  template <typename Do>
  void for_each(Do&& act);
  void sweep();

  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer sweeper_;
  std::unordered_map<HttpSession*, std::shared_ptr<HttpSession>> sessions_;
  std::mutex mutex_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace carillon::frontend
