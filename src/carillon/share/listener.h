#pragma once

#include <string>

#include <sys/un.h>

#include "carillon/base/descriptor.h"
#include "carillon/base/result.h"

namespace carillon::share {

// The address of a socket's path. Errors: it is empty or too long.
Result<sockaddr_un> address_of(const std::string& path);

// A broker's socket. Beside it lies PATH.lock, which a living broker has locked, so that of two that start at a
// time one only takes what a third has left behind.
class Listener {
 public:
  static Result<Listener> open(const std::string& path, bool any_user);
  ~Listener();  // removes the socket
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) = delete;

  int number() const { return socket_.number(); }

 private:
  Listener() = default;
  Descriptor socket_, lock_;
  std::string path_;
};

}  // namespace carillon::share
