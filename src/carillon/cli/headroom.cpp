#include "carillon/cli/headroom.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace carillon::cli {
namespace {

std::optional<Bytes> address_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return Bytes{limit.rlim_cur};
}

Bytes addresses_used() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return Bytes{pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))};
}

constexpr std::string_view help =
    "raise the limits ('ulimit -v' of addresses, 'ulimit -u' and the control group's pids.max of threads), "
    "or "
    "make --page-cache, --io-cache and --workspace smaller";

// Threads that wait for each other, so that all are there at once.
struct Crowd {
  std::mutex mutex;
  std::condition_variable gone;
  bool over = false;
};

[[noreturn]] void end() {
  const char* what = address_limit() ? "a thread or memory could not be had" : nullptr;
  std::string told;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    what = "out of memory";
  } catch (const std::system_error& error) {
    told = error.what();
    what = told.c_str();
  } catch (...) {
    what = nullptr;
  }
  if (what == nullptr) std::abort();
  for (const std::string_view part : {std::string_view("carillon: "), std::string_view(what),
                                      std::string_view(": "), help, std::string_view("\n")})
    if (write(STDERR_FILENO, part.data(), part.size()) < 0) break;
  _exit(1);
}

}  // namespace

void spare_addresses() {
  if (address_limit()) mallopt(M_ARENA_MAX, 1);
}

Result<> enough_addresses(Bytes needed, std::string_view what) {
  const auto limit = address_limit();
  if (!limit) return {};
  const Bytes used = addresses_used();
  const Bytes left{limit->count - std::min(limit->count, used.count)};
  if (needed <= left) return {};
  return fail(ErrorCode::resource_exhausted,
              std::string(what) + " needs about " + to_text(needed) + " of addresses, and " + to_text(left) +
                  " of the " + to_text(*limit) +
                  " that the process may have ('ulimit -v') are left: " + std::string(help));
}

Result<> enough_threads(int count, std::string_view what) {
  Crowd crowd;
  const auto wait = [](void* shared) -> void* {
    auto& all = *static_cast<Crowd*>(shared);
    std::unique_lock lock(all.mutex);
    all.gone.wait(lock, [&] { return all.over; });
    return nullptr;
  };
  std::vector<pthread_t> threads(static_cast<std::size_t>(count));
  int error = 0;
  std::size_t started = 0;
  while (error == 0 && started < threads.size()) {
    error = pthread_create(&threads[started], nullptr, wait, &crowd);
    if (error == 0) ++started;
  }
  {
    const std::lock_guard lock(crowd.mutex);
    crowd.over = true;
  }
  crowd.gone.notify_all();
  for (std::size_t i = 0; i < started; ++i) pthread_join(threads[i], nullptr);
  if (error == 0) return {};
  return fail(ErrorCode::resource_exhausted, std::string(what) + " needs " + std::to_string(count) +
                                                 " threads, and the system gives " + std::to_string(started) +
                                                 " (" + std::strerror(error) + "): " + std::string(help));
}

void end_in_words() {
  std::set_terminate(&end);
}

}  // namespace carillon::cli
