#pragma once

#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace carillon::controller {

// The calling thread keeps a low priority from now on, so that it slows neither what serves nor what is
// measured.
inline void lower_priority() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
}

// What `body` gives, run by such a thread, for which the caller waits. What it throws goes on to the caller.
template <typename Body>
auto of_low_priority(const Body& body) {
  std::optional<decltype(body())> out;
  std::exception_ptr thrown;
  std::thread([&] {
    pthread_setname_np(pthread_self(), "carillon-comp");
    lower_priority();
    try {
      out.emplace(body());
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
  return *std::move(out);
}

}  // namespace carillon::controller
