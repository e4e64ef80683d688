#include "carillon/share/listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace carillon::share {
namespace {

std::unexpected<Error> system_error(const std::string& what) {
  return fail(errno == EMFILE || errno == ENFILE ? ErrorCode::resource_exhausted : ErrorCode::invalid_argument,
              what + ": " + std::strerror(errno));
}

// The folder is the user's own; only its last part is made.
Result<> make_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return {};
  const std::string folder = path.substr(0, slash);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return system_error("the socket's folder " + folder);
  return {};
}

}  // namespace

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty()) return invalid("a socket's path is empty");
  if (path.size() >= sizeof address.sun_path)
    return invalid("the socket's path " + path + " has " + std::to_string(path.size()) +
                   " characters, but the system takes " + std::to_string(sizeof address.sun_path - 1) + " at most");
  if (path.find('\0') != std::string::npos) return invalid("the socket's path has a character 0");
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

Result<Listener> Listener::open(const std::string& path, bool any_user) {
  const auto address = address_of(path);
  if (!address) return std::unexpected(address.error());
  if (auto made = make_folder(path); !made) return std::unexpected(made.error());
  Listener out;
  const std::string lock = path + ".lock";
  out.lock_ = Descriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!out.lock_.open()) return system_error("the socket's lock " + lock);
  if (flock(out.lock_.number(), LOCK_EX | LOCK_NB) != 0)
    return invalid("another broker listens at " + path + " (its lock " + lock + " is held)");
  struct stat there{};
  if (lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode)) return invalid(path + " is there, and is no socket: it is left alone");
    if (unlink(path.c_str()) != 0) return system_error("the socket that was left at " + path);
  }
  out.socket_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out.socket_.open()) return system_error("a socket");
  if (bind(out.socket_.number(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return system_error("the socket " + path);
  out.path_ = path;
  // Nobody can connect before it listens.
  if (chmod(path.c_str(), any_user ? 0666 : 0600) != 0 || listen(out.socket_.number(), 1024) != 0)
    return system_error("the socket " + path);
  return out;
}

Listener::~Listener() {
  if (socket_.open() && !path_.empty()) unlink(path_.c_str());
}

}  // namespace carillon::share
