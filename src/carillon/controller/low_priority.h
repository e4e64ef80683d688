#pragma once

#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace carillon::controller {

// The calling thread is not to slow what serves, or is measured, from now on.
inline void yield_to_others() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
}

// What `body` gives, run by such a thread, for which the caller waits. What it throws goes on to the caller.
template <typename Body>
auto of_low_priority(const Body& body) {
  std::optional<decltype(body())> out;
  std::exception_ptr thrown;
  std::thread([&] {
    pthread_setname_np(pthread_self(), "carillon-comp");
    yield_to_others();
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
